"""A store of a drill's own, in memory: what is there is only what the drill has put there."""

from __future__ import annotations

from jobs_service import JobsService
from jobs_service.sources import Sources
from jobs_service.store.base import Transaction
from jobs_service.store.memory import MemoryStore
from tests.simulation.drills.drill import Drill


class Place:
    """A store, with a service on it.

    Args:
        drill: that it is part of.
        name: of the store.
    """

    def __init__(self, drill: Drill, name: str) -> None:
        process = drill.client.process
        seed = f"{drill.run.world.choices.plan.seed}/{drill.type}/{name}"
        self.sources = Sources(seed, wall_time=process.clock.wall_time, worker="worker")
        self.store = MemoryStore(settings=process.settings, sources=self.sources)
        self.store.address = f"memory:{name}"
        self.jobs = JobsService(self.store, settings=process.settings, supervise=False, sources=self.sources)

    async def rows(self) -> dict[bytes, bytes]:
        """Return all of its rows, by their keys behind the prefix."""
        prefix = await self.store.prefix()

        async def read(transaction: Transaction) -> list[tuple[bytes, bytes]]:
            return await transaction.get_range(prefix, prefix + b"\xff")

        return {key[len(prefix) :]: value for key, value in await self.store.read(read)}

    async def put(self, key: bytes, value: bytes) -> None:
        """Write a row."""
        prefix = await self.store.prefix()

        async def write(transaction: Transaction) -> None:
            transaction.set(prefix + key, value)

        await self.store.transact(write)
