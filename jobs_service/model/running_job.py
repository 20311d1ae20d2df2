"""A job whose lock the caller holds, and the operations of its worker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, overload

from jobs_service import run_data
from jobs_service.errors import InvalidJob
from jobs_service.model.job import UNSET, EndedJob, Job, JobId, JobRecord, JobType, Outcome
from jobs_service.run_data import JobError, Progress, progress_of_values

T = TypeVar("T")


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
