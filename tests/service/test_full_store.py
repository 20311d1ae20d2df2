"""A full embedded store: nothing more is added, and everything else goes on until it is empty."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from jobs_service import JobsService, JobState, JobTransaction, NewJob, RunningJob, StoreFull
from tests.service.support import LOST, T1, TIMEOUT, eventually
from tests.stores import settings_with

SIZE = 1 << 20


@asynccontextmanager
async def small(path: Path, *, supervise: bool = False, **settings: Any) -> AsyncIterator[JobsService]:
    """Open a service on a store that may hold a megabyte."""
    of = settings_with(lmdb_map_size=SIZE, durable=False, **settings)
    async with JobsService(f"lmdb:{path / 'store'}", settings=of, supervise=supervise) as jobs:
        await jobs.set_type_timeout(T1, TIMEOUT)
        yield jobs


async def fill(jobs: JobsService, size: int = 2000) -> int:
    """Add jobs, at last small ones, until not even those are taken; return how many there are."""
    count = 0
    for each, at_once in ((size, 40_000 // size), (300, 1), (0, 1)):
        try:
            while True:
                new = [NewJob(f"{count + number:05}", "x" * each) for number in range(at_once)]
                await jobs.add_many(T1, new)
                count += at_once
        except StoreFull:
            pass
    return count


async def drained(jobs: JobsService, count: int, result: str = "") -> None:
    """Take, update, end and remove every job, and check that there were so many."""
    for _ in range(count):
        job = await jobs.accept(T1, timeout=0)
        assert job is not None
        await job.update("half")
        await job.finish(result or job.data)
        await jobs.remove(T1, job.id)
    assert await jobs.accept(T1, timeout=0) is None
    assert [job async for job in jobs.list(T1)] == []


async def test_ends_go_through_beside_adds_that_are_refused(tmp_path: Path) -> None:
    """They come in one turn of the loop, and share a transaction."""
    async with small(tmp_path) as jobs:
        await fill(jobs)
        taken = await jobs.accept_many(T1, 10, timeout=0)
        results = await asyncio.gather(
            *[jobs.add(T1, f"new {number}", "x" * 2000) for number in range(10)],
            *[job.finish() for job in taken],
            *[jobs.add(T1, f"more {number}", "x" * 2000) for number in range(10)],
            return_exceptions=True,
        )
        assert [type(result) for result in results[:10] + results[20:]] == [StoreFull] * 20
        assert {job.state for job in results[10:20] if not isinstance(job, BaseException)} == {JobState.FINISHED}
        with pytest.raises(StoreFull):
            await jobs.add_many(T1, [NewJob(f"many {number}", "x" * 2000) for number in range(10)])


async def test_the_applications_keys_are_taken_beside_an_end_and_refused_alone(tmp_path: Path) -> None:
    async with small(tmp_path) as jobs:
        await fill(jobs)
        job = await jobs.accept(T1, timeout=0)
        assert job is not None

        async def write(tx: JobTransaction) -> None:
            tx.kv[b"effect"] = b"x" * 2000

        async def write_and_finish(tx: JobTransaction, job: RunningJob = job) -> None:
            await write(tx)
            await tx.finish(job)

        async def write_and_add(tx: JobTransaction) -> None:
            await write(tx)
            await tx.add(T1, "new")

        for refused in (write, write_and_add):
            with pytest.raises(StoreFull):
                await jobs.transact(refused)
        await jobs.transact(write_and_finish)
        assert await jobs.transact(lambda tx: tx.kv.get(b"effect")) == b"x" * 2000
        await jobs.transact(write)  # it takes no more than what is there


async def test_the_monitors_go_on_in_a_full_store(tmp_path: Path) -> None:
    """Lost jobs are pending again, scheduled ones ready, expired ones removed; then there is room."""
    async with small(tmp_path, supervise=True, expiry_check_period=0.05) as jobs:
        await jobs.set_retention(T1, keep=0.001, keep_failed=0.001)
        await fill(jobs)
        lost = [job.id for job in await jobs.accept_many(T1, 20, timeout=0)]
        await jobs.set_type_timeout(T1, LOST)
        for id in lost:
            await jobs.wait(T1, str(id), "pending")
        await jobs.set_type_timeout(T1, TIMEOUT)
        for job in await jobs.accept_many(T1, 50, timeout=0):
            await job.finish()

        async def expired() -> bool:
            return not [job async for job in jobs.list(T1, state="finished")]

        await eventually(expired)
        await jobs.add(T1, "new", "x" * 2000)


async def test_when_updates_have_used_up_the_reserve_jobs_can_still_be_removed(tmp_path: Path) -> None:
    async with small(tmp_path) as jobs:
        count = await fill(jobs, 300)
        taken: list[RunningJob] = []
        while len(taken) < count:
            taken += await jobs.accept_many(T1, count, timeout=0)
        updated = 0
        with pytest.raises(StoreFull):  # noqa: PT012 - which of them is refused is not known
            for job in taken * 10:
                await job.update("y" * 90_000)
                updated += 1
        assert updated > 100
        for number in range(count):
            await jobs.remove(T1, f"{number:05}", force=True)
        assert [job async for job in jobs.list(T1)] == []
        assert await fill(jobs, 300) > 0.7 * count


async def test_a_store_that_fills_says_so_once_before_it_is_full(tmp_path: Path) -> None:
    with capture_logs() as logged:
        async with small(tmp_path) as jobs:
            for _ in range(2):
                count = await fill(jobs)
                told = [entry for entry in logged if entry["event"] == "store_filling"]
                await drained(jobs, count)
    assert [entry["log_level"] for entry in told] == ["warning"] * 2
    for entry in told:
        assert entry["store"] == f"lmdb:{tmp_path / 'store'}"
        assert entry["of"] == "lmdb_map_size"
        assert 80 <= entry["percent"] < 90
        assert 0.8 * SIZE <= entry["bytes"] < 0.9 * SIZE
