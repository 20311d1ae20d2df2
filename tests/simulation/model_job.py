"""What a job is in the plain model, and what is told of its runs after each event."""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeAlias

from jobs_service import json_data
from jobs_service.model import UNSET, JobId, JobType, Outcome

READY: Final = "ready"
SCHEDULED: Final = "scheduled"
RUNNING: Final = "running"
FINISHED: Final = "finished"

MOST_HISTORY: Final = 20
"""Events of a job's history that are kept unless a worker says otherwise."""

_MOST_DETAIL: Final = 255
_KEPT_EVENTS: Final = 3
# Bytes of a record beside what varies, of its notes, of an event without its detail, and of a part beside its JSON.
_RECORD_BYTES: Final = 54
_NOTES_BYTES: Final = 14
_EVENT_BYTES: Final = 10
_PART_BYTES: Final = 4

Key: TypeAlias = tuple[JobType, JobId]
"""A job's type and id."""


class Change(NamedTuple):
    """What a creator, or the job's worker, wants a job to be; UNSET for what stays as it is.

    Attributes:
        data: JSON bytes.
        priority: packed.
        run_at: seconds since the epoch, or None.
        limits: that hold for it instead of its handler's, JSON bytes; None for none.
    """

    data: Any
    priority: Any
    run_at: Any
    limits: bytes | None = None


class Said(NamedTuple):
    """What a worker says at the end of a run beside data.

    Attributes:
        result, error: JSON bytes; None leaves what is there, an empty result is none.
        reason: of a crash; empty for none.
        most: events of the history that are kept; None for as many as there are, and 20 at least.
        crashes: in a row; None for one more than before.
        attempts: to be added to their number.
    """

    result: bytes | None = None
    error: bytes | None = None
    reason: str = ""
    most: int | None = None
    crashes: int | None = None
    attempts: int = 0


NOTHING: Final = Said()

_ENDS_ROW: Final = frozenset({"added", "stopped", "finished", "canceled"})
_MOST_CRASHES: Final = 15

Event: TypeAlias = tuple[str, float, str]
"""What happened to a job, when (seconds since the epoch), and a detail."""


class Notes(NamedTuple):
    """What is told of a job's runs.

    Attributes:
        attempts: runs since it was added or resubmitted that count.
        history: the newest first.
        result, error, progress: JSON bytes, None for none.
        expires: when it is to go, seconds since the epoch; None for never.
        crashes: how many runs have crashed in a row, 15 for as many or more.
        limits: that hold for it instead of its handler's, JSON bytes; None for none.
    """

    attempts: int = 0
    history: tuple[Event, ...] = ()
    result: bytes | None = None
    error: bytes | None = None
    progress: bytes | None = None
    expires: float | None = None
    crashes: int = 0
    limits: bytes | None = None

    def size(self) -> int:
        """Return how many bytes of a record they take."""
        parts = [part for part in (self.result, self.error, self.progress, self.limits) if part is not None]
        events = sum(_EVENT_BYTES + len(detail.encode()) for _, _, detail in self.history)
        return _NOTES_BYTES + events + sum(_PART_BYTES + len(part) for part in parts)


class ModelJob(NamedTuple):
    """One state of a job.

    Attributes:
        state: READY, SCHEDULED, RUNNING or FINISHED.
        data: JSON bytes, empty for None.
        priority: packed.
        run_at: seconds since the epoch, or None.
        outcome: how it ended, None unless finished.
        next: priority and run_at of the run after this one, None when none was asked for.
        cancel: whether a creator asked for the running job's removal.
        lock: of its worker, None unless running.
        notes: what is told of its runs.
        place: when it came to where it is, as a number that grows with every move: its place in the queue.
        active_at: time of its worker's last sign of life, None unless running.
    """

    state: str
    data: bytes
    priority: bytes
    run_at: float | None
    outcome: Outcome | None
    next: tuple[bytes, float | None] | None
    cancel: bool
    lock: bytes | None
    notes: Notes
    place: int
    active_at: float | None

    @property
    def pending(self) -> bool:
        """Whether it waits for a worker."""
        return self.state in (READY, SCHEDULED)

    @property
    def retrying(self) -> bool:
        """Whether it waits for another attempt: its newest event is that a run has crashed."""
        return self.pending and bool(self.notes.history) and self.notes.history[0][0] == "crashed"


OBSERVED: Final = 9
"""The first so many fields of a ModelJob can be seen by an application."""


def column(job: ModelJob | None, lock: bytes | None = None) -> str:
    """Return the column of the operations table that a job is in, for a worker with this lock."""
    if job is None:
        return "missing"
    if job.state is FINISHED:
        return "finished"
    if job.state is not RUNNING:
        return "pending"
    if lock is not None and job.lock != lock:
        return "elsewhere"
    if job.cancel:
        return "canceled"
    return "running" if job.next is None else "flagged"


def size(job: ModelJob) -> int:
    """Return how many bytes a job's record takes."""
    longest = max(len(job.priority), 0 if job.next is None else len(job.next[0]))
    return _RECORD_BYTES + 2 * longest + job.notes.size() + len(job.data)


def fitted(notes: Notes, most: int) -> Notes:
    """Return notes that take at most so many bytes, with less of the history, the error and the progress."""
    while notes.size() > most and len(notes.history) > _KEPT_EVENTS:
        notes = notes._replace(history=notes.history[:-1])
    if notes.size() > most and notes.error is not None:
        notes = notes._replace(error=json_data.encode([*json_data.decode(notes.error)[:2], ""]))
    if notes.size() > most and notes.progress is not None:
        done, total, _, *attempt = json_data.decode(notes.progress)
        notes = notes._replace(progress=json_data.encode([done, total, "", *attempt]))
    if notes.size() > most and notes.error is not None:
        type, message, _ = json_data.decode(notes.error)
        while notes.size() > most and message:
            message = message[:-1]
            notes = notes._replace(error=json_data.encode([type, message + "…", ""]))
    if notes.size() > most:
        notes = notes._replace(history=())
    if notes.size() > most:
        notes = notes._replace(progress=None)
    return notes if notes.size() <= most else notes._replace(error=None)


def noted(notes: Notes, kind: str, now: float, detail: str = "", most: int | None = None) -> tuple[Event, ...]:
    """Return a history with one more event, without those that are too many."""
    cut = detail.encode(errors="replace")[:_MOST_DETAIL].decode(errors="ignore")
    kept = max(MOST_HISTORY, len(notes.history)) if most is None else most
    return ((kind, now, cut), *notes.history)[:kept]


def happened(notes: Notes, kind: str, now: float, detail: str = "", most: int | None = None) -> Notes:
    """Return what is told of a job after an event."""
    crashes = 0 if kind in _ENDS_ROW else notes.crashes
    return notes._replace(history=noted(notes, kind, now, detail, most), crashes=crashes)


def crashed(notes: Notes, now: float, said: Said) -> Notes:
    """Return what is told of a job after a crash."""
    crashes = notes.crashes + 1 if said.crashes is None else said.crashes
    return happened(notes, "crashed", now, said.reason, said.most)._replace(crashes=min(crashes, _MOST_CRASHES))


def told(notes: Notes, said: Said) -> Notes:
    """Return what is told of a job with the result and the error that its worker has given."""
    return notes._replace(
        result=notes.result if said.result is None else said.result or None,
        error=notes.error if said.error is None else said.error,
    )


def next_run(job: ModelJob, change: Change) -> tuple[bytes, float | None]:
    """Return priority and run_at of a running job's next run."""
    priority, run_at = job.next or (job.priority, job.run_at)
    return (
        priority if change.priority is UNSET else change.priority,
        run_at if change.run_at is UNSET else change.run_at,
    )
