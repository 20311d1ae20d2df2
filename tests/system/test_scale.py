"""Twenty thousand jobs of one type, a thousand types: in bounded memory and within a transaction's limits."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from jobs_service import JobsService, JobState, JobTransaction, NewJob, Settings
from jobs_service.sources import Sources
from jobs_service.store import Transaction
from jobs_service.store.base import TransactionFunction
from jobs_service.store.lmdb import LmdbStore
from jobs_service.store.memory import Faults, MemoryStore
from jobs_service.store.overlay import BufferedTransaction
from tests.checker import assert_sound
from tests.virtual_time import in_virtual_time

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


@in_virtual_time
async def test_jobs_with_much_data_lost_at_once_are_found_in_batches_that_shrink_and_grow() -> None:
    """So many bytes that the batches of the settings are far too large."""
    settings = Settings(activity_batch=1000)
    loop = asyncio.get_running_loop()
    async with JobsService("memory:", settings=settings, sources=Sources(1, wall_time=loop.time)) as jobs:
        await jobs.set_type_timeout(T1, 60)
        await jobs.add_many(T1, [NewJob(id_of(number), "x" * 20_000) for number in range(3000)])
        taken = 0
        while came := await jobs.accept_many(T1, 1000, timeout=0):
            taken += len(came)
        assert taken == 3000
        await asyncio.sleep(91)
        assert await jobs.active_ids(T1) == []
        assert await jobs.pending_count(T1) == 3000
        assert all(child["restarts"] == 0 for child in jobs.supervision()["children"])


async def test_of_very_many_scheduled_jobs_a_worker_ahead_of_time_takes_the_lowest_priority_of_the_next_ones() -> None:
    """Not of all that there are: it would read them all each time. What it may take it finds, however late it comes."""
    far, count = 4e9, 5000
    async with JobsService("memory:", supervise=False) as jobs:
        await jobs.set_type_timeout(T1, 60)
        await jobs.add_many(T1, [NewJob(id_of(n), priority=5 + n % 2, run_at=far + n) for n in range(count)])
        for id in ("first", "second"):
            await jobs.add(T1, id, priority=0, run_at=far + 2 * count)
        due_by = far + 3 * count
        assert [job.id for job in await jobs.accept_many(T1, 1, max_priority=0, due_by=due_by, timeout=0)] == ["first"]
        assert [job.id for job in await jobs.accept_many(T1, 1, max_priority=0, due_by=due_by, timeout=0)] == ["second"]
        expected = [id_of(0), id_of(2), id_of(4), id_of(6)]
        assert [job.id for job in await jobs.accept_many(T1, 4, due_by=due_by, timeout=0)] == expected
        await assert_sound(jobs.store)


# many types


async def make_types(jobs: JobsService, count: int, timeout: float = 600) -> None:
    async def make(tx: JobTransaction) -> None:
        for number in range(count):
            await tx.set_type_timeout(f"type {number}", timeout)

    await jobs.transact(make)


async def test_a_thousand_types_take_no_more_threads_and_tasks_than_one(tmp_path: Path) -> None:
    before = asyncio.all_tasks(), set(threading.enumerate())
    taken = []
    for count in (1, 1000):
        address = f"lmdb:{tmp_path / str(count)}"
        async with JobsService(address, supervise=False) as jobs:
            await make_types(jobs, count)
        async with JobsService(address) as jobs:
            idle = len(asyncio.all_tasks())
            await jobs.add("type 0", "a")
            async with jobs.subscribe("type 0", "a") as events:
                assert (await anext(events)).state is JobState.PENDING
                worker = await jobs.accept("type 0")
                assert worker is not None
                await worker.finish()
                assert [event.state async for event in events][-1] is JobState.FINISHED
            taken.append((idle, len(set(threading.enumerate()) - before[1])))
        assert asyncio.all_tasks() == before[0]
        assert set(threading.enumerate()) <= before[1]
    assert taken[0] == taken[1]


class Reads(Faults):
    """Interferes with nothing; counts transactions."""

    count = 0

    async def before_begin(self) -> None:
        self.count += 1


@in_virtual_time
async def test_a_thousand_idle_types_are_sampled_together() -> None:
    loop = asyncio.get_running_loop()
    store = MemoryStore(settings=Settings(), sources=Sources(1))
    async with JobsService(store, sources=Sources(1, wall_time=loop.time)) as jobs:
        await make_types(jobs, 1000, timeout=60)
        await asyncio.sleep(60)
        store.faults = reads = Reads()
        await asyncio.sleep(300)
        # Alone, every type would take at least eight samples in each of the five minutes.
        assert reads.count < 1000 * 8 * 5 / 20


@in_virtual_time
async def test_the_jobs_of_a_thousand_types_are_all_found_when_they_are_lost() -> None:
    loop = asyncio.get_running_loop()
    async with JobsService("memory:", sources=Sources(1, wall_time=loop.time)) as jobs:
        await make_types(jobs, 1000, timeout=60)
        await asyncio.gather(*(jobs.add(f"type {number}", "a") for number in range(1000)))
        taken = await asyncio.gather(*(jobs.accept(f"type {number}") for number in range(1000)))
        assert None not in taken
        await asyncio.sleep(59)
        running = [job async for job in jobs.list(state=JobState.RUNNING)]
        assert len(running) == 1000
        await asyncio.sleep(32)
        assert [job async for job in jobs.list(state=JobState.RUNNING)] == []
        await assert_sound(jobs.store)
