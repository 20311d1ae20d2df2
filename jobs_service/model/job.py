"""Jobs, jobs to be added, and events, as applications see them; all frozen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, Protocol, TypeVar

from jobs_service import json_data, json_forms, run_data, tracing
from jobs_service.errors import RecordDamaged
from jobs_service.model.terms import (
    UNSET,
    Enqueued,
    JobId,
    JobState,
    JobType,
    Outcome,
    Priority,
    RunAt,
)
from jobs_service.run_values import HistoryEvent, JobError, Progress

T = TypeVar("T")
V = TypeVar("V")
ResultT_co = TypeVar("ResultT_co", covariant=True)


class JobRecord(Protocol):
    """The layer's record, which a Job wraps: each part is decoded when it is asked for."""

    __slots__ = ()

    @property
    def state(self) -> JobState: ...
    @property
    def outcome(self) -> Outcome | None: ...
    @property
    def json(self) -> bytes: ...
    @property
    def priority(self) -> bytes: ...
    @property
    def named_priority(self) -> Priority: ...
    @property
    def run_at(self) -> float | None: ...
    @property
    def resubmit(self) -> bool: ...
    @property
    def next(self) -> tuple[bytes, float | None] | None: ...
    @property
    def cancel(self) -> bool: ...
    @property
    def seq_bytes(self) -> bytes | None: ...
    @property
    def lock(self) -> bytes | None: ...
    @property
    def run_data(self) -> bytes: ...
    def size(self) -> int: ...


class Job:
    """One job as it was when it was read. Frozen: a later state is another object."""

    __slots__ = ("_data", "_enqueued", "_id", "_record", "_type")

    def __init__(self, type: JobType, id: JobId, record: JobRecord) -> None:
        self._type = type
        self._id = id
        self._record = record
        self._data: Any = UNSET
        self._enqueued: Enqueued | None = None

    @property
    def type(self) -> JobType:
        """The job's type."""
        return self._type

    @property
    def id(self) -> JobId:
        """The job's id within its type."""
        return self._id

    @property
    def state(self) -> JobState:
        """PENDING, RUNNING or FINISHED."""
        return self._record.state

    @property
    def outcome(self) -> Outcome | None:
        """How it ended; None unless finished."""
        return self._record.outcome

    @property
    def data(self) -> Any:
        """The job's own JSON value, None when there is none."""
        if self._data is UNSET:
            self._data = self._readable(json_data.decode, self._record.json)
        return self._data

    @property
    def priority(self) -> Priority:
        """Lower runs first."""
        return self._record.named_priority

    @property
    def run_at(self) -> datetime | None:
        """The earliest time to run (aware, UTC), None for at once."""
        seconds = self._record.run_at
        return None if seconds is None else datetime.fromtimestamp(seconds, UTC)

    @property
    def retrying(self) -> bool:
        """Whether it waits for another attempt, because its last run has crashed."""
        return self.state is JobState.PENDING and run_data.crashed_last(self._record.run_data)

    @property
    def resubmit(self) -> bool:
        """Whether the job becomes pending again when it finishes."""
        return self._record.resubmit

    @property
    def cancel(self) -> bool:
        """Whether a creator asked for the running job to be removed."""
        return self._record.cancel

    @property
    def seq(self) -> bytes | None:
        """The 12-byte versionstamp of its last change of place, growing in commit order; None until it is committed."""
        return self._record.seq_bytes

    @property
    def attempts(self) -> int:
        """How many runs have begun since it was added or resubmitted, without those that were stopped."""
        return run_data.attempts_of(self._record.run_data)

    @property
    def history(self) -> tuple[HistoryEvent, ...]:
        """What happened to it, newest first; the oldest events are forgotten."""
        return self._readable(run_data.history_of, self._record.run_data)

    @property
    def result(self) -> Any:
        """What its last run returned, None for nothing."""
        return self._readable(run_data.result_of, self._record.run_data)

    @property
    def error(self) -> JobError | None:
        """How its last failed run ended; None when none has failed since it was added or resubmitted."""
        return self._readable(run_data.error_of, self._record.run_data)

    @property
    def progress(self) -> Progress | None:
        """How far it has come, as its worker reported last."""
        return self._readable(run_data.progress_of, self._record.run_data)

    def _readable(self, read: Callable[[V], T], value: V) -> T:
        """Return a part of the record, decoded.

        Raises:
            RecordDamaged: the part is damaged; says which job.
        """
        try:
            return read(value)
        except RecordDamaged as error:
            raise error.of(self._type, self._id) from None

    @property
    def max_attempts(self) -> int | None:
        """How many runs of it may fail; None for as many as its handler says."""
        return run_data.limits_of(self._record.run_data)[0]

    @property
    def time_limit(self) -> float | None:
        """What one run of it may take, in seconds; None for what its handler says."""
        return run_data.limits_of(self._record.run_data)[1]

    @property
    def trace_context(self) -> dict[str, str]:
        """W3C's traceparent and tracestate of the span in which it was added, as propagators take them; or empty."""
        return tracing.carrier_of(self._record.run_data)

    @property
    def enqueued(self) -> Enqueued | None:
        """What the `enqueue` that returned it did: added it, put it to work again, or found it; else None."""
        return self._enqueued

    @property
    def created(self) -> bool | None:
        """Whether the `enqueue` that returned it has added it; None: not by enqueue. See `enqueued`."""
        return None if self._enqueued is None else self._enqueued is Enqueued.NEW

    def to_dict(self) -> dict[str, Any]:
        """Return the job as plain data that any JSON encoder takes, such as json's, FastAPI's or msgspec's.

        Its fields have the names and values of this class; times are ISO 8601 in UTC with microseconds; outcome and
        state are strings, `seq` is hexadecimal. A type, id or priority that is no str or int is what JSON can say of
        it: bytes are {"bytes": hexadecimal}, tuples lists.
        """
        return {
            "type": json_forms.name(self._type),
            "id": json_forms.name(self._id),
            "state": self.state.value,
            "outcome": None if self.outcome is None else self.outcome.value,
            "data": self.data,
            "priority": json_forms.name(self.priority),
            "run_at": json_forms.time(self.run_at),
            "retrying": self.retrying,
            "resubmit": self._record.resubmit,
            "cancel": self.cancel,
            "seq": None if self.seq is None else self.seq.hex(),
            "attempts": self.attempts,
            "result": self.result,
            "error": json_forms.error(self.error),
            "progress": json_forms.progress(self._readable(run_data.progress_of, self._record.run_data)),
            "history": [
                {
                    "kind": event.kind.value,
                    "at": json_forms.time(self._readable(lambda event: event.time, event)),
                    "detail": event.detail,
                }
                for event in self.history
            ],
        }

    def _fields(self) -> tuple[Any, ...]:
        return (
            self._type,
            self._id,
            self.state,
            self.outcome,
            self.data,
            self.priority,
            self.run_at,
            self._record.resubmit,
            self.cancel,
            self.seq,
            self._record.lock,
            self._record.run_data,
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Job) or other.__class__ is not self.__class__:
            return NotImplemented
        return self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash((self._type, self._id, self.seq))

    def __repr__(self) -> str:
        outcome = f", outcome={self.outcome.value}" if self.outcome else ""
        return f"<{type(self).__name__} {self._type!r}/{self._id!r} {self.state.value}{outcome}>"


class EndedJob(Job, Generic[ResultT_co]):
    """A job as its handler has ended it together with the effects of a function, see RunningJob.finish_with.

    A handler that returns it says so, `-> EndedJob[int]`: an int, which the function returns, is its jobs' result.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if other.__class__ not in (Job, EndedJob):
            return NotImplemented
        assert isinstance(other, Job)
        return self._fields() == other._fields()

    __hash__ = Job.__hash__


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to be added by `add_many`.

    Attributes:
        id: names the job within the type.
        data: its JSON value.
        priority: lower runs first.
        run_at: the earliest time to run, an aware datetime or seconds since the epoch; None for at once.
    """

    id: JobId
    data: Any = None
    priority: Priority = 0
    run_at: RunAt | None = None


@dataclass(frozen=True, slots=True)
class JobEvent:
    """What a subscriber gets.

    Attributes:
        type, id: the job.
        state: PENDING, RUNNING, FINISHED or REMOVED; the last two end the subscription.
        data: the job's JSON value at that moment; None when removed.
        outcome: how it ended; None unless finished.
        seq: 12-byte versionstamp of the change, growing in commit order; None when removed.
        result: what the last run returned.
        error: how the last failed run ended; None when there was none.
        progress: how far the job has come; None when nobody said.
        attempts: how many runs have begun since it was added or resubmitted, without those that were stopped.
        run_at: when the pending job runs next at the earliest (aware, UTC): after a crash, for instance; None for at
            once, and unless pending.
        retrying: whether the pending job waits for another attempt, because its last run has crashed.
    """

    type: JobType
    id: JobId
    state: JobState
    data: Any
    outcome: Outcome | None
    seq: bytes | None
    result: Any = None
    error: JobError | None = None
    progress: Progress | None = None
    attempts: int = 0
    run_at: datetime | None = None
    retrying: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the event as plain data that any JSON encoder takes: see Job.to_dict for how types and times look."""
        return {
            "type": json_forms.name(self.type),
            "id": json_forms.name(self.id),
            "state": self.state.value,
            "outcome": None if self.outcome is None else self.outcome.value,
            "data": self.data,
            "seq": None if self.seq is None else self.seq.hex(),
            "result": self.result,
            "error": json_forms.error(self.error),
            "progress": json_forms.progress(self.progress),
            "attempts": self.attempts,
            "run_at": json_forms.time(self.run_at),
            "retrying": self.retrying,
        }


def next_run(record: JobRecord) -> datetime | None:
    """Return when a pending job runs next at the earliest; None for at once, and unless it is pending."""
    seconds = record.run_at
    if seconds is None or record.state is not JobState.PENDING:
        return None
    return datetime.fromtimestamp(seconds, UTC)
