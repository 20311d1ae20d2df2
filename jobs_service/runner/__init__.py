"""Runs handlers: each type's jobs in a limited number of slots, kept alive, retried, with a fair share for each."""
