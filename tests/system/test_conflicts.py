"""Services that collide on one store: what was answered is there, whoever else's operation shared its transaction."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from jobs_service import JobNotFound, JobsService, JobState, Removal, Settings
from jobs_service.sources import Sources
from jobs_service.store.memory import MemoryStore

T1 = "t1"


@pytest.fixture
async def pair() -> AsyncIterator[tuple[JobsService, JobsService]]:
    """Two services on one store, as in two processes: they share no transaction."""
    store = MemoryStore(settings=Settings(), sources=Sources(1))
    await store.open()
    async with JobsService(store, supervise=False) as one, JobsService(store, supervise=False) as other:
        await one.set_type_timeout(T1, 60)
        yield one, other
    await store.close()


async def test_a_removal_that_comes_too_late_takes_no_other_callers_job_with_it(
    pair: tuple[JobsService, JobsService],
) -> None:
    one, other = pair
    for round in range(20):
        await one.add(T1, "wanted by both")
        first, second, added = await asyncio.gather(
            one.remove(T1, "wanted by both"),
            other.remove(T1, "wanted by both"),
            other.add(T1, f"added {round}"),
            return_exceptions=True,
        )
        removals = [first, second]
        assert Removal.REMOVED in removals
        assert sum(isinstance(removal, JobNotFound) for removal in removals) == 1
        assert not isinstance(added, BaseException)
        assert (await one.get(T1, f"added {round}")).state is JobState.PENDING
