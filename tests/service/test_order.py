"""In which order `accept` hands out jobs, and how it waits for one."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import pytest

from jobs_service import JobsService, NewJob
from jobs_service.sources import Sources
from tests.service.support import FAR_AWAY, LONG_AGO, T1, accepted, drained, eventually, new_jobs, pass_moment
from tests.stores import settings_with


async def add_with_priorities(jobs: JobsService, priorities: list[Any]) -> None:
    """Add one job per priority, named after its place in the list, the last one first."""
    for place in reversed(range(len(priorities))):
        await jobs.add(T1, str(place), priority=priorities[place])


PRIORITIES: dict[str, list[Any]] = {
    "integers": [-(2**70), -256, -2, -1, 0, 1, 2, 255, 256, 2**70],
    "text": ["", "10", "9", "a", "b", "ba", "é"],
    "bytes": [b"", b"\x00", b"\x00\x01", b"\x01", b"\xff"],
    "tuples": [(), (-1, "z"), (0,), (0, "a"), (0, "b"), (1,)],
    "mixed, as the tuple layer orders": [b"z", "a", ("t",), -5, 0, 5],
}


# priorities


@pytest.mark.parametrize("priorities", PRIORITIES.values(), ids=PRIORITIES.keys())
async def test_the_lowest_priority_comes_first(quiet: JobsService, priorities: list[Any]) -> None:
    await add_with_priorities(quiet, priorities)
    came = []
    while (job := await quiet.accept(T1, timeout=0)) is not None:
        came.append(job.priority)
    assert came == priorities


# first in, first out


async def test_within_a_priority_jobs_come_in_the_order_in_which_they_were_added(quiet: JobsService) -> None:
    ids = ["c", "a", "d", "b"]
    for id in ids:
        await quiet.add(T1, id, priority=3)
    assert await drained(quiet) == ids


# when jobs come due


async def test_due_by_takes_what_is_due_at_that_moment(quiet: JobsService) -> None:
    await quiet.add(T1, "next century", run_at=FAR_AWAY)
    assert await quiet.accept(T1, due_by=FAR_AWAY - 1, timeout=0) is None
    job = await accepted(quiet, due_by=FAR_AWAY)
    assert (job.id, job.run_at) == ("next century", datetime.fromtimestamp(FAR_AWAY, UTC))


async def test_due_by_in_the_past_leaves_what_came_due_since(quiet: JobsService) -> None:
    await quiet.add(T1, "old", run_at=LONG_AGO)
    assert await quiet.accept(T1, due_by=LONG_AGO - 1, timeout=0) is None
    assert await quiet.accept_many(T1, 2, due_by=LONG_AGO - 1, timeout=0) == []
    assert (await accepted(quiet, due_by=LONG_AGO)).id == "old"


async def test_a_scheduled_job_that_comes_due_queues_behind_those_that_were_ready(quiet: JobsService) -> None:
    await quiet.add(T1, "scheduled", run_at=FAR_AWAY)
    await quiet.add_many(T1, new_jobs("a", "b"))
    assert await drained(quiet, due_by=FAR_AWAY) == ["a", "b", "scheduled"]


async def test_of_scheduled_jobs_that_are_due_by_a_time_the_best_priority_comes_first(quiet: JobsService) -> None:
    await quiet.add(T1, "sooner", priority=1, run_at=FAR_AWAY)
    await quiet.add(T1, "better", priority=0, run_at=FAR_AWAY + 1)
    assert await quiet.transact(lambda tx: tx.accept(T1, max_priority=-1, due_by=FAR_AWAY + 1)) is None
    job = await quiet.transact(lambda tx: tx.accept(T1, max_priority=0, due_by=FAR_AWAY + 1))
    assert job is not None
    assert job.id == "better"
    await job.release()
    assert await drained(quiet, due_by=FAR_AWAY + 1) == ["better", "sooner"]


async def test_scheduled_jobs_come_due_in_the_order_of_their_times(quiet: JobsService) -> None:
    times = {"third": FAR_AWAY, "first": LONG_AGO + 4e8, "second": FAR_AWAY - 0.5}
    moment = FAR_AWAY - 1e9
    for id, run_at in times.items():
        await quiet.add(T1, id, run_at=run_at)
    assert await quiet.accept(T1, due_by=moment - 2e9, timeout=0) is None
    assert await drained(quiet, due_by=FAR_AWAY + 1) == ["first", "second", "third"]


async def test_a_scheduled_job_is_not_accepted_before_its_time_and_is_once_it_has_come(quiet: JobsService) -> None:
    run_at = time.time() + 0.3
    await quiet.add(T1, "a")
    await quiet.add(T1, "scheduled", run_at=run_at)
    assert (await accepted(quiet)).id == "a"
    early = await quiet.accept(T1, timeout=0)
    assert early is None or time.time() >= run_at
    await pass_moment(run_at)
    assert early is not None or (await accepted(quiet)).id == "scheduled"


async def test_who_does_not_wait_makes_a_bounded_number_of_jobs_ready_that_it_may_not_take() -> None:
    now = [1e9]
    sources = Sources(0)
    sources.wall_time = lambda: now[0]
    settings = settings_with(pending_batch=5)
    async with JobsService("memory:", settings=settings, supervise=False, sources=sources) as jobs:
        await jobs.set_type_timeout(T1, 10)
        await jobs.add_many(T1, (NewJob(str(number), priority=9, run_at=now[0] + 1) for number in range(120)))
        await jobs.add(T1, "wanted", priority=1, run_at=now[0] + 2)
        now[0] += 10
        taken = [await jobs.accept(T1, max_priority=1, timeout=0) for _ in range(3)]
        assert [job and job.id for job in taken] == [None, None, "wanted"]


async def test_jobs_that_came_due_while_all_workers_were_busy_stand_before_those_added_later(
    jobs: JobsService,
) -> None:
    await jobs.add(T1, "scheduled", run_at=time.time() + 0.2)
    scheduled = await jobs.get(T1, "scheduled")

    async def is_ready() -> bool:
        return (await jobs.get(T1, "scheduled")).seq != scheduled.seq  # it has a place in the queue, without an accept

    await eventually(is_ready)
    await jobs.add(T1, "later")
    assert await drained(jobs) == ["scheduled", "later"]
