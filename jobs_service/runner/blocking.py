"""The job that a plain function is given: its fields, and its operations as plain calls. Floor: runner."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from jobs_service.errors import JobCanceled, job_name
from jobs_service.model import UNSET, Job, JobError, Outcome, RunningJob
from jobs_service.runner.calling import from_thread


class BlockingJob(Job):
    """A running job in the hands of a function that runs in a thread of its own.

    Its operations wait until they are done. When the run is to end - the job was canceled or lost, or the process is
    stopping - every one of them raises JobCanceled; a function that computes for long looks at `stopping`.
    """

    __slots__ = ("_job", "_loop", "_stopping")

    def __init__(self, job: RunningJob, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(job.type, job.id, job._record)
        self._job = job
        self._loop = loop
        self._stopping = threading.Event()

    @property
    def stopping(self) -> bool:
        """Whether the function is to return soon: what it does from now on may be done again by others."""
        return self._stopping.is_set()

    def wait_for_stop(self, timeout: float) -> bool:
        """Sleep, but no longer than until the function is to return.

        Args:
            timeout: seconds.

        Returns:
            `stopping`.
        """
        return self._stopping.wait(timeout)

    def update(self, data: Any = UNSET) -> None:
        """Store new data; see RunningJob.update."""
        self._do(lambda: self._job.update(data))

    def report(self, done: float, total: float | None = None, message: str = "") -> None:
        """Say how far the job has come; see RunningJob.progress."""
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

    def finish_with(self, function: Callable[[Any], Any]) -> Job:
        """Run a function and finish the job in one transaction; see RunningJob.finish_with."""
        finished: Job = self._do(lambda: self._job.finish_with(function))
        return finished

    def stop(self) -> None:
        """Have the function told that it is to return."""
        self._stopping.set()

    def _do(self, operation: Callable[[], Any]) -> Any:
        if self._stopping.is_set():
            raise JobCanceled(f"job {job_name(self.type, self.id)} is to stop: return now", type=self.type, id=self.id)
        return from_thread(self._loop, operation)
