"""Releases accepted jobs whose callers have gone, at once instead of at their type's timeout."""

from __future__ import annotations

import asyncio
from typing import Final

from jobs_service.actors.context import Context
from jobs_service.errors import StoreError, StoreUnavailable, WorkerConflict
from jobs_service.layer import running_jobs
from jobs_service.layer.entry import Entry
from jobs_service.layer.key_parts import pack_id
from jobs_service.layer.queue import EmptyQueue
from jobs_service.log import EventLog
from jobs_service.model import JobId, JobType
from jobs_service.uncancelable import own_task

log = EventLog("jobs_service")

_TRIES: Final = 5
"""Tries to release a job while the commit's outcome is unknown."""


class AbandonedJobs:
    """Releases jobs in the background; leaving the service waits for it.

    Without that they would stay locked until their type's timeout.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._releases: set[asyncio.Task[None]] = set()
        self._is_awaited = False

    def give_back_all(self, found: list[Entry] | EmptyQueue) -> None:
        """Release the jobs, or cancel the watch, from an accept whose caller has gone."""
        if not isinstance(found, EmptyQueue):
            for entry in found:
                self.give_back(entry)
        elif found.watch is not None:
            found.watch.cancel()

    def give_back(self, entry: Entry) -> None:
        """Release an accepted job."""
        assert entry.record is not None
        assert entry.record.lock is not None
        work = self._release(entry.keys.type, entry.id, entry.record.lock)
        task = own_task(work)
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def until_given_back(self) -> None:
        """Wait until all releases have ended; from now on none is retried."""
        self._is_awaited = True
        while self._releases:
            await asyncio.wait(self._releases)

    def begin_anew(self) -> None:
        """Retry failed releases again, because the service is open."""
        self._is_awaited = False

    async def _release(self, type: JobType, id: JobId, lock: bytes) -> None:
        place = (self._context.keyspace.of(type), id, pack_id(id))
        failure: Exception | None = None
        for _ in range(_TRIES):
            try:
                await self._context.transact(lambda unit: running_jobs.release(unit, place, lock))
                return
            except StoreUnavailable as error:
                # The job may have been released or not: the next try finds out, and no other worker has its lock.
                failure = error
                if self._is_awaited:
                    break
            except (WorkerConflict, StoreError) as error:
                if failure is not None and isinstance(error, WorkerConflict):
                    return  # an earlier try has released it
                failure = error
                break
        log.warning("release_failed", type=type, id=id, error=str(failure))
