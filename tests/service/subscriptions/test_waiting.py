"""`wait`: until a job is in a state."""

from __future__ import annotations

import asyncio

import pytest

from jobs_service import JobsError, JobsService
from tests.runner.support import opened
from tests.service.subscriptions.support import FINISHED, PENDING, RUNNING, seen
from tests.service.support import FAR_AWAY, J1, PATIENCE, T1, TIMEOUT, accepted, eventually, running, told
from tests.virtual_time import in_virtual_time


async def test_progress_alone_is_an_event(jobs: JobsService) -> None:
    worker = await running(jobs)
    async with asyncio.timeout(PATIENCE), jobs.subscribe(T1, J1) as events:
        assert (await anext(events)).progress is None
        for done in (1, 2):
            await worker.progress(done, 10, "on it")
            progress = (await anext(events)).progress
            assert progress is not None
            assert (progress.done, progress.total, progress.message) == (done, 10, "on it")


async def test_what_replaces_an_untaken_event_of_the_same_state_is_told(jobs: JobsService) -> None:
    worker = await running(jobs, data=1)
    async with asyncio.timeout(PATIENCE), jobs.subscribe(T1, J1) as events:
        assert (await anext(events)).data == 1
        [target] = events._targets
        for data in (2, 3):
            await worker.update(data)

            async def is_told(data: int = data) -> bool:
                return target.reported is not None and target.reported.data == data

            await eventually(is_told)
        assert (await anext(events)).data == 3


async def test_a_new_time_alone_is_an_event(jobs: JobsService) -> None:
    await jobs.add(T1, J1, run_at=FAR_AWAY)
    async with asyncio.timeout(PATIENCE), jobs.subscribe(T1, J1) as events:
        await anext(events)
        await jobs.resubmit(T1, J1, run_at=FAR_AWAY + 1)
        run_at = (await anext(events)).run_at
        assert run_at is not None
        assert run_at.timestamp() == FAR_AWAY + 1


async def test_wait_for_a_state_that_the_job_is_in_returns_at_once(jobs: JobsService) -> None:
    await jobs.add(T1, J1, "data")
    assert seen(await jobs.wait(T1, J1, PENDING)) == (PENDING, "data")
    worker = await accepted(jobs)
    assert seen(await jobs.wait(T1, J1, FINISHED, RUNNING)) == (RUNNING, "data")
    await worker.finish("result")
    assert seen(await jobs.wait(T1, J1, FINISHED)) == (FINISHED, "result")
    assert seen(await jobs.wait(T1, J1)) == (FINISHED, "result")  # nothing more comes


async def test_wait_returns_when_the_job_comes_into_one_of_the_states(jobs: JobsService) -> None:
    worker = await running(jobs)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(jobs.wait(T1, J1, PENDING, FINISHED, timeout=30))
        await told(jobs)
        await worker.update("on the way")
        await worker.finish("result")
    assert seen(waiting.result()) == (FINISHED, "result")


async def test_wait_without_states_returns_at_the_next_change(jobs: JobsService) -> None:
    worker = await running(jobs)
    waiting = asyncio.create_task(jobs.wait(T1, J1))
    number = 0
    while not waiting.done():
        number += 1
        await worker.update(number)
        await asyncio.sleep(0.005)
    event = await waiting
    assert event.state is RUNNING
    assert isinstance(event.data, int)


async def test_wait_for_a_state_that_does_not_come_times_out(jobs: JobsService) -> None:
    await jobs.add(T1, J1)
    with pytest.raises(TimeoutError):
        await jobs.wait(T1, J1, FINISHED, timeout=0.05)
    with pytest.raises(TimeoutError):
        await jobs.wait(T1, J1, FINISHED, timeout=0)


@in_virtual_time
async def test_who_has_waited_in_vain_is_told_what_the_job_is() -> None:
    async with opened() as jobs:
        await jobs.set_type_timeout(T1, TIMEOUT)
        await jobs.add(T1, J1)
        with pytest.raises(TimeoutError, match=r"^job .*/.* was not finished within 0\.05 s; it is pending$"):
            await jobs.result(T1, J1, timeout=0.05)
        with pytest.raises(TimeoutError, match=r"^job .*/.* did not change within 0\.05 s; it is pending$"):
            await jobs.wait(T1, J1, timeout=0.05)


async def test_wait_ends_when_the_job_is_removed_meanwhile(jobs: JobsService) -> None:
    await jobs.add(T1, J1)
    waiting = asyncio.create_task(jobs.wait(T1, J1, FINISHED))
    await told(jobs)
    await jobs.remove(T1, J1)
    with pytest.raises(JobsError):
        await waiting
