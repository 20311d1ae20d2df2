"""Every cell of the table of operations: what each does to a missing, pending, running and finished job."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Awaitable
from datetime import UTC, datetime
from typing import Any

import pytest

from jobs_service import (
    HistoryKind,
    InvalidJob,
    Job,
    JobCanceled,
    JobError,
    JobExists,
    JobNotFound,
    JobsError,
    JobsService,
    JobState,
    JobTooLarge,
    JobTransaction,
    NewJob,
    NoTypeTimeout,
    Outcome,
    Progress,
    Removal,
    RunningJob,
    WorkerConflict,
)
from jobs_service.errors import job_name
from tests.runner.support import opened
from tests.service.support import (
    FAR_AWAY,
    J1,
    J2,
    LONG_AGO,
    LOST,
    T1,
    T2,
    TIMEOUT,
    accepted,
    canceled,
    contents,
    drained,
    eventually,
    finished,
    listed,
    new_jobs,
    own_keys,
    running,
    state,
)
from tests.virtual_time import in_virtual_time

FAR_DATE = datetime.fromtimestamp(FAR_AWAY, UTC)


async def removed(jobs: JobsService) -> RunningJob:
    """Return the handle of a worker whose job is gone."""
    worker = await running(jobs)
    await jobs.remove(T1, J1, force=True)
    return worker


async def released(jobs: JobsService) -> RunningJob:
    """Return the handle of a worker whose job is pending again."""
    worker = await running(jobs, data="kept")
    await worker.release()
    return worker


async def succeeded_by_another(jobs: JobsService) -> RunningJob:
    """Return the handle of a worker whose job runs under somebody else's lock."""
    worker = await released(jobs)
    await accepted(jobs)
    return worker


# add


async def test_add_of_a_missing_job_makes_it_pending(jobs: JobsService) -> None:
    job = await jobs.add(T1, J1, {"x": 1}, priority=3)
    assert (job.type, job.id, job.state, job.outcome) == (T1, J1, JobState.PENDING, None)
    assert (job.data, job.priority, job.run_at) == ({"x": 1}, 3, None)
    assert (job.resubmit, job.cancel) == (False, False)
    stored = await jobs.get(T1, J1)
    assert (stored.state, stored.data, stored.priority) == (JobState.PENDING, {"x": 1}, 3)


async def test_add_of_a_missing_job_without_more_gives_it_no_data_and_priority_0(jobs: JobsService) -> None:
    await jobs.add(T1, J1)
    job = await jobs.get(T1, J1)
    assert (job.data, job.priority, job.run_at) == (None, 0, None)


@pytest.mark.parametrize("if_exists", ["error", "resubmit", "ignore"])
async def test_add_to_a_type_without_timeout_is_an_error_and_writes_nothing(jobs: JobsService, if_exists: Any) -> None:
    before = await contents(jobs)
    with pytest.raises(NoTypeTimeout) as caught:
        await jobs.add("nosuch", J1, if_exists=if_exists)
    assert caught.value.type == "nosuch"
    assert await contents(jobs) == before


async def test_add_of_a_pending_job_is_an_error_and_writes_nothing(quiet: JobsService) -> None:
    await quiet.add(T1, J1, "first")
    before = await contents(quiet)
    with pytest.raises(JobExists) as caught:
        await quiet.add(T1, J1, "second")
    assert (caught.value.type, caught.value.id) == (T1, J1)
    assert await contents(quiet) == before


async def test_add_of_a_running_job_is_an_error_and_writes_nothing(quiet: JobsService) -> None:
    await running(quiet)
    before = await contents(quiet)
    with pytest.raises(JobExists):
        await quiet.add(T1, J1, "second")
    assert await contents(quiet) == before


async def test_add_of_a_finished_job_is_an_error_and_writes_nothing(quiet: JobsService) -> None:
    await finished(quiet)
    before = await contents(quiet)
    with pytest.raises(JobExists):
        await quiet.add(T1, J1, "second")
    assert await contents(quiet) == before


# add(if_exists="resubmit")


async def test_add_with_resubmit_of_a_missing_job_makes_it_pending(jobs: JobsService) -> None:
    job = await jobs.add(T1, J1, "new", if_exists="resubmit")
    assert (job.state, job.data, job.resubmit) == (JobState.PENDING, "new", False)
    assert await drained(jobs) == [J1]


async def test_add_with_resubmit_of_a_pending_job_replaces_data_priority_and_run_at(quiet: JobsService) -> None:
    await quiet.add(T1, J1, "old", priority=1)
    job = await quiet.add(T1, J1, "new", priority=2, run_at=FAR_AWAY, if_exists="resubmit")
    assert (job.data, job.priority, job.run_at, job.state) == ("new", 2, FAR_DATE, JobState.PENDING)
    stored = await quiet.get(T1, J1)
    assert (stored.data, stored.priority, stored.run_at) == ("new", 2, FAR_DATE)
    assert await drained(quiet) == []


async def test_add_with_resubmit_of_a_pending_job_moves_its_queue_entry(quiet: JobsService) -> None:
    await quiet.add(T1, J1, priority=5)
    await quiet.add(T1, J2, priority=4)
    await quiet.add(T1, J1, priority=3, if_exists="resubmit")
    assert await drained(quiet) == [J1, J2]


async def test_add_with_resubmit_of_a_scheduled_job_can_make_it_ready(quiet: JobsService) -> None:
    await quiet.add(T1, J1, run_at=FAR_AWAY)
    await quiet.add(T1, J1, if_exists="resubmit")
    assert (await quiet.get(T1, J1)).run_at is None
    assert await drained(quiet) == [J1]


async def test_add_with_resubmit_of_a_pending_job_with_new_data_only_replaces_it(quiet: JobsService) -> None:
    await quiet.add(T1, J1, "old", priority=2)
    await quiet.add(T1, J1, "new", priority=2, if_exists="resubmit")
    job = await accepted(quiet)
    assert (job.data, job.priority) == ("new", 2)
    assert await drained(quiet) == []


@pytest.mark.parametrize("run_at", [None, LONG_AGO, FAR_AWAY])
async def test_add_with_resubmit_that_changes_nothing_writes_nothing(quiet: JobsService, run_at: float | None) -> None:
    added = await quiet.add(T1, J1, {"a": 1, "b": [2]}, priority=("p", 1), run_at=run_at)
    before = await contents(quiet)
    seq = (await quiet.get(T1, J1)).seq
    again = await quiet.add(T1, J1, {"a": 1, "b": [2]}, priority=("p", 1), run_at=run_at, if_exists="resubmit")
    assert await contents(quiet) == before  # the watch keys are among them
    assert (again.data, again.priority, again.run_at, again.state) == (
        added.data,
        added.priority,
        added.run_at,
        JobState.PENDING,
    )
    assert (await quiet.get(T1, J1)).seq == seq


async def test_add_with_resubmit_that_changes_nothing_keeps_the_place_in_the_queue(quiet: JobsService) -> None:
    await quiet.add_many(T1, new_jobs("a", "b"))
    await quiet.add(T1, "a", if_exists="resubmit")
    assert await drained(quiet) == ["a", "b"]


async def test_add_with_resubmit_on_a_running_job_flags_it_and_leaves_its_data(quiet: JobsService) -> None:
    worker = await running(quiet, data="worked on", priority=1)
    job = await quiet.add(T1, J1, "new", priority=7, run_at=FAR_AWAY, if_exists="resubmit")
    assert (job.state, job.data, job.resubmit) == (JobState.RUNNING, "worked on", True)
    stored = await quiet.get(T1, J1)
    assert (stored.state, stored.data, stored.resubmit) == (JobState.RUNNING, "worked on", True)

    again = await worker.finish()
    assert (again.state, again.data, again.resubmit) == (JobState.PENDING, "worked on", False)
    assert (again.priority, again.run_at) == (7, FAR_DATE)
    assert await drained(quiet) == []


async def test_add_with_resubmit_on_a_flagged_job_that_changes_nothing_writes_nothing(quiet: JobsService) -> None:
    await running(quiet, priority=1)
    await quiet.add(T1, J1, priority=7, if_exists="resubmit")
    before = await contents(quiet)
    await quiet.add(T1, J1, priority=7, if_exists="resubmit")
    assert await contents(quiet) == before


async def test_add_with_resubmit_on_a_finished_job_makes_it_pending_with_the_new_data(quiet: JobsService) -> None:
    await finished(quiet, data="old", priority=1)
    job = await quiet.add(T1, J1, "new", priority=2, if_exists="resubmit")
    assert (job.state, job.outcome, job.data, job.priority) == (JobState.PENDING, None, "new", 2)
    assert job.resubmit is False
    again = await accepted(quiet)
    assert (again.data, again.priority, bool(again.resubmit)) == ("new", 2, False)
    assert (await again.finish()).state is JobState.FINISHED


# add(if_exists="ignore")


async def test_add_with_ignore_of_a_missing_job_makes_it_pending(jobs: JobsService) -> None:
    job = await jobs.add(T1, J1, "new", if_exists="ignore")
    assert (job.state, job.data) == (JobState.PENDING, "new")
    assert await drained(jobs) == [J1]


async def test_add_with_ignore_of_a_pending_job_leaves_it_unchanged(quiet: JobsService) -> None:
    await quiet.add(T1, J1, "old", priority=1)
    before = await contents(quiet)
    job = await quiet.add(T1, J1, "new", priority=2, run_at=FAR_AWAY, if_exists="ignore")
    assert (job.state, job.data, job.priority, job.run_at) == (JobState.PENDING, "old", 1, None)
    assert await contents(quiet) == before


async def test_add_with_ignore_of_a_running_job_leaves_it_unchanged(quiet: JobsService) -> None:
    await running(quiet, data="old", priority=1)
    before = await contents(quiet)
    job = await quiet.add(T1, J1, "new", priority=2, if_exists="ignore")
    assert (job.state, job.data, job.priority, job.resubmit) == (JobState.RUNNING, "old", 1, False)
    assert await contents(quiet) == before


async def test_add_with_ignore_of_a_finished_job_leaves_it_unchanged(quiet: JobsService) -> None:
    await finished(quiet, data="old", priority=1)
    before = await contents(quiet)
    job = await quiet.add(T1, J1, "new", priority=2, if_exists="ignore")
    assert (job.state, job.data, job.outcome) == (JobState.FINISHED, "old", Outcome.SUCCEEDED)
    assert await contents(quiet) == before


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


# resubmit by the holder


async def test_resubmit_by_the_worker_of_a_missing_job_is_a_conflict(quiet: JobsService) -> None:
    worker = await removed(quiet)
    with pytest.raises(WorkerConflict):
        await worker.resubmit()
    assert await listed(quiet) == []


async def test_resubmit_by_the_worker_of_a_pending_job_is_a_conflict_and_writes_nothing(quiet: JobsService) -> None:
    worker = await released(quiet)
    before = await contents(quiet)
    with pytest.raises(WorkerConflict):
        await worker.resubmit(priority=1)
    assert await contents(quiet) == before


async def test_resubmit_by_the_worker_flags_its_job_and_gives_it_a_new_seq(quiet: JobsService) -> None:
    worker = await running(quiet, data="old")
    before = await quiet.get(T1, J1)
    flagged = await worker.resubmit()
    assert (flagged.state, bool(flagged.resubmit), flagged.lock, flagged.data) == (
        JobState.RUNNING,
        True,
        worker.lock,
        "old",
    )
    stored = await quiet.get(T1, J1)
    assert stored.resubmit is True
    assert stored.seq is not None
    assert before.seq is not None
    assert stored.seq > before.seq
    assert (await worker.finish()).state is JobState.PENDING


async def test_resubmit_by_the_worker_takes_data_priority_and_run_at_of_the_next_run(quiet: JobsService) -> None:
    worker = await running(quiet, data="old", priority=1)
    flagged = await worker.resubmit(data="checkpoint", priority=9, run_at=FAR_AWAY)
    assert flagged.data == "checkpoint"
    assert (await quiet.get(T1, J1)).data == "checkpoint"
    job = await worker.finish()
    assert (job.state, job.data, job.priority, job.run_at) == (JobState.PENDING, "checkpoint", 9, FAR_DATE)


async def test_resubmit_by_the_worker_of_a_canceled_job_says_so_and_writes_nothing(quiet: JobsService) -> None:
    worker = await canceled(quiet)
    before = await contents(quiet)
    with pytest.raises(JobCanceled):
        await worker.resubmit()
    assert await contents(quiet) == before


async def test_resubmit_under_another_lock_is_a_conflict_and_writes_nothing(quiet: JobsService) -> None:
    worker = await succeeded_by_another(quiet)
    before = await contents(quiet)
    with pytest.raises(WorkerConflict):
        await worker.resubmit()
    assert await contents(quiet) == before


async def test_resubmit_by_the_worker_of_a_finished_job_is_a_conflict_and_writes_nothing(quiet: JobsService) -> None:
    worker = await finished(quiet)
    before = await contents(quiet)
    with pytest.raises(WorkerConflict):
        await worker.resubmit()
    assert await contents(quiet) == before


# progress


async def test_progress_of_a_missing_job_is_a_conflict(quiet: JobsService) -> None:
    worker = await removed(quiet)
    with pytest.raises(WorkerConflict):
        await worker.progress(1)
    assert await listed(quiet) == []


@pytest.mark.parametrize("bring", [released, succeeded_by_another, finished])
async def test_progress_of_a_job_that_is_not_the_callers_is_a_conflict_and_writes_nothing(
    quiet: JobsService, bring: Any
) -> None:
    worker = await bring(quiet)
    before = await contents(quiet)
    with pytest.raises(WorkerConflict):
        await worker.progress(1)
    assert await contents(quiet) == before


async def test_progress_is_kept_beside_the_data_and_gives_the_job_a_new_seq(quiet: JobsService) -> None:
    worker = await running(quiet, data="kept")
    before = await quiet.get(T1, J1)
    updated = await worker.progress(3, 10, "resizing")
    assert updated.progress == Progress(3, 10, "resizing")
    stored = await quiet.get(T1, J1)
    assert (stored.progress, stored.data, stored.state) == (Progress(3, 10, "resizing"), "kept", JobState.RUNNING)
    assert before.seq is not None
    assert stored.seq is not None
    assert stored.seq > before.seq
    await worker.progress(4)
    assert (await quiet.get(T1, J1)).progress == Progress(4)
    assert (await worker.finish()).progress == Progress(4)


async def test_progress_of_a_canceled_job_says_so_and_writes_nothing(quiet: JobsService) -> None:
    worker = await canceled(quiet)
    before = await contents(quiet)
    with pytest.raises(JobCanceled):
        await worker.progress(1)
    assert await contents(quiet) == before


# finish_with


async def test_finish_with_of_a_missing_job_is_a_conflict(quiet: JobsService) -> None:
    worker = await removed(quiet)
    with pytest.raises(WorkerConflict):
        await worker.finish_with(lambda tx: tx.kv.set(b"own/effect", b"1"))
    assert await own_keys(quiet) == {}


@pytest.mark.parametrize("bring", [released, succeeded_by_another, finished])
async def test_finish_with_of_a_job_that_is_not_the_callers_is_a_conflict_and_writes_nothing(
    quiet: JobsService, bring: Any
) -> None:
    worker = await bring(quiet)
    before = await contents(quiet)
    with pytest.raises(WorkerConflict):
        await worker.finish_with(lambda tx: tx.kv.set(b"own/effect", b"1"))
    assert await contents(quiet) == before
    assert await own_keys(quiet) == {}


async def test_finish_with_ends_the_run_and_keeps_what_the_function_returns(quiet: JobsService) -> None:
    worker = await running(quiet, data="kept")

    def effects(tx: JobTransaction) -> list[int]:
        tx.kv[b"own/effect"] = b"1"
        return [1]

    job = await worker.finish_with(effects)
    assert (job.state, job.outcome, job.data, job.result) == (JobState.FINISHED, Outcome.SUCCEEDED, "kept", [1])
    assert await own_keys(quiet) == {b"own/effect": b"1"}


async def test_finish_with_of_a_flagged_job_makes_it_pending(quiet: JobsService) -> None:
    worker = await running(quiet)
    await quiet.resubmit(T1, J1)
    job = await worker.finish_with(lambda tx: 7)
    assert (job.state, job.result, job.attempts) == (JobState.PENDING, 7, 0)


async def test_finish_with_of_a_canceled_job_is_its_last_word(quiet: JobsService) -> None:
    worker = await canceled(quiet)
    job = await worker.finish_with(lambda tx: 7)
    assert (job.state, job.outcome, job.result) == (JobState.FINISHED, Outcome.CANCELED, 7)


async def test_what_the_function_of_finish_with_raises_comes_out_and_nothing_is_written(quiet: JobsService) -> None:
    worker = await running(quiet)
    before = await contents(quiet)

    async def fails(tx: JobTransaction) -> None:
        tx.kv[b"own/effect"] = b"1"
        await tx.add(T1, J2)
        raise LookupError

    with pytest.raises(LookupError):
        await worker.finish_with(fails)
    with pytest.raises(InvalidJob, match="data is not JSON"):
        await worker.finish_with(lambda tx: {1: 2})
    assert await contents(quiet) == before
    assert await own_keys(quiet) == {}
    assert (await worker.finish()).state is JobState.FINISHED


# what each leaves in the job's history

A, S, X, L, F, K = (
    HistoryKind.ADDED,
    HistoryKind.STARTED,
    HistoryKind.STOPPED,
    HistoryKind.LOST,
    HistoryKind.FINISHED,
    HistoryKind.CANCELED,
)


def told(job: Job) -> tuple[list[HistoryKind], int]:
    """Return what happened to a job, oldest first, and how many attempts it has had."""
    return [event.kind for event in reversed(job.history)], job.attempts


async def test_every_operation_leaves_its_event_and_counts_attempts(quiet: JobsService) -> None:
    assert told(await quiet.add(T1, J1)) == ([A], 0)
    worker = await accepted(quiet)
    assert told(worker) == ([A, S], 1)
    assert worker.history[0].detail == quiet._context.sources.worker
    assert told(await worker.update("x")) == ([A, S], 1)
    assert told(await worker.progress(1)) == ([A, S], 1)
    assert told(await worker.release()) == ([A, S, X], 0)
    worker = await accepted(quiet)
    assert told(worker) == ([A, S, X, S], 1)
    assert told(await worker.finish(result=1, error=JobError("E", "no"))) == ([A, S, X, S, F], 1)
    again = await quiet.resubmit(T1, J1)
    assert told(again) == ([A, S, X, S, F, A], 0)
    assert (again.result, again.error, again.progress) == (None, None, None)
    await accepted(quiet)
    await quiet.remove(T1, J1)
    canceled = await quiet.get(T1, J1)
    assert told(canceled) == ([A, S, X, S, F, A, S], 1)
    assert [event.at for event in canceled.history] == sorted((event.at for event in canceled.history), reverse=True)


async def test_a_canceled_job_ends_with_that_event(quiet: JobsService) -> None:
    worker = await canceled(quiet)
    assert told(await worker.finish()) == ([A, S, K], 1)


async def test_several_operations_in_one_transaction_leave_their_events_in_order(quiet: JobsService) -> None:
    async def work(tx: JobTransaction) -> Job:
        await tx.add(T1, J1)
        first = await tx.accept(T1)
        assert first is not None
        await tx.update(first, "x")
        await tx.release(first)
        second = await tx.accept(T1)
        assert second is not None
        await tx.finish(second, result=2)
        return await tx.resubmit(T1, J1)

    job = await quiet.transact(work)
    assert told(job) == ([A, S, X, S, F, A], 0)
    assert told(await quiet.get(T1, J1)) == told(job)


async def test_a_lost_job_says_so(jobs: JobsService) -> None:
    await jobs.set_type_timeout(T1, LOST)
    await running(jobs)

    async def is_lost() -> bool:
        return await state(jobs) is JobState.PENDING

    await eventually(is_lost)
    assert told(await jobs.get(T1, J1)) == ([A, S, L], 1)


async def test_a_history_keeps_its_newest_20_events(quiet: JobsService) -> None:
    await quiet.add(T1, J1)
    for _ in range(12):
        await (await accepted(quiet)).release()
    assert told(await quiet.get(T1, J1)) == ([S, X] * 10, 0)


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


async def test_stop_and_remove_is_done_when_somebody_else_removes_the_job(jobs: JobsService) -> None:
    await running(jobs)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(jobs.stop_and_remove(T1, J1, timeout=30))

        async def is_canceled() -> bool:
            return (await jobs.get(T1, J1)).cancel

        await eventually(is_canceled)
        await jobs.remove(T1, J1, force=True)
    assert await listed(jobs) == []


# what cannot be stored

CYCLE: list[Any] = []
CYCLE.append(CYCLE)

NOT_JSON: dict[str, Any] = {
    "integer key": {1: 2},
    "nested integer key": {"a": [{"b": {1: 2}}]},
    "bytes": b"x",
    "set": {1},
    "object": object(),
    "date": datetime(2020, 1, 1, tzinfo=UTC),
    "NaN": float("nan"),
    "nested NaN": {"a": [1.0, float("nan")]},
    "infinity": float("-inf"),
    "cycle": CYCLE,
}
every_bad_data = pytest.mark.parametrize("data", NOT_JSON.values(), ids=NOT_JSON.keys())


@every_bad_data
async def test_data_that_json_cannot_carry_is_refused_by_add_and_nothing_is_written(
    quiet: JobsService, data: Any
) -> None:
    before = await contents(quiet)
    with pytest.raises(InvalidJob):
        await quiet.add(T1, J1, data)
    with pytest.raises(InvalidJob):
        await quiet.add_many(T1, [NewJob("good"), NewJob(J1, data)])
    assert await contents(quiet) == before


@every_bad_data
async def test_data_that_json_cannot_carry_is_refused_by_creators_and_workers_alike(
    quiet: JobsService, data: Any
) -> None:
    worker = await running(quiet)
    before = await contents(quiet)
    with pytest.raises(InvalidJob):
        await quiet.resubmit(T1, J1, data=data)
    with pytest.raises(InvalidJob):
        await worker.update(data)
    with pytest.raises(InvalidJob):
        await worker.resubmit(data=data)
    with pytest.raises(InvalidJob):
        await worker.finish(data)
    assert await contents(quiet) == before
    assert (await worker.finish()).state is JobState.FINISHED


JSON: dict[str, Any] = {
    "none": None,
    "false": False,
    "zero": 0,
    "large integer": 2**200,
    "float": 1.5,
    "small float": 5e-324,
    "empty text": "",
    "text": 'a "quoted" \u2028 \x00 line\n \U0001f600',
    "empty list": [],
    "empty object": {},
    "nested": {"a": [1, {"b": [None, True, "c", {}]}], "": []},
}


@pytest.mark.parametrize("data", JSON.values(), ids=JSON.keys())
async def test_data_that_json_can_carry_comes_back_equal(quiet: JobsService, data: Any) -> None:
    await quiet.add(T1, J1, data)
    worker = await accepted(quiet)
    assert worker.data == data
    assert type(worker.data) is type(data)
    await worker.finish(data)
    stored = (await quiet.get(T1, J1)).data
    assert stored == data
    assert type(stored) is type(data)


BAD_PRIORITIES = {
    "none": None,
    "float": 1.5,
    "list": [1],
    "object": object(),
    "tuple of objects": (object(),),
}


@pytest.mark.parametrize("priority", BAD_PRIORITIES.values(), ids=BAD_PRIORITIES.keys())
async def test_a_bad_priority_is_refused_and_nothing_is_written(quiet: JobsService, priority: Any) -> None:
    worker = await running(quiet, J2)
    before = await contents(quiet)
    with pytest.raises(InvalidJob):
        await quiet.add(T1, J1, priority=priority)
    with pytest.raises(InvalidJob):
        await quiet.add_many(T1, [NewJob("good"), NewJob(J1, priority=priority)])
    with pytest.raises(InvalidJob):
        await quiet.resubmit(T1, J2, priority=priority)
    with pytest.raises(InvalidJob):
        await worker.resubmit(priority=priority)
    assert await contents(quiet) == before


BAD_TIMES = {
    "naive datetime": datetime(2030, 1, 1),
    "text": "tomorrow",
    "NaN": float("nan"),
    "infinity": float("inf"),
    "beyond what a datetime can be": 1e18,
    "object": object(),
}


@pytest.mark.parametrize("run_at", BAD_TIMES.values(), ids=BAD_TIMES.keys())
async def test_a_bad_run_at_is_refused_and_nothing_is_written(quiet: JobsService, run_at: Any) -> None:
    worker = await running(quiet, J2)
    before = await contents(quiet)
    with pytest.raises(InvalidJob):
        await quiet.add(T1, J1, run_at=run_at)
    with pytest.raises(InvalidJob):
        await quiet.add_many(T1, [NewJob("good"), NewJob(J1, run_at=run_at)])
    with pytest.raises(InvalidJob):
        await quiet.resubmit(T1, J2, run_at=run_at)
    with pytest.raises(InvalidJob):
        await worker.resubmit(run_at=run_at)
    assert await contents(quiet) == before


@pytest.mark.parametrize("arguments", [{"data": {1: 2}}, {"priority": 1.5}, {"run_at": float("nan")}], ids=str)
async def test_the_error_for_what_no_job_can_have_carries_the_jobs_type_and_id(
    quiet: JobsService, arguments: dict[str, Any]
) -> None:
    worker = await running(quiet)
    calls: list[Awaitable[Any]] = [
        quiet.add(T1, J1, **arguments),
        quiet.add_many(T1, [NewJob("good"), NewJob(J1, **arguments)]),
        quiet.resubmit(T1, J1, **arguments),
        worker.resubmit(**arguments),
        quiet.transact(lambda tx: tx.add(T1, J1, **arguments)),
    ]
    if "data" in arguments:
        calls += [worker.update(**arguments), worker.finish(**arguments)]
    carried = []
    for call in calls:
        with pytest.raises(InvalidJob) as caught:
            await call
        carried.append((caught.value.type, caught.value.id))
    assert carried == [(T1, J1)] * len(calls)


BAD_IDS = {"none": None, "integer": 1, "tuple": ("a",), "object": object(), "lone surrogate": "\ud800"}


@pytest.mark.parametrize("id", BAD_IDS.values(), ids=BAD_IDS.keys())
async def test_a_bad_id_is_refused_and_nothing_is_written(quiet: JobsService, id: Any) -> None:
    before = await contents(quiet)
    with pytest.raises(InvalidJob):
        await quiet.add(T1, id)
    with pytest.raises(InvalidJob):
        await quiet.add_many(T1, [NewJob("good"), NewJob(id)])
    assert await contents(quiet) == before


BAD_TYPES = {"none": None, "list": ["a"], "object": object(), "tuple of objects": (object(),)}


@pytest.mark.parametrize("type", BAD_TYPES.values(), ids=BAD_TYPES.keys())
async def test_a_bad_type_is_refused_and_nothing_is_written(quiet: JobsService, type: Any) -> None:
    before = await contents(quiet)
    with pytest.raises(InvalidJob):
        await quiet.set_type_timeout(type, 10)
    with pytest.raises(InvalidJob):
        await quiet.add(type, J1)
    assert await contents(quiet) == before


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), "10", None])
async def test_a_bad_type_timeout_is_refused_and_nothing_is_written(quiet: JobsService, seconds: Any) -> None:
    before = await contents(quiet)
    with pytest.raises((JobsError, ValueError)):
        await quiet.set_type_timeout("t3", seconds)
    assert await contents(quiet) == before


async def test_an_unknown_if_exists_is_refused_and_nothing_is_written(quiet: JobsService) -> None:
    await quiet.add(T1, J1)
    before = await contents(quiet)
    for id in (J1, J2):
        with pytest.raises((JobsError, ValueError)):
            await quiet.add(T1, id, if_exists="replace")  # type: ignore[arg-type]
    assert await contents(quiet) == before


@pytest.mark.parametrize("type", ["t", b"t", 7, -7, ("t", 1, b"x"), ("nested", ("t", None))])
@pytest.mark.parametrize("id", ["j", b"j", "", b"\x00\xff"])
async def test_types_and_ids_come_back_as_they_were_given(quiet: JobsService, type: Any, id: Any) -> None:
    await quiet.set_type_timeout(type, 10)
    await quiet.add(type, id, "data")
    assert type in await quiet.types()
    job = await accepted(quiet, type)
    assert (job.type, job.id) == (type, id)
    assert [(job.type, job.id) for job in await listed(quiet, type)] == [(type, id)]
    assert await quiet.active_ids(type) == [id]
    await job.finish()
    assert await quiet.remove(type, id) is Removal.REMOVED


async def test_text_and_bytes_name_different_jobs(quiet: JobsService) -> None:
    await quiet.add(T1, "j", "text")
    await quiet.add(T1, b"j", "bytes")
    assert (await quiet.get(T1, "j")).data == "text"
    assert (await quiet.get(T1, b"j")).data == "bytes"


async def test_a_run_at_may_be_an_aware_datetime_or_seconds(quiet: JobsService) -> None:
    await quiet.add(T1, "date", run_at=FAR_DATE)
    await quiet.add(T1, "float", run_at=FAR_AWAY)
    await quiet.add(T1, "int", run_at=int(FAR_AWAY))
    for id in ("date", "float", "int"):
        run_at = (await quiet.get(T1, id)).run_at
        assert run_at == FAR_DATE
        assert run_at is not None
        assert run_at.tzinfo is UTC


# what is too large

OVER = "x" * 100_001


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


async def test_data_just_below_the_limit_lives_through_a_whole_life(quiet: JobsService) -> None:
    size = quiet.store.limits.value
    while True:
        try:
            await quiet.add(T1, J1, "x" * size)
            break
        except JobTooLarge:
            size -= 1
    assert size > quiet.store.limits.value - 500  # the rest of a record is small
    worker = await accepted(quiet)
    assert len(worker.data) == size
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


# looking


async def test_get_of_a_missing_job_is_an_error(quiet: JobsService) -> None:
    with pytest.raises(JobNotFound) as caught:
        await quiet.get(T1, J1)
    assert (caught.value.type, caught.value.id) == (T1, J1)
    assert J1 in str(caught.value)


async def some_of_each(jobs: JobsService) -> None:
    await jobs.add_many(T1, new_jobs("r1", "r2", "f1"))
    for worker in await jobs.accept_many(T1, 3, timeout=0):
        if worker.id == "f1":
            await worker.finish()
    await jobs.add_many(T1, [NewJob("p1"), NewJob("p2", run_at=LONG_AGO), NewJob("p3", run_at=FAR_AWAY)])
    await jobs.add(T2, "other")


@pytest.mark.parametrize("page_size", [1, 2, 1000])
async def test_list_yields_the_jobs_of_a_type_in_a_state(quiet: JobsService, page_size: int) -> None:
    await some_of_each(quiet)

    async def ids(*arguments: Any, **keywords: Any) -> list[tuple[Any, Any]]:
        found = await listed(quiet, *arguments, page_size=page_size, **keywords)
        return sorted((job.type, job.id) for job in found)

    everything = [(T1, id) for id in ("f1", "p1", "p2", "p3", "r1", "r2")]
    assert await ids() == [*everything, (T2, "other")]
    assert await ids(T1) == everything
    assert await ids(T2) == [(T2, "other")]
    assert await ids("nosuch") == []
    assert await ids(T1, state=JobState.PENDING) == [(T1, id) for id in ("p1", "p2", "p3")]
    assert await ids(T1, state=JobState.RUNNING) == [(T1, id) for id in ("r1", "r2")]
    assert await ids(T1, state=JobState.FINISHED) == [(T1, "f1")]
    assert await ids(state=JobState.PENDING) == [(T1, id) for id in ("p1", "p2", "p3")] + [(T2, "other")]


async def test_list_still_yields_the_jobs_of_a_type_that_was_cleared(quiet: JobsService) -> None:
    await some_of_each(quiet)
    await quiet.clear_type_timeout(T1)
    assert len(await listed(quiet, T1)) == 6
    assert len(await listed(quiet)) == 7


async def test_active_ids_are_those_of_the_running_jobs(quiet: JobsService) -> None:
    await some_of_each(quiet)
    assert sorted(await quiet.active_ids(T1)) == ["r1", "r2"]
    assert await quiet.active_ids(T2) == []
    assert await quiet.active_ids("nosuch") == []


async def test_a_job_that_becomes_ready_while_jobs_are_counted_is_counted(
    quiet: JobsService, monkeypatch: pytest.MonkeyPatch
) -> None:
    await quiet.add(T1, J1, run_at=FAR_AWAY)
    read = quiet.store.read

    async def read_and_make_ready(function: Any) -> Any:
        result = await read(function)
        await quiet.resubmit(T1, J1, run_at=None)
        return result

    monkeypatch.setattr(quiet.store, "read", read_and_make_ready)
    assert await quiet.pending_count(T1) == 1


async def test_pending_count_counts_ready_and_scheduled_jobs(quiet: JobsService) -> None:
    await some_of_each(quiet)
    assert await quiet.pending_count(T1) == 3
    assert await quiet.pending_count(T2) == 1
    assert await quiet.pending_count("nosuch") == 0


async def test_pending_count_counts_up_to_a_limit(quiet: JobsService) -> None:
    await some_of_each(quiet)
    assert [await quiet.pending_count(T1, limit=limit) for limit in (1, 2, 3, 4)] == [1, 2, 3, 3]


async def test_pending_count_counts_up_to_a_limit_beyond_those_that_do_not_count(quiet: JobsService) -> None:
    await quiet.add(T1, "not due", run_at=LONG_AGO)
    await quiet.add_many(T1, new_jobs("a", "b", "c"))
    counts = [await quiet.pending_count(T1, due_by=LONG_AGO - 1, limit=limit) for limit in (1, 2, 3, 4)]
    assert counts == [1, 2, 3, 3]


async def test_pending_count_counts_those_due_by_a_moment(quiet: JobsService) -> None:
    await some_of_each(quiet)
    assert await quiet.pending_count(T1, due_by=LONG_AGO - 1) == 1
    assert await quiet.pending_count(T1, due_by=LONG_AGO) == 2
    assert await quiet.pending_count(T1, due_by=FAR_AWAY - 1) == 2
    assert await quiet.pending_count(T1, due_by=FAR_DATE) == 3


# types


async def test_a_type_exists_while_it_has_a_timeout(quiet: JobsService) -> None:
    assert sorted(str(type) for type in await quiet.types()) == [T1, T2]
    await quiet.set_type_timeout("t3", 2.5)
    assert await quiet.get_type_timeout("t3") == 2.5
    assert "t3" in await quiet.types()
    await quiet.set_type_timeout("t3", 7)
    assert await quiet.get_type_timeout("t3") == 7
    await quiet.clear_type_timeout("t3")
    with pytest.raises(NoTypeTimeout) as caught:
        await quiet.get_type_timeout("t3")
    assert caught.value.type == "t3"
    assert "t3" not in await quiet.types()


async def test_jobs_of_a_cleared_type_stay_and_nothing_new_can_be_added(quiet: JobsService) -> None:
    await quiet.add(T1, J1, "kept")
    await quiet.clear_type_timeout(T1)
    with pytest.raises(NoTypeTimeout):
        await quiet.add(T1, J2)
    assert (await quiet.get(T1, J1)).data == "kept"
    worker = await accepted(quiet)
    assert (await worker.finish()).state is JobState.FINISHED


# add_many


async def test_add_many_adds_in_order(quiet: JobsService) -> None:
    wanted = [NewJob("b", 1), NewJob("a", 2, priority=-1), NewJob(b"c", 3), NewJob("d", 4, run_at=FAR_AWAY)]
    added = await quiet.add_many(T1, wanted)
    assert [(job.id, job.data, job.state) for job in added] == [(new.id, new.data, JobState.PENDING) for new in wanted]
    assert await drained(quiet) == ["a", "b", b"c"]


async def test_add_many_of_nothing_adds_nothing(quiet: JobsService) -> None:
    before = await contents(quiet)
    assert await quiet.add_many(T1, []) == []
    assert await contents(quiet) == before


async def test_add_many_to_a_type_without_timeout_is_an_error(quiet: JobsService) -> None:
    with pytest.raises(NoTypeTimeout):
        await quiet.add_many("nosuch", new_jobs("a"))


async def test_add_many_with_an_existing_id_names_it_and_adds_nothing(quiet: JobsService) -> None:
    await quiet.add(T1, "b")
    before = await contents(quiet)
    with pytest.raises(JobExists) as caught:
        await quiet.add_many(T1, new_jobs("a", "b", "c"))
    assert (caught.value.type, caught.value.id) == (T1, "b")
    assert await contents(quiet) == before


async def test_add_many_with_the_same_id_twice_names_it_and_adds_nothing(quiet: JobsService) -> None:
    before = await contents(quiet)
    with pytest.raises(JobExists) as caught:
        await quiet.add_many(T1, new_jobs("a", "b", "a"))
    assert caught.value.id == "a"
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
    large = "x" * 99_000
    added = await quiet.add_many(T1, (NewJob(f"j{number:04}", large) for number in range(150)))
    assert [job.id for job in added] == [f"j{number:04}" for number in range(150)]
    assert await quiet.pending_count(T1) == 150
    assert await drained(quiet) == [f"j{number:04}" for number in range(150)]


# what an application holds


async def test_jobs_cannot_be_changed(quiet: JobsService) -> None:
    job = await quiet.add(T1, J1)
    for name in ("state", "data", "priority", "id"):
        with pytest.raises(AttributeError):
            setattr(job, name, None)
    assert isinstance(job, Job)


async def test_an_error_says_in_one_line_what_was_wrong(quiet: JobsService) -> None:
    worker = await finished(quiet)
    failing = [
        quiet.get(T1, "gone"),
        quiet.add(T1, J1),
        quiet.add("nosuch", J1),
        quiet.add(T1, J2, {1: 2}),
        quiet.add(T1, J2, OVER),
        worker.finish(),
    ]
    for call in failing:
        with pytest.raises(JobsError) as caught:
            await call
        assert str(caught.value)
        assert "\n" not in str(caught.value)


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


async def test_adds_called_at_once_are_accepted_in_the_order_of_the_calls(quiet: JobsService) -> None:
    ids = [f"{number * 37 % 100:02}" for number in range(100)]
    await asyncio.gather(*(quiet.add(T1, id) for id in ids))
    assert await drained(quiet) == ids


async def test_of_many_adds_of_one_id_at_once_exactly_one_succeeds(quiet: JobsService) -> None:
    results = await asyncio.gather(*(quiet.add(T1, J1, number) for number in range(20)), return_exceptions=True)
    assert sum(isinstance(result, Job) for result in results) == 1
    assert sum(isinstance(result, JobExists) for result in results) == 19
    winner = next(result for result in results if isinstance(result, Job))
    assert (await quiet.get(T1, J1)).data == winner.data
    assert await drained(quiet) == [J1]


async def test_of_many_finishes_of_one_run_at_once_exactly_one_succeeds(quiet: JobsService) -> None:
    worker = await running(quiet)
    results = await asyncio.gather(*(worker.finish(number) for number in range(20)), return_exceptions=True)
    assert sum(isinstance(result, Job) for result in results) == 1
    assert sum(isinstance(result, WorkerConflict) for result in results) == 19
    winner = next(result for result in results if isinstance(result, Job))
    assert (await quiet.get(T1, J1)).data == winner.data


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


async def test_accepts_called_at_once_take_a_job_each(quiet: JobsService) -> None:
    await quiet.add_many(T1, new_jobs("a", "b", "c"))
    taken = await asyncio.gather(*(quiet.accept(T1, timeout=0) for _ in range(5)))
    ids = [job.id for job in taken if job is not None]
    assert sorted(map(str, ids)) == ["a", "b", "c"]
    assert len({job.lock for job in taken if job is not None}) == 3


# what must never get stuck


async def just_fitting(jobs: JobsService, id: str) -> RunningJob:
    """Return a running job that is as large as a record can be."""
    size = jobs.store.limits.value
    while True:
        try:
            await jobs.add(T1, id, "x" * size)
            return await accepted(jobs)
        except JobTooLarge:
            size -= 1


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
