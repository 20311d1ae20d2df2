"""A store that is full for long: clear errors, nothing lost, all goes on afterwards."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from jobs_service import JobsService, JobState, Settings, StoreFull
from jobs_service.sources import Sources
from jobs_service.store.memory import Faults, MemoryStore, MemoryTransaction
from tests.checker import assert_sound
from tests.system.failing import T1, restarts
from tests.virtual_time import VirtualTimeLoop, in_virtual_time


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
