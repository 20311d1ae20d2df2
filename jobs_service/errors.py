"""The errors that an application can meet, in one flat hierarchy.

Each message names in one line the fault and its correction. An error about a job carries its type and id.
"""

from __future__ import annotations

import copy
import difflib
import reprlib
from collections.abc import Iterable
from typing import Any, Final, Self, TypeVar

from jobs_service.durations import Bounds, Duration, seconds_of

JobsErrorT = TypeVar("JobsErrorT", bound="JobsError")

_MOST_SHOWN: Final = 60
_MOST_OF_A_NAME: Final = 80
_WAITS: Final = Bounds()

OTHER_LOOP: Final = "was opened on another event loop; use it there (in a thread: asyncio.run_coroutine_threadsafe)"
"""Message for use of a service or store on another event loop than its own."""


class JobsError(Exception):
    """Base of all errors that jobs_service raises on purpose.

    Attributes:
        type: the job type concerned, or None.
        id: the job id concerned (str or bytes), or None.
        slug: the stable name of its kind over HTTP, the end of a problem's `type`; a subclass has its parent's.
        http_status: the status of the answer over HTTP.
    """

    slug: str = "jobs-error"
    http_status: int = 400
    # Also of those whose class is an application's, with an __init__ of its own.
    type: Any = None
    id: str | bytes | None = None

    def __init_subclass__(cls, *, slug: str | None = None, http_status: int | None = None) -> None:
        cls.slug = cls.slug if slug is None else slug
        cls.http_status = cls.http_status if http_status is None else http_status

    def __init__(self, message: str, *, type: Any = None, id: str | bytes | None = None) -> None:
        super().__init__(message)
        self.type = type
        self.id = id

    def __reduce__(self) -> Any:
        # Exception's own calls the class with the message, which is no argument of Retry's, nor of an application's.
        return _remade, (self.__class__, self.args, self.__dict__)

    def about(self, type: Any, id: Any = None) -> Self:
        """Return the error after setting the job that it is about."""
        self.type = type
        self.id = id
        return self


class JobNotFound(JobsError, slug="job-not-found", http_status=404):
    """There is no such job."""


class JobExists(JobsError, slug="job-exists", http_status=409):
    """A job with this type and id is there already (add with if_exists="resubmit" or "ignore" accepts that)."""


class JobChanged(JobsError, slug="job-changed", http_status=409):
    """The job has changed since the caller read it; nothing was done. Read it again."""


class NoTypeTimeout(JobsError, slug="no-type-timeout", http_status=404):
    """The type has no activity timeout, so it does not exist: set_type_timeout creates it."""

    @classmethod
    def of(cls, type: Any) -> Self:
        """Return the error for a type that was never made."""
        name = shown(type)
        made = f"the start of its handler creates it, and so does set_type_timeout({name}, seconds)"
        return cls(f"there is no type {name}: {made}", type=type)

    @classmethod
    def after_removal(cls, type: Any) -> Self:
        """Return the error for a type that somebody has removed."""
        name = shown(type)
        made = f"set_type_timeout({name}, seconds) creates it again, and so does the start of its handler"
        return cls(f"type {name} was removed, so that no new jobs are added; {made}", type=type)


class WorkerConflict(JobsError, slug="worker-conflict", http_status=409):
    """The caller no longer holds the job's lock: the job was lost, released or removed. Nothing was written."""


class JobCanceled(JobsError, slug="job-canceled", http_status=409):
    """A creator asked for this running job to be removed: finish it now. Nothing was written."""


class InvalidJob(JobsError, slug="invalid-job", http_status=422):
    """A type, id, data, priority or time that no job can have. Nothing was written."""


class JobTooLarge(JobsError, slug="job-too-large", http_status=413):
    """A job's record or one of its keys is over the store's limit; the message names size and limit."""


class ServiceClosed(JobsError, slug="service-closed", http_status=503):
    """The service accepts no calls: it was not entered yet, is being left, or was left. Nothing was begun."""


class InvalidSettings(JobsError, ValueError, slug="invalid-settings", http_status=422):
    """A setting with a value outside its allowed range; the message names variable, value and range."""


class StoreError(JobsError, slug="store-error", http_status=500):
    """The store refused or failed.

    Attributes:
        retryable: whether the same call may succeed later (the store was away, full, slow or contended).
    """

    retryable = False


class RecordDamaged(StoreError, slug="record-damaged", http_status=500):
    """A job's record cannot be read: its bytes are damaged, or a newer version has written it.

    All other work goes on without the job; `remove` with `force=True` removes it.
    """

    def of(self, type: Any, id: Any) -> RecordDamaged:
        """Return the error with the name of its job."""
        if self.type is not None:
            return self
        what = f"job {job_name(type, id)}: {self}; remove it with force=True unless another version can read it"
        return RecordDamaged(what, type=type, id=id)


class InvalidAddress(StoreError, slug="invalid-address", http_status=422):
    """The address does not name any store."""


class StoreDamaged(StoreError, slug="store-damaged", http_status=500):
    """A page of the embedded store's file is damaged: restore a backup (docs/stores.md, A damaged store)."""


class StoreLost(StoreError, slug="store-lost", http_status=503):
    """The embedded store's files were removed, moved or replaced while this process used them. It goes on with none.

    Writes that were not acknowledged are missing from the store that the next process opens.
    """


class StoreUnavailable(StoreError, slug="store-unavailable", http_status=503):
    """The store did not answer within the transaction's time limit. A write may still take effect if it says so."""

    retryable = True


class StoreFull(StoreError, slug="store-full", http_status=507):
    """The disk or the store's map is full: nothing was written, reads go on."""

    retryable = True


class TransactionTooLarge(StoreError, slug="transaction-too-large", http_status=413):
    """More bytes, a longer key or a longer value than the store's limits allow. Nothing was written."""


class TransactionTooOld(StoreError, slug="transaction-too-old", http_status=503):
    """A transaction function ran longer than the store's limit (5 s). Nothing was written."""

    retryable = True


class TransactionConflict(StoreError, slug="transaction-conflict", http_status=503):
    """Another transaction changed data that this one had read. Stores run it again, so callers rarely see it."""

    retryable = True


class CommitUnknown(StoreError, slug="commit-unknown", http_status=503):
    """The commit may or may not have happened. Stores find out, so callers rarely see it."""

    retryable = True


class DirectoryMoved(StoreError, slug="directory-moved", http_status=503):
    """The jobs have moved to another directory. Nothing was written; the same call works on that directory."""


class JobFailed(JobsError, slug="job-failed", http_status=409):
    """An awaited job ended without success.

    Attributes:
        outcome: "failed" or "canceled".
        error: how its last run failed (a JobError), None if no error was reported.
    """

    def __init__(
        self,
        message: str,
        *,
        type: Any = None,
        id: str | bytes | None = None,
        outcome: str = "failed",
        error: Any = None,
    ) -> None:
        super().__init__(message, type=type, id=id)
        self.outcome = outcome
        self.error = error


ANOTHER_ATTEMPT: Final = "the handler asked for another attempt"


class Retry(JobsError, slug="retry", http_status=409):
    """Raised by a handler: this run failed, try again later. It counts as an attempt.

    The job's error shows the exception that this one was raised from, or while handling.

    Args:
        after: duration until the next run at the earliest; None for the handler's backoff.
        message: the reason, for the job's error.
    """

    after: float | None = None

    def __init__(self, after: Duration | None = None, message: str = ANOTHER_ATTEMPT) -> None:
        super().__init__(_text("Retry(message", message))
        self.after = _seconds("Retry(after", after) if after is not None else None


class Discard(JobsError, slug="discard", http_status=409):
    """Raised by a handler: the job failed for good, whatever attempts are left. Its error tells of a cause, as Retry's.

    Args:
        reason: for the job's error.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(_text("Discard(reason", reason))
        self.reason = reason


class Snooze(JobsError, slug="snooze", http_status=409):
    """Raised by a handler: run the job again later; this run does not count.

    Args:
        seconds: duration until the next run at the earliest.
    """

    def __init__(self, seconds: Duration) -> None:
        self.seconds = _seconds("Snooze(seconds", seconds)
        super().__init__(f"not before {self.seconds} s from now")


class AccessDenied(JobsError, slug="forbidden", http_status=403):
    """A server does not let the caller do this: its token is missing, unknown, or has another role."""


class ProcessGone(JobsError, slug="process-gone", http_status=404):
    """No process with this id uses the store: it has died, is ending, or never existed."""


class ScheduleNotFound(JobsError, slug="schedule-not-found", http_status=404):
    """There is no such schedule in the store."""


class SupervisorFailed(JobsError, slug="supervisor-failed", http_status=503):
    """A supervisor gave up: its children failed more often than its restart intensity allows. The cause is chained."""


def shown(value: object, most: int = _MOST_SHOWN) -> str:
    """Return a value as messages quote it: on one line, printable and short, for any object."""
    brief = _Brief()
    brief.maxlevel = 4
    brief.maxtuple = brief.maxlist = brief.maxdict = brief.maxset = brief.maxfrozenset = 20
    brief.maxstring = brief.maxlong = brief.maxother = most
    try:
        # Of a long value only the beginning is converted to text.
        text = brief.repr(value[: most + 1] if isinstance(value, bytes) else value)
        return in_one_line(text, most)
    except Exception:  # an integer of too many digits, nesting too deep, a __repr__ that fails
        return f"<{a_kind_of(value)} that cannot be shown>"


def not_removed(type: Any, id: Any, seconds: float | None, is_canceled: bool) -> TimeoutError:
    """Return the error for a job that was not stopped and removed in time.

    Args:
        type, id: the job.
        seconds: the time limit.
        is_canceled: whether the store has confirmed that the job is canceled.
    """
    if is_canceled:
        return TimeoutError(f"job {job_name(type, id)} did not finish within {seconds} s; it stays canceled")
    return TimeoutError(
        f"job {job_name(type, id)}: no answer within {seconds} s whether it is canceled; it may be or not, so ask again"
    )


def job_name(type: object, id: object) -> str:
    """Return a job's name for messages."""
    return f"{shown(type, _MOST_OF_A_NAME)}/{shown(id, _MOST_OF_A_NAME)}"


def kind_of(value: object) -> str:
    """Return the name of a value's class for messages."""
    return in_one_line(type(value).__name__, _MOST_SHOWN)


def a_kind_of(value: object) -> str:
    """Return a class name with its article: a str, an int."""
    name = kind_of(value)
    return f"{'an' if name[:1] in 'aeioAEIO' else 'a'} {name}"


def in_one_line(text: str, most: int) -> str:
    """Return the beginning of a text, on one line and without control characters for a terminal."""
    line = " ".join(text[: 4 * most].splitlines())
    line = line if line.isprintable() else "".join(map(_printable, line))
    return line if len(line) <= most else line[: most - 3] + "..."


def meant(name: Any, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: the nearest known name, or all of them."""
    names = [*known]
    close = difflib.get_close_matches(name, names, n=1) if isinstance(name, str) else []
    if close:
        return f"; did you mean {close[0]}?"
    return f"; there are {', '.join(names)}" if names else ""


def _seconds(what: str, value: object) -> float:
    """Return a wait in seconds, checked."""
    seconds = _WAITS.seconds(value)
    if seconds is None:
        raise InvalidJob(f"{what}={shown(value)}): allowed are {_WAITS}")
    return seconds


def wait_of(error: Retry | Snooze) -> float | None:
    """Return the wait that a handler asks for, in seconds; None for its backoff. A time in the past is 0.

    An application may have set the attribute itself, as in a subclass, to a value that the constructor refuses.

    Raises:
        InvalidJob: no job can be due in so many seconds.
    """
    what, value = ("after", error.after) if isinstance(error, Retry) else ("seconds", error.seconds)
    if value is None and isinstance(error, Retry):
        return None
    seconds = seconds_of(value)
    return 0.0 if seconds is not None and seconds < 0 else _seconds(f"{kind_of(error)}({what}", value)


def _text(what: str, value: object) -> str:
    """Return the text of an exception, checked."""
    if not isinstance(value, str):
        raise InvalidJob(f"{what}={shown(value)}): {a_kind_of(value)}; allowed is str")
    return value


def anew(error: JobsErrorT) -> JobsErrorT:
    """Return a copy of an error to raise again: each raise of the same object keeps more frames alive, and its
    traceback shows all callers.
    """
    again = copy.copy(error)
    again.__cause__ = error.__cause__
    return again


def _remade(kind: type[JobsError], args: tuple[Any, ...], fields: dict[str, Any]) -> JobsError:
    """Rebuild an error from a copy or from another process."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(fields)
    return error


class _Brief(reprlib.Repr):
    """Shows only the beginnings of long values, and passes on exceptions of an object's own `__repr__`."""

    def repr_instance(self, x: Any, level: int) -> str:
        plain = type(x).__dict__.get("__repr__") is None and type(x).__mro__[1:] == (object,)
        return f"<{a_kind_of(x)}>" if plain else repr(x)


def _printable(char: str) -> str:
    return char if char.isprintable() else repr(char)[1:-1]
