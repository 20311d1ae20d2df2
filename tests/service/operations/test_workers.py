"""What accept, update, finish and release do to a missing, pending, running and finished job."""

from __future__ import annotations

import pytest

from jobs_service import (
    JobCanceled,
    JobError,
    JobsService,
    JobState,
    Outcome,
    WorkerConflict,
)
from tests.service.support import (
    FAR_AWAY,
    J1,
    LOST,
    T1,
    T2,
    accepted,
    canceled,
    contents,
    drained,
    eventually,
    finished,
    listed,
    released,
    removed,
    running,
    state,
    succeeded_by_another,
)

# accept


async def test_accept_of_a_type_without_jobs_returns_none(quiet: JobsService) -> None:
    assert await quiet.accept(T1, timeout=0) is None
    assert await quiet.accept("nosuch", timeout=0) is None


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


async def test_every_accept_makes_another_lock(quiet: JobsService) -> None:
    first = await running(quiet)
    await first.release()
    second = await accepted(quiet)
    assert second.lock != first.lock


async def test_accept_does_not_take_a_scheduled_job_before_its_time(quiet: JobsService) -> None:
    await quiet.add(T1, J1, run_at=FAR_AWAY)
    assert await quiet.accept(T1, timeout=0) is None
    assert await state(quiet) is JobState.PENDING


async def test_accept_does_not_take_a_running_job(quiet: JobsService) -> None:
    await running(quiet)
    assert await quiet.accept(T1, timeout=0) is None


async def test_accept_does_not_take_a_finished_job(quiet: JobsService) -> None:
    await finished(quiet)
    assert await quiet.accept(T1, timeout=0) is None


async def test_accept_takes_no_job_of_another_type(quiet: JobsService) -> None:
    await quiet.add(T2, J1)
    assert await quiet.accept(T1, timeout=0) is None


# update


async def test_update_of_a_missing_job_is_a_conflict(quiet: JobsService) -> None:
    worker = await removed(quiet)
    with pytest.raises(WorkerConflict):
        await worker.update("mine")
    assert await listed(quiet) == []


async def test_update_of_a_pending_job_is_a_conflict_and_writes_nothing(quiet: JobsService) -> None:
    worker = await released(quiet)
    before = await contents(quiet)
    with pytest.raises(WorkerConflict):
        await worker.update("mine")
    assert await contents(quiet) == before


async def test_update_with_data_replaces_it_and_gives_the_job_a_new_seq(quiet: JobsService) -> None:
    worker = await running(quiet, data="old")
    before = await quiet.get(T1, J1)
    updated = await worker.update("new")
    assert (updated.state, updated.data, updated.lock) == (JobState.RUNNING, "new", worker.lock)
    stored = await quiet.get(T1, J1)
    assert (stored.state, stored.data) == (JobState.RUNNING, "new")
    assert stored.seq is not None
    assert before.seq is not None
    assert stored.seq > before.seq


async def test_update_without_data_leaves_it_and_gives_the_job_a_new_seq(quiet: JobsService) -> None:
    worker = await running(quiet, data="old")
    before = await quiet.get(T1, J1)
    assert (await worker.update()).data == "old"
    stored = await quiet.get(T1, J1)
    assert stored.data == "old"
    assert stored.seq is not None
    assert before.seq is not None
    assert stored.seq > before.seq


async def test_update_with_none_takes_the_data_away(quiet: JobsService) -> None:
    worker = await running(quiet, data="old")
    await worker.update(None)
    assert (await quiet.get(T1, J1)).data is None


async def test_a_worker_goes_on_with_either_handle_after_an_update(quiet: JobsService) -> None:
    first = await running(quiet)
    second = await first.update(1)
    await first.update(2)
    assert (await second.finish(3)).state is JobState.FINISHED


async def test_update_of_a_canceled_job_says_so_and_writes_nothing(quiet: JobsService) -> None:
    worker = await canceled(quiet, data="old")
    before = await contents(quiet)
    with pytest.raises(JobCanceled) as caught:
        await worker.update("new")
    assert (caught.value.type, caught.value.id) == (T1, J1)
    assert await contents(quiet) == before


async def test_update_under_another_lock_is_a_conflict_and_writes_nothing(quiet: JobsService) -> None:
    worker = await succeeded_by_another(quiet)
    before = await contents(quiet)
    with pytest.raises(WorkerConflict):
        await worker.update("mine")
    assert await contents(quiet) == before


async def test_update_of_a_finished_job_is_a_conflict_and_writes_nothing(quiet: JobsService) -> None:
    worker = await finished(quiet)
    before = await contents(quiet)
    with pytest.raises(WorkerConflict):
        await worker.update("mine")
    assert await contents(quiet) == before


# finish


async def test_finish_of_a_missing_job_is_a_conflict(quiet: JobsService) -> None:
    worker = await removed(quiet)
    with pytest.raises(WorkerConflict):
        await worker.finish("mine")
    assert await listed(quiet) == []


async def test_finish_of_a_pending_job_is_a_conflict_and_writes_nothing(quiet: JobsService) -> None:
    worker = await released(quiet)
    before = await contents(quiet)
    with pytest.raises(WorkerConflict):
        await worker.finish("mine")
    assert await contents(quiet) == before


async def test_finish_stores_the_data_and_ends_the_run(quiet: JobsService) -> None:
    worker = await running(quiet, data="old")
    job = await worker.finish("result")
    assert (job.state, job.data, job.outcome) == (JobState.FINISHED, "result", Outcome.SUCCEEDED)
    stored = await quiet.get(T1, J1)
    assert (stored.state, stored.data, stored.outcome) == (JobState.FINISHED, "result", Outcome.SUCCEEDED)
    assert await quiet.active_ids(T1) == []
    assert await drained(quiet) == []


async def test_finish_without_data_leaves_it(quiet: JobsService) -> None:
    worker = await running(quiet, data="old")
    await worker.finish()
    assert (await quiet.get(T1, J1)).data == "old"


@pytest.mark.parametrize("outcome", [Outcome.SUCCEEDED, Outcome.FAILED])
async def test_finish_keeps_how_it_ended(quiet: JobsService, outcome: Outcome) -> None:
    worker = await running(quiet)
    assert (await worker.finish(outcome=outcome)).outcome is outcome
    assert (await quiet.get(T1, J1)).outcome is outcome


async def test_finish_keeps_what_the_worker_says_of_its_error(quiet: JobsService) -> None:
    worker = await running(quiet)
    error = JobError("Refused", "no such address")
    assert (await worker.finish(outcome=Outcome.FAILED, error=error)).error == error
    assert (await quiet.get(T1, J1)).error == error


async def test_finish_of_a_flagged_job_makes_it_pending_and_clears_the_flag(quiet: JobsService) -> None:
    worker = await running(quiet)
    await quiet.resubmit(T1, J1)
    job = await worker.finish("result")
    assert (job.state, job.data, job.resubmit, job.outcome) == (JobState.PENDING, "result", False, None)
    again = await accepted(quiet)
    assert (again.data, bool(again.resubmit)) == ("result", False)
    assert (await again.finish()).state is JobState.FINISHED


async def test_finish_of_a_canceled_job_is_its_last_word(quiet: JobsService) -> None:
    worker = await canceled(quiet, data="old")
    job = await worker.finish("last word")
    assert (job.state, job.data, job.outcome) == (JobState.FINISHED, "last word", Outcome.CANCELED)
    stored = await quiet.get(T1, J1)
    assert (stored.state, stored.data, stored.outcome) == (JobState.FINISHED, "last word", Outcome.CANCELED)


async def test_finish_of_a_flagged_and_then_canceled_job_finishes_it(quiet: JobsService) -> None:
    worker = await running(quiet)
    await quiet.resubmit(T1, J1)
    await quiet.remove(T1, J1)
    assert (await worker.finish()).state is JobState.FINISHED
    assert await drained(quiet) == []


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


async def test_finish_under_another_lock_is_a_conflict_and_writes_nothing(quiet: JobsService) -> None:
    worker = await succeeded_by_another(quiet)
    before = await contents(quiet)
    with pytest.raises(WorkerConflict):
        await worker.finish("mine")
    assert await contents(quiet) == before


async def test_finish_of_a_finished_job_is_a_conflict_and_writes_nothing(quiet: JobsService) -> None:
    worker = await finished(quiet)
    before = await contents(quiet)
    with pytest.raises(WorkerConflict):
        await worker.finish("mine")
    assert await contents(quiet) == before


# release


async def test_release_of_a_missing_job_is_a_conflict(quiet: JobsService) -> None:
    worker = await removed(quiet)
    with pytest.raises(WorkerConflict):
        await worker.release()
    assert await listed(quiet) == []


async def test_release_of_a_pending_job_is_a_conflict_and_writes_nothing(quiet: JobsService) -> None:
    worker = await released(quiet)
    before = await contents(quiet)
    with pytest.raises(WorkerConflict):
        await worker.release()
    assert await contents(quiet) == before


async def test_release_makes_a_running_job_pending_at_once_with_its_priority_and_data(quiet: JobsService) -> None:
    worker = await running(quiet, data="checkpoint", priority=5)
    await worker.update("later checkpoint")
    job = await worker.release()
    assert (job.state, job.priority, job.data, job.outcome) == (JobState.PENDING, 5, "later checkpoint", None)
    assert await quiet.active_ids(T1) == []
    again = await accepted(quiet)
    assert (again.id, again.priority, again.data) == (J1, 5, "later checkpoint")


async def test_release_of_a_canceled_job_finishes_it(quiet: JobsService) -> None:
    worker = await canceled(quiet, data="kept")
    job = await worker.release()
    assert (job.state, job.outcome, job.data) == (JobState.FINISHED, Outcome.CANCELED, "kept")
    assert await drained(quiet) == []


async def test_release_under_another_lock_is_a_conflict_and_writes_nothing(quiet: JobsService) -> None:
    worker = await succeeded_by_another(quiet)
    before = await contents(quiet)
    with pytest.raises(WorkerConflict):
        await worker.release()
    assert await contents(quiet) == before


async def test_release_of_a_finished_job_is_a_conflict_and_writes_nothing(quiet: JobsService) -> None:
    worker = await finished(quiet)
    before = await contents(quiet)
    with pytest.raises(WorkerConflict):
        await worker.release()
    assert await contents(quiet) == before


# lost


async def test_a_silent_running_job_is_pending_again_after_its_timeout(jobs: JobsService) -> None:
    await jobs.set_type_timeout(T1, LOST)
    worker = await running(jobs, data="checkpoint", priority=5)
    again = await jobs.accept(T1)
    assert again is not None
    assert (again.id, again.data, again.priority) == (J1, "checkpoint", 5)
    assert again.lock != worker.lock
    with pytest.raises(WorkerConflict):
        await worker.finish()


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
