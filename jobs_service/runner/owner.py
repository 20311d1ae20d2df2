"""Who a handler's job calls: the service does what is asked, and the lane learns of it when the handler has ended its
job itself. Floor: runner.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jobs_service.model import Job, JobError, Outcome, Progress, RunningJob, Worker


class Owner:
    """The worker of the jobs that one lane runs.

    Args:
        service: does what is asked.
        over: called with the lock of a job that is over before its handler has returned.
    """

    def __init__(self, service: Worker, over: Callable[[bytes], None]) -> None:
        self._service = service
        self._told = over

    def take(self, job: RunningJob) -> RunningJob:
        """Make a running job this owner's."""
        job._worker = self
        return job

    async def _update(self, job: RunningJob, data: Any) -> RunningJob:
        return self.take(await self._service._update(job, data))

    async def _progress(self, job: RunningJob, progress: Progress) -> RunningJob:
        return self.take(await self._service._progress(job, progress))

    async def _resubmit(self, job: RunningJob, data: Any, priority: Any, run_at: Any) -> RunningJob:
        return self.take(await self._service._resubmit(job, data, priority, run_at))

    async def _finish(self, job: RunningJob, data: Any, outcome: Outcome, result: Any, error: JobError | None) -> Job:
        return self._over(job, await self._service._finish(job, data, outcome, result, error))

    async def _finish_with(self, job: RunningJob, function: Callable[[Any], Any]) -> Job:
        return self._over(job, await self._service._finish_with(job, function))

    async def _release(self, job: RunningJob) -> Job:
        return self._over(job, await self._service._release(job))

    def _over(self, job: RunningJob, ended: Job) -> Job:
        self._told(job.lock)
        return ended
