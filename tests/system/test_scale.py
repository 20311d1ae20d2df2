"""Twenty thousand jobs of one type, a thousand types: in bounded memory and within a transaction's limits."""

from __future__ import annotations

import asyncio
import os
import shutil
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from jobs_service import JobsService, JobState, NewJob, Settings
from jobs_service.store import Transaction
from jobs_service.store.base import TransactionFunction
from jobs_service.store.lmdb import LmdbStore
from jobs_service.store.overlay import BufferedTransaction
from tests.checker import assert_sound

T = TypeVar("T")

T1 = "t1"
MANY = 20_000
"""Jobs of one type: some twenty times as many as go into one transaction."""
MEGABYTE = 1 << 20
MOST_WRITTEN = MEGABYTE
"""Bytes that one transaction may write: far from its limit, and less than it takes to write to every job at once."""

pytestmark = [pytest.mark.timeout(180), pytest.mark.xdist_group("scale")]


class MeasuredStore(LmdbStore):
    """An embedded store that notes how much each transaction writes.

    Attributes:
        largest: bytes of the largest one.
        refused: how many had to be run again in smaller pieces.
    """

    largest = 0
    refused = 0

    async def transact(self, function: TransactionFunction[T], *, abandoned: Callable[[T], None] | None = None) -> T:
        async def measured(tr: Transaction) -> T:
            assert isinstance(tr, BufferedTransaction)
            try:
                return await function(tr)
            except Exception:
                self.refused += 1
                raise
            finally:
                self.largest = max(self.largest, tr.size)

        return await super().transact(measured, abandoned=abandoned)


@contextmanager
def at_most(megabytes: float) -> Iterator[None]:
    """Fail when what is done meanwhile holds more memory than that at any time, beside what was held before."""
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < megabytes * MEGABYTE, f"{peak / MEGABYTE:.1f} MB"


@contextmanager
def growing_at_most(megabytes: float) -> Iterator[None]:
    """Fail when the process's memory grows by more than that, the pages of the store that it has touched included."""
    if not os.path.exists("/proc/self/clear_refs"):
        yield
        return
    with open("/proc/self/clear_refs", "w") as marks:
        marks.write("5")  # forget the greatest size so far
    before = greatest_size()
    yield
    grown = greatest_size() - before
    assert grown < megabytes * MEGABYTE, f"{grown / MEGABYTE:.1f} MB"


def greatest_size() -> int:
    """Return the greatest size of this process's memory, in bytes."""
    with open("/proc/self/status") as status:
        (size,) = [line.split()[1] for line in status if line.startswith("VmHWM:")]
    return int(size) * 1024


def id_of(number: int) -> str:
    return f"{number:06}"


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with many jobs, to be copied; how it is filled is a test of its own."""
    path = tmp_path_factory.mktemp("filled") / "store"
    asyncio.run(fill(path))
    return path


async def fill(path: Path) -> None:
    read = written = 0

    def new_jobs() -> Iterator[NewJob]:
        nonlocal read
        for number in range(MANY):
            read += 1
            yield NewJob(id_of(number), {"number": number})

    class Counted(MeasuredStore):
        async def transact(
            self, function: TransactionFunction[T], *, abandoned: Callable[[T], None] | None = None
        ) -> T:
            nonlocal written
            assert read - written <= 2 * settings.add_batch + 1, "the jobs are read as they are written"
            written = read
            return await super().transact(function, abandoned=abandoned)

    settings = Settings()
    store = Counted(path, settings=settings)
    async with JobsService(store, supervise=False) as jobs:
        await jobs.set_type_timeout(T1, 600)
        added = await jobs.add_many(T1, new_jobs())
        assert [job.id for job in added] == [id_of(number) for number in range(MANY)]
        assert len({job.seq for job in added}) == MANY
    assert store.refused == 0
    assert store.largest < MOST_WRITTEN < store.limits.transaction


@asynccontextmanager
async def copy_of(filled: Path, path: Path, *, supervise: bool) -> AsyncIterator[tuple[JobsService, MeasuredStore]]:
    """Open a service on a copy of the filled store."""
    shutil.copytree(filled, path)
    store = MeasuredStore(path, settings=Settings())
    async with JobsService(store, supervise=supervise) as jobs:
        yield jobs, store
    assert store.largest < MOST_WRITTEN < store.limits.transaction


async def test_twenty_thousand_jobs_are_listed_and_counted_in_little_memory(filled: Path, tmp_path: Path) -> None:
    async with copy_of(filled, tmp_path / "store", supervise=False) as (jobs, _):
        count = 0
        with at_most(4):  # all jobs at once would take twice as much
            async for job in jobs.list(T1):
                assert job.id == id_of(count)
                count += 1
        assert count == MANY
        with at_most(1):
            async for job in jobs.list(T1, page_size=100):
                if job.id == id_of(MANY // 10):
                    break
        with at_most(2):
            assert await jobs.pending_count(T1) == MANY
        with at_most(1):
            assert await jobs.pending_count(T1, limit=1000) == 1000


async def test_twenty_thousand_jobs_lost_at_once_are_all_found(filled: Path, tmp_path: Path) -> None:
    async with copy_of(filled, tmp_path / "store", supervise=True) as (jobs, store):
        taken = 0
        while came := await jobs.accept_many(T1, 1000, timeout=0):
            assert [job.id for job in came] == [id_of(number) for number in range(taken, taken + len(came))]
            taken += len(came)
        assert taken == MANY
        assert len(await jobs.active_ids(T1)) == MANY
        with growing_at_most(12):
            await jobs.set_type_timeout(T1, 0.2)
            # Those silent for longest come first.
            await jobs.wait(T1, id_of(MANY - 1), JobState.PENDING)
        assert await jobs.pending_count(T1) == MANY
        assert await jobs.active_ids(T1) == []
        assert all(child["restarts"] == 0 for child in jobs.supervision()["children"])
        again = await jobs.accept_many(T1, 10, timeout=0)
        assert [job.id for job in again] == [id_of(number) for number in range(10)]
        await assert_sound(store)
