"""The worker of the jobs that a client accepts: it accepts them, and its requests are the methods of running jobs.

Each accept has a key, by which jobs without a caller are given back at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Final

from jobs_service import names
from jobs_service.arguments import MOST_AT_ONCE, json_of
from jobs_service.client.connection import Connection, Tries, changes, of_job, of_type, with_json
from jobs_service.errors import JobNotFound, JobsError, WorkerConflict
from jobs_service.http import wire
from jobs_service.model import EndedJob, Ending, HistoryKind, Job, JobError, JobState, JobType, Progress, RunningJob

_LEAVE_WITHIN: Final = 2.0
"""Seconds to give jobs back when the client is closed, so that an unreachable server does not delay the exit."""
_MOST_LOCKS: Final = 10_000
"""Most locks that are remembered; beyond it the oldest are dropped."""
_ENDS: Final = frozenset({HistoryKind.FINISHED, HistoryKind.CANCELED})


class RemoteWorker:
    """The worker of running jobs that were accepted over HTTP; see model.Worker.

    Attributes:
        connection: to the server.
        locks: of jobs that were accepted here, by path: their holder may read the jobs' secret fields.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.locks: dict[str, str] = {}
        self._given_back: set[asyncio.Task[None]] = set()

    async def accept(self, type: JobType, form: Mapping[str, Any], limit: int, seconds: float) -> list[RunningJob]:
        """Return accepted jobs, for a caller that may be canceled meanwhile.

        Args:
            type: the type of the jobs.
            form: the terms of the request.
            limit: most jobs; above the server's limit it takes several requests.
            seconds: seconds that the server waits for the first job.
        """
        keys: list[str] = []
        jobs: list[RunningJob] = []
        try:
            while True:
                most = min(limit - len(jobs), MOST_AT_ONCE)
                found = await self._take(type, {**form, "limit": most}, 0.0 if jobs else seconds, keys)
                jobs += found
                if len(found) < MOST_AT_ONCE or len(jobs) == limit:
                    return jobs
        except asyncio.CancelledError:
            for key in keys:
                self._give_back(type, key)
            raise
        except JobsError:
            if jobs:
                return jobs
            raise

    async def _take(self, type: JobType, form: Mapping[str, Any], seconds: float, keys: list[str]) -> list[RunningJob]:
        key, tries = self.connection.new_key(), Tries()
        body = {**form, "timeout": seconds, "key": key}
        keys.append(key)
        try:
            answer = await self.connection.call("POST", of_type(type, "/accept"), body, wait=seconds, tries=tries)
        except JobsError:
            if tries.unsure:
                self._give_back(type, key)
            raise
        jobs = self.connection.read(lambda form: [wire.running_job_of(each, self) for each in form["jobs"]], answer)
        for job in jobs:
            self.locks[of_job(job.type, job.id)] = job.lock.hex()
        while len(self.locks) > _MOST_LOCKS:
            del self.locks[next(iter(self.locks))]
        return jobs

    async def closed(self) -> None:
        """Wait until all jobs without a caller are given back, or the server has not answered for too long."""
        if self._given_back:
            _, late = await asyncio.wait(self._given_back, timeout=_LEAVE_WITHIN)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _give_back(self, type: JobType, key: str) -> None:
        async def give_back() -> None:
            with contextlib.suppress(JobsError):  # then the jobs are pending again after their type's timeout
                await self.connection.call("POST", of_type(type, "/give_back"), {"key": key})

        task = asyncio.get_running_loop().create_task(give_back(), name="give back")
        self._given_back.add(task)
        task.add_done_callback(self._given_back.discard)

    # The methods of a running job

    async def _update(self, job: RunningJob, data: Any) -> RunningJob:
        return await self._alive(job, "/update", with_json(_lock(job), data=json_of(job.type, job.id, data)))

    async def _progress(self, job: RunningJob, progress: Progress) -> RunningJob:
        form = {"done": progress.done, "total": progress.total, "message": progress.message}
        return await self._alive(job, "/progress", {**_lock(job), **form})

    async def _resubmit(self, job: RunningJob, data: Any, priority: Any, run_at: Any) -> RunningJob:
        return await self._alive(job, "/resubmit", changes(_lock(job), job.type, job.id, data, priority, run_at))

    async def _alive(self, job: RunningJob, verb: str, body: Mapping[str, Any] | bytes) -> RunningJob:
        """Send a sign of life, and return the running job. It is idempotent, as the lock stays the worker's."""
        answer = await self.connection.call("POST", of_job(job.type, job.id, verb), body)
        return self.connection.read(lambda form: wire.running_job_of(form, self), answer)

    async def _finish(self, job: RunningJob, ending: Ending) -> Job:
        form = {**_lock(job), "outcome": ending.outcome}
        if ending.error is not None:
            form["error"] = names.error(ending.error) if isinstance(ending.error, JobError) else ending.error
        data, result = (json_of(job.type, job.id, each) for each in (ending.data, ending.result))
        return await self._end(job, "/finish", with_json(form, data=data, result=result), _has_ended)

    def _result_data(self, result: Any) -> Any:
        return result

    async def _release(self, job: RunningJob) -> Job:
        return await self._end(job, "/release", with_json(_lock(job)), _was_given_back)

    async def _end(self, job: RunningJob, verb: str, body: bytes, is_done: Callable[[Job, Job], bool]) -> Job:
        """End a run, and return the job. After a lost answer the request is repeated, and may find its own effect.

        Raises:
            WorkerConflict: the lock is no longer the caller's.
        """
        path, tries = of_job(job.type, job.id), Tries()
        try:
            answer = await self.connection.call("POST", path + verb, body, tries=tries)
            return self.connection.read(wire.job_of, answer)
        except WorkerConflict:
            if not tries.unsure:
                raise
            # If the job has the same number of attempts, no other worker has run it since: this worker has ended it.
            # If the job is gone, it is unknown whether it was not to be kept or was removed.
            with contextlib.suppress(JobNotFound):
                found = self.connection.read(wire.job_of, await self.connection.call("GET", path))
                if is_done(job, found):
                    return found
            raise

    async def _finish_with(self, job: RunningJob, function: Callable[[Any], Any]) -> EndedJob[Any]:
        raise JobsError("finish_with needs the store itself: a client finishes with finish(result=...)").about(
            job.type, job.id
        )

    def _check_caller(self) -> None:
        """Do nothing: a client runs no transaction functions."""

    def _ending(self, job: RunningJob, whether: bool) -> None:
        """Do nothing: only a runner tracks its running jobs."""


def _lock(job: RunningJob) -> dict[str, Any]:
    return {"lock": job.lock.hex()}


def _has_ended(then: Job, now: Job) -> bool:
    kind = now.history[0].kind if now.history else None
    return now.state is JobState.FINISHED and kind in _ENDS and now.attempts == then.attempts


def _was_given_back(then: Job, now: Job) -> bool:
    # A run that was given back does not count.
    kind = now.history[0].kind if now.history else None
    return now.state is JobState.PENDING and kind is HistoryKind.STOPPED and now.attempts == then.attempts - 1
