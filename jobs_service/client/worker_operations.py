"""The operations of a client for workers: accepting jobs, and the methods of a running job."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final

from jobs_service import json_forms, run_data
from jobs_service.arguments import (
    Spread,
    check_error,
    check_outcome,
    check_positive,
    check_spread,
    check_timeout,
    json_of,
    to_seconds,
)
from jobs_service.client.acceptor import RemoteAcceptor
from jobs_service.client.access import ServerAccess, name_form
from jobs_service.client.connection import Tries
from jobs_service.client.creator_operations import changes_body, with_json
from jobs_service.durations import Duration
from jobs_service.errors import InvalidJob, JobNotFound, JobsError, JobTooLarge, WorkerConflict
from jobs_service.http import wire
from jobs_service.model import (
    EndedJob,
    Ending,
    HistoryKind,
    Job,
    JobState,
    JobType,
    Outcome,
    Priority,
    Progress,
    RunAt,
    RunningJob,
)

_LONGEST_POLL: Final = 30.0
"""Seconds that the server waits for jobs; then the client polls again."""
_ENDS: Final = frozenset({HistoryKind.FINISHED, HistoryKind.CANCELED})


class RemoteWorkerOperations:
    """The part of JobsClient for workers."""

    _access: ServerAccess
    _acceptor: RemoteAcceptor

    async def accept(
        self,
        type: JobType,
        *,
        max_priority: Priority | None = None,
        due_by: RunAt | None = None,
        timeout: Duration | None = None,
        spread: Spread = 1,
    ) -> RunningJob | None:
        """Take the due job at the front of the queue; see JobsService.accept.

        A job that arrives after the caller was canceled is given back, and a lost answer is requested again. If the
        server restarts in between, the job counts as running until its type's timeout.
        """
        jobs = await self.accept_many(type, 1, max_priority=max_priority, due_by=due_by, timeout=timeout, spread=spread)
        return jobs[0] if jobs else None

    async def accept_many(
        self,
        type: JobType,
        limit: int,
        *,
        max_priority: Priority | None = None,
        due_by: RunAt | None = None,
        timeout: Duration | None = None,
        spread: Spread = 1,
    ) -> list[RunningJob]:
        """Take up to `limit` jobs from the front of the queue; see JobsService.accept_many, and `accept`."""
        worker = self._access.sources.worker
        most, due = check_positive("limit", limit), to_seconds(due_by, "due_by")
        check_spread(spread)
        self._access.of_type(type)
        form: dict[str, Any] = {"spread": spread, "worker": worker}
        if max_priority is not None:
            form["max_priority"] = name_form("priority", max_priority)
        if due is not None:
            form["due_by"] = wire.time(due)
        seconds = check_timeout(timeout)
        loop = asyncio.get_running_loop()
        deadline = None if seconds is None else loop.time() + seconds
        while True:
            left = _LONGEST_POLL if deadline is None else min(max(deadline - loop.time(), 0.0), _LONGEST_POLL)
            jobs = await self._acceptor.accept(type, form, most, left)
            if jobs or (deadline is not None and loop.time() >= deadline):
                return jobs


class RemoteWorker:
    """The worker of running jobs that were accepted over HTTP; see model.Worker."""

    def __init__(self, access: ServerAccess) -> None:
        self._access = access

    async def _update(self, job: RunningJob, data: Any) -> RunningJob:
        json = json_of(job.type, job.id, data)
        return await self._alive(job, "/update", with_json(_lock(job), "data", json))

    async def _progress(self, job: RunningJob, progress: Progress) -> RunningJob:
        try:
            run_data.progress_json(progress)
        except (InvalidJob, JobTooLarge) as error:
            raise error.about(job.type, job.id) from None
        form = {"done": progress.done, "total": progress.total, "message": progress.message}
        return await self._alive(job, "/progress", wire.dumps({**_lock(job), **form}))

    async def _resubmit(self, job: RunningJob, data: Any, priority: Any, run_at: Any) -> RunningJob:
        body = changes_body(_lock(job), job.type, job.id, data, priority, run_at)
        return await self._alive(job, "/resubmit", body)

    async def _alive(self, job: RunningJob, verb: str, body: bytes) -> RunningJob:
        """Send a sign of life, and return the running job. It is idempotent, as the lock stays the worker's."""
        answer = await self._access.call("POST", self._access.of_job(job.type, job.id, verb), body)
        return self._access.read(lambda form: wire.running_job_of(form, self), answer)

    async def _finish(self, job: RunningJob, ending: Ending) -> Job:
        form: dict[str, Any] = _lock(job)
        if (outcome := check_outcome(ending.outcome, job)) is not Outcome.SUCCEEDED:
            form["outcome"] = str(outcome)
        if ending.error is not None:
            check_error(ending.error, job)
            form["error"] = json_forms.error(ending.error)
        body = with_json(form, "data", json_of(job.type, job.id, ending.data))
        if (result := json_of(job.type, job.id, ending.result)) is not None:
            body = b"".join((body[:-1], b',"result":', result or b"null", b"}"))
        return await self._end(job, "/finish", body, _has_ended)

    def _result_data(self, result: Any) -> Any:
        return result

    async def _release(self, job: RunningJob) -> Job:
        return await self._end(job, "/release", wire.dumps(_lock(job)), _was_given_back)

    async def _end(self, job: RunningJob, verb: str, body: bytes, is_done: Callable[[Job, Job], bool]) -> Job:
        """End a run, and return the job. After a lost answer the request is repeated, and may find its own effect.

        Raises:
            WorkerConflict: the lock is no longer the caller's.
        """
        tries = Tries()
        try:
            path = self._access.of_job(job.type, job.id, verb)
            return self._access.read(wire.job_of, await self._access.call("POST", path, body, tries=tries))
        except WorkerConflict:
            if not tries.unsure:
                raise
            # If the job has the same number of attempts, no other worker has run it since: this worker has ended it.
            # If the job is gone, it is unknown whether it was not to be kept or was removed.
            with contextlib.suppress(JobNotFound):
                now = await self._access.call("GET", self._access.of_job(job.type, job.id))
                found = self._access.read(wire.job_of, now)
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
