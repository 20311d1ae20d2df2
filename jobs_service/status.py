"""A job's status in one word, the same in every view.

State and outcome of a job are two values, and `pending` has several meanings; here each has one word.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from jobs_service.model import Job, JobEvent


class Status(enum.StrEnum):
    """The status of a job."""

    READY = "ready"
    """Pending: it can run now."""
    SCHEDULED = "scheduled"
    """Pending: it is not due yet."""
    RETRYING = "retrying"
    """Pending, due or not: its last run has crashed, and it waits for another attempt."""
    RUNNING = "running"
    """A worker holds it."""
    SUCCEEDED = "succeeded"
    """Finished."""
    FAILED = "failed"
    """Finished without success; it is not tried again."""
    CANCELED = "canceled"
    """Finished because it was removed while it ran."""
    UNREADABLE = "unreadable"
    """Its record is damaged, or a newer version wrote it."""


UNFINISHED = (Status.READY, Status.SCHEDULED, Status.RETRYING, Status.RUNNING)
ENDED: Final = (Status.SUCCEEDED, Status.FAILED, Status.CANCELED)
COUNTED: Final[tuple[Status, ...]] = tuple(each for each in Status if each is not Status.UNREADABLE)
"""Statuses with figures on pages, in their order."""

MEANT: Final[Mapping[str, tuple[Status, ...]]] = {
    **{each.value: (each,) for each in Status},
    "pending": (Status.READY, Status.SCHEDULED, Status.RETRYING),
    "finished": ENDED,
}
"""Statuses by the words with which users filter jobs by state."""


def status_of(job: Job | JobEvent, now: float) -> Status:
    """Return a job's status at a time (seconds since the epoch)."""
    state = job.state.value
    if state == "pending":
        if job.retrying:
            return Status.RETRYING
        return Status.READY if job.run_at is None or job.run_at.timestamp() <= now else Status.SCHEDULED
    return Status(job.outcome or Status.SUCCEEDED) if state == "finished" else Status(state)
