"""Jobs, running jobs, jobs to be added, and events, as applications see them; and the terms and words for them.

The module has more than 600 lines because a job is one thing: a running job is a job with the operations of its worker.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar, overload

from jobs_service import json_data, names, run_data, tracing
from jobs_service.errors import InvalidJob, RecordDamaged
from jobs_service.json_types import AS_NAME, Date, Hexadecimal, Unchanged, plain, time
from jobs_service.run_data import HistoryEvent, JobError, Progress, progress_of_values

JobType: TypeAlias = Annotated[str | bytes | int | tuple[Any, ...], AS_NAME]
"""Names a kind of job."""

JobId: TypeAlias = Annotated[str | bytes, AS_NAME]
"""Names one job within its type."""

Priority: TypeAlias = Annotated[int | str | bytes | tuple[Any, ...], AS_NAME]
"""Lower runs first, ordered as the tuple layer orders: bytes, str, tuples, int."""

RunAt: TypeAlias = datetime | float | int
"""An aware datetime, or seconds since the epoch."""

_ZERO = b"\x14"
"""The tuple layer's encoding of 0."""

T = TypeVar("T")
V = TypeVar("V")
ResultT_co = TypeVar("ResultT_co", covariant=True)


# Terms


class Unset(enum.Enum):
    """The default of arguments for which None is a value: the present value stays."""

    UNSET = "unset"

    def __repr__(self) -> str:
        return "..."


UNSET: Final = Unset.UNSET


class JobState(enum.StrEnum):
    """The state of a job."""

    PENDING = "pending"
    """Waits for a worker: ready, or scheduled for later."""
    RUNNING = "running"
    """A worker holds its lock."""
    FINISHED = "finished"
    """Ran, or was canceled; `outcome` tells which."""
    REMOVED = "removed"
    """Exists no more; only events have this state."""
    UNREADABLE = "unreadable"
    """Its record is damaged, or a newer version wrote it: `error` tells why. Only lists have this state; other reads of
    the job raise RecordDamaged."""


class Outcome(enum.StrEnum):
    """How a finished job ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"


class Enqueued(enum.StrEnum):
    """The effect of `enqueue`."""

    NEW = "new"
    """It has added the job."""
    AGAIN = "again"
    """The job existed and is put to work once more: it had finished, or it runs and is to run again afterwards."""
    THERE = "there"
    """The job existed already, and waits, runs, or has ended too recently to run again."""


class Removal(enum.StrEnum):
    """The effect of `remove`."""

    REMOVED = "removed"
    """The job is gone."""
    CANCELED = "canceled"
    """The job is running: its worker was asked to finish it."""


def unpack_priority(packed: bytes) -> Priority:
    """Return the priority that the tuple layer packed."""
    if packed == _ZERO:
        return 0
    import fdb.tuple  # a client needs no store

    priority: Priority = fdb.tuple.unpack(packed)[0]
    return priority


# Status: one word for state and outcome, the same in every view


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


# Jobs


class JobRecord(Protocol):
    """The layer's record inside a Job: each part is decoded on demand."""

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
        """The job's own JSON value, None if it has none."""
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
        """Whether it waits for another attempt after a crash."""
        return self.state is JobState.PENDING and run_data.crashed_last(self._record.run_data)

    @property
    def resubmit(self) -> bool:
        """Whether the job becomes pending again when it finishes."""
        return self._record.resubmit

    @property
    def cancel(self) -> bool:
        """Whether a creator asked for the running job's removal."""
        return self._record.cancel

    @property
    def seq(self) -> bytes | None:
        """The 12-byte versionstamp of its last move, growing in commit order; None until it is committed."""
        return self._record.seq_bytes

    @property
    def attempts(self) -> int:
        """Number of runs since it was added or resubmitted, without stopped ones."""
        return run_data.attempts_of(self._record.run_data)

    @property
    def history(self) -> tuple[HistoryEvent, ...]:
        """The job's events, newest first; the oldest are dropped."""
        return self._readable(run_data.history_of, self._record.run_data)

    @property
    def result(self) -> Any:
        """The result of its last run, None for none."""
        return self._readable(run_data.result_of, self._record.run_data)

    @property
    def error(self) -> JobError | None:
        """How its last failed run ended; None if none has failed since it was added or resubmitted."""
        return self._readable(run_data.error_of, self._record.run_data)

    @property
    def progress(self) -> Progress | None:
        """Its progress, as its worker last reported it."""
        return self._readable(run_data.progress_of, self._record.run_data)

    def _readable(self, read: Callable[[V], T], value: V) -> T:
        """Return a part of the record, decoded.

        Raises:
            RecordDamaged: the part is damaged; the error names the job.
        """
        try:
            return read(value)
        except RecordDamaged as error:
            raise error.of(self._type, self._id) from None

    @property
    def max_attempts(self) -> int | None:
        """Most runs of it that may fail; None for its handler's number."""
        return run_data.limits_of(self._record.run_data)[0]

    @property
    def time_limit(self) -> float | None:
        """The time limit of one run, in seconds; None for its handler's limit."""
        return run_data.limits_of(self._record.run_data)[1]

    @property
    def trace_context(self) -> dict[str, str]:
        """W3C's traceparent and tracestate of the span that added it, as propagators take them; or empty."""
        return tracing.carrier_of(self._record.run_data)

    @property
    def context(self) -> Mapping[str, str]:
        """The context in which it was added, such as a tenant and a request's id; see `jobs_service.context`."""
        return run_data.origin_of(self._record.run_data)[1] or {}

    @property
    def enqueued(self) -> Enqueued | None:
        """The effect of the `enqueue` that returned it: new, put to work again, or found; None for other operations."""
        return self._enqueued

    @property
    def created(self) -> bool | None:
        """Whether the `enqueue` that returned it has added it; None for other operations. See `enqueued`."""
        return None if self._enqueued is None else self._enqueued is Enqueued.NEW

    def to_dict(self) -> dict[str, Any]:
        """Return the job as plain data that any JSON encoder takes, such as json's, FastAPI's or msgspec's.

        Its fields have the names and values of this class; times are ISO 8601 in UTC with microseconds, outcome and
        state strings, `seq` hexadecimal. A type, id or priority other than str or int takes a JSON form: bytes are
        {"bytes": hexadecimal}, tuples lists. `crashes` is the number of runs that have crashed in a row, `expires_at`
        the end of the finished job's retention. `enqueued`, `trace_context` and `context` are there only if they are
        not None or empty.
        """
        packed = self._record.run_data
        error, progress = self.error, self._readable(run_data.progress_of, packed)
        max_attempts, time_limit = run_data.limits_of(packed)
        found = {
            "type": names.name(self._type),
            "id": names.name(self._id),
            "state": self.state.value,
            "outcome": None if self.outcome is None else self.outcome.value,
            "data": self.data,
            "priority": names.name(self.priority),
            "run_at": time(self._record.run_at),
            "retrying": self.retrying,
            "resubmit": self._record.resubmit,
            "cancel": self.cancel,
            "seq": None if self.seq is None else self.seq.hex(),
            "attempts": self.attempts,
            "crashes": run_data.crashes_of(packed),
            "result": self.result,
            "error": None if error is None else plain(error),
            "progress": None if progress is None else plain(progress),
            "history": [*map(plain, self.history)],
            "max_attempts": max_attempts,
            "time_limit": time_limit,
            "expires_at": time(self._readable(run_data.expires_at, packed)),
        }
        if self._enqueued is not None:
            found["enqueued"] = self._enqueued.value
        if carrier := self.trace_context:
            found["trace_context"] = carrier
        if context := self.context:
            found["context"] = dict(context)
        return found

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
    """A job that its handler has ended together with the effects of a function, see RunningJob.finish_with.

    A handler that returns it is annotated accordingly: with `-> EndedJob[int]`, the function returns an int, the
    result.
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
    """An event for a subscriber.

    Attributes:
        type, id: the job.
        state: PENDING, RUNNING, FINISHED or REMOVED; the last two end the subscription.
        data: the job's JSON value at that moment; None when removed.
        outcome: how it ended; None unless finished.
        seq: 12-byte versionstamp of the change, growing in commit order; None when removed.
        result: the result of the last run.
        error: how the last failed run ended; None if none has failed.
        progress: the job's progress; None if none was reported.
        attempts: number of runs since it was added or resubmitted, without stopped ones.
        run_at: the earliest time of a pending job's next run (aware, UTC), such as after a crash; None for at once, and
            unless pending.
        retrying: whether the pending job waits for another attempt after a crash.
    """

    type: JobType
    id: JobId
    state: JobState
    data: Unchanged
    outcome: Outcome | None
    seq: Hexadecimal | None
    result: Unchanged = None
    error: JobError | None = None
    progress: Progress | None = None
    attempts: int = 0
    run_at: Date | None = None
    retrying: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the event as plain data for any JSON encoder; see Job.to_dict for the form of types and times."""
        return {**plain(self), "data": self.data, "result": self.result}


def next_run(record: JobRecord) -> datetime | None:
    """Return the earliest time of a pending job's next run; None for at once, and unless it is pending."""
    seconds = record.run_at
    if seconds is None or record.state is not JobState.PENDING:
        return None
    return datetime.fromtimestamp(seconds, UTC)


# Running jobs


class Ending(NamedTuple):
    """The end of a job's run: the arguments of RunningJob.finish."""

    data: Any = UNSET
    outcome: Outcome = Outcome.SUCCEEDED
    result: Any = UNSET
    error: JobError | None = None


class Worker(Protocol):
    """The service that accepted a running job, as the job's own methods call it."""

    async def _update(self, job: RunningJob, data: Any) -> RunningJob: ...
    async def _progress(self, job: RunningJob, progress: Progress) -> RunningJob: ...
    async def _finish(self, job: RunningJob, ending: Ending) -> Job: ...
    async def _finish_with(self, job: RunningJob, function: Callable[[Any], Any]) -> EndedJob[Any]: ...
    async def _resubmit(self, job: RunningJob, data: Any, priority: Any, run_at: Any) -> RunningJob: ...
    async def _release(self, job: RunningJob) -> Job: ...
    def _result_data(self, result: Any) -> Any: ...
    def _ending(self, job: RunningJob, whether: bool) -> None: ...
    def _check_caller(self) -> None: ...


class ResubmitFlag:
    """A running job's `resubmit`: as a value true or false, when called the operation.

    The interface gives both the same name: `if job.resubmit:` tells whether the job runs again after this run,
    `await job.resubmit()` asks for it.
    """

    __slots__ = ("_job",)

    def __init__(self, job: RunningJob) -> None:
        self._job = job

    def __bool__(self) -> bool:
        return self._job._record.resubmit

    def __eq__(self, other: object) -> bool:
        return bool(self) == other if isinstance(other, bool | ResubmitFlag) else NotImplemented

    def __hash__(self) -> int:
        return hash(bool(self))

    def __repr__(self) -> str:
        return repr(bool(self))

    async def __call__(self, *, data: Any = UNSET, priority: Any = UNSET, run_at: Any = UNSET) -> RunningJob:
        """Ask for another run after this one; also shows that the job is alive.

        Args:
            data: the job's new JSON value; left out, the data stays.
            priority, run_at: of the next run; left out, they stay.

        Raises:
            WorkerConflict: the lock is no longer the caller's.
            JobCanceled: a creator asked for the job's removal; finish it.
            InvalidJob, JobTooLarge: arguments that cannot be stored.
        """
        return await self._job._service()._resubmit(self._job, data, priority, run_at)


class ProgressReport(Progress):
    """A running job's `progress`: as a value its progress, when called the operation that reports it.

    The value is the last report before the job was read; without one it is false, and `done` is 0.
    """

    __slots__ = ("_is_said", "_job")

    def __init__(self, job: RunningJob) -> None:
        said = run_data.progress_of(job._record.run_data)
        value = said or Progress(0)
        super().__init__(value.done, value.total, value.message, value.attempt)
        object.__setattr__(self, "_job", job)
        object.__setattr__(self, "_is_said", said is not None)

    if TYPE_CHECKING:
        _job: RunningJob
        _is_said: bool

    @property
    def value(self) -> Progress | None:
        """The last report before the job was read; None for none."""
        return Progress(self.done, self.total, self.message, self.attempt) if self._is_said else None

    def __bool__(self) -> bool:
        return self._is_said

    def __eq__(self, other: object) -> bool:
        return self.value == (other.value if isinstance(other, ProgressReport) else other)

    def __hash__(self) -> int:
        return hash(self.value)

    def __repr__(self) -> str:
        return repr(self.value)

    async def __call__(self, done: float, total: float | None = None, message: str = "") -> RunningJob:
        """Report the job's progress; also shows that it is alive.

        Args:
            done: completed amount, in any unit.
            total: total amount; None if unknown.
            message: description of the current work.

        Raises:
            WorkerConflict: the lock is no longer the caller's.
            JobCanceled: a creator asked for the job's removal; finish it.
            InvalidJob: the amounts are no numbers, or the message is no text.
        """
        try:
            progress = progress_of_values(done, total, message, self._job.attempts)
        except InvalidJob as error:
            raise error.about(self._job.type, self._job.id) from None
        return await self._job._service()._progress(self._job, progress)


class RunningJob(Job):
    """A job whose lock the caller holds: only the caller may update, finish, resubmit and release it."""

    __slots__ = ("_worker",)

    def __init__(self, type: JobType, id: JobId, record: JobRecord, worker: Worker | None) -> None:
        super().__init__(type, id, record)
        self._worker = worker

    @property
    def lock(self) -> bytes:
        """The 16 random bytes made at accept that prove ownership of the job."""
        lock = self._record.lock
        assert lock is not None
        return lock

    async def update(self, data: Any = UNSET) -> RunningJob:
        """Show that the job is alive, and store new data if given.

        Args:
            data: the job's new JSON value; left out, the data stays.

        Returns:
            The job as it is now; its `resubmit` tells whether a creator asked for another run.

        Raises:
            WorkerConflict: the lock is no longer the caller's.
            JobCanceled: a creator asked for the job's removal; finish it.
            InvalidJob, JobTooLarge: data that cannot be stored.
        """
        return await self._service()._update(self, data)

    async def finish(
        self,
        data: Any = UNSET,
        *,
        outcome: Outcome = Outcome.SUCCEEDED,
        result: Any = UNSET,
        error: JobError | None = None,
    ) -> Job:
        """End this run: the job is finished, or pending again if it was resubmitted and not canceled.

        Args:
            data: the job's last JSON value; left out, the data stays.
            outcome: how it ended; a canceled job that reports success is kept as canceled.
            result: a JSON value for waiters; left out, an earlier run's result stays.
            error: how it failed.

        Returns:
            The job as it is now.

        Raises:
            WorkerConflict: the lock is no longer the caller's.
            InvalidJob, JobTooLarge: data that cannot be stored.
        """
        return await self._service()._finish(self, Ending(data, outcome, result, error))

    @overload
    async def finish_with(self, function: Callable[[Any], Awaitable[Job] | Job]) -> EndedJob[None]: ...

    @overload
    async def finish_with(self, function: Callable[[Any], Awaitable[T]]) -> EndedJob[T]: ...

    @overload
    async def finish_with(self, function: Callable[[Any], T]) -> EndedJob[T]: ...

    async def finish_with(self, function: Callable[[Any], Any]) -> EndedJob[Any]:
        """Run a function and finish the job in one transaction: its effects occur exactly once, or not at all.

        Args:
            function: takes a JobTransaction, as for `JobsService.transact`; its return value is the job's result,
                unless it is a Job, as operations return them.

        Returns:
            The job as it is now. A handler may return it, annotated as `-> EndedJob[...]` of the result.

        Raises:
            WorkerConflict: the lock is no longer the caller's; nothing was written.
            Exception: raised by the function; nothing was written.
        """
        return await self._service()._finish_with(self, function)

    @property
    def resubmit(self) -> ResubmitFlag:  # type: ignore[override]
        """Whether another run was asked for; when called, asks for one: see ResubmitFlag."""
        return ResubmitFlag(self)

    @property
    def progress(self) -> ProgressReport:
        """Its progress; when called, reports it: see ProgressReport."""
        return ProgressReport(self)

    async def release(self) -> Job:
        """Give the job back unfinished: pending at once with the same priority (a canceled one is finished).

        Raises:
            WorkerConflict: the lock is no longer the caller's.
        """
        return await self._service()._release(self)

    def _service(self) -> Worker:
        if self._worker is None:
            raise RuntimeError("this job was accepted outside of a JobsService: use the transaction's own operations")
        return self._worker
