"""What the tests of stores that are full or do not answer have in common."""

from __future__ import annotations

from jobs_service import JobsService

T1 = "t1"
PATIENCE = 60.0
"""Seconds after which what should have happened at once has not."""


def restarts(jobs: JobsService) -> int:
    """Return how often anything in the tree was started again, all of which must be running."""
    children = jobs.supervision()["children"]
    assert {child["state"] for child in children} == {"running"}
    return sum(int(child["restarts"]) for child in children)
