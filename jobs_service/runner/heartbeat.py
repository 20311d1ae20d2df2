"""The heartbeat of one handler's runs: an actor that tells the store, again and again, that they are alive.

It is independent of the worker pool that accepts jobs: a crash of the pool does not lose running jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

from jobs_service.errors import DirectoryMoved, JobsError
from jobs_service.layer.batch_bounds import TOO_MUCH, Pace, too_much_for
from jobs_service.layer.keyspace import TypeKeys
from jobs_service.layer.running_jobs import LockStatus
from jobs_service.model import JobId
from jobs_service.runner.active_runs import ActiveRuns
from jobs_service.runner.run import Run
from jobs_service.runner.service_access import ServiceAccess
from jobs_service.store.base import Watch
from jobs_service.supervision import Actor

T = TypeVar("T")

BEATS: Final = 3
"""Heartbeats per activity timeout."""

_HOLDOFF: Final = 0.05
"""Least seconds between two reads of the type's timeout."""

_SHOWN_IDS: Final = 10
_RHYTHM_CHANGED: Final = "rhythm changed"


LONG_RUN: Final = 3600.0
"""Seconds after which the log mentions a run without a time limit that has not ended."""


class Heartbeat(Actor):
    """Keeps the running jobs of one type alive, independently of their handlers.

    Args:
        service: the service in which the runner runs.
        runs: the runs of the type.
    """

    def __init__(self, service: ServiceAccess, runs: ActiveRuns) -> None:
        super().__init__(f"heartbeat {runs.keys.name}")
        self._service = service
        self._active_runs = runs
        self._pace = Pace(service.batch)
        self._long: set[bytes] = set()

    async def run(self) -> None:
        self.spawn_link(self._follow_timeout(), "timeout")
        self.spawn_link(self._follow_redaction(), "redaction")
        # This may be a restart, and it is not known when the last heartbeat was.
        await self._renew(self._active_runs.all())
        while True:
            period = self._active_runs.timeout / BEATS
            due = self._loop.time() + period
            on_time = not await self._is_changed_before(due)
            if on_time:
                self._active_runs.heartbeats_missed += int((self._loop.time() - due) / period)
            # Jobs accepted in the second half of the period are still in time with the next heartbeat.
            before = self._loop.time() - period / 2 if on_time else self._loop.time()
            await self._renew([run for run in self._active_runs.all() if run.at <= before])
            self._log_long_runs()

    def _log_long_runs(self) -> None:
        """Log each very long run once: while a handler hangs, no other worker takes the job."""
        now = self._loop.time()
        runs = {run.lock: run for run in self._active_runs.all() if now - run.at >= LONG_RUN and not run.continuous}
        for lock in runs.keys() - self._long:
            run = runs[lock]
            if run.stop_reason is None and (run.job.time_limit or self._active_runs.options.time_limit) is None:
                self._active_runs.log.warning("handler_runs_long", id=run.job.id, seconds=round(now - run.at))
        self._long = {*runs}

    async def _is_changed_before(self, at: float) -> bool:
        """Wait until a time of the loop's clock; return True at once after a change of the type's timeout."""
        while (left := at - self._loop.time()) > 0:
            message = await self.receive(left)
            if message is None:
                return False
            if message.body == _RHYTHM_CHANGED:
                return True
            await self.handle(message.body)
        return False

    async def _renew(self, runs: Sequence[Run]) -> None:
        """Renew the locks of jobs; a job that cannot be renewed does not block the others."""
        failed: list[tuple[JobId, Exception]] = []
        self._active_runs.beaten_at = self._service.sources.monotonic()
        alive = [run for run in runs if not run.written]
        try:
            await self._pace.through(alive, lambda run: run.size, lambda part: self._renew_part(part, failed))
        except Exception as error:
            self._active_runs.heartbeats_missed += 1
            self._active_runs.log.error("heartbeat_failed", count=len(alive), exc_info=error)
        if failed:
            self._active_runs.heartbeats_missed += 1
            ids = [id for id, _ in failed[:_SHOWN_IDS]]
            self._active_runs.log.error("heartbeat_failed", count=len(failed), ids=ids, exc_info=failed[0][1])

    async def _renew_part(self, part: Sequence[Run], failed: list[tuple[JobId, Exception]]) -> None:
        """Renew some jobs in one transaction; if it fails because of one, halve until only that job is left out."""
        batch = [run for run in part if not run.written]
        if not batch:
            return
        try:
            unless = too_much_for(len(batch))
            found = await self._service.retried(
                lambda: self._transact(batch), unless=unless, type=self._active_runs.handler.type
            )
        except TOO_MUCH as error:
            if len(batch) > 1:
                raise
            failed.append((batch[0].job.id, error))
        except DirectoryMoved:
            await self._renew_part(batch, failed)
        except JobsError as error:
            if len(batch) == 1:
                failed.append((batch[0].job.id, error))
                return
            middle = len(batch) // 2
            await self._renew_part(batch[:middle], failed)
            await self._renew_part(batch[middle:], failed)
        else:
            self._active_runs.heed(batch, found)

    async def _transact(self, batch: Sequence[Run]) -> list[LockStatus]:
        keys = self._active_runs.keys
        return await self._service.beat([(run.place(keys), run.lock) for run in batch])

    async def _follow_timeout(self) -> None:
        """Follow changes of the type's timeout, which sets the heartbeat's period."""

        def take(timeout: float | None) -> None:
            if timeout is not None and timeout != self._active_runs.timeout:
                self._active_runs.timeout = timeout
                self.cast(_RHYTHM_CHANGED)

        await self._follow(self._service.timeout, take)

    async def _follow_redaction(self) -> None:
        """Follow changes of the type's redaction, for the log."""
        await self._follow(self._service.redaction, self._active_runs.hide)

    async def _follow(
        self, read: Callable[[TypeKeys], Coroutine[Any, Any, tuple[T, Watch]]], take: Callable[[T], None]
    ) -> None:
        """Read a setting of the type now and whenever its watch fires, and pass it on."""
        while True:
            found, watch = await self._service.retried(
                lambda: read(self._active_runs.keys), type=self._active_runs.handler.type
            )
            take(found)
            try:
                with contextlib.suppress(JobsError):  # after the loss of a watch, read again
                    await watch.wait()
            finally:
                watch.cancel()
            await asyncio.sleep(_HOLDOFF)
