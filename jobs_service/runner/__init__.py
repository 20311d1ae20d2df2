"""Runs handlers: a type's jobs in a limited number of slots, kept alive, retried and given a fair share.

Floor: above the layer and the supervision, below the service.
"""
