"""Accepting among many jobs, several at once, and waiting for one."""

from __future__ import annotations

import asyncio
import time

import pytest

from jobs_service import JobsService, JobState, NewJob, RunningJob
from jobs_service.layer import queue
from tests.service.support import FAR_AWAY, J1, LONG_AGO, T1, eventually, new_jobs, waits

# spread


async def test_spread_picks_among_the_first_candidates(quiet: JobsService) -> None:
    ids = [str(number) for number in range(60)]
    await quiet.add_many(T1, new_jobs(*ids))
    left = list(ids)
    came = []
    while (job := await quiet.accept(T1, spread=4, timeout=0)) is not None:
        assert job.id in left[:4]
        left.remove(str(job.id))
        came.append(job.id)
    assert sorted(came) == sorted(ids)
    assert came != ids  # 4**-57 is the chance of that


# several at once


async def test_accept_many_takes_up_to_its_limit_in_order(quiet: JobsService) -> None:
    await quiet.add_many(T1, [NewJob("c", priority=1), NewJob("a"), NewJob("b"), NewJob("d", priority=2)])
    first = await quiet.accept_many(T1, 3, timeout=0)
    assert [job.id for job in first] == ["a", "b", "c"]
    assert all(isinstance(job, RunningJob) and job.state is JobState.RUNNING for job in first)
    assert len({job.lock for job in first}) == 3
    assert [job.id for job in await quiet.accept_many(T1, 3, timeout=0)] == ["d"]
    assert await quiet.accept_many(T1, 3, timeout=0) == []
    for job in first:
        assert (await job.finish()).state is JobState.FINISHED


# waiting


async def test_a_waiting_accept_wakes_for_a_job_that_comes_due_by_itself(quiet: JobsService) -> None:
    run_at = time.time() + 0.2
    await quiet.add(T1, J1, run_at=run_at)
    job = await quiet.accept(T1)
    assert time.time() >= run_at
    assert job is not None
    assert job.id == J1


async def test_a_waiting_accept_wakes_for_a_scheduled_job_that_is_moved_forward(quiet: JobsService) -> None:
    await quiet.add(T1, J1, run_at=FAR_AWAY)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(quiet.accept(T1))
        await waits(quiet)
        await quiet.resubmit(T1, J1, run_at=None)
    job = waiting.result()
    assert job is not None
    assert job.id == J1


async def test_a_waiting_accept_does_not_wake_for_a_job_above_its_max_priority(quiet: JobsService) -> None:
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(quiet.accept(T1, max_priority=1))
        await waits(quiet)
        [line] = quiet._waiting._lines.values()
        before = line.watch
        await quiet.add(T1, "too high", priority=2)

        async def it_has_looked_again() -> bool:
            return waiting.done() or (line.watch is not None and line.watch is not before)

        await eventually(it_has_looked_again)
        assert not waiting.done()
        await quiet.add(T1, "low enough", priority=1)
    job = waiting.result()
    assert job is not None
    assert job.id == "low enough"


async def test_a_waiting_accept_by_a_past_time_finds_a_job_when_those_before_it_have_left(
    quiet: JobsService, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, few in (("MOST_TAKEN", 4), ("PAGE", 2)):
        monkeypatch.setattr(queue, name, few)
    monkeypatch.setattr(queue, "_PASSED_CHECK", 0.05)
    await quiet.add_many(T1, [NewJob(f"later {number}", run_at=LONG_AGO) for number in range(8)])
    await quiet.add(T1, J1)
    assert await quiet.accept(T1, due_by=LONG_AGO - 1, timeout=0) is None
    assert await quiet.transact(lambda tx: tx.accept(T1, due_by=LONG_AGO - 1)) is None
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(quiet.accept(T1, due_by=LONG_AGO - 1))
        await waits(quiet)
        for count in (4, 1):
            assert len(await quiet.accept_many(T1, count, timeout=0)) == count
    job = waiting.result()
    assert job is not None
    assert job.id == J1


async def test_as_many_waiting_accepts_as_jobs_that_come_all_get_one(quiet: JobsService) -> None:
    async with asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(quiet.accept(T1)) for _ in range(20)]
        await waits(quiet, 20)
        await quiet.add_many(T1, new_jobs(*(str(number) for number in range(10))))
        for number in range(10, 20):
            await quiet.add(T1, str(number))
    came = sorted(str(job.id) for task in waiting if (job := task.result()) is not None)
    assert came == sorted(str(number) for number in range(20))


async def test_a_canceled_accept_takes_nothing_with_it(quiet: JobsService) -> None:
    waiting = [asyncio.create_task(quiet.accept(T1)) for _ in range(5)]
    await waits(quiet, 5)
    async with asyncio.TaskGroup() as tasks:
        adding = tasks.create_task(quiet.add(T1, J1))
        for task in waiting:
            task.cancel()
    assert adding.result().id == J1
    results = await asyncio.gather(*waiting, return_exceptions=True)
    got = [result for result in results if isinstance(result, RunningJob)]
    if got:
        await got[0].release()
    # A job accepted for a caller that is gone is given back, which may come after the cancellation.
    job = await quiet.accept(T1, timeout=30)
    assert job is not None
    assert job.id == J1
