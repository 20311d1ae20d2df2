"""Adding many jobs, and many callers at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jobs_service import Job, JobExists, JobNotFound, JobsService, JobState, JobTooLarge, NewJob, NoTypeTimeout
from tests.service.support import FAR_AWAY, OVER, T1, contents, drained, finished, listed, new_jobs

# add_many


async def test_add_many_adds_in_order(quiet: JobsService) -> None:
    wanted = [NewJob("b", 1), NewJob("a", 2, priority=-1), NewJob(b"c", 3), NewJob("d", 4, run_at=FAR_AWAY)]
    added = await quiet.add_many(T1, wanted)
    assert [(job.id, job.data, job.state) for job in added] == [(new.id, new.data, JobState.PENDING) for new in wanted]
    assert await drained(quiet) == ["a", "b", b"c"]


async def test_add_many_with_an_existing_id_names_it_and_adds_nothing(quiet: JobsService) -> None:
    await quiet.add(T1, "b")
    before = await contents(quiet)
    with pytest.raises(JobExists) as caught:
        await quiet.add_many(T1, new_jobs("a", "b", "c"))
    assert (caught.value.type, caught.value.id) == (T1, "b")
    assert await contents(quiet) == before


async def test_add_many_with_ignore_adds_what_is_missing(quiet: JobsService) -> None:
    await quiet.add(T1, "b", "old")
    added = await quiet.add_many(T1, [NewJob("a", "new"), NewJob("b", "new")], if_exists="ignore")
    assert [(job.id, job.data) for job in added] == [("a", "new"), ("b", "old")]
    assert await drained(quiet) == ["b", "a"]


async def test_add_many_with_resubmit_replaces_what_is_there(quiet: JobsService) -> None:
    await finished(quiet, "b", "old")
    added = await quiet.add_many(T1, [NewJob("a", "new"), NewJob("b", "new")], if_exists="resubmit")
    assert [(job.id, job.data, job.state) for job in added] == [
        ("a", "new", JobState.PENDING),
        ("b", "new", JobState.PENDING),
    ]
    assert await drained(quiet) == ["a", "b"]


async def test_add_many_of_more_than_one_transaction_holds_adds_them_all(quiet: JobsService) -> None:
    large = "x" * 96_000
    added = await quiet.add_many(T1, (NewJob(f"j{number:04}", large) for number in range(150)))
    assert [job.id for job in added] == [f"j{number:04}" for number in range(150)]
    assert await quiet.pending_count(T1) == 150
    assert await drained(quiet) == [f"j{number:04}" for number in range(150)]


# many callers at once


async def test_operations_called_at_once_each_meet_their_own_fate(quiet: JobsService) -> None:
    await quiet.add_many(T1, new_jobs(*(f"old {number}" for number in range(10))))
    calls: list[Any] = []
    for number in range(60):
        match number % 6:
            case 0:
                calls.append(quiet.add(T1, f"new {number}", number))
            case 1:
                calls.append(quiet.add(T1, "old 0"))
            case 2:
                calls.append(quiet.add(T1, f"new {number}", OVER))
            case 3:
                calls.append(quiet.add("nosuch", f"new {number}"))
            case 4:
                calls.append(quiet.get(T1, "nosuch"))
            case 5:
                calls.append(quiet.resubmit(T1, "old 1", data=number))
    results = await asyncio.gather(*calls, return_exceptions=True)
    kinds = [type(result) for result in results]
    assert kinds == [Job, JobExists, JobTooLarge, NoTypeTimeout, JobNotFound, Job] * 10
    for number in range(0, 60, 6):
        assert (await quiet.get(T1, f"new {number}")).data == number
    assert len(await listed(quiet, T1)) == 20
    assert await quiet.pending_count(T1) == 20
    assert (await quiet.get(T1, "old 1")).data == 59


async def test_a_canceled_caller_among_many_takes_nobody_with_it(quiet: JobsService) -> None:
    adding = [asyncio.create_task(quiet.add(T1, str(number))) for number in range(40)]
    await asyncio.sleep(0)
    for task in adding[::2]:
        task.cancel()
    results = await asyncio.gather(*adding, return_exceptions=True)
    assert all(isinstance(result, Job) for result in results[1::2])
    stored = {str(job.id) for job in await listed(quiet, T1)}
    assert stored >= {str(number) for number in range(1, 40, 2)}
    assert set(await drained(quiet)) == stored
