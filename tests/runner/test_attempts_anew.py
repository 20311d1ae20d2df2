"""Jobs that are to live for ever: what went wrong before a run that was healthy does not end them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jobs_service import JobsService, JobState, Outcome, RunningJob, Snooze
from tests.runner.support import TYPE, add, ended, lose, opened, running
from tests.virtual_time import in_virtual_time

DAY = 86_400.0


@pytest.mark.parametrize("how", ["crashes", "is lost"])
@in_virtual_time
async def test_a_continuous_job_survives_any_number_of_failures_after_healthy_runs(how: str) -> None:
    runs: list[int] = []
    async with opened() as jobs:

        @jobs.handler(TYPE, continuous=True, jitter=0, backoff=1, max_attempts=3, health_threshold=120)
        async def follow(job: RunningJob) -> None:
            runs.append(job.attempts)
            await asyncio.sleep(150)
            if how == "is lost":
                await lose(jobs)
                await asyncio.sleep(DAY)
            raise ConnectionError("reset")

        async with running(jobs):
            await add(jobs, "a")
            await asyncio.sleep(12 * 155)
            job = await jobs.get(TYPE, "a")
            assert job.state is JobState.RUNNING
        assert len(runs) >= 10
        assert max(runs) == 2


@in_virtual_time
async def test_a_continuous_job_that_is_not_healthy_fails_when_its_attempts_are_used_up() -> None:
    async with opened() as jobs:

        @jobs.handler(TYPE, continuous=True, jitter=0, backoff=1, max_attempts=3, health_threshold=120)
        async def follow() -> None:
            await asyncio.sleep(100)
            raise ConnectionError("reset")

        async with running(jobs):
            await add(jobs, "a")
            job = await ended(jobs, "a")
            assert (job.outcome, job.attempts) == (Outcome.FAILED, 3)


async def rounds(jobs: JobsService, end: Any, number: int) -> list[int]:
    """Return as which attempt a job has run that crashes in every other run, and otherwise ends its run like this."""
    runs: list[int] = []

    @jobs.handler(TYPE, jitter=0, backoff=1, max_attempts=2)
    async def work(job: RunningJob) -> None:
        runs.append(job.attempts)
        if len(runs) % 2:
            raise ConnectionError("reset")
        if len(runs) < number:
            await end(job)

    async with running(jobs):
        await add(jobs, "a")
        assert (await ended(jobs, "a")).outcome is Outcome.SUCCEEDED
    return runs


async def snooze(_: RunningJob) -> None:
    raise Snooze(10)


async def release(job: RunningJob) -> None:
    await job.release()


@pytest.mark.parametrize("end", [snooze, release])
@in_virtual_time
async def test_attempts_are_counted_anew_after_a_run_that_has_ended_itself(end: Any) -> None:
    async with opened() as jobs:
        assert await rounds(jobs, end, 12) == [1, 2] * 6


@in_virtual_time
async def test_attempts_are_counted_anew_after_a_turn() -> None:
    runs: dict[str, list[int]] = {"a": [], "b": []}
    async with opened() as jobs:

        @jobs.handler(TYPE, continuous=True, jitter=0, backoff=1, max_attempts=2, slots=1, interval=10)
        async def follow(job: RunningJob) -> None:
            mine = runs[str(job.id)]
            mine.append(job.attempts)
            if len(mine) % 2:
                raise ConnectionError("reset")
            await asyncio.sleep(DAY)

        async with running(jobs):
            await add(jobs, "a", "b")
            await asyncio.sleep(400)
            assert [job.state async for job in jobs.list(TYPE, state=JobState.FINISHED)] == []
        assert min(map(len, runs.values())) >= 8


@in_virtual_time
async def test_a_run_that_its_runner_has_ended_does_not_count_and_does_not_begin_anew() -> None:
    attempts: list[int] = []
    async with opened() as jobs:

        @jobs.handler(TYPE, jitter=0, backoff=1, max_attempts=5, grace=1)
        async def work(job: RunningJob) -> None:
            attempts.append(job.attempts)
            if len(attempts) < 3:
                raise ConnectionError("reset")
            await asyncio.sleep(DAY)

        for seconds in (10, 10):
            async with running(jobs):
                if not attempts:
                    await add(jobs, "a")
                await asyncio.sleep(seconds)
        assert attempts == [1, 2, 3, 3]
