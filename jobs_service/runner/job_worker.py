"""The worker behind a handler's job: the service executes the job's operations, and the runner observes them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from jobs_service.errors import CommitUnknown, StoreUnavailable
from jobs_service.model import EndedJob, Ending, Job, Progress, RunningJob, Worker
from jobs_service.runner.result_annotations import ResultCodec

JobT = TypeVar("JobT", bound=Job)


class RunObserver(Protocol):
    """Observes the operations of running jobs."""

    def job_changed(self, job: RunningJob) -> None:
        """A handler has changed its job."""

    def next_asked(self, job: RunningJob) -> None:
        """A handler has asked for another run of its job."""

    def end_awaited(self, job: RunningJob, whether: bool) -> None:
        """A handler starts or stops waiting for the answer that tells it whether it has ended its job."""

    def job_ending(self, job: RunningJob, whether: bool) -> None:
        """A handler begins to end its job in its own transaction, or that transaction did not take effect.

        Args:
            job: the job.
            whether: True at the beginning, False if it did not take effect.
        """

    def job_ended(self, job: RunningJob, ended: Job) -> None:
        """A handler has ended its job itself."""


class JobWorker:
    """The worker of the jobs that one handler runs.

    Args:
        service: executes the operations.
        observer: is told of the operations.
        results: codec of the handler's results.
    """

    def __init__(self, service: Worker, observer: RunObserver, results: ResultCodec) -> None:
        self._service = service
        self._observer = observer
        self._results = results

    def take(self, job: RunningJob) -> RunningJob:
        """Route the operations of a running job through this worker."""
        job._worker = self
        return job

    async def _update(self, job: RunningJob, data: Any) -> RunningJob:
        return self._changed(await self._service._update(job, data))

    async def _progress(self, job: RunningJob, progress: Progress) -> RunningJob:
        return self._changed(await self._service._progress(job, progress))

    async def _resubmit(self, job: RunningJob, data: Any, priority: Any, run_at: Any) -> RunningJob:
        changed = self._changed(await self._service._resubmit(job, data, priority, run_at))
        self._observer.next_asked(changed)
        return changed

    async def _finish(self, job: RunningJob, ending: Ending) -> Job:
        return await self._ended_by(job, self._service._finish(job, ending))

    async def _finish_with(self, job: RunningJob, function: Callable[[Any], Any]) -> EndedJob[Any]:
        return self._ended(job, await self._service._finish_with(job, function))

    async def _release(self, job: RunningJob) -> Job:
        return await self._ended_by(job, self._service._release(job))

    def _result_data(self, result: Any) -> Any:
        return self._results.encode(result)

    def _ending(self, job: RunningJob, whether: bool) -> None:
        self._observer.job_ending(job, whether)

    def _check_caller(self) -> None:
        self._service._check_caller()

    async def _ended_by(self, job: RunningJob, work: Awaitable[Job]) -> Job:
        """Await an operation that ends a job; meanwhile this run may lose the job by it, or to another worker."""
        self._observer.end_awaited(job, True)
        try:
            ended = await work
        except (StoreUnavailable, CommitUnknown, asyncio.CancelledError):
            self._observer.job_ending(job, True)  # the end may be in the store, or come to be
            raise
        finally:
            self._observer.end_awaited(job, False)
        return self._ended(job, ended)

    def _changed(self, job: RunningJob) -> RunningJob:
        self._observer.job_changed(job)
        return self.take(job)

    def _ended(self, job: RunningJob, ended: JobT) -> JobT:
        self._observer.job_ended(job, ended)
        return ended
