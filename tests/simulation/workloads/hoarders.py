"""Keys of the application's own that fill a small store, and are removed when it is full."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import ClassVar, Final

from jobs_service import JobTransaction, StoreUnavailable
from jobs_service.errors import StoreFull
from tests.simulation.client import MIXED, Client
from tests.simulation.workloads.base import Workload

_HOARD: Final = b"hoard/"


class Hoarders(Workload):
    """Write until there is no room; then remove something, which must go through, and makes room."""

    name = "hoarders"
    weight: ClassVar[int] = 3
    always: ClassVar[bool] = True

    def __init__(self, run: object) -> None:
        super().__init__(run)  # type: ignore[arg-type]
        self._written = 0

    async def step(self, client: Client) -> None:
        number, self._written = self._written, self._written + 1
        size = self.random.choice([500, 2_000, 6_000])
        replaced, clears = b"%d" % self.random.randrange(max(number, 1)), self.random.random() < 0.5

        async def write(tx: JobTransaction) -> None:
            tx.kv.set(_HOARD + b"%d" % number, bytes(size))

        async def make_smaller(tx: JobTransaction) -> None:
            if clears:
                tx.kv.clear_range(_HOARD, _HOARD + replaced)
            elif await tx.kv.get(_HOARD + replaced) is not None:
                tx.kv.set(_HOARD + replaced, b"")

        mixed = MIXED.set(True)
        try:
            try:
                await client.jobs.transact(write)
            except StoreFull:
                await self._empty(client, make_smaller)
        finally:
            MIXED.reset(mixed)

    async def settle(self, client: Client) -> None:
        """Leave room for whoever adds in the calm."""

        async def clear(tx: JobTransaction) -> None:
            tx.kv.clear_range(_HOARD, _HOARD + b"\xff")

        with contextlib.suppress(StoreUnavailable):
            await self._empty(client, clear)

    async def _empty(self, client: Client, function: Callable[[JobTransaction], Awaitable[None]]) -> None:
        """Have the store hold less."""
        try:
            await client.jobs.transact(function)
        except StoreFull as error:
            self.run.complain(f"full: {client.process} was refused to remove: {error}")
