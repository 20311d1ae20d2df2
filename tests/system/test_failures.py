"""A store that is full, unreachable, or unsure of its commits: clear errors, nothing lost, all goes on afterwards."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from jobs_service import JobNotFound, JobsService, JobState, Settings, StoreFull
from jobs_service.sources import Sources
from jobs_service.store.memory import Faults, MemoryStore, MemoryTransaction
from tests.checker import assert_sound
from tests.stores import settings_with
from tests.system.failing import PATIENCE, T1, restarts
from tests.virtual_time import VirtualTimeLoop, in_virtual_time


@pytest.fixture
def address(tmp_path: Path) -> str:
    """The address of an embedded store of this test's own."""
    return f"lmdb:{tmp_path / 'store'}"


async def fill_up(jobs: JobsService, size: int = 5000) -> list[str]:
    """Add jobs until there is no room; return the ids of those that were answered."""
    added: list[str] = []
    with suppress(StoreFull):
        while True:
            id = f"filling {size} {len(added)}"
            await jobs.add(T1, id, "x" * size)
            added.append(id)
    return added


async def test_a_full_store_says_so_goes_on_reading_and_loses_nothing(address: str) -> None:
    small = settings_with(lmdb_map_size=1 << 20, retry_backoff=0.01)
    async with JobsService(address, settings=small) as jobs:
        await jobs.set_type_timeout(T1, 0.3)
        await jobs.add(T1, "taken", priority=-1)
        worker = await jobs.accept(T1)
        assert worker is not None
        added = await fill_up(jobs)
        added += await fill_up(jobs, 1000)
        for _ in range(3):
            with pytest.raises(StoreFull, match="JOBS_SERVICE_LMDB_MAP_SIZE"):
                await jobs.add(T1, "too much", "x" * 50_000)
        assert {job.id async for job in jobs.list(T1)} == {"taken", *added}
        assert (await jobs.get(T1, added[0])).data == "x" * 5000
        with pytest.raises(JobNotFound):
            await jobs.get(T1, "too much")
        # The monitor finds the lost job, again and again, and cannot write that down.
        await asyncio.sleep(1)
        assert restarts(jobs) == 0
        await assert_readable(jobs, {"taken", *added})
    large = Settings(lmdb_map_size=1 << 24)
    async with JobsService(address, settings=large) as jobs, asyncio.timeout(PATIENCE):
        await jobs.wait(T1, "taken", JobState.PENDING)
        await jobs.add(T1, "there is room now", "x" * 50_000)
        while (job := await jobs.accept(T1, timeout=0)) is not None:
            await job.finish()
        assert {job.id async for job in jobs.list(T1, state="finished")} == {"taken", "there is room now", *added}
        await assert_sound(jobs.store)


async def assert_readable(jobs: JobsService, ids: set[str]) -> None:
    """Check that everything that only reads still does."""
    assert {job.id async for job in jobs.list(T1)} == ids
    assert await jobs.types() == [T1]
    assert await jobs.get_type_timeout(T1) == 0.3
    assert await jobs.pending_count(T1) + len(await jobs.active_ids(T1)) == len(ids)
    async with jobs.subscribe(T1, "taken") as events:
        assert (await anext(events)).state in (JobState.RUNNING, JobState.PENDING)


class Full(Faults):
    """There is no room for anything."""

    async def before_commit(self, transaction: MemoryTransaction) -> None:
        if transaction.log:
            raise StoreFull("the store is full")


@in_virtual_time
async def test_the_tree_outlives_a_full_store_and_goes_on_when_there_is_room() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    store = MemoryStore(settings=Settings(), sources=Sources(1))
    async with JobsService(store, sources=Sources(1, wall_time=loop.wall_time)) as jobs:
        await jobs.set_type_timeout(T1, 10)
        await jobs.add(T1, "lost")
        await jobs.add(T1, "scheduled", run_at=loop.wall_time() + 20)
        assert await jobs.accept(T1) is not None
        waiting = asyncio.create_task(jobs.accept(T1, max_priority=-1))
        async with jobs.subscribe(T1, "lost") as events:
            assert (await anext(events)).state is JobState.RUNNING
            store.faults = Full()
            await asyncio.sleep(1000)
            assert restarts(jobs) == 0
            for call in (jobs.add(T1, "more"), jobs.remove(T1, "lost"), jobs.accept(T1, timeout=0)):
                with pytest.raises(StoreFull):
                    await call
            assert await jobs.active_ids(T1) == ["lost"]
            store.faults = None
            assert (await anext(events)).state is JobState.PENDING
        assert [job.id for job in await jobs.accept_many(T1, 2, timeout=0)] == ["lost", "scheduled"]
        waiting.cancel()
        with suppress(asyncio.CancelledError, StoreFull):
            await waiting
        await assert_sound(store, now=loop.wall_time())
