"""The runner of one service: a supervised lane per handler, tickers, and the end of them all. Floor: runner."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final

from jobs_service.actors.context import log
from jobs_service.runner.active_runs import ActiveRuns
from jobs_service.runner.handler import Handler
from jobs_service.runner.heartbeat import Heartbeat
from jobs_service.runner.rotation import rotation
from jobs_service.runner.run import StopReason
from jobs_service.runner.service_access import ServiceAccess
from jobs_service.runner.slot_limit import SlotLimit
from jobs_service.runner.ticker import Periodic, Ticker
from jobs_service.runner.worker_pool import WorkerPool, is_time
from jobs_service.supervision import Actor, ChildSpec, PatientSupervisor, Process, run_tree

_NAME: Final = "runner"

_LONGEST_PAUSE: Final = 10.0
"""Seconds before a part that fails again and again is started once more."""

_LONGEST_PAUSE_OF_HEARTBEATS: Final = 0.2
"""The same for a heartbeat, in whose pause jobs that run may count as lost."""


class Runner:
    """Runs the jobs of all handlers until it is canceled.

    What fails in the lane of one handler concerns no other, nor the jobs that it runs: it is started again after a
    pause that grows, for as long as the runner runs.

    Args:
        service: the service.
        handlers: each of another type.
        periodic: those of them whose jobs come by themselves.
        max_jobs: the cap over all; None for as many as they have slots.
        started: called once, when all types are there and their jobs are accepted.
    """

    def __init__(
        self,
        service: ServiceAccess,
        handlers: Sequence[Handler[Any, Any]],
        periodic: Sequence[Periodic],
        max_jobs: int | None,
        started: Callable[[], object],
    ) -> None:
        self._service = service
        self._unprepared = {handler.packed for handler in handlers}
        self._started = started
        self._slot_limit = SlotLimit(max_jobs)
        self._runs = {handler.packed: ActiveRuns(service, handler, self._slot_limit) for handler in handlers}
        self._worker_pools: dict[bytes, WorkerPool] = {}
        self._changed = asyncio.Event()
        children: list[ChildSpec[Process]] = []
        for runs in self._runs.values():
            children.append(ChildSpec(f"lane {runs.keys.name}", partial(self._worker_pool, runs)))
        children.append(ChildSpec("heartbeats", self._heartbeats))
        for each in periodic:
            name = f"ticker {self._runs[each.handler.packed].keys.name}"
            children.append(ChildSpec(name, partial(Ticker, service.context, each)))
        if max_jobs is not None:
            children.append(
                ChildSpec("sharing", lambda: _Sharing(self._slot_limit, self._runs, self._worker_pools, self._changed))
            )
        self.tree = self._supervisor(_NAME, children, _LONGEST_PAUSE)

    async def run(self) -> None:
        """Run jobs until the caller is canceled; then let those that run end within their grace.

        Raises:
            SupervisorFailed: a lane cannot be started at all.
        """
        task = asyncio.get_running_loop().create_task(run_tree(self.tree), name=_NAME)
        try:
            await asyncio.wait([task])
        finally:
            # Heartbeats go on as long as handlers do.
            await _through(self._drain())
            task.cancel()
            await _through(_ended(task))
        task.result()

    def options_changed(self, handler: Handler[Any, Any]) -> None:
        """Go on with the options that a handler has now."""
        worker_pool = self._worker_pools.get(handler.packed)
        if worker_pool is not None:  # else it begins with them
            worker_pool.options_changed()
            self._changed.set()

    def _supervisor(self, name: str, children: list[ChildSpec[Process]], longest_pause: float) -> PatientSupervisor:
        settings = self._service.context.settings
        first_pause = min(settings.retry_backoff, longest_pause)
        calm = settings.restart_period
        return PatientSupervisor(name, children, first_pause=first_pause, longest_pause=longest_pause, calm=calm)

    def _heartbeats(self) -> PatientSupervisor:
        children: list[ChildSpec[Process]] = [
            ChildSpec(f"heartbeat {runs.keys.name}", partial(Heartbeat, self._service.context, runs))
            for runs in self._runs.values()
        ]
        return self._supervisor("heartbeats", children, _LONGEST_PAUSE_OF_HEARTBEATS)

    def _worker_pool(self, runs: ActiveRuns) -> WorkerPool:
        packed = runs.handler.packed
        worker_pool = self._worker_pools[packed] = WorkerPool(
            self._service, runs, self._slot_limit, partial(self._prepared, packed)
        )
        return worker_pool

    def _prepared(self, packed: bytes) -> None:
        if packed in self._unprepared:
            self._unprepared.remove(packed)
            if not self._unprepared:
                self._started()

    async def _drain(self) -> None:
        busy = sum(runs.busy for runs in self._runs.values())
        log.debug("runner_draining", running=busy)
        drains = [runs.drain() for runs in self._runs.values()]
        for failure in await asyncio.gather(*drains, return_exceptions=True):
            if isinstance(failure, BaseException):
                log.error("runner_end_failed", exc_info=failure)


class _Sharing(Actor):
    """Has continuous jobs take turns where not a handler's slots are all taken, but the places of the cap."""

    def __init__(
        self,
        slot_limit: SlotLimit,
        runs: dict[bytes, ActiveRuns],
        worker_pools: dict[bytes, WorkerPool],
        changed: asyncio.Event,
    ) -> None:
        super().__init__("sharing")
        self._slot_limit = slot_limit
        self._runs = runs
        self._worker_pools = worker_pools
        self._changed = changed

    async def run(self) -> None:
        last = self._loop.time()
        while True:
            interval = min(runs.options.interval for runs in self._runs.values())
            if await is_time(last + interval, self._changed):
                last = self._loop.time()
                if self._slot_limit.is_full:
                    await self._share()

    async def _share(self) -> None:
        limit = self._slot_limit.limit
        assert limit is not None
        every = list(self._runs.values())
        holders = {run: runs for runs in every for run in runs.running()}
        continuous = rotation(holders)
        if not continuous:
            return
        leaving = sum(runs.leaving for runs in every)
        # A lane whose own slots are all taken sees to its turns itself.
        waiting = [self._worker_pools[runs.handler.packed] for runs in every if runs.free > 0]
        due = sum([await worker_pool.count_due(limit) for worker_pool in waiting])
        churn = max(runs.options.max_churn for runs in every)
        for run in continuous[: min(max(due - leaving, 0), churn)]:
            runs = holders[run]
            runs.stop_run(run, StopReason.STOPPED)
            # Else it might be the one to whom the place goes.
            self._slot_limit.put_last(runs)


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
