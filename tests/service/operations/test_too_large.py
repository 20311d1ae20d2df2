"""What is too large for the store, and what must never get stuck because of it."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest

from jobs_service import JobsService, JobState, JobTooLarge, NewJob
from tests.service.support import FAR_AWAY, J1, J2, LOST, OVER, T1, contents, running

# what is too large


def names_size_and_limit(error: JobTooLarge, limit: int) -> bool:
    """Whether the message names the limit and a size above it."""
    digits = "".join(c if c.isdigit() else " " for c in str(error).replace(",", "").replace("_", ""))
    numbers = [int(number) for number in digits.split()]
    return limit in numbers and max(numbers) > limit


async def test_a_record_over_the_limit_is_refused_by_add_naming_size_and_limit(quiet: JobsService) -> None:
    before = await contents(quiet)
    with pytest.raises(JobTooLarge) as caught:
        await quiet.add(T1, J1, OVER)
    assert names_size_and_limit(caught.value, quiet.store.limits.value)
    assert (caught.value.type, caught.value.id) == (T1, J1)
    with pytest.raises(JobTooLarge):
        await quiet.add_many(T1, [NewJob("good"), NewJob(J1, OVER)])
    assert await contents(quiet) == before


async def test_a_record_over_the_limit_is_refused_by_creators_and_workers_alike(quiet: JobsService) -> None:
    worker = await running(quiet)
    await quiet.add(T1, J2, "small")
    before = await contents(quiet)
    with pytest.raises(JobTooLarge):
        await quiet.resubmit(T1, J2, data=OVER)
    with pytest.raises(JobTooLarge):
        await quiet.add(T1, J2, OVER, if_exists="resubmit")
    with pytest.raises(JobTooLarge):
        await worker.update(OVER)
    with pytest.raises(JobTooLarge):
        await worker.resubmit(data=OVER)
    with pytest.raises(JobTooLarge):
        await worker.finish(OVER)
    assert await contents(quiet) == before
    assert (await worker.finish("small")).state is JobState.FINISHED


@pytest.mark.parametrize("id", ["x", b"x"])
async def test_an_id_over_the_limit_is_refused_naming_size_and_limit(quiet: JobsService, id: Any) -> None:
    before = await contents(quiet)
    limit = quiet.store.limits.key
    with pytest.raises(JobTooLarge) as caught:
        await quiet.add(T1, id * (limit + 1))
    assert names_size_and_limit(caught.value, limit)
    with pytest.raises(JobTooLarge):
        await quiet.add_many(T1, [NewJob("good"), NewJob(id * (limit + 1))])
    assert await contents(quiet) == before


async def test_a_type_over_the_limit_is_refused(quiet: JobsService) -> None:
    before = await contents(quiet)
    with pytest.raises(JobTooLarge):
        await quiet.set_type_timeout("t" * (quiet.store.limits.key + 1), 10)
    assert await contents(quiet) == before


async def test_a_priority_over_the_limit_is_refused(quiet: JobsService) -> None:
    worker = await running(quiet, J2)
    before = await contents(quiet)
    priority = "p" * (quiet.store.limits.key + 1)
    with pytest.raises(JobTooLarge):
        await quiet.add(T1, J1, priority=priority)
    with pytest.raises(JobTooLarge):
        await quiet.add(T1, J1, priority=priority, run_at=FAR_AWAY)
    with pytest.raises(JobTooLarge):
        await quiet.resubmit(T1, J2, priority=priority)
    with pytest.raises(JobTooLarge):
        await worker.resubmit(priority=priority)
    assert await contents(quiet) == before


# what must never get stuck


async def test_no_flag_keeps_a_lost_job_from_being_pending_again(jobs: JobsService) -> None:
    await jobs.set_type_timeout(T1, LOST)
    await running(jobs)
    with contextlib.suppress(JobTooLarge):
        await jobs.resubmit(T1, J1, priority="p" * jobs.store.limits.key)
    again = await jobs.accept(T1)
    assert again is not None
    assert again.id == J1


async def test_a_scheduled_job_with_the_longest_key_comes_due(jobs: JobsService) -> None:
    limit = jobs.store.limits.key
    size = limit
    while True:
        try:
            await jobs.add(T1, "x" * size, priority="p" * 50, run_at=time.time() + 0.1)
            break
        except JobTooLarge:
            size -= 1
    assert size > limit - 200
    job = await jobs.accept(T1)
    assert job is not None
    assert job.id == "x" * size
