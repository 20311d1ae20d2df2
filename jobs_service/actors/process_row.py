"""The process row: says in the store that this process is there, again and again, and hears what it is asked."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from jobs_service.actors.context import Context
from jobs_service.errors import StoreError
from jobs_service.layer import process_rows
from jobs_service.layer.process_rows import ProcessRow
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.model import ProcessRequest
from jobs_service.store.base import Transaction, Watch
from jobs_service.supervision import Actor

_HOLDOFF: Final = 0.2
"""Least seconds between two writes, however often something changes."""
_SPREAD: Final = 0.1
"""Part of the time between two heartbeats by which it varies, so that processes do not write all at once."""
_CLEAN_EVERY: Final = 3600.0
"""Seconds between two searches for the rows of processes that have ended without removing theirs."""


class ProcessRowWriter(Actor):
    """Writes the row of this process at each heartbeat, and whenever `changed` is called.

    Args:
        context: the service's.
        id: of the process.
        row: returns what is to be written now.
        obey: called with what the process was asked to do last, whenever that has changed, or may have.
    """

    def __init__(
        self, context: Context, id: str, row: Callable[[], ProcessRow], obey: Callable[[ProcessRequest], None]
    ) -> None:
        super().__init__("process row")
        self._context = context
        self._id = id
        self._row = row
        self._obey = obey

    def changed(self) -> None:
        """Have the row written soon."""
        self.cast("changed")

    async def run(self) -> None:
        """Write for ever."""
        context = self._context
        period = context.settings.process_heartbeat
        self.spawn_link(self._listen(), "requests")
        loop = asyncio.get_running_loop()
        clean_at = loop.time()
        pause = context.sources.uniform(0.0, period)
        while True:
            await self._write()
            written = loop.time()
            if written >= clean_at:
                clean_at = written + _CLEAN_EVERY
                await self._clean()
            if await self.receive(pause) is not None:
                await asyncio.sleep(written + _HOLDOFF - loop.time())
                while await self.receive(0) is not None:
                    """One write is for all of them."""
            pause = period * context.sources.uniform(1 - _SPREAD, 1 + _SPREAD)

    async def _write(self) -> None:
        def written() -> Awaitable[None]:
            row = self._row()  # here, not in the transaction, which runs on another thread

            async def write(unit: UnitOfWork) -> None:
                process_rows.write(unit, row)

            return self._context.transact(write)

        await self._context.retried(written)

    async def _listen(self) -> None:
        """Hear what the process is asked."""
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
        """Remove the rows of processes that have ended long ago."""
        context = self._context
        dead = await context.retried(self._ended)

        async def remove(unit: UnitOfWork) -> None:
            await process_rows.remove_ended(unit, dead)

        await context.retried(lambda: context.transact(remove))

    async def _ended(self) -> set[bytes]:
        context = self._context
        rows = await context.read(lambda transaction: process_rows.listed(transaction, context.keyspace))
        return await context.store.ended_instances({row.instance for row in rows if row.instance})
