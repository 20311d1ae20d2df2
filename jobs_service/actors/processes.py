"""Actors for processes: one re-enqueues the jobs of dead ones at once, another lists this process in the store.

Jobs of processes on other machines, and of hanging ones, are found by the activity monitors after the type's timeout.
So are all dead processes' jobs on stores that cannot detect them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

from jobs_service.actors.context import Context, DutifulActor, log
from jobs_service.errors import StoreError
from jobs_service.layer import lost_jobs, rows
from jobs_service.layer.batch_bounds import Batch, Pace, too_much_for
from jobs_service.layer.keyspace import Place
from jobs_service.layer.record import JobSnapshot
from jobs_service.layer.rows import ProcessRow
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.model import JobId, JobType, ProcessRequest
from jobs_service.store.base import Transaction, Watch

_PAGE: Final = 250
"""Running jobs that one transaction reads: so many of the largest records are within its limits."""
_SHOWN_IDS: Final = 10

_HOLDOFF: Final = 0.2
"""Least seconds between two writes, even if changes come faster."""
_SPREAD: Final = 0.1
"""Jitter of the heartbeat period, as a fraction, so that processes do not write all at once."""
_CLEAN_EVERY: Final = 3600.0
"""Seconds between two searches for rows that ended processes have left."""
_REMOVED_AT_ONCE: Final = 100
"""Left rows that one transaction removes."""

_Page: TypeAlias = tuple[list[ProcessRow], bytes | None]


# Jobs of dead processes


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
            return await lost_jobs.held_jobs(transaction, context.keyspace, dead, after, _PAGE)

        return await self._read(read)

    async def _re_enqueue(self, held: Sequence[Place], dead: frozenset[bytes]) -> None:
        """Re-enqueue jobs that dead instances still hold, as many per transaction as fit."""
        while held:
            lost, dealt_with = await self._pace.fitting(partial(self._take, held, dead))
            self._log_lost(lost)
            held = held[dealt_with:]

    async def _take(self, held: Sequence[Place], dead: frozenset[bytes], most: int) -> tuple[list[JobSnapshot], int]:
        async def take(unit: UnitOfWork) -> tuple[list[JobSnapshot], int]:
            lost, dealt_with = await lost_jobs.take_from(unit, held[:most], dead)
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


async def all_rows(
    read: Callable[[Callable[[Transaction], Coroutine[Any, Any, _Page]]], Awaitable[_Page]], context: Context
) -> tuple[list[ProcessRow], set[bytes]]:
    """Return the rows of all processes, and the ended ones among their store instances.

    Args:
        read: reads in a transaction of its own.
        context: the service's.
    """
    every: list[ProcessRow] = []
    after: bytes | None = None
    while True:

        async def page(transaction: Transaction, after: bytes | None = after) -> _Page:
            return await rows.page(transaction.snapshot, context.keyspace, after)

        found, after = await read(page)
        every += found
        if after is None:
            break
        await asyncio.sleep(0)  # a store that answers at once never yields to the loop
    return every, await context.store.ended_instances({row.instance for row in every if row.instance})


class ProcessRowWriter(DutifulActor):
    """Writes the row of this process at each heartbeat, and whenever `changed` is called.

    Args:
        context: the service's.
        id: of the process.
        row: returns the present row.
        obey: called with the latest request to the process, whenever it has or may have changed.
    """

    def __init__(
        self, context: Context, id: str, row: Callable[[], ProcessRow], obey: Callable[[ProcessRequest], None]
    ) -> None:
        super().__init__("process row", context)
        self._id = id
        self._row = row
        self._obey = obey

    def changed(self) -> None:
        """Have the row written soon."""
        self.cast("changed")

    async def run(self) -> None:
        """Write the row for ever."""
        context = self._context
        period = context.settings.process_heartbeat
        self.spawn_link(self._listen(), "requests")
        self._clean_at = self._time()
        pause = context.sources.uniform(0.0, period)
        while True:
            await self._write()
            written = self._time()
            if written >= self._clean_at:
                self._clean_at = written + _CLEAN_EVERY
                await self._clean()
            if await self.receive(pause) is not None:
                await asyncio.sleep(written + _HOLDOFF - self._time())
                while await self.receive(0) is not None:
                    """One write covers all changes."""
            pause = period * context.sources.uniform(1 - _SPREAD, 1 + _SPREAD)

    async def _write(self) -> None:
        def written() -> Awaitable[None]:
            row = self._row()  # here, not in the transaction, which runs on another thread

            async def write(unit: UnitOfWork) -> None:
                rows.write(unit, row)

            return self._context.transact(write)

        await self._context.retried(written)

    async def _listen(self) -> None:
        """Pass on requests to the process."""
        context = self._context

        async def read(transaction: Transaction) -> tuple[ProcessRequest | None, Watch]:
            return await rows.watch_request(transaction, context.keyspace, self._id)

        while True:
            request, watch = await context.retried(lambda: context.read(read))
            try:
                if request is not None:
                    self._obey(request)
                with contextlib.suppress(StoreError):  # after the loss of a watch, read again
                    await watch.wait()
            finally:
                watch.cancel()

    async def _clean(self) -> None:
        """Remove the rows of processes that ended long ago."""
        context = self._context
        every, dead = await all_rows(self._read, context)
        ids = rows.to_remove(every, context.sources.wall_time(), dead)

        async def remove(unit: UnitOfWork) -> None:
            await rows.remove_ended(unit, some, dead)

        for start in range(0, len(ids), _REMOVED_AT_ONCE):
            some = ids[start : start + _REMOVED_AT_ONCE]
            await self._transact(remove)
