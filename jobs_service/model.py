"""What an application sees of a job: frozen records and the enumerations in them. Floor: the lowest, beside errors."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeAlias, TypeVar, overload

import fdb.tuple

from jobs_service import json_data, json_forms, run_data
from jobs_service.errors import InvalidJob, RecordDamaged
from jobs_service.run_values import HistoryEvent as HistoryEvent
from jobs_service.run_values import HistoryKind as HistoryKind
from jobs_service.run_values import JobError as JobError
from jobs_service.run_values import Progress as Progress

T = TypeVar("T")
V = TypeVar("V")
ResultT_co = TypeVar("ResultT_co", covariant=True)

JobType: TypeAlias = str | bytes | int | tuple[Any, ...]
"""Names a kind of job."""

JobId: TypeAlias = str | bytes
"""Names one job within its type."""

Priority: TypeAlias = int | str | bytes | tuple[Any, ...]
"""Lower runs first, ordered as the tuple layer orders: bytes, str, tuples, int."""

RunAt: TypeAlias = datetime | float | int
"""An aware datetime, or seconds since the epoch."""


class Unset(enum.Enum):
    """The default of arguments for which None is a value: what is left out stays as it is."""

    UNSET = "unset"

    def __repr__(self) -> str:
        return "..."


UNSET: Final = Unset.UNSET


class JobState(enum.StrEnum):
    """Where a job is in its life."""

    PENDING = "pending"
    """Waits for a worker: ready, or scheduled for later."""
    RUNNING = "running"
    """A worker holds its lock."""
    FINISHED = "finished"
    """Ran, or was canceled; `outcome` tells which."""
    REMOVED = "removed"
    """Exists no more; only events say so."""
    UNREADABLE = "unreadable"
    """Its record is damaged, or of a newer version: `error` tells why. Only lists say so; all else that asks for the
    job raises RecordDamaged."""


class Outcome(enum.StrEnum):
    """How a finished job ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"


class Removal(enum.StrEnum):
    """What `remove` did."""

    REMOVED = "removed"
    """The job is gone."""
    CANCELED = "canceled"
    """The job is running: its worker was asked to finish it."""


class JobRecord(Protocol):
    """What a job wraps: the layer's record, decoded no further than somebody looks."""

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
    def run_at(self) -> float | None: ...
    @property
    def resubmit(self) -> bool: ...
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

    __slots__ = ("_created", "_data", "_id", "_record", "_type")

    def __init__(self, type: JobType, id: JobId, record: JobRecord) -> None:
        self._type = type
        self._id = id
        self._record = record
        self._data: Any = UNSET
        self._created: bool | None = None

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
        return unpack_priority(self._record.priority)

    @property
    def run_at(self) -> datetime | None:
        """The earliest time to run (aware, UTC), None for at once."""
        seconds = self._record.run_at
        return None if seconds is None else datetime.fromtimestamp(seconds, UTC)

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
        """How far it has come, as its worker said last."""
        return self._readable(run_data.progress_of, self._record.run_data)

    def _readable(self, read: Callable[[V], T], value: V) -> T:
        """Return what is read of a part of the record.

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
    def created(self) -> bool | None:
        """Whether the `enqueue` that returned it has added it; False: it was there (`unique`); None: not by enqueue."""
        return self._created

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
            "resubmit": self._record.resubmit,
            "cancel": self.cancel,
            "seq": None if self.seq is None else self.seq.hex(),
            "attempts": self.attempts,
            "result": self.result,
            "error": json_forms.error(self.error),
            "progress": json_forms.progress(self._readable(run_data.progress_of, self._record.run_data)),
            "history": [
                {"kind": event.kind.value, "at": json_forms.time(event.time), "detail": event.detail}
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


class Worker(Protocol):
    """What a running job's own methods call: the service that accepted it."""

    async def _update(self, job: RunningJob, data: Any) -> RunningJob: ...
    async def _progress(self, job: RunningJob, progress: Progress) -> RunningJob: ...
    async def _finish(
        self, job: RunningJob, data: Any, outcome: Outcome, result: Any, error: JobError | None
    ) -> Job: ...
    async def _finish_with(self, job: RunningJob, function: Callable[[Any], Any]) -> EndedJob[Any]: ...
    async def _resubmit(self, job: RunningJob, data: Any, priority: Any, run_at: Any) -> RunningJob: ...
    async def _release(self, job: RunningJob) -> Job: ...
    def _ending(self, job: RunningJob, whether: bool) -> None: ...


class ResubmitFlag:
    """A running job's `resubmit`: true or false as a value, the operation when it is called.

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
    """A running job's `progress`: how far it has come as a value, the operation that says so when it is called.

    As a value it is what was said last before the job was read; when nothing was, it is false, and 0 is done.
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
        """What was said last before the job was read; None for nothing."""
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
        """Say how far the job has come; also shows that it is alive.

        Args:
            done: so much, in whatever unit.
            total: of so much; None when nobody knows.
            message: what it is doing.

        Raises:
            WorkerConflict: the lock is no longer the caller's.
            JobCanceled: a creator asked for the job's removal; finish it.
            InvalidJob: no numbers, or no text.
        """
        try:
            progress = run_data.progress_of_values(done, total, message, self._job.attempts)
        except InvalidJob as error:
            raise error.about(self._job.type, self._job.id) from None
        return await self._job._service()._progress(self._job, progress)


class RunningJob(Job):
    """A job whose lock the caller holds: it alone may update, finish, resubmit and release it."""

    __slots__ = ("_worker",)

    def __init__(self, type: JobType, id: JobId, record: JobRecord, worker: Worker | None) -> None:
        super().__init__(type, id, record)
        self._worker = worker

    @property
    def lock(self) -> bytes:
        """The 16 random bytes made at accept that prove whose job this is."""
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
        """End this run: the job is finished, or pending again when somebody resubmitted it and nobody canceled it.

        Args:
            data: the job's last JSON value; left out, the data stays.
            outcome: how it ended; a canceled job that reports success is kept as canceled.
            result: a JSON value for those who wait for the job; left out, what an earlier run returned stays.
            error: how it failed.

        Returns:
            The job as it is now.

        Raises:
            WorkerConflict: the lock is no longer the caller's.
            InvalidJob, JobTooLarge: data that cannot be stored.
        """
        return await self._service()._finish(self, data, outcome, result, error)

    @overload
    async def finish_with(self, function: Callable[[Any], Awaitable[Job] | Job]) -> EndedJob[None]: ...

    @overload
    async def finish_with(self, function: Callable[[Any], Awaitable[T]]) -> EndedJob[T]: ...

    @overload
    async def finish_with(self, function: Callable[[Any], T]) -> EndedJob[T]: ...

    async def finish_with(self, function: Callable[[Any], Any]) -> EndedJob[Any]:
        """Run a function and finish the job in one transaction: its effects are there exactly once, or not at all.

        Args:
            function: takes a JobTransaction, as for `JobsService.transact`; what it returns is the job's result, unless
                it is a Job, as operations return them.

        Returns:
            The job as it is now. A handler may return it, and is annotated `-> EndedJob[...]` of the result then.

        Raises:
            WorkerConflict: the lock is no longer the caller's; nothing was written.
            Exception: what the function raised; nothing was written.
        """
        return await self._service()._finish_with(self, function)

    @property
    def resubmit(self) -> ResubmitFlag:  # type: ignore[override]
        """Whether another run was asked for; called, asks for one: see ResubmitFlag."""
        return ResubmitFlag(self)

    @property
    def progress(self) -> ProgressReport:
        """How far it has come; called, says so: see ProgressReport."""
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
    """What a subscriber is told.

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
        }


def next_run(record: JobRecord) -> datetime | None:
    """Return when a pending job runs next at the earliest; None for at once, and unless it is pending."""
    seconds = record.run_at
    if seconds is None or record.state is not JobState.PENDING:
        return None
    return datetime.fromtimestamp(seconds, UTC)


_ZERO = fdb.tuple.pack((0,))


def unpack_priority(packed: bytes) -> Priority:
    """Return the priority that the tuple layer packed."""
    if packed == _ZERO:
        return 0
    priority: Priority = fdb.tuple.unpack(packed)[0]
    return priority
