"""Results of jobs, their progress, and figures about them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jobs_service import JobError, JobFailed, JobNotFound, JobsError, JobsService, JobState, JobTransaction, Outcome
from tests.service.enqueuing import CAT, picture
from tests.service.support import J1, PATIENCE, T1, accepted, running
from tests.stores import QUICKEST_AND_CLUSTER, one_of

# What they do is above the stores, which keep their contract: one, and the cluster, are enough.
store_kind = one_of(QUICKEST_AND_CLUSTER)


# result


async def test_a_result_is_waited_for_and_progress_does_not_end_the_wait(jobs: JobsService) -> None:
    worker = await running(jobs)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(jobs.result(T1, J1, timeout=PATIENCE))
        await worker.progress(1, 2)
        await worker.update("more")
        await worker.finish(result=[7])
    assert waiting.result() == [7]


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.CANCELED])
async def test_a_job_that_did_not_succeed_is_an_error_with_what_is_stored(jobs: JobsService, outcome: Outcome) -> None:
    error = JobError("ValueError", "no\nsuch picture", "Traceback ...")
    await (await running(jobs)).finish(outcome=outcome, error=error)
    with pytest.raises(JobFailed) as caught:
        await jobs.result(T1, J1)
    failed = caught.value
    assert (failed.type, failed.id, failed.outcome, failed.error) == (T1, J1, outcome.value, error)
    assert str(failed) == f"job 't1'/'j1' ended as {outcome.value}: ValueError: no such picture"


async def test_a_job_that_is_missing_or_removed_meanwhile_has_no_result(jobs: JobsService) -> None:
    with pytest.raises(JobNotFound):
        await jobs.result(T1, J1)
    await jobs.add(T1, J1)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(_error(jobs.result(T1, J1, timeout=PATIENCE)))
        async with jobs.subscribe(T1, J1) as events:
            await anext(events)
            await jobs.remove(T1, J1)
            async for _ in events:
                pass
    error = waiting.result()
    assert isinstance(error, JobNotFound)
    assert (str(error), error.type, error.id) == ("job 't1'/'j1' was removed", T1, J1)


async def _error(work: Any) -> BaseException | None:
    try:
        await work
    except JobsError as error:
        return error
    return None


async def test_a_job_that_was_resubmitted_while_it_ran_gives_the_result_of_its_last_run(jobs: JobsService) -> None:
    worker = await running(jobs)
    await worker.resubmit()
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(jobs.result(T1, J1, timeout=PATIENCE))
        await worker.finish(result="first")
        await (await accepted(jobs)).finish(result="second")
    assert waiting.result() == "second"


async def test_a_job_enqueued_for_a_new_type_gives_its_result_at_once(jobs: JobsService) -> None:
    job = await jobs.enqueue(picture, CAT)
    async with asyncio.timeout(PATIENCE / 3), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(jobs.result(job.type, job.id))
        await (await accepted(jobs, "picture")).finish(result=1)
    assert waiting.result() == 1


async def test_a_type_counts_as_one_that_was_enqueued_for_only_when_that_was_committed(quiet: JobsService) -> None:
    """The first job may have made the type, whose timeout is looked at then: not before, and not never."""
    runs = 0

    async def work(tx: JobTransaction) -> None:
        await tx.enqueue(picture, CAT)
        await tx.enqueue_many(picture, [CAT])
        if runs == 1:
            await tx.clear_type_timeout("picture")
        assert "picture" not in quiet._tree._enqueued
        if runs == 0:
            raise LookupError

    with pytest.raises(LookupError):
        await quiet.transact(work)
    assert "picture" not in quiet._tree._enqueued
    runs = 1
    await quiet.transact(work)
    assert "picture" not in quiet._tree._enqueued
    await quiet.set_type_timeout("picture", 60)
    await quiet.enqueue(picture, CAT)
    assert "picture" in quiet._tree._enqueued
    with pytest.raises(LookupError):
        await quiet.transact(refuse_to_clear)
    assert "picture" in quiet._tree._enqueued


async def refuse_to_clear(tx: JobTransaction) -> None:
    await tx.clear_type_timeout("picture")
    raise LookupError


# Progress


async def test_events_carry_progress_result_and_error(jobs: JobsService) -> None:
    worker = await running(jobs)
    told = []
    async with asyncio.timeout(PATIENCE), jobs.subscribe(T1, J1) as events:
        await anext(events)
        await worker.progress(3, 10, "resizing")
        event = await anext(events)
        told.append((event.state, event.progress and (event.progress.done, event.progress.message)))
        await worker.finish(result=7, error=JobError("E", "but"))
        event = [event async for event in events][-1]
        told.append((event.state, (event.result, event.error and event.error.type)))  # type: ignore[arg-type]
    assert told == [(JobState.RUNNING, (3, "resizing")), (JobState.FINISHED, (7, "E"))]
