"""The watch over the event loop: a thread keeps running jobs alive while one handler blocks it, and names the handler.

Heartbeats share the loop with the handlers. If one of these computes for minutes without a pause, all jobs of the
process would fall silent, and run a second time elsewhere, although they are healthy.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Sequence
from functools import partial
from types import CodeType, FrameType
from typing import Any, Final

from jobs_service.actors.context import log as other_log
from jobs_service.errors import JobsError
from jobs_service.layer.unit_of_work import Place
from jobs_service.log import EventLog
from jobs_service.runner.active_runs import ActiveRuns
from jobs_service.runner.function_calls import BLOCKED, Steps
from jobs_service.runner.heartbeat import BEATS
from jobs_service.runner.run import Run
from jobs_service.runner.service_access import ServiceAccess

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


class LoopWatch:
    """A thread that watches the loop while a runner runs.

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
        return other_log, {}


def _size_of(run: Run) -> int:
    return run.size


def _where(frame: FrameType | None) -> str:
    """Return the innermost running functions with their lines, up to the handler's."""
    found: list[str] = []
    while frame is not None and frame.f_code is not _STEPS and len(found) < _MOST_FRAMES:
        found.append(f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}:{frame.f_lineno})")
        frame = frame.f_back
    return ", called by ".join(found)
