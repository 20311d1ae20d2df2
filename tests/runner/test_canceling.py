"""Jobs that are canceled, removed by force or taken over while their handlers run: in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from jobs_service import JobCanceled, JobNotFound, Outcome, Removal, RunningJob, WorkerConflict
from jobs_service.model import HistoryKind
from tests.runner.support import SOON, TYPE, add, ended, moments, now, opened, running, store_of, story
from tests.virtual_time import in_virtual_time

HOUR = 3600.0


class Canceled:
    """When the handlers of which jobs were canceled, in virtual seconds."""

    def __init__(self) -> None:
        self.at: dict[object, float] = {}

    async def run(self, job: RunningJob) -> None:
        """Run until canceled."""
        try:
            await asyncio.sleep(HOUR)
        except asyncio.CancelledError:
            self.at[job.id] = now()
            raise


@pytest.mark.parametrize("age", [0.0001, 0.05, 20.0])
@in_virtual_time
async def test_the_handler_of_a_canceled_job_is_canceled_soon_however_long_it_has_run(age: float) -> None:
    canceled = Canceled()
    async with opened() as jobs:

        @jobs.handler(TYPE)
        async def work(job: RunningJob) -> None:
            await canceled.run(job)

        async with running(jobs):
            await add(jobs, "a")
            await asyncio.sleep(age)
            removed = now()
            assert await jobs.remove(TYPE, "a") is Removal.CANCELED
            job = await ended(jobs, "a")
            assert 0 <= canceled.at["a"] - removed < SOON
            assert job.outcome is Outcome.CANCELED
            assert job.error is None
            assert story(job) == ["added", "started", "canceled"]
            assert moments(job, HistoryKind.CANCELED) == [pytest.approx(canceled.at["a"], abs=0.001)]


@in_virtual_time
async def test_a_job_that_begins_and_is_canceled_while_another_is_looked_at_is_noticed_soon() -> None:
    canceled = Canceled()
    async with opened() as jobs:

        @jobs.handler(TYPE)
        async def work(job: RunningJob) -> None:
            await canceled.run(job)

        async with running(jobs):
            await add(jobs, "old", "other")
            await asyncio.sleep(1)
            await jobs.remove(TYPE, "other")
            await asyncio.sleep(0.01)
            await add(jobs, "young")
            await asyncio.sleep(0.02)
            removed = now()
            await jobs.remove(TYPE, "young")
            await ended(jobs, "young")
            assert canceled.at["young"] - removed < SOON
            assert canceled.at.keys() == {"young", "other"}


@in_virtual_time
async def test_stop_and_remove_ends_the_handler_and_removes_the_job() -> None:
    canceled = Canceled()
    async with opened() as jobs:

        @jobs.handler(TYPE)
        async def work(job: RunningJob) -> None:
            await canceled.run(job)

        async with running(jobs):
            await add(jobs, "a")
            await asyncio.sleep(5)
            await jobs.stop_and_remove(TYPE, "a", timeout=1)
            assert canceled.at["a"] - 5 < SOON
            with pytest.raises(JobNotFound):
                await jobs.get(TYPE, "a")


@pytest.mark.parametrize("what", [JobCanceled, WorkerConflict])
@in_virtual_time
async def test_an_error_about_another_job_is_an_error_like_any_other(what: type[Exception]) -> None:
    """A handler may work by hand on jobs of its own."""
    async with opened() as jobs:
        await add(jobs, "other", type="by hand")
        other = await jobs.accept("by hand", timeout=0)
        assert other is not None
        await jobs.remove("by hand", "other", force=what is WorkerConflict)

        @jobs.handler(TYPE, max_attempts=1)
        async def work(job: RunningJob) -> None:
            assert other is not None
            await other.update()

        async with running(jobs):
            await add(jobs, "a")
            job = await ended(jobs, "a")
            assert job.outcome is Outcome.FAILED
            assert job.error is not None
            assert job.error.type == what.__name__


# Removed by force, or taken over


@in_virtual_time
async def test_a_canceled_job_is_noticed_soon_also_after_the_store_has_lost_its_watches() -> None:
    canceled = Canceled()
    async with opened(supervise=False) as jobs:
        store = store_of(jobs)

        @jobs.handler(TYPE)
        async def work(job: RunningJob) -> None:
            await canceled.run(job)

        async with running(jobs):
            await add(jobs, "a")
            await asyncio.sleep(5)
            store.lose_watches("the cluster has recovered")
            await asyncio.sleep(5)
            removed = now()
            await jobs.remove(TYPE, "a")
            await asyncio.sleep(SOON)
            assert canceled.at["a"] - removed < SOON
