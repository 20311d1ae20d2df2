"""Types that nothing happens with: they cost nothing, and are watched over as soon as somebody works with them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from jobs_service import JobsService, JobState, JobTransaction, NewJob
from jobs_service.layer.keyspace import ALARM, AWAKE, Keyspace
from jobs_service.sources import Sources
from jobs_service.store import Transaction
from jobs_service.store.memory import Faults, MemoryStore
from tests.checker import assert_sound
from tests.service.support import T1, running_children
from tests.stores import settings_with
from tests.virtual_time import EPOCH, VirtualTimeLoop, in_virtual_time

TIMEOUT = 30.0


@asynccontextmanager
async def opened(store: MemoryStore | None = None, **settings: Any) -> AsyncIterator[JobsService]:
    """Open a service in virtual time, on a memory store that may have others."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    sources = Sources(1, wall_time=loop.wall_time)
    chosen = settings_with(**settings)
    async with JobsService(
        store or MemoryStore(settings=chosen, sources=sources), settings=chosen, sources=sources
    ) as jobs:
        yield jobs


def memory(jobs: JobsService) -> MemoryStore:
    assert isinstance(jobs.store, MemoryStore)
    return jobs.store


class Counted(Faults):
    """Counts what is asked of a store."""

    def __init__(self) -> None:
        self.begun = 0

    async def before_begin(self) -> None:
        self.begun += 1


async def rows(jobs: JobsService) -> dict[int, int]:
    """Return how many rows the sections about types that are awake have, as far as they have any."""
    keyspace = Keyspace(await jobs.store.prefix())

    async def count(transaction: Transaction) -> dict[int, int]:
        found = {}
        for section in range(AWAKE, ALARM + 1):
            prefix = keyspace.sections[section]
            found[section] = len(await transaction.get_range(prefix + b"\x00", prefix + b"\xff"))
        return found

    return await jobs.store.read(count)


async def make_types(jobs: JobsService, count: int) -> None:
    async def make(tx: JobTransaction) -> None:
        for number in range(count):
            await tx.set_type_timeout(f"type {number}", TIMEOUT)

    await jobs.transact(make)


@in_virtual_time
async def test_what_a_service_does_for_idle_types_does_not_depend_on_how_many_there_are() -> None:
    asked = []
    for count in (1, 3000):
        async with opened() as founder:
            await make_types(founder, count)
            store = memory(founder)
            faults = store.faults = Counted()
            tasks = len(asyncio.all_tasks())
            async with opened(store) as jobs:
                await jobs.set_type_timeout("new", TIMEOUT)
                await jobs.add("type 0", "a")
                async with jobs.subscribe("type 0", "a") as events:
                    await anext(events)
                await asyncio.sleep(100)
                asked.append((faults.begun, len(asyncio.all_tasks()) - tasks, len(store._watches)))
    assert asked[0] == asked[1]
    assert asked[0][0] < 100


@in_virtual_time
async def test_a_type_is_watched_over_from_its_first_accept_until_nothing_happens_any_more() -> None:
    async with opened() as jobs, opened(memory(jobs)) as other:
        await other.set_type_timeout(T1, TIMEOUT)
        await other.add(T1, "a")
        await asyncio.sleep(1)
        assert (running_children(jobs, "monitors"), running_children(other, "monitors")) == (0, 0)
        worker = await other.accept(T1)
        assert worker is not None
        await asyncio.sleep(0.1)
        assert (running_children(jobs, "monitors"), running_children(other, "monitors")) == (1, 1)
        for _ in range(20):
            await asyncio.sleep(TIMEOUT / 2)
            await worker.update()
        assert (running_children(jobs, "monitors"), running_children(other, "monitors")) == (1, 1)
        await worker.finish()
        await asyncio.sleep(100)
        assert (running_children(jobs, "monitors"), running_children(other, "monitors")) == (0, 0)
        assert set((await rows(jobs)).values()) == {0}
        await assert_sound(jobs.store, now=jobs._context.sources.wall_time())


@in_virtual_time
async def test_a_job_that_another_process_took_is_found_in_time_however_short_its_timeout_is() -> None:
    for timeout in (0.5, 2.0, 40.0):
        async with opened() as jobs:
            async with JobsService(jobs.store, supervise=False) as other:
                await other.set_type_timeout(T1, timeout)
                await other.add(T1, "a")
                await asyncio.sleep(100)
                assert await other.accept(T1) is not None
            taken = asyncio.get_running_loop().time()
            assert await jobs.accept(T1) is not None
            assert timeout <= asyncio.get_running_loop().time() - taken < 1.5 * timeout + 1


@in_virtual_time
async def test_a_type_whose_jobs_are_scheduled_for_later_sleeps_until_then() -> None:
    async with opened(expiry_check_period=1.0) as jobs:
        await jobs.set_type_timeout(T1, TIMEOUT)
        await jobs.set_retention(T1, keep=5000, keep_failed=5000)
        for delay in (1000, 3000):
            await jobs.add(T1, f"{delay}", run_at=EPOCH + delay)
        await jobs.add(T1, "now")
        worker = await jobs.accept(T1)
        assert worker is not None
        await worker.finish()
        await asyncio.sleep(200)
        assert running_children(jobs, "monitors") == 0
        assert await rows(jobs) == {AWAKE: 0, AWAKE + 1: 1, ALARM: 1}
        # One that comes later than the first changes nothing.
        await jobs.add(T1, "2000", run_at=EPOCH + 2000)
        assert await rows(jobs) == {AWAKE: 0, AWAKE + 1: 1, ALARM: 1}
        for due in (1000, 2000, 3000):
            await asyncio.sleep(EPOCH + due + 0.05 - jobs._context.sources.wall_time())
            assert running_children(jobs, "monitors") == 1
            assert (await jobs.transact(lambda tx: tx.pending_count(T1, due_by=0))) == 0
            ready = await jobs.store.read(lambda tr: tr.get_range(*_ready(jobs)))
            assert len(ready) == due / 1000
            await asyncio.sleep(500)
            assert running_children(jobs, "monitors") == 0
        await asyncio.sleep(EPOCH + 5100 - jobs._context.sources.wall_time())
        assert [job.id async for job in jobs.list(T1, state=JobState.FINISHED)] == []
        await asyncio.sleep(100)
        assert set((await rows(jobs)).values()) == {0}
        await assert_sound(jobs.store, now=jobs._context.sources.wall_time())


def _ready(jobs: JobsService) -> tuple[bytes, bytes]:
    ready = jobs._context.keyspace.of(T1).ready
    return ready, ready + b"\xff"


@in_virtual_time
async def test_a_sleeping_type_is_woken_by_a_job_that_comes_sooner() -> None:
    async with opened() as jobs:
        await jobs.set_type_timeout(T1, TIMEOUT)
        await jobs.add(T1, "late", run_at=EPOCH + 1_000_000)
        await asyncio.sleep(100)
        assert running_children(jobs, "monitors") == 0
        await jobs.add(T1, "soon", run_at=EPOCH + 103)
        await asyncio.sleep(EPOCH + 103.05 - jobs._context.sources.wall_time())
        assert len(await jobs.store.read(lambda tr: tr.get_range(*_ready(jobs)))) == 1
        await assert_sound(jobs.store, now=jobs._context.sources.wall_time())


@in_virtual_time
async def test_a_sleeping_type_is_woken_by_the_earliest_of_several_jobs() -> None:
    async with opened() as jobs:
        await jobs.set_type_timeout(T1, TIMEOUT)
        await jobs.add(T1, "asleep until then", run_at=EPOCH + 1500)
        await asyncio.sleep(100)
        await jobs.add_many(T1, [NewJob("soon", run_at=EPOCH + 1000), NewJob("late", run_at=EPOCH + 2000)])
        await asyncio.sleep(EPOCH + 1000.05 - jobs._context.sources.wall_time())
        assert len(await jobs.store.read(lambda tr: tr.get_range(*_ready(jobs)))) == 1


@in_virtual_time
async def test_a_type_is_woken_by_the_applications_own_transaction() -> None:
    async with opened() as jobs:
        await jobs.set_type_timeout(T1, TIMEOUT)
        application = memory(jobs).begin()
        with jobs.within(application) as tx:
            tx.add(T1, "scheduled", run_at=EPOCH + 200)
        application.commit()
        assert (await rows(jobs))[AWAKE] == 1
        await asyncio.sleep(200.05)
        assert len(await jobs.store.read(lambda tr: tr.get_range(*_ready(jobs)))) == 1
        await assert_sound(jobs.store, now=jobs._context.sources.wall_time())
