"""What the layer's tests have in common: units of work on transactions of a memory store, and what they write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from jobs_service import Settings
from jobs_service.layer import creation, type_settings
from jobs_service.layer.creation import Spec
from jobs_service.layer.keyspace import AFTER, Keyspace, TypeKeys, pack_id
from jobs_service.layer.record import Entry
from jobs_service.layer.unit_of_work import UnitOfWork, run
from jobs_service.sources import Sources
from jobs_service.store.base import Transaction
from jobs_service.store.memory import MemoryStore, MemoryTransaction
from tests.checker import assert_sound
from tests.virtual_time import VirtualTimeLoop

T = TypeVar("T")


class Layer:
    """The layer on a memory store, with one type.

    Attributes:
        store, keyspace, sources: as everywhere.
        keys: of the type.
    """

    def __init__(self, store: MemoryStore, sources: Sources) -> None:
        self.store = store
        self.sources = sources
        self.keyspace = Keyspace(b"")
        self.keys: TypeKeys

    async def transact(self, function: Callable[[UnitOfWork], Awaitable[T]]) -> T:
        """Run a function on a unit of work in a transaction."""
        return await self.store.transact(lambda transaction: run(transaction, self.keyspace, self.sources, function))

    def place(self, id: str | bytes) -> tuple[TypeKeys, str | bytes, bytes]:
        """Return where a job of the type is."""
        return self.keys, id, pack_id(id)

    async def add(self, id: str | bytes, data: Any = None, *, priority: Any = 0, run_at: float | None = None) -> None:
        """Add a job in a transaction of its own."""
        await self.transact(lambda unit: add(unit, self.place(id), data, priority=priority, run_at=run_at))

    async def pairs(self, begin: bytes = b"", end: bytes = AFTER) -> list[tuple[bytes, bytes]]:
        """Return what is stored."""
        return await self.store.read(lambda transaction: transaction.get_range(begin, end))

    async def assert_sound(self) -> None:
        """Check every invariant of the table of keys."""
        await assert_sound(self.store, now=self.sources.wall_time())


async def add(
    unit: UnitOfWork, place: Any, data: Any = None, *, priority: Any = 0, run_at: float | None = None
) -> Entry:
    """Add a job on a unit of work."""
    return await creation.add(unit, place, Spec(data, priority, run_at), "error")


@asynccontextmanager
async def layer(type: Any = "t") -> AsyncIterator[Layer]:
    """Open a memory store in virtual time with one type."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    sources = Sources(0, wall_time=loop.wall_time)
    store = MemoryStore(settings=Settings(), sources=sources)
    await store.open()
    found = Layer(store, sources)
    found.keyspace = Keyspace(await store.prefix())
    found.keys = found.keyspace.of(type)
    await found.transact(lambda unit: type_settings.set_type_timeout(unit, found.keys, 60.0))
    try:
        yield found
    finally:
        await store.close()


class Writes(Transaction):
    """A front of a transaction that notes every key that is written, and how.

    Attributes:
        keys: in the order of the writes; of versionstamped ones what is before the stamp.
    """

    def __init__(self, transaction: MemoryTransaction) -> None:
        self.inner = transaction
        self.stamp = transaction.stamp
        self.limits = transaction.limits
        self.keys: list[tuple[str, bytes]] = []

    @property
    def snapshot(self) -> Any:
        return self.inner.snapshot

    async def get(self, key: bytes) -> bytes | None:
        return await self.inner.get(key)

    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return await self.inner.get_many(keys)

    async def get_range(self, begin: Any, end: Any, *, limit: int = 0, reverse: bool = False) -> Any:
        return await self.inner.get_range(begin, end, limit=limit, reverse=reverse)

    def set(self, key: bytes, value: bytes) -> None:
        self.keys.append(("set", key))
        self.inner.set(key, value)

    def clear(self, key: bytes) -> None:
        self.keys.append(("clear", key))
        self.inner.clear(key)

    def clear_range(self, begin: bytes, end: bytes) -> None:
        self.keys.append(("clear range", begin))
        self.inner.clear_range(begin, end)

    def add(self, key: bytes, operand: bytes) -> None:
        self.keys.append(("add", key))
        self.inner.add(key, operand)

    def stamp_key(self, before: bytes, after: bytes, value: bytes) -> None:
        self.keys.append(("stamp key", before))
        self.inner.stamp_key(before, after, value)

    def stamp_value(self, key: bytes, before: bytes, after: bytes) -> None:
        self.keys.append(("stamp value", key))
        self.inner.stamp_value(key, before, after)

    def add_read_conflict_key(self, key: bytes) -> None:
        self.inner.add_read_conflict_key(key)

    def add_read_conflict_range(self, begin: bytes, end: bytes) -> None:
        self.inner.add_read_conflict_range(begin, end)

    def watch(self, key: bytes) -> Any:
        return self.inner.watch(key)

    def require_room(self, writes: Sequence[tuple[bytes, bytes]]) -> None:
        self.inner.require_room(writes)
