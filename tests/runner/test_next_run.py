"""When a job runs next that somebody has resubmitted while it ran, however that run ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from jobs_service import JobsService, JobState, Retry, RunningJob, Snooze
from jobs_service.model import HistoryKind
from tests.runner.support import TYPE, add, lose, moments, now, opened, running
from tests.virtual_time import EPOCH, in_virtual_time

HOUR = 3600.0
ENDS = {"snooze": lambda: Snooze(HOUR), "retry": lambda: Retry(after=HOUR), "crash": lambda: OSError("away")}


async def starts_after(
    jobs: JobsService, end: Callable[[], Exception], act: Callable[[RunningJob], object], wait: float = 3 * HOUR
) -> list[float]:
    """Return when a job began to run whose first run acted on it and then raised; the runs after it succeed."""
    begun: list[float] = []

    @jobs.handler(TYPE, jitter=0, backoff=HOUR, max_attempts=5)
    async def work(job: RunningJob) -> None:
        begun.append(now())
        if len(begun) == 1:
            await asyncio.sleep(10)
            await act(job)  # type: ignore[misc]
            await asyncio.sleep(10)
            raise end()

    async with running(jobs):
        await add(jobs, "a")
        await asyncio.sleep(wait)
    assert (await jobs.get(TYPE, "a")).state is JobState.FINISHED
    return [round(each) for each in begun]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("run_at", [0, None, "left out"])
@in_virtual_time
async def test_a_resubmit_at_once_wins_over_a_pause(end: str, run_at: float | str | None) -> None:
    async with opened() as jobs:
        options = {} if run_at == "left out" else {"run_at": run_at}
        begun = await starts_after(jobs, ENDS[end], lambda job: jobs.resubmit(TYPE, job.id, **options))
        assert begun == [0, 20]  # and it does not run once more: the second run is the one that was asked for


@pytest.mark.parametrize("end", ENDS)
@in_virtual_time
async def test_of_a_pause_and_the_time_of_a_resubmit_the_earlier_one_wins(end: str) -> None:
    async with opened() as jobs:
        begun = await starts_after(
            jobs, ENDS[end], lambda job: jobs.add(TYPE, job.id, run_at=EPOCH + 600, if_exists="resubmit")
        )
        assert begun == [0, 600]


@pytest.mark.parametrize("end", ENDS)
@in_virtual_time
async def test_a_run_that_was_asked_for_later_than_the_pause_comes_as_well(end: str) -> None:
    async with opened() as jobs:
        begun = await starts_after(
            jobs, ENDS[end], lambda job: jobs.resubmit(TYPE, job.id, run_at=EPOCH + 2 * HOUR), wait=4 * HOUR
        )
        assert begun == [0, HOUR + 20, 2 * HOUR]


@in_virtual_time
async def test_a_resubmitted_job_that_is_lost_runs_as_it_was_asked_to() -> None:
    async with opened() as jobs:
        await add(jobs, "a")
        await jobs.accept(TYPE)
        await jobs.resubmit(TYPE, "a", priority=-3)
        await lose(jobs)
        job = await jobs.get(TYPE, "a")
        assert (job.state, job.priority, bool(job.resubmit)) == (JobState.PENDING, -3, False)


@in_virtual_time
async def test_a_handler_that_asks_for_another_run_and_fails_waits_all_the_same() -> None:
    async with opened() as jobs:

        @jobs.handler(TYPE, jitter=0, backoff=30, max_attempts=3)
        async def work(job: RunningJob) -> None:
            await (await job.update()).resubmit()
            raise OSError

        async with running(jobs):
            await add(jobs, "a")
            await asyncio.sleep(80)
            assert moments(await jobs.get(TYPE, "a"), HistoryKind.CRASHED) == [0, 30]


@in_virtual_time
async def test_somebody_elses_resubmit_counts_also_where_the_handler_has_asked_for_a_run() -> None:
    async with opened() as jobs:

        async def both(job: RunningJob) -> None:
            await job.resubmit(run_at=EPOCH + 2 * HOUR)
            await jobs.resubmit(TYPE, job.id, run_at=EPOCH + 60)

        assert await starts_after(jobs, ENDS["crash"], both) == [0, 60]
