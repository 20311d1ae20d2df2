"""The runner of one service: a supervised lane per handler, the ticker, and the end of them all. Floor: runner."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final

from jobs_service.actors.context import log
from jobs_service.model import JobId, JobType
from jobs_service.runner import scheduling
from jobs_service.runner.cap import Cap
from jobs_service.runner.execution import Why
from jobs_service.runner.handler import Handler
from jobs_service.runner.host import Host
from jobs_service.runner.lane import Lane, Run, candidates, is_time
from jobs_service.runner.ticker import Periodic, Ticker
from jobs_service.supervision import Actor, ChildSpec, Process, Strategy, Supervisor, run_tree

_NAME: Final = "runner"


class Runner:
    """Runs the jobs of all handlers until it is canceled.

    Args:
        host: the service.
        handlers: each of another type.
        periodic: those of them whose jobs come by themselves.
        max_jobs: the cap over all; None for as many as they have slots.
        started: called once, when all types are there and their jobs are accepted.
    """

    def __init__(
        self,
        host: Host,
        handlers: Sequence[Handler[Any, Any]],
        periodic: Sequence[Periodic],
        max_jobs: int | None,
        started: Callable[[], object],
    ) -> None:
        self._host = host
        self._unprepared = {handler.type for handler in handlers}
        self._started = started
        self._cap = Cap(max_jobs)
        self._lanes: dict[JobType, Lane] = {}
        self._changed = asyncio.Event()
        children: list[ChildSpec[Process]] = [
            ChildSpec(f"lane {handler.type!r}", partial(self._lane, handler)) for handler in handlers
        ]
        if periodic:
            children.append(ChildSpec("ticker", lambda: Ticker(host.context, periodic)))
        if max_jobs is not None:
            children.append(ChildSpec("sharing", lambda: _Sharing(self._cap, self._lanes, self._changed)))
        settings = host.context.settings
        self.tree = Supervisor(
            _NAME,
            children,
            strategy=Strategy.ONE_FOR_ONE,
            max_restarts=settings.max_restarts,
            restart_period=settings.restart_period,
        )

    async def run(self) -> None:
        """Run jobs until the caller is canceled; then let those that run end within their grace.

        Raises:
            SupervisorFailed: a lane failed again and again.
        """
        task = asyncio.get_running_loop().create_task(run_tree(self.tree), name=_NAME)
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            await _through(self._drain())
            raise
        finally:
            task.cancel()
            await _through(_ended(task))
        task.result()

    def options_changed(self, type: JobType) -> None:
        """Go on with the options that the type's handler has now."""
        lane = self._lanes.get(type)
        if lane is not None:  # else it begins with them
            lane.options_changed()
            self._changed.set()

    def busy(self) -> dict[JobType, int]:
        """Return how many handlers of each type run."""
        return {type: lane.busy for type, lane in self._lanes.items()}

    def _lane(self, handler: Handler[Any, Any]) -> Lane:
        lane = self._lanes[handler.type] = Lane(self._host, handler, self._cap, partial(self._prepared, handler.type))
        return lane

    def _prepared(self, type: JobType) -> None:
        if type in self._unprepared:
            self._unprepared.remove(type)
            if not self._unprepared:
                self._started()

    async def _drain(self) -> None:
        busy = sum(self.busy().values())
        log.debug("runner_draining", running=busy)
        await asyncio.gather(*(lane.drain() for lane in self._lanes.values() if lane.is_alive))


class _Sharing(Actor):
    """Has continuous jobs take turns where not a handler's slots are all taken, but the places of the cap."""

    def __init__(self, cap: Cap, lanes: dict[JobType, Lane], changed: asyncio.Event) -> None:
        super().__init__("sharing")
        self._cap = cap
        self._lanes = lanes
        self._changed = changed

    async def run(self) -> None:
        last = self._loop.time()
        while True:
            interval = min(lane.options.interval for lane in self._lanes.values())
            if await is_time(last + interval, self._changed):
                last = self._loop.time()
                if self._cap.is_full:
                    await self._share()

    async def _share(self) -> None:
        limit = self._cap.limit
        assert limit is not None
        lanes = list(self._lanes.values())
        runs: dict[JobId, tuple[Lane, Run]] = {run.job.lock: (lane, run) for lane in lanes for run in lane.running()}
        if not any(run.continuous for _, run in runs.values()):
            return
        leaving = sum(lane.leaving for lane in lanes)
        running = candidates(run for _, run in runs.values())
        # A lane whose own slots are all taken sees to its turns itself.
        due = sum([await lane.count_due(limit) for lane in lanes if lane.busy < lane.options.slots])
        churn = max(lane.options.max_churn for lane in lanes)
        for victim in scheduling.rotation(running, max(due - leaving, 0), len(running), churn):
            lane, run = runs[victim.id]
            lane.stop_run(run, Why.STOPPED)
            # Else it might be the one to whom the place goes.
            self._cap.put_last(lane)


async def _ended(task: asyncio.Task[None]) -> None:
    await asyncio.wait([task])


async def _through(work: Coroutine[Any, Any, None]) -> None:
    """Do it to its end; being canceled once more does not shorten it."""
    task = asyncio.get_running_loop().create_task(work)
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.done():
                break
    if not task.cancelled() and task.exception() is not None:
        log.error("runner_end_failed", exc_info=task.exception())
