"""What accept, update, finish and release do to a missing, pending, running and finished job."""

from __future__ import annotations

from jobs_service import JobError, JobsService, JobState, Outcome
from tests.service.support import (
    FAR_AWAY,
    J1,
    LOST,
    T1,
    accepted,
    canceled,
    drained,
    eventually,
    finished,
    running,
    state,
)

# accept


async def test_accept_makes_a_pending_job_running_with_a_new_lock_and_seq(quiet: JobsService) -> None:
    await quiet.add(T1, J1, {"x": 1}, priority=2)
    before = await quiet.get(T1, J1)
    job = await accepted(quiet)
    assert (job.type, job.id, job.state, job.data, job.priority) == (T1, J1, JobState.RUNNING, {"x": 1}, 2)
    assert len(job.lock) == 16
    stored = await quiet.get(T1, J1)
    assert stored.state is JobState.RUNNING
    assert before.seq is not None
    assert stored.seq is not None
    assert stored.seq > before.seq
    assert await quiet.active_ids(T1) == [J1]
    assert await quiet.pending_count(T1) == 0


# update


async def test_a_worker_goes_on_with_either_handle_after_an_update(quiet: JobsService) -> None:
    first = await running(quiet)
    second = await first.update(1)
    await first.update(2)
    assert (await second.finish(3)).state is JobState.FINISHED


# finish


async def test_finish_keeps_what_the_worker_says_of_its_error(quiet: JobsService) -> None:
    worker = await running(quiet)
    error = JobError("Refused", "no such address")
    assert (await worker.finish(outcome=Outcome.FAILED, error=error)).error == error
    assert (await quiet.get(T1, J1)).error == error


async def test_finish_of_a_canceled_and_then_flagged_job_finishes_it(quiet: JobsService) -> None:
    worker = await canceled(quiet)
    await quiet.resubmit(T1, J1)
    assert (await worker.finish()).state is JobState.FINISHED
    assert await drained(quiet) == []


async def test_a_job_canceled_once_and_resubmitted_after_it_finished_is_canceled_no_more(quiet: JobsService) -> None:
    worker = await canceled(quiet)
    await worker.finish()
    job = await quiet.resubmit(T1, J1)
    assert (job.cancel, job.resubmit, job.outcome) == (False, False, None)
    again = await accepted(quiet)
    await again.update("goes on")
    assert (await again.finish()).outcome is Outcome.SUCCEEDED


# lost


async def test_a_silent_canceled_job_is_finished_as_canceled_after_its_timeout(jobs: JobsService) -> None:
    await canceled(jobs, data="kept")
    await jobs.set_type_timeout(T1, LOST)

    async def is_finished() -> bool:
        return await state(jobs) is JobState.FINISHED

    await eventually(is_finished)
    job = await jobs.get(T1, J1)
    assert (job.outcome, job.data) == (Outcome.CANCELED, "kept")
    assert await drained(jobs) == []


async def test_the_activity_monitor_leaves_pending_and_finished_jobs_alone(jobs: JobsService) -> None:
    await finished(jobs, "done")
    await jobs.add(T1, "waiting", run_at=FAR_AWAY)
    before = [await jobs.get(T1, "done"), await jobs.get(T1, "waiting")]
    await running(jobs, "lost")
    await jobs.set_type_timeout(T1, LOST)
    assert await jobs.accept(T1) is not None  # the monitor has been at work
    assert [await jobs.get(T1, "done"), await jobs.get(T1, "waiting")] == before
