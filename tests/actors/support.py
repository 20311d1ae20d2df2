"""What the actors' tests have in common: a context on a memory store in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from jobs_service import Settings
from jobs_service.actors.context import Context
from jobs_service.layer import creation, type_settings
from jobs_service.layer.creation import Spec
from jobs_service.layer.keyspace import pack_id
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.sources import Sources
from jobs_service.store.memory import Faults, MemoryStore
from tests.stores import settings_with
from tests.virtual_time import VirtualTimeLoop


class CountedStore(MemoryStore):
    """A memory store that counts, and may be slow to answer.

    Attributes:
        reads, transactions: how often each was called.
        answer_after: seconds from a read to its answer.
    """

    def __init__(self, *, settings: Settings, sources: Sources) -> None:
        super().__init__(settings=settings, sources=sources)
        self.reads = 0
        self.transactions = 0
        self.answer_after = 0.0

    async def read(self, *arguments: Any) -> Any:
        self.reads += 1
        pause = self.answer_after
        answer = await super().read(*arguments)
        await asyncio.sleep(pause)
        return answer

    async def transact(self, *arguments: Any, **keywords: Any) -> Any:
        self.transactions += 1
        return await super().transact(*arguments, **keywords)


@asynccontextmanager
async def opened(faults: Faults | None = None, *, seed: int = 0, **settings: Any) -> AsyncIterator[Context]:
    """Open a memory store and give a context on it."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    sources = Sources(seed, wall_time=loop.wall_time)
    chosen = settings_with(**settings)
    store = CountedStore(settings=chosen, sources=sources)
    await store.open()
    context = Context(store, chosen, sources)
    await context.open_keyspace()
    store.faults = faults
    try:
        yield context
    finally:
        store.faults = None
        await store.close()


def counted(context: Context) -> CountedStore:
    """Return the context's store."""
    assert isinstance(context.store, CountedStore)
    return context.store


async def set_timeout(context: Context, type: Any, seconds: float) -> None:
    """Create a type."""
    keys = context.keyspace.of(type)

    async def work(unit: UnitOfWork) -> None:
        await type_settings.set_type_timeout(unit, keys, float(seconds))

    await context.transact(work)


async def clear_timeout(context: Context, type: Any) -> None:
    """Remove a type."""
    await context.transact(lambda unit: type_settings.clear_type_timeout(unit, context.keyspace.of(type)))


async def add(context: Context, type: Any, id: str) -> None:
    """Add a job."""
    place = context.keyspace.of(type), id, pack_id(id)
    await context.transact(lambda unit: creation.add(unit, place, Spec(None, 0, None), "error"))
