"""What is too large for the store, and what must never get stuck because of it."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest

from jobs_service import (
    JobsService,
    JobState,
    JobTooLarge,
    NewJob,
    Removal,
    RunningJob,
)
from tests.service.support import (
    FAR_AWAY,
    J1,
    J2,
    LONG_AGO,
    LOST,
    OVER,
    T1,
    accepted,
    contents,
    eventually,
    running,
    state,
)

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


async def just_fitting(jobs: JobsService, id: str) -> RunningJob:
    """Return a running job that is as large as a record can be."""
    fits, is_too_large = 0, jobs.store.limits.value
    while is_too_large - fits > 1:
        size = (fits + is_too_large) // 2
        try:
            await jobs.add(T1, id, "x" * size)
        except JobTooLarge:
            is_too_large = size
        else:
            await jobs.remove(T1, id)
            fits = size
    await jobs.add(T1, id, "x" * fits)
    return await accepted(jobs)


async def test_data_just_below_the_limit_lives_through_a_whole_life(quiet: JobsService) -> None:
    worker = await just_fitting(quiet, J1)
    size = len(worker.data)
    assert size > quiet.store.limits.value - 3_300  # what is kept for its end, and the rest of a record, which is small
    await worker.resubmit()
    await worker.finish()
    worker = await accepted(quiet)
    await quiet.remove(T1, J1)
    assert (await worker.finish()).state is JobState.FINISHED
    job = await quiet.resubmit(T1, J1, run_at=LONG_AGO)
    assert job.state is JobState.PENDING
    assert await quiet.remove(T1, J1) is Removal.REMOVED


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


async def lives(jobs: JobsService, id: str, run_at: float | None) -> bool:
    """Take a job through its whole life, and return whether it could be added at all."""
    try:
        await jobs.add(T1, id, run_at=run_at)
    except JobTooLarge:
        return False
    await jobs.resubmit(T1, id, run_at=None)
    worker = await accepted(jobs)
    await worker.update()
    await worker.resubmit(run_at=LONG_AGO)
    await worker.finish()
    worker = await accepted(jobs)
    await worker.release()
    await jobs.remove(T1, id)
    return True


@pytest.mark.parametrize("run_at", [None, FAR_AWAY])
async def test_an_id_that_could_be_added_is_never_too_long_later(quiet: JobsService, run_at: float | None) -> None:
    limit = quiet.store.limits.key
    results = [await lives(quiet, "x" * size, run_at) for size in range(limit - 80, limit + 1)]
    assert results[0] is True
    assert results[-1] is False
    assert results == sorted(results, reverse=True)


# what must never get stuck


async def test_a_lost_job_as_large_as_can_be_is_pending_again(jobs: JobsService) -> None:
    await jobs.set_type_timeout(T1, LOST)
    await just_fitting(jobs, J1)
    again = await jobs.accept(T1)
    assert again is not None
    assert again.id == J1


async def test_a_flagged_job_as_large_as_can_be_is_pending_again_when_it_is_lost(jobs: JobsService) -> None:
    await jobs.set_type_timeout(T1, LOST)
    await just_fitting(jobs, J1)
    with contextlib.suppress(JobTooLarge):
        await jobs.resubmit(T1, J1, priority=("a", "long", "priority"), run_at=LONG_AGO)
    again = await jobs.accept(T1)
    assert again is not None
    assert again.id == J1


async def test_no_flag_keeps_a_lost_job_from_being_pending_again(jobs: JobsService) -> None:
    await jobs.set_type_timeout(T1, LOST)
    await running(jobs)
    with contextlib.suppress(JobTooLarge):
        await jobs.resubmit(T1, J1, priority="p" * jobs.store.limits.key)
    again = await jobs.accept(T1)
    assert again is not None
    assert again.id == J1


async def test_a_canceled_job_as_large_as_can_be_is_finished_when_it_is_lost(jobs: JobsService) -> None:
    await just_fitting(jobs, J1)
    assert await jobs.remove(T1, J1) is Removal.CANCELED
    await jobs.set_type_timeout(T1, LOST)

    async def is_finished() -> bool:
        return await state(jobs) is JobState.FINISHED

    await eventually(is_finished)


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
