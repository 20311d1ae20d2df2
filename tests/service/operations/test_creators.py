"""What resubmit and remove do to a missing, pending, running and finished job."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime

import pytest

from jobs_service import (
    JobNotFound,
    JobsService,
    JobState,
    Removal,
    WorkerConflict,
)
from jobs_service.errors import job_name
from tests.runner.support import opened, store_of
from tests.service.support import (
    FAR_AWAY,
    FAR_DATE,
    J1,
    J2,
    LONG_AGO,
    LOST,
    T1,
    TIMEOUT,
    canceled,
    contents,
    drained,
    eventually,
    finished,
    listed,
    removed,
    running,
)
from tests.service.test_news_after_outages import Slow
from tests.virtual_time import in_virtual_time

# resubmit by a creator


async def test_resubmit_of_a_missing_job_is_an_error_and_writes_nothing(quiet: JobsService) -> None:
    before = await contents(quiet)
    with pytest.raises(JobNotFound) as caught:
        await quiet.resubmit(T1, J1)
    assert (caught.value.type, caught.value.id) == (T1, J1)
    assert await contents(quiet) == before


async def test_resubmit_of_a_pending_job_replaces_what_is_given_and_moves_it(quiet: JobsService) -> None:
    await quiet.add(T1, J1, "old", priority=5)
    await quiet.add(T1, J2, priority=4)
    job = await quiet.resubmit(T1, J1, data="new", priority=3)
    assert (job.state, job.data, job.priority, job.resubmit) == (JobState.PENDING, "new", 3, False)
    assert await drained(quiet) == [J1, J2]


async def test_resubmit_of_a_pending_job_leaves_what_is_left_out(quiet: JobsService) -> None:
    await quiet.add(T1, J1, "old", priority=5, run_at=FAR_AWAY)
    assert (await quiet.resubmit(T1, J1, data="new")).priority == 5
    assert (await quiet.resubmit(T1, J1, priority=6)).run_at == FAR_DATE
    job = await quiet.resubmit(T1, J1, run_at=None)
    assert (job.data, job.priority, job.run_at) == ("new", 6, None)
    assert (await quiet.resubmit(T1, J1, data=None)).data is None
    stored = await quiet.get(T1, J1)
    assert (stored.data, stored.priority, stored.run_at) == (None, 6, None)


async def test_resubmit_of_a_pending_job_that_changes_nothing_writes_nothing(quiet: JobsService) -> None:
    await quiet.add(T1, J1, {"a": 1}, priority=5)
    before = await contents(quiet)
    await quiet.resubmit(T1, J1)
    await quiet.resubmit(T1, J1, data={"a": 1}, priority=5, run_at=None)
    assert await contents(quiet) == before


async def test_resubmit_of_a_running_job_flags_it_and_leaves_its_data(quiet: JobsService) -> None:
    worker = await running(quiet, data="worked on", priority=1)
    job = await quiet.resubmit(T1, J1, data="new", priority=7)
    assert (job.state, job.data, job.resubmit) == (JobState.RUNNING, "worked on", True)
    assert (await quiet.get(T1, J1)).data == "worked on"
    again = await worker.finish()
    assert (again.state, again.priority, again.data, again.resubmit) == (JobState.PENDING, 7, "worked on", False)


async def test_resubmit_of_a_running_job_without_more_keeps_priority_and_run_at(quiet: JobsService) -> None:
    worker = await running(quiet, priority=4, run_at=LONG_AGO)
    await quiet.resubmit(T1, J1)
    again = await worker.finish()
    assert (again.state, again.priority) == (JobState.PENDING, 4)
    assert again.run_at == datetime.fromtimestamp(LONG_AGO, UTC)
    assert await drained(quiet) == [J1]


async def test_resubmit_leaves_the_lock_of_a_running_job_to_its_worker(quiet: JobsService) -> None:
    worker = await running(quiet)
    await quiet.resubmit(T1, J1)
    updated = await worker.update("still mine")
    assert bool(updated.resubmit) is True
    assert updated.lock == worker.lock


async def test_resubmit_of_a_finished_job_makes_it_pending_again(quiet: JobsService) -> None:
    await finished(quiet, data="old", priority=5)
    job = await quiet.resubmit(T1, J1)
    assert (job.state, job.outcome, job.data, job.priority) == (JobState.PENDING, None, "old", 5)
    assert await drained(quiet) == [J1]


async def test_resubmit_of_a_finished_job_takes_new_data_priority_and_run_at(quiet: JobsService) -> None:
    await finished(quiet, data="old", priority=5)
    job = await quiet.resubmit(T1, J1, data="new", priority=6, run_at=FAR_AWAY)
    assert (job.state, job.data, job.priority, job.run_at) == (JobState.PENDING, "new", 6, FAR_DATE)
    assert await drained(quiet) == []


# remove


async def test_remove_of_a_missing_job_is_an_error(quiet: JobsService) -> None:
    with pytest.raises(JobNotFound) as caught:
        await quiet.remove(T1, J1)
    assert (caught.value.type, caught.value.id) == (T1, J1)


async def test_remove_of_a_job_of_an_unknown_type_is_an_error(quiet: JobsService) -> None:
    with pytest.raises(JobNotFound):
        await quiet.remove("nosuch", J1)


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


async def test_remove_of_a_running_job_asks_its_worker_to_stop(quiet: JobsService) -> None:
    await running(quiet, data="kept")
    assert await quiet.remove(T1, J1) is Removal.CANCELED
    job = await quiet.get(T1, J1)
    assert (job.state, job.cancel, job.data) == (JobState.RUNNING, True, "kept")


async def test_remove_of_a_canceled_job_again_says_so_and_writes_nothing(quiet: JobsService) -> None:
    await canceled(quiet)
    before = await contents(quiet)
    assert await quiet.remove(T1, J1) is Removal.CANCELED
    assert await contents(quiet) == before


async def test_remove_of_a_finished_job_leaves_nothing(quiet: JobsService) -> None:
    await finished(quiet)
    assert await quiet.remove(T1, J1) is Removal.REMOVED
    with pytest.raises(JobNotFound):
        await quiet.get(T1, J1)
    assert await listed(quiet) == []


# remove(force=True)


async def test_forced_remove_of_a_missing_job_is_an_error(quiet: JobsService) -> None:
    with pytest.raises(JobNotFound):
        await quiet.remove(T1, J1, force=True)


async def test_forced_remove_of_a_pending_job_leaves_nothing(quiet: JobsService) -> None:
    await quiet.add(T1, J1)
    assert await quiet.remove(T1, J1, force=True) is Removal.REMOVED
    assert await listed(quiet) == []
    assert await drained(quiet) == []


async def test_forced_remove_of_a_running_job_leaves_nothing_and_its_worker_meets_a_conflict(
    quiet: JobsService,
) -> None:
    worker = await running(quiet)
    assert await quiet.remove(T1, J1, force=True) is Removal.REMOVED
    assert await listed(quiet) == []
    assert await quiet.active_ids(T1) == []
    with pytest.raises(WorkerConflict) as caught:
        await worker.finish()
    assert (caught.value.type, caught.value.id) == (T1, J1)
    assert await listed(quiet) == []


async def test_forced_remove_of_a_canceled_running_job_leaves_nothing(quiet: JobsService) -> None:
    worker = await canceled(quiet)
    assert await quiet.remove(T1, J1, force=True) is Removal.REMOVED
    assert await listed(quiet) == []
    with pytest.raises(WorkerConflict):
        await worker.update()


async def test_forced_remove_of_a_finished_job_leaves_nothing(quiet: JobsService) -> None:
    await finished(quiet)
    assert await quiet.remove(T1, J1, force=True) is Removal.REMOVED
    assert await listed(quiet) == []


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


async def test_stop_and_remove_of_a_pending_job_removes_it_at_once(jobs: JobsService) -> None:
    await jobs.add(T1, J1)
    await jobs.stop_and_remove(T1, J1, timeout=0)
    assert await listed(jobs) == []


async def test_stop_and_remove_of_a_finished_job_removes_it_at_once(jobs: JobsService) -> None:
    await finished(jobs)
    await jobs.stop_and_remove(T1, J1, timeout=0)
    assert await listed(jobs) == []


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
