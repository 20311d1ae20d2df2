"""Finds the processes that have died, and re-enqueues the jobs that they held, at once.

Jobs of processes on other machines, and of hanging ones, are found by the activity monitors after the type's timeout.
So are all dead processes' jobs on stores that cannot detect them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Final

from jobs_service.actors.context import Context, DutifulActor, log
from jobs_service.layer import running_jobs
from jobs_service.layer.batch_bounds import Batch, Pace, too_much_for
from jobs_service.layer.keyspace import Place
from jobs_service.layer.record import JobSnapshot
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.model import JobId, JobType
from jobs_service.store.base import Transaction

_PAGE: Final = 250
"""Running jobs that one transaction reads: so many of the largest records are within its limits."""
_SHOWN_IDS: Final = 10


class ProcessMonitor(DutifulActor):
    """Finds store instances of dead processes, and re-enqueues the jobs that they held.

    Args:
        context: the service's.
    """

    def __init__(self, context: Context) -> None:
        super().__init__("process monitor", context)
        self._pace = Pace(Batch.of(context.store.limits))

    async def run(self) -> None:
        context = self._context
        period = context.settings.process_check_period
        pause = context.sources.uniform(0.0, period)
        while True:
            message = await self.receive(pause)
            if message is not None:
                await self.handle(message)
            dead = await context.retried(context.store.dead_instances)
            pause = period
            if dead:
                await self._bury(frozenset(dead))
                pause = 0.0  # Processes are often killed together: check again at once.

    async def _bury(self, dead: frozenset[bytes]) -> None:
        """Re-enqueue all jobs that dead instances hold, then forget the instances.

        If this process dies half way, another process finds the same instances and does the rest.
        """
        context = self._context
        held, after = await self._held(dead, None)
        await self._re_enqueue(held, dead)
        while after is not None:
            held, after = await self._held(dead, after)
            await self._re_enqueue(held, dead)
        await context.retried(lambda: context.store.forget_instances([*dead]))
        log.debug("processes_died", count=len(dead))

    async def _held(self, dead: frozenset[bytes], after: bytes | None) -> tuple[list[Place], bytes | None]:
        """Read one page of running jobs; return the jobs of dead instances, and the begin of the next page."""
        context = self._context

        async def read(transaction: Transaction) -> tuple[list[Place], bytes | None]:
            return await running_jobs.held_jobs(transaction, context.keyspace, dead, after, _PAGE)

        return await self._read(read)

    async def _re_enqueue(self, held: Sequence[Place], dead: frozenset[bytes]) -> None:
        """Re-enqueue jobs that dead instances still hold, as many per transaction as fit."""
        while held:
            lost, dealt_with = await self._pace.fitting(partial(self._take, held, dead))
            self._log_lost(lost)
            held = held[dealt_with:]

    async def _take(self, held: Sequence[Place], dead: frozenset[bytes], most: int) -> tuple[list[JobSnapshot], int]:
        async def take(unit: UnitOfWork) -> tuple[list[JobSnapshot], int]:
            lost, dealt_with = await running_jobs.take_from(unit, held[:most], dead)
            return [entry.seen() for entry in lost], dealt_with

        too_much = too_much_for(min(most, len(held)))
        return await self._transact(take, too_much)

    def _log_lost(self, lost: list[JobSnapshot]) -> None:
        ids: defaultdict[JobType, list[JobId]] = defaultdict(list)
        for seen in lost:
            ids[seen.keys.type].append(seen.id)
        for type, some in ids.items():
            log.warning("jobs_lost", type=type, count=len(some), ids=some[:_SHOWN_IDS], reason="their process died")


# Rows of processes
