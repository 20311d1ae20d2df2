"""Jobs that wait for another attempt: a state of their own for people, in counts, pages and lists."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jobs_service import JobsService, Retry, RunningJob, Snooze
from tests.checker import assert_sound
from tests.runner.support import TYPE, add, opened, running, virtual_loop
from tests.virtual_time import in_virtual_time

LATER = 7 * 86_400.0


def wall_time() -> float:
    return virtual_loop().wall_time()


def outcomes(jobs: JobsService) -> None:
    """Register a handler that ends its jobs as their ids say."""

    @jobs.handler(TYPE, timeout=3600, jitter=0, backoff=600)
    async def work(job: RunningJob) -> None:
        match str(job.id).partition("-")[0]:
            case "crash":
                raise OSError("no answer")
            case "retry":
                raise Retry(after=600)
            case "snooze":
                raise Snooze(600)


async def states_of(jobs: JobsService, **keywords: Any) -> list[Any]:
    return [job.id for job in (await jobs.page(TYPE, **keywords)).jobs]


@in_virtual_time
async def test_jobs_that_wait_for_another_attempt_count_as_nothing_else() -> None:
    async with opened() as jobs:
        outcomes(jobs)
        async with running(jobs):
            for id in ("crash-1", "crash-2", "retry-1", "snooze-1", "fine"):
                await add(jobs, id, timeout=3600)
            await jobs.add(TYPE, "reminder", run_at=wall_time() + LATER)
            await asyncio.sleep(1)
            counts = (await jobs.counts())[TYPE]
            assert (counts.retrying, counts.scheduled, counts.ready, counts.succeeded) == (3, 2, 0, 1)
            assert (counts.pending, counts.jobs, await jobs.pending_count(TYPE)) == (5, 6, 5)
            again = ["crash-1", "crash-2", "retry-1"]
            assert await states_of(jobs, state="retrying") == again
            assert await states_of(jobs, state="retrying", newest_first=True) == again[::-1]
            assert await states_of(jobs, state="retrying", prefix="crash", limit=2) == again[:2]
            assert await states_of(jobs, state="scheduled") == ["snooze-1", "reminder"]
            assert [job.id async for job in jobs.list(TYPE, state="retrying")] == again
            assert sorted([job.id async for job in jobs.list(TYPE, state="scheduled")]) == ["reminder", "snooze-1"]
            await assert_sound(jobs.store, now=wall_time())


@in_virtual_time
async def test_a_retrying_job_stays_one_when_it_is_due_until_it_is_started_resubmitted_or_removed() -> None:
    async with opened() as jobs:
        outcomes(jobs)
        async with running(jobs):
            for id in ("crash-1", "crash-2", "crash-3"):
                await add(jobs, id, timeout=3600)
            await asyncio.sleep(1)
        await asyncio.sleep(700)  # due, and nobody has a slot for them
        assert await states_of(jobs, state="ready") == []
        assert await states_of(jobs, state="retrying") == ["crash-1", "crash-2", "crash-3"]
        job = await jobs.accept(TYPE, timeout=0)
        assert job is not None
        left = sorted({"crash-1", "crash-2", "crash-3"} - {job.id})
        assert await states_of(jobs, state="retrying") == left
        await jobs.remove(TYPE, left[0])
        await jobs.resubmit(TYPE, left[1], run_at=wall_time() + LATER)
        counts = (await jobs.counts())[TYPE]
        assert counts.retrying == len(await states_of(jobs, state="retrying"))
        await assert_sound(jobs.store, now=wall_time())


@pytest.mark.parametrize("jobs_each", [3, 250])
@in_virtual_time
async def test_pages_find_retrying_jobs_among_many_that_are_scheduled(jobs_each: int) -> None:
    async with opened() as jobs:
        outcomes(jobs)
        async with running(jobs):
            for number in range(jobs_each):
                await add(jobs, f"crash-{number:03}", timeout=3600)
                await jobs.add(TYPE, f"reminder-{number:03}", run_at=wall_time() + 100)
            await asyncio.sleep(60)
            assert len(await states_of(jobs, state="retrying", limit=1000)) == jobs_each
            assert len(await states_of(jobs, state="scheduled", limit=1000)) == jobs_each
