"""What the tests of the simulated world have in common: a connection of the test's own, and short transactions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from jobs_service import Settings
from jobs_service.sources import Sources
from jobs_service.store import Store, Transaction, Watch
from jobs_service.testing import Plan, Process, SimulatedStore, SimulatedTransaction, World

T = TypeVar("T")

Main = Callable[[World], Coroutine[Any, Any, T]]


def simulate(main: Main[T], plan: Plan | int = 0, *, rates: Mapping[str, float] | None = None, **options: Any) -> T:
    """Run a world to its end and return the result; nothing must have gone wrong unseen."""
    world = World(plan, rates=rates, **options)
    result = world.run(main)
    assert world.unhandled == []
    return result


def durations(main: Any, kind: str, number: int, seeds: int = 200) -> list[float]:
    """Return how long a program takes under one fault, in virtual seconds."""
    plans = [Plan(seed, faults=frozenset({f"{kind}:{number}"})) for seed in range(seeds)]
    return [simulate(main, plan, rates={kind: 1.0}) for plan in plans]


@asynccontextmanager
async def connected(world: World, **settings: Any) -> AsyncIterator[SimulatedStore]:
    """Give a connection to the world's cluster that belongs to no process."""
    sources = Sources(len(world.cluster.connections))
    store = SimulatedStore(world.cluster, None, settings=Settings(**settings), sources=sources)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def write(store: Store, key: bytes, value: bytes) -> None:
    """Write one pair."""

    async def function(tr: Transaction) -> None:
        tr.set(key, value)

    await store.transact(function)


async def read(store: Store, key: bytes) -> bytes | None:
    """Read one value."""
    return await store.read(lambda tr: tr.get(key))


async def watch(store: Store, key: bytes) -> Watch:
    """Return a live watch."""

    async def function(tr: Transaction) -> Watch:
        return tr.watch(key)

    return await store.read(function)


class ActiveRuns:
    """A transaction function that counts its runs, and adds one to a counter in the store each time.

    Attributes:
        count: how often it ran.
        stamps: the versionstamps of the runs, those of runs that did not commit left out.
    """

    def __init__(self, key: bytes = b"count") -> None:
        self._transactions: list[Transaction] = []
        self._key = key

    async def __call__(self, tr: Transaction) -> int:
        self._transactions.append(tr)
        count = int(await tr.get(self._key) or 0) + 1
        tr.set(self._key, b"%d" % count)
        return count

    @property
    def count(self) -> int:
        return len(self._transactions)

    @property
    def stamps(self) -> list[bytes]:
        return [tr.stamp.value for tr in self._transactions if tr.stamp.value is not None]


class Commits:
    """Notes what the cluster tells its observers: what each transaction read and made of it."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int | None, dict[bytes, bytes | None]]] = []

    def ended(self, transaction: SimulatedTransaction) -> None:
        self.seen.append((transaction.version, transaction.commit_version, transaction.written))


async def write_forever(process: Process) -> None:
    """A program: write a key, note that it was answered, and wait."""
    await process.store.open()
    await write(process.store, b"a", b"1")
    await write(process.store, b"answered", b"1")
    await asyncio.Event().wait()
