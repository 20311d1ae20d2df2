"""Handlers without options: which jobs are kept, and what the log says about that and about runs that do not end."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from jobs_service import JobFailed, JobsService, RunningJob
from tests.runner.support import opened, running
from tests.virtual_time import in_virtual_time

DAY = 86_400.0


async def exists(jobs: JobsService, type: str, id: str) -> bool:
    """Return whether a job is still there."""
    return id in [job.id async for job in jobs.list(type)]


@pytest.mark.unmeasured
@in_virtual_time
async def test_what_succeeded_is_kept_for_a_week_and_what_failed_until_somebody_removes_it() -> None:
    # What looks for changes would do so a hundred thousand times within the week.
    async with opened(patience=8 * DAY, type_check_period=DAY, expiry_check_period=1000.0) as jobs:

        @jobs.handler("work", max_attempts=1, timeout=3 * DAY)
        async def work(args: bool) -> None:
            if not args:
                raise ValueError("no")

        async with running(jobs):
            await jobs.enqueue(work, True, id="good")
            await jobs.enqueue(work, False, id="bad")
            await jobs.result(work, "good")
            with pytest.raises(JobFailed):
                await jobs.result(work, "bad")
        await asyncio.sleep(6.9 * DAY)
        assert await exists(jobs, "work", "good")
        await asyncio.sleep(0.2 * DAY)
        assert not await exists(jobs, "work", "good")
        assert await exists(jobs, "work", "bad")
        # That it has no time at all is seen here: weeks of virtual time take seconds.
        assert (await jobs.get_retention("work")).keep_failed is None


@in_virtual_time
async def test_it_is_said_once_at_the_start_that_finished_jobs_are_removed() -> None:
    async with opened() as jobs:

        @jobs.handler("a")
        async def a() -> None:
            """Nothing."""

        @jobs.handler("b")
        async def b() -> None:
            """Nothing."""

        @jobs.handler("for ever", keep=None)
        async def for_ever() -> None:
            """Nothing."""

        @jobs.every("1h", type="ticks")
        async def tick() -> None:
            """Nothing."""

        @jobs.every("1h", type="kept ticks", keep_failed=DAY)
        async def other_tick() -> None:
            """Nothing."""

        with capture_logs() as logged:
            for _ in range(2):
                async with running(jobs):
                    await asyncio.sleep(100)
        said = [entry for entry in logged if entry["event"] == "finished_jobs_expire"]
        assert [(each["types"], each["keep"], each["keep_failed"], each["log_level"]) for each in said] == [
            (["a", "b"], 7 * DAY, None, "info"),
            (["kept ticks"], DAY, DAY, "info"),
        ]


@pytest.mark.unmeasured
@in_virtual_time
async def test_the_log_tells_once_of_a_run_that_goes_on_for_an_hour() -> None:
    async with opened() as jobs:
        end = asyncio.Event()

        @jobs.handler("work")
        async def work(job: RunningJob) -> None:
            await end.wait()

        with capture_logs() as logged:
            async with running(jobs):
                await jobs.enqueue(work, id="hangs")
                await jobs.enqueue(work, id="limited", time_limit=9000)
                await asyncio.sleep(3500)
                assert not [entry for entry in logged if entry["event"] == "handler_runs_long"]
                await asyncio.sleep(4000)
                end.set()
                await asyncio.sleep(60)
        said = [entry for entry in logged if entry["event"] == "handler_runs_long"]
        assert [(each["id"], each["type"], each["log_level"]) for each in said] == [("hangs", "work", "warning")]
        assert 3600 <= said[0]["seconds"] < 3660
