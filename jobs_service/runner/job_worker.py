"""The worker behind a handler's job: the service does the job's operations, and the runner learns of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from jobs_service.model import EndedJob, Ending, Job, Progress, RunningJob, Worker

JobT = TypeVar("JobT", bound=Job)


class RunObserver(Protocol):
    """Gets to know the operations of running jobs."""

    def job_changed(self, job: RunningJob) -> None:
        """A handler has changed its job."""

    def job_ending(self, job: RunningJob, whether: bool) -> None:
        """A handler begins to end its job in a transaction of its own, or that has not taken effect.

        Args:
            job: the job.
            whether: True when it begins, False when it has not taken effect.
        """

    def job_ended(self, job: RunningJob, ended: Job) -> None:
        """A handler has ended its job itself."""


class JobWorker:
    """The worker of the jobs that one handler runs.

    Args:
        service: does what is asked.
        observer: learns what was done.
    """

    def __init__(self, service: Worker, observer: RunObserver) -> None:
        self._service = service
        self._observer = observer

    def take(self, job: RunningJob) -> RunningJob:
        """Have the operations of a running job come here."""
        job._worker = self
        return job

    async def _update(self, job: RunningJob, data: Any) -> RunningJob:
        return self._changed(await self._service._update(job, data))

    async def _progress(self, job: RunningJob, progress: Progress) -> RunningJob:
        return self._changed(await self._service._progress(job, progress))

    async def _resubmit(self, job: RunningJob, data: Any, priority: Any, run_at: Any) -> RunningJob:
        return self._changed(await self._service._resubmit(job, data, priority, run_at))

    async def _finish(self, job: RunningJob, ending: Ending) -> Job:
        return self._ended(job, await self._service._finish(job, ending))

    async def _finish_with(self, job: RunningJob, function: Callable[[Any], Any]) -> EndedJob[Any]:
        return self._ended(job, await self._service._finish_with(job, function))

    async def _release(self, job: RunningJob) -> Job:
        return self._ended(job, await self._service._release(job))

    def _ending(self, job: RunningJob, whether: bool) -> None:
        self._observer.job_ending(job, whether)

    def _check_caller(self) -> None:
        self._service._check_caller()

    def _changed(self, job: RunningJob) -> RunningJob:
        self._observer.job_changed(job)
        return self.take(job)

    def _ended(self, job: RunningJob, ended: JobT) -> JobT:
        self._observer.job_ended(job, ended)
        return ended
