"""Jobs with much data: whatever takes many jobs at once stays within what one transaction may hold."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from jobs_service import JobsService, JobState, NewJob, Settings
from jobs_service.sources import Sources
from tests.stores import EVERY_STORE, StoreKind
from tests.virtual_time import EPOCH, VirtualTimeLoop, in_virtual_time

T1 = "t1"
LARGE = "x" * 96_700
"""Nearly the longest data that a record can hold."""
COUNT = 150
"""So many jobs of LARGE are more than any transaction may write."""
LONG_AGO = 946_684_800.0


@pytest.fixture(params=EVERY_STORE)
async def jobs(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[JobsService]:
    """A service without a tree."""
    kind: StoreKind = request.param
    async with JobsService(kind.address_in(tmp_path), supervise=False) as service:
        await service.set_type_timeout(T1, 60)
        yield service


@pytest.mark.parametrize("timeout", [0, None])
async def test_as_many_workers_as_there_are_large_jobs_accept_them_at_the_same_time(
    jobs: JobsService, timeout: float | None
) -> None:
    await jobs.add_many(T1, [NewJob(str(number), LARGE) for number in range(COUNT)])
    async with asyncio.timeout(60):
        workers = await asyncio.gather(*(jobs.accept(T1, timeout=timeout) for _ in range(COUNT)))
    assert len({worker.id for worker in workers if worker is not None}) == COUNT


async def test_accept_many_takes_as_many_large_jobs_as_fit(jobs: JobsService) -> None:
    await jobs.add_many(T1, [NewJob(str(number), LARGE) for number in range(COUNT)])
    taken: list[object] = []
    while came := await jobs.accept_many(T1, COUNT, timeout=0):
        assert len(came) < COUNT
        taken += [worker.id for worker in came]
    assert taken == [str(number) for number in range(COUNT)]


async def test_large_jobs_that_are_due_at_the_same_time_are_accepted(jobs: JobsService) -> None:
    await jobs.add_many(T1, [NewJob(str(number), LARGE, run_at=LONG_AGO) for number in range(COUNT)])
    accepted = 0
    while await jobs.accept(T1, timeout=0) is not None:
        accepted += 1
    assert accepted == COUNT


async def test_large_jobs_finish_and_are_resubmitted_at_the_same_time_without_their_data_being_sent(
    jobs: JobsService,
) -> None:
    await jobs.add_many(T1, [NewJob(str(number), LARGE) for number in range(COUNT)])
    workers = [worker for _ in range(COUNT) if (worker := await jobs.accept(T1, timeout=0)) is not None]
    await asyncio.gather(*(worker.finish() for worker in workers))
    await asyncio.gather(*(jobs.resubmit(T1, str(number)) for number in range(COUNT)))
    assert await jobs.pending_count(T1) == COUNT


@in_virtual_time
async def test_large_scheduled_jobs_that_come_due_together_become_ready_and_harm_no_monitor() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    async with JobsService("memory:", sources=Sources(1, wall_time=loop.wall_time)) as jobs:
        await jobs.set_type_timeout(T1, 60)
        await jobs.add_many(T1, [NewJob(str(number), LARGE, run_at=EPOCH + 100) for number in range(COUNT)])
        await asyncio.sleep(200)
        assert await jobs.pending_count(T1, due_by=EPOCH + 100) == COUNT
        async with JobsService(jobs.store, supervise=False) as unsupervised:
            assert await unsupervised.accept(T1, timeout=0) is not None
        assert all(child["restarts"] == 0 for child in jobs.supervision()["children"])


@in_virtual_time
async def test_large_jobs_lost_together_are_all_found() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    settings = Settings(activity_batch=1000)
    async with JobsService("memory:", settings=settings, sources=Sources(1, wall_time=loop.wall_time)) as jobs:
        await jobs.set_type_timeout(T1, 10)
        await jobs.add_many(T1, [NewJob(str(number), LARGE) for number in range(COUNT)])
        for _ in range(COUNT):
            assert await jobs.accept(T1, timeout=0) is not None
        await asyncio.sleep(16)
        assert [job async for job in jobs.list(T1, state=JobState.RUNNING)] == []
        assert all(child["restarts"] == 0 for child in jobs.supervision()["children"])
