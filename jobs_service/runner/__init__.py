"""Runs handlers: the jobs of a type in a limited number of slots, kept alive, retried, each with a fair share."""
