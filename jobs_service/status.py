"""What a job does, in one word: the words that people see everywhere.

A job's state and outcome are two values, and `pending` means two things; here each has one word.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from jobs_service.model import Job, JobEvent


class Status(enum.StrEnum):
    """What a job does."""

    READY = "ready"
    """Pending: it can run now."""
    SCHEDULED = "scheduled"
    """Pending: it is not due yet."""
    RETRYING = "retrying"
    """Pending, due or not: its last run has crashed, and it waits for another attempt."""
    RUNNING = "running"
    """A worker has it."""
    SUCCEEDED = "succeeded"
    """Finished."""
    FAILED = "failed"
    """Finished without success, and is not tried again."""
    CANCELED = "canceled"
    """Finished because somebody removed it while it ran."""
    UNREADABLE = "unreadable"
    """Its record is damaged, or of a newer version."""


UNFINISHED = (Status.READY, Status.SCHEDULED, Status.RETRYING, Status.RUNNING)
ENDED: Final = (Status.SUCCEEDED, Status.FAILED, Status.CANCELED)
COUNTED: Final[tuple[Status, ...]] = tuple(each for each in Status if each is not Status.UNREADABLE)
"""Those that pages show figures of, in their order."""

MEANT: Final[Mapping[str, tuple[Status, ...]]] = {
    **{each.value: (each,) for each in Status},
    "pending": (Status.READY, Status.SCHEDULED, Status.RETRYING),
    "finished": ENDED,
}
"""What the words mean by which people ask for jobs in a state."""


def status_of(job: Job | JobEvent, now: float) -> Status:
    """Return what a job does at a time (seconds since the epoch)."""
    state = job.state.value
    if state == "pending":
        if job.retrying:
            return Status.RETRYING
        return Status.READY if job.run_at is None or job.run_at.timestamp() <= now else Status.SCHEDULED
    return Status(job.outcome or Status.SUCCEEDED) if state == "finished" else Status(state)
