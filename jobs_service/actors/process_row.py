"""The process row: a heartbeat that lists this process in the store, and the requests to this process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeAlias

from jobs_service.actors.context import Context
from jobs_service.actors.duties import DutifulActor
from jobs_service.errors import StoreError
from jobs_service.layer import process_rows
from jobs_service.layer.process_rows import ProcessRow
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.model import ProcessRequest
from jobs_service.store.base import Transaction, Watch

_HOLDOFF: Final = 0.2
"""Least seconds between two writes, even if changes come faster."""
_SPREAD: Final = 0.1
"""Jitter of the heartbeat period, as a fraction, so that processes do not write all at once."""
_CLEAN_EVERY: Final = 3600.0
"""Seconds between two searches for rows that ended processes have left."""
_REMOVED_AT_ONCE: Final = 100
"""Left rows that one transaction removes."""

_Page: TypeAlias = tuple[list[ProcessRow], bytes | None]


async def all_rows(
    read: Callable[[Callable[[Transaction], Coroutine[Any, Any, _Page]]], Awaitable[_Page]], context: Context
) -> tuple[list[ProcessRow], set[bytes]]:
    """Return the rows of all processes, and the ended ones among their store instances.

    Args:
        read: reads in a transaction of its own.
        context: the service's.
    """
    rows: list[ProcessRow] = []
    after: bytes | None = None
    while True:

        async def page(transaction: Transaction, after: bytes | None = after) -> _Page:
            return await process_rows.page(transaction.snapshot, context.keyspace, after)

        found, after = await read(page)
        rows += found
        if after is None:
            break
        await asyncio.sleep(0)  # a store that answers at once never yields to the loop
    return rows, await context.store.ended_instances({row.instance for row in rows if row.instance})


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
                process_rows.write(unit, row)

            return self._context.transact(write)

        await self._context.retried(written)

    async def _listen(self) -> None:
        """Pass on requests to the process."""
        context = self._context

        async def read(transaction: Transaction) -> tuple[ProcessRequest | None, Watch]:
            return await process_rows.watch_request(transaction, context.keyspace, self._id)

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
        rows, dead = await all_rows(self._read, context)
        ids = process_rows.to_remove(rows, context.sources.wall_time(), dead)

        async def remove(unit: UnitOfWork) -> None:
            await process_rows.remove_ended(unit, some, dead)

        for start in range(0, len(ids), _REMOVED_AT_ONCE):
            some = ids[start : start + _REMOVED_AT_ONCE]
            await self._transact(remove)
