"""What `add` does to a missing, pending, running and finished job."""

from __future__ import annotations

from typing import Any

import pytest

from jobs_service import (
    JobExists,
    JobsService,
    JobState,
    NoTypeTimeout,
    Outcome,
)
from tests.service.support import (
    FAR_AWAY,
    FAR_DATE,
    J1,
    J2,
    LONG_AGO,
    T1,
    accepted,
    contents,
    drained,
    finished,
    new_jobs,
    running,
)

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
