"""The heartbeat of one handler's runs: an actor that tells the store, again and again, that they are alive.

It is independent of the worker pool that accepts jobs: a crash of the pool does not lose running jobs. While a handler
blocks the loop, a thread sends the heartbeats.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from types import CodeType, FrameType
from typing import Any, Final, TypeVar

from jobs_service.actors.context import log
from jobs_service.errors import DirectoryMoved, JobsError
from jobs_service.layer.batch_bounds import TOO_MUCH, Pace, too_much_for
from jobs_service.layer.keyspace import Place, TypeKeys
from jobs_service.layer.running_jobs import LockStatus
from jobs_service.log import EventLog
from jobs_service.model import JobId
from jobs_service.runner.active_runs import ActiveRuns
from jobs_service.runner.functions import BLOCKED, Steps
from jobs_service.runner.run import Run, ServiceAccess
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

LONGEST_STANDSTILL: Final = 3600.0
"""Least seconds for which a blocked loop is excused; see MOST_TIMEOUTS. After that the heartbeats of its jobs stop."""

MOST_TIMEOUTS: Final = 20.0
"""The same limit as a multiple of a type's timeout, if that is longer."""

_MOST_FRAMES: Final = 5
_AGAIN: Final = 10.0
"""Factor of the blocked time after which the log names a handler again."""

_WAKES: Final = 0.5
"""Seconds that the thread needs to end if it does not wait for the store."""

_STEPS: Final[CodeType] = Steps.__await__.__code__


# On the loop


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
            if message == _RHYTHM_CHANGED:
                return True
            await self.handle(message)
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


# While the loop is blocked


class LoopWatch:
    """A thread that watches the loop: while a handler blocks it, the thread keeps jobs alive, and names the handler.

    Heartbeats share the loop with the handlers. If one of these computes for minutes without a pause, all jobs of the
    process would fall silent, and run a second time elsewhere, although they are healthy.

    Args:
        service: the service in which the runner runs.
        runs: the active runs of all handlers.
    """

    def __init__(self, service: ServiceAccess, runs: Sequence[ActiveRuns]) -> None:
        self._service = service
        self._runs = runs
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._monotonic = service.sources.monotonic
        self._batch = service.batch
        self._ending = threading.Event()
        self._turned = threading.Event()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._beaten: dict[ActiveRuns, float] = {}
        self._thread = threading.Thread(target=self._watch, name="jobs_service loop watch", daemon=True)

    def start(self) -> None:
        """Start the thread; in a world without threads, do nothing."""
        if self._service.sources.has_threads:
            self._thread.start()

    async def end(self) -> None:
        """End the thread, and wait for its end."""
        if self._thread.ident is None:
            return
        self._ending.set()
        self._turned.set()
        # It has only to wake, unless it waits for the store: then the loop may not stand still with it.
        self._thread.join(_WAKES)
        if self._thread.is_alive():
            await self._ended
            self._thread.join()

    # In the thread

    def _watch(self) -> None:
        try:
            # A loop that is closed without the runner's end is nobody's any more.
            with contextlib.suppress(RuntimeError):
                while not self._ending.wait(self._period()):
                    if any(runs.busy for runs in self._runs):
                        self._look()
        finally:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._tell_end)

    def _tell_end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    def _period(self) -> float:
        """Return the seconds between two checks: a heartbeat is late by at most half of its period."""
        return min(BLOCKED, *[runs.timeout / BEATS for runs in self._runs]) / 2

    def _look(self) -> None:
        """Check that the loop turns; while it is blocked, name the handler and send the heartbeats."""
        began = self._monotonic()
        self._turned.clear()
        self._loop.call_soon_threadsafe(self._turned.set)
        named_at = BLOCKED
        given_up: set[ActiveRuns] = set()
        while not self._turned.wait(self._period()) and not self._ending.is_set():
            stood = self._monotonic() - began
            if stood >= named_at:
                self._name(stood)
                named_at = _AGAIN * stood
            if self._service.serves_threads:
                for runs in self._runs:
                    self._keep_alive(runs, stood, given_up)

    def _keep_alive(self, runs: ActiveRuns, stood: float, given_up: set[ActiveRuns]) -> None:
        now = self._monotonic()
        if runs in given_up or now - max(runs.beaten_at, self._beaten.get(runs, 0.0)) < runs.timeout / BEATS:
            return
        alive = [run for run in runs.all() if not run.written]
        if not alive:
            return
        if stood > max(LONGEST_STANDSTILL, MOST_TIMEOUTS * runs.timeout):
            given_up.add(runs)
            runs.log.error("loop_given_up", count=len(alive), seconds=round(stood))
            return
        self._beaten[runs] = now
        begin = 0
        while begin < len(alive):
            part = self._batch.front(alive, begin, _size_of)
            begin += len(part)
            try:
                self._beat(runs, part)
            except JobsError as error:
                runs.log.warning("store_retry", error=str(error))

    def _beat(self, runs: ActiveRuns, part: Sequence[Run]) -> None:
        keys = runs.keys
        held: list[tuple[Place, bytes]] = [(run.place(keys), run.lock) for run in part]
        self._service.beat_in_thread(held, partial(runs.heed, part))

    # Log events

    def _name(self, seconds: float) -> None:
        task = asyncio.current_task(self._loop)
        frame = sys._current_frames().get(self._loop_thread)
        log, fields = self._handler_of(task)
        name = None if task is None else task.get_name()
        log.warning("loop_blocked", **fields, task=name, seconds=round(seconds, 3), where=_where(frame))

    def _handler_of(self, task: asyncio.Task[Any] | None) -> tuple[EventLog, dict[str, Any]]:
        """Return the log of the handler that a task runs, and the id of its job."""
        for runs in self._runs:
            for run in runs.all():
                if run.task is task and task is not None:
                    return runs.log, {"id": run.job.id}
        return log, {}


def _size_of(run: Run) -> int:
    return run.size


def _where(frame: FrameType | None) -> str:
    """Return the innermost running functions with their lines, up to the handler's."""
    found: list[str] = []
    while frame is not None and frame.f_code is not _STEPS and len(found) < _MOST_FRAMES:
        found.append(f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}:{frame.f_lineno})")
        frame = frame.f_back
    return ", called by ".join(found)
