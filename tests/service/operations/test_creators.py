"""What resubmit and remove do to a missing, pending, running and finished job."""

from __future__ import annotations

import asyncio
import re

import pytest

from jobs_service import JobNotFound, JobsService, JobState, Removal, WorkerConflict
from jobs_service.errors import job_name
from tests.runner.support import opened, store_of
from tests.service.support import (
    FAR_AWAY,
    J1,
    J2,
    LONG_AGO,
    LOST,
    T1,
    TIMEOUT,
    contents,
    drained,
    eventually,
    listed,
    removed,
    running,
)
from tests.service.test_news_after_outages import Slow
from tests.virtual_time import in_virtual_time

# remove


@pytest.mark.parametrize("run_at", [None, LONG_AGO, FAR_AWAY])
async def test_remove_of_a_pending_job_leaves_nothing(quiet: JobsService, run_at: float | None) -> None:
    # The type's own keys stay: that it has had such jobs is noted until a service looks at it again.
    await quiet.add(T1, J2, run_at=run_at)
    await quiet.remove(T1, J2)
    before = set(await contents(quiet))
    await quiet.add(T1, J1, run_at=run_at)
    assert await quiet.remove(T1, J1) is Removal.REMOVED
    assert set(await contents(quiet)) == before
    with pytest.raises(JobNotFound):
        await quiet.get(T1, J1)
    assert await drained(quiet) == []


# remove(force=True)


async def test_a_stale_worker_does_not_touch_a_job_added_anew_under_its_id(quiet: JobsService) -> None:
    worker = await removed(quiet)
    await quiet.add(T1, J1, "another")
    before = await contents(quiet)
    with pytest.raises(WorkerConflict):
        await worker.finish("mine")
    assert await contents(quiet) == before


# stop_and_remove


async def test_stop_and_remove_of_a_missing_job_is_an_error(jobs: JobsService) -> None:
    with pytest.raises(JobNotFound):
        await jobs.stop_and_remove(T1, J1, timeout=1)


async def test_stop_and_remove_of_a_running_job_waits_until_it_has_finished(jobs: JobsService) -> None:
    worker = await running(jobs)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(jobs.stop_and_remove(T1, J1, timeout=30))

        async def is_canceled() -> bool:
            return (await jobs.get(T1, J1)).cancel

        await eventually(is_canceled)
        await worker.finish()
    assert await listed(jobs) == []


async def test_stop_and_remove_of_a_job_whose_worker_is_dead_removes_it_when_it_is_lost(jobs: JobsService) -> None:
    await jobs.set_type_timeout(T1, LOST)
    await running(jobs)
    await jobs.stop_and_remove(T1, J1, timeout=30)
    assert await listed(jobs) == []


@in_virtual_time
async def test_stop_and_remove_of_a_job_that_does_not_finish_in_time_leaves_it_canceled() -> None:
    async with opened() as jobs:
        await jobs.set_type_timeout(T1, TIMEOUT)
        await running(jobs)
        with pytest.raises(TimeoutError, match=rf"^job {re.escape(job_name(T1, J1))} did not finish within 0.05 s; it"):
            await jobs.stop_and_remove(T1, J1, timeout=0.05)
        job = await jobs.get(T1, J1)
        assert (job.state, job.cancel) == (JobState.RUNNING, True)


@in_virtual_time
async def test_stop_and_remove_does_not_claim_that_a_job_is_canceled_of_which_the_store_said_nothing() -> None:
    async with opened(supervise=False) as jobs:
        await jobs.set_type_timeout(T1, TIMEOUT)
        await running(jobs)
        store_of(jobs).faults = away = Slow()
        away.seconds = 3.0
        with pytest.raises(TimeoutError, match=r"no answer within 1.0 s whether it is canceled; it may be or not"):
            await jobs.stop_and_remove(T1, J1, timeout=1)
        store_of(jobs).faults = None
        assert not (await jobs.get(T1, J1)).cancel


@in_virtual_time
async def test_stop_and_remove_on_a_slow_store_notices_the_end_of_the_job_whenever_that_comes() -> None:
    for halves in range(10):
        async with opened(supervise=False) as jobs:
            await jobs.set_type_timeout(T1, TIMEOUT)
            worker = await running(jobs)
            store_of(jobs).faults = slow = Slow()
            slow.seconds = 1.0
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(jobs.stop_and_remove(T1, J1, timeout=30))
                await asyncio.sleep(halves / 2 + 0.25)
                await worker.finish()
            store_of(jobs).faults = None
            assert await listed(jobs) == []


async def test_stop_and_remove_is_done_when_somebody_else_removes_the_job(jobs: JobsService) -> None:
    await running(jobs)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(jobs.stop_and_remove(T1, J1, timeout=30))

        async def is_canceled() -> bool:
            return (await jobs.get(T1, J1)).cancel

        await eventually(is_canceled)
        await jobs.remove(T1, J1, force=True)
    assert await listed(jobs) == []
