"""The job object of a plain function: its fields, and its operations as plain calls."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar, overload

from jobs_service.arguments import check_duration
from jobs_service.durations import Duration
from jobs_service.errors import JobCanceled, JobsError, job_name
from jobs_service.model import UNSET, EndedJob, Job, JobError, Outcome, ProgressReport, ResubmitFlag, RunningJob
from jobs_service.runner.function_calls import from_thread

T = TypeVar("T")


class BlockingProgress(ProgressReport):
    """The `progress` of a BlockingJob: a value, and, when called, the operation as a plain call."""

    __slots__ = ("_blocking",)

    def __init__(self, blocking: BlockingJob) -> None:
        super().__init__(blocking._job)
        object.__setattr__(self, "_blocking", blocking)

    if TYPE_CHECKING:
        _blocking: BlockingJob

    def __call__(  # type: ignore[override]
        self, done: float, total: float | None = None, message: str = ""
    ) -> None:
        """Report the job's progress; see RunningJob.progress."""
        self._blocking.report(done, total, message)


class BlockingResubmit(ResubmitFlag):
    """The `resubmit` of a BlockingJob: a flag, and, when called, the operation as a plain call."""

    __slots__ = ("_blocking",)

    def __init__(self, blocking: BlockingJob) -> None:
        super().__init__(blocking._job)
        self._blocking = blocking

    def __call__(  # type: ignore[override]
        self, *, data: Any = UNSET, priority: Any = UNSET, run_at: Any = UNSET
    ) -> None:
        """Ask for another run after this one; see RunningJob.resubmit."""
        self._blocking._do(lambda: self._job.resubmit(data=data, priority=priority, run_at=run_at))


class BlockingJob(Job):
    """A running job for a plain function, which runs in its own thread.

    It has the operations of a RunningJob under the same names, as plain blocking calls.

    When the run must end, because the process is stopping or the job was canceled or lost, `stopping` turns true at
    once. A long computation checks it and returns None; then its job is released. If the process is stopping, the
    function may also complete within the handler's grace: its job ends when it returns another value, or has called
    `finish`. After the grace, and when the job was canceled or lost, each operation raises JobCanceled.

    Within a transaction function, and on the event loop, each operation raises instead of waiting for itself.
    """

    __slots__ = ("_announced", "_has_heeded", "_job", "_loop", "_stopped")

    def __init__(self, job: RunningJob, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(job.type, job.id, job._record)
        self._job = job
        self._loop = loop
        self._announced = threading.Event()
        self._stopped = threading.Event()
        self._has_heeded = False

    @property
    def stopping(self) -> bool:
        """Whether the function must return soon; if it returns None, its job is released and runs again."""
        return self._heeded(self._announced.is_set())

    def wait_for_stop(self, timeout: Duration) -> bool:
        """Sleep; wake early when the function must return.

        Args:
            timeout: a duration.

        Returns:
            `stopping`.
        """
        return self._heeded(self._announced.wait(check_duration("timeout", timeout, refused=JobsError)))

    @property
    def has_heeded(self) -> bool:
        """Whether the function has seen, by `stopping` or `wait_for_stop`, that it must return."""
        return self._has_heeded

    def update(self, data: Any = UNSET) -> None:
        """Store new data; see RunningJob.update."""
        self._do(lambda: self._job.update(data))

    @property
    def lock(self) -> bytes:
        """The random bytes in the record that identify this worker as the job's owner."""
        return self._job.lock

    @property
    def progress(self) -> BlockingProgress:
        """The job's progress; call it to report more: see RunningJob.progress."""
        return BlockingProgress(self)

    @property
    def resubmit(self) -> BlockingResubmit:  # type: ignore[override]
        """Whether another run was requested; call it to request one: see RunningJob.resubmit."""
        return BlockingResubmit(self)

    def report(self, done: float, total: float | None = None, message: str = "") -> None:
        """Report the job's progress: another name of `progress(...)`."""
        self._do(lambda: self._job.progress(done, total, message))

    def finish(
        self,
        data: Any = UNSET,
        *,
        outcome: Outcome = Outcome.SUCCEEDED,
        result: Any = UNSET,
        error: JobError | None = None,
    ) -> Job:
        """End this run; see RunningJob.finish."""
        finished: Job = self._do(lambda: self._job.finish(data, outcome=outcome, result=result, error=error))
        return finished

    @overload
    def finish_with(self, function: Callable[[Any], Awaitable[Job] | Job]) -> EndedJob[None]: ...

    @overload
    def finish_with(self, function: Callable[[Any], Awaitable[T]]) -> EndedJob[T]: ...

    @overload
    def finish_with(self, function: Callable[[Any], T]) -> EndedJob[T]: ...

    def finish_with(self, function: Callable[[Any], Any]) -> EndedJob[Any]:
        """Run a function and finish the job in one transaction; see RunningJob.finish_with."""
        finished: EndedJob[Any] = self._do(lambda: self._job.finish_with(function))
        return finished

    def release(self) -> Job:
        """Release the job unfinished; see RunningJob.release."""
        released: Job = self._do(self._job.release)
        return released

    def announce_stop(self) -> None:
        """Tell the function that it must return soon; its operations still work."""
        self._announced.set()

    def stop(self) -> None:
        """Tell the function that it must return now; its operations fail from now on."""
        self._stopped.set()
        self._announced.set()

    def _heeded(self, stopping: bool) -> bool:
        self._has_heeded = self._has_heeded or stopping
        return stopping

    def _do(self, operation: Callable[[], Any]) -> Any:
        if self._heeded(self._stopped.is_set()):
            raise JobCanceled(f"job {job_name(self.type, self.id)} is to stop: return now", type=self.type, id=self.id)
        # It would wait for the loop, and the loop, or the store's thread, for the transaction function that called it.
        self._job._service()._check_caller()
        return from_thread(self._loop, operation)
