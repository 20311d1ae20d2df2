"""The type monitor: waits for activity of one type and wakes its notifier, at most once per holdoff."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from jobs_service.actors.context import Context
from jobs_service.errors import StoreError
from jobs_service.layer.keyspace import TypeKeys
from jobs_service.store.base import Transaction, Watch

_SHORTEST_REST: Final = 0.002
"""Rests of the notifier below so many seconds are skipped: the loop's timers are no finer than a millisecond."""


class TypeMonitor:
    """A loop that its notifier runs in a task linked to itself.

    Args:
        context: the service's.
        keys: of the type.
        notify: wakes the notifier.
        rested: waits for the end of the notifier's read; returns the end of its rest in seconds of the loop's clock.
    """

    def __init__(
        self, context: Context, keys: TypeKeys, notify: Callable[[], None], rested: Callable[[], Awaitable[float]]
    ) -> None:
        self._context = context
        self._keys = keys
        self._notify = notify
        self._rested = rested

    async def run(self) -> None:
        """Watch the type's activity stamp for ever."""
        time = asyncio.get_running_loop().time
        stamp: bytes | None = None
        while True:
            found, watch = await self._context.retried(
                lambda: self._context.read(self._read_stamp), type=self._keys.type
            )
            try:
                if found != stamp:
                    stamp = found
                    self._notify()
                    held_off_until = time() + self._context.settings.notify_holdoff
                    await _change(watch)
                    rests_until = await self._rested()
                    if rests_until - time() < _SHORTEST_REST:
                        rests_until = 0.0
                    await asyncio.sleep(max(held_off_until, rests_until) - time())
                else:
                    await _change(watch)
            finally:
                watch.cancel()

    async def _read_stamp(self, transaction: Transaction) -> tuple[bytes | None, Watch]:
        watch = transaction.watch(self._keys.watch_activity)
        return await transaction.get(self._keys.watch_activity), watch


async def _change(watch: Watch) -> None:
    """Wait for a possible change: stores may lose watches, and then the stamp is read again."""
    with contextlib.suppress(StoreError):
        await watch.wait()
