"""Accepts jobs for a client. Each accept has a key, by which jobs without a caller are given back at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any, Final

from jobs_service.arguments import MOST_AT_ONCE
from jobs_service.client.access import ServerAccess
from jobs_service.client.connection import Tries
from jobs_service.errors import JobsError
from jobs_service.http import wire
from jobs_service.model import JobType, RunningJob, Worker

_LEAVE_WITHIN: Final = 2.0
"""Seconds to give jobs back when the client is closed, so that an unreachable server does not delay the exit."""


class RemoteAcceptor:
    """Accepts jobs for callers, which may be canceled meanwhile.

    Args:
        access: access to the server.
        worker: the worker that accepted jobs call.
    """

    def __init__(self, access: ServerAccess, worker: Worker) -> None:
        self._access = access
        self._worker = worker
        self._given_back: set[asyncio.Task[None]] = set()

    async def accept(self, type: JobType, form: Mapping[str, Any], limit: int, seconds: float) -> list[RunningJob]:
        """Return accepted jobs; a `limit` above the server's limit takes several requests.

        Args:
            type: the type of the jobs.
            form: the terms of the request.
            limit: most jobs.
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
        key, tries = self._access.new_key(), Tries()
        body = {**form, "timeout": seconds, "key": key}
        keys.append(key)
        try:
            path = self._access.of_type(type, "/accept")
            answer = await self._access.call("POST", path, body, wait=seconds, tries=tries)
        except JobsError:
            if tries.unsure:
                self._give_back(type, key)
            raise
        return self._access.read(self._running_jobs, answer)

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
                await self._access.call("POST", self._access.of_type(type, "/give_back"), {"key": key})

        task = asyncio.get_running_loop().create_task(give_back(), name="give back")
        self._given_back.add(task)
        task.add_done_callback(self._given_back.discard)

    def _running_jobs(self, form: Any) -> list[RunningJob]:
        return [self._access.hold(wire.running_job_of(each, self._worker)) for each in form["jobs"]]
