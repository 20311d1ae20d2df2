"""The errors an application can meet: one flat, named hierarchy. Floor: beside the model, below everything else.

Each says in one line what was wrong and what to do about it, and carries the job's type and id where there are any.
"""

from __future__ import annotations

from typing import Any, Self


class JobsError(Exception):
    """Whatever jobs_service raises on purpose.

    Attributes:
        type: the job type concerned, or None.
        id: the job id concerned (str or bytes), or None.
    """

    def __init__(self, message: str, *, type: Any = None, id: str | bytes | None = None) -> None:
        super().__init__(message)
        self.type = type
        self.id = id


class JobNotFound(JobsError):
    """There is no such job."""


class JobExists(JobsError):
    """A job with this type and id is there already (add with if_exists="resubmit" or "ignore" accepts that)."""


class NoTypeTimeout(JobsError):
    """The type has no activity timeout, so it does not exist: set_type_timeout creates it."""


class WorkerConflict(JobsError):
    """The caller no longer holds the job's lock: the job was lost, released or removed. Nothing was written."""


class JobCanceled(JobsError):
    """A creator asked for this running job to be removed: finish it now. Nothing was written."""


class InvalidJob(JobsError):
    """A type, id, data, priority or time that no job can have. Nothing was written."""

    def about(self, type: Any, id: Any = None) -> Self:
        """Return the error, saying which job it is about."""
        self.type = type
        self.id = id
        return self


class JobTooLarge(JobsError):
    """A job's record or one of its keys is over the store's limit; the message names size and limit."""


class InvalidSettings(JobsError, ValueError):
    """A setting with a value outside its allowed range; the message names variable, value and range."""


class StoreError(JobsError):
    """The store refused or failed.

    Attributes:
        retryable: whether the same call may succeed later (the store was away, full, slow or contended).
    """

    retryable = False


class StoreUnavailable(StoreError):
    """The store did not answer within the transaction's time limit. A write may still take effect."""

    retryable = True


class StoreFull(StoreError):
    """The disk or the store's map is full: nothing was written, reads go on."""

    retryable = True


class TransactionTooLarge(StoreError):
    """More bytes, a longer key or a longer value than the store's limits allow. Nothing was written."""


class TransactionTooOld(StoreError):
    """A transaction function ran longer than the store's limit (5 s). Nothing was written."""

    retryable = True


class TransactionConflict(StoreError):
    """Another transaction changed what this one had read. Stores run the function again, so callers rarely see it."""

    retryable = True


class CommitUnknown(StoreError):
    """The commit may or may not have happened. Stores run the function again, so callers rarely see it."""

    retryable = True


class SupervisorFailed(JobsError):
    """A supervisor gave up: its children failed more often than its restart intensity allows. The cause is chained."""


def shown(value: object) -> str:
    """Return a value as messages quote it: on one line, not too long, whatever it is."""
    try:
        text = repr(value)
    except Exception:  # an integer of too many digits, nesting too deep, a __repr__ that fails
        return f"<a {type(value).__name__} that cannot be shown>"
    text = " ".join(text.splitlines())
    return text if len(text) <= 60 else text[:57] + "..."
