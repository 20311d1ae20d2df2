"""Turns of continuous jobs when the limit over all handlers is reached."""

from __future__ import annotations

import asyncio

from jobs_service.runner.active_runs import ActiveRuns
from jobs_service.runner.rotation import rotation
from jobs_service.runner.run import Run, StopReason
from jobs_service.runner.slot_limit import SlotLimit
from jobs_service.runner.worker_pool import WorkerPool, is_time
from jobs_service.supervision import Actor


class SlotSharing(Actor):
    """Makes continuous jobs take turns when the limit over all handlers is reached, but no handler's own limit.

    If all slots of a handler are taken, its worker pool rotates by itself.

    Args:
        slot_limit: the limit over all handlers.
        runs: the runs of each handler, by its packed type.
        worker_pools: the current worker pools, by the same key.
        changed: set when options have changed.
    """

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
                if self._slot_limit.is_full and not self._slot_limit.is_closed:
                    await self._share()

    async def _share(self) -> None:
        """Stop as many continuous jobs of all handlers together as other jobs are due."""
        limit = self._slot_limit.limit
        assert limit is not None
        every = list(self._runs.values())
        holders = {run: runs for runs in every for run in runs.running()}
        continuous = rotation(holders)
        if not continuous:
            return
        leaving = sum(runs.leaving for runs in every)
        waiting = {runs: self._worker_pools[runs.handler.packed] for runs in every if runs.free > 0}
        # A handler takes no more than it has slots of its own, those included that become free now.
        room = {runs: runs.free + runs.leaving for runs in waiting}
        due = {runs: await worker_pool.count_due(limit) for runs, worker_pool in waiting.items()}
        # A job does not give way to those of its own type that come after it in the queue: it would be accepted again.
        before: dict[tuple[ActiveRuns, bytes], int] = {}
        for runs in dict.fromkeys(holders[run] for run in continuous if due.get(holders[run])):
            priorities = {run.job._record.priority for run in continuous if holders[run] is runs}
            found = await waiting[runs].count_due_up_to(priorities, limit)
            before |= {(runs, priority): count for priority, count in found.items()}
        churn = max(runs.options.max_churn for runs in every)
        turns: list[Run] = []
        for run in continuous:
            runs = holders[run]
            gains = dict(due)
            if runs in gains:
                gains[runs] = min(gains[runs], before.get((runs, run.job._record.priority), 0))
            gained = sum(min(count, room[each] + (each is runs)) for each, count in gains.items())
            if len(turns) < min(gained - leaving, churn):
                turns.append(run)
                due = gains  # its slot goes to none of its type that come after it in the queue
                if runs in room:
                    room[runs] += 1
        for run in turns:
            runs = holders[run]
            runs.stop_run(run, StopReason.STOPPED)
            # Otherwise the same handler might get the slot again.
            self._slot_limit.put_last(runs)
