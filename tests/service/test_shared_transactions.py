"""Operations of several callers on one job in one transaction: each is answered as if it had had one of its own."""

from __future__ import annotations

import asyncio

import pytest

from jobs_service import JobsService, JobState, Removal, RunningJob
from tests.service.support import T1


@pytest.fixture
async def running(jobs: JobsService) -> RunningJob:
    """A job that this test runs."""
    await jobs.add(T1, "a", "new")
    job = await jobs.accept(T1)
    assert job is not None
    return job


async def test_a_job_that_is_removed_with_its_addition_was_added(jobs: JobsService) -> None:
    added, removal = await asyncio.gather(jobs.add(T1, "a", "new"), jobs.remove(T1, "a"))
    assert (added.state, added.data, removal) == (JobState.PENDING, "new", Removal.REMOVED)


async def test_a_job_that_is_removed_with_its_release_was_released(jobs: JobsService, running: RunningJob) -> None:
    released, removal = await asyncio.gather(running.release(), jobs.remove(T1, "a", force=True))
    assert (released.state, removal) == (JobState.PENDING, Removal.REMOVED)


async def test_a_job_that_is_resubmitted_with_its_end_had_finished(jobs: JobsService, running: RunningJob) -> None:
    finished, again = await asyncio.gather(running.finish("end"), jobs.resubmit(T1, "a", data="again"))
    assert (finished.state, finished.data) == (JobState.FINISHED, "end")
    assert (again.state, again.data) == (JobState.PENDING, "again")
    assert finished.seq is not None
    assert again.seq is not None
    assert finished.seq < again.seq
    assert (await jobs.get(T1, "a")).seq == again.seq


async def test_a_job_that_finishes_with_its_update_was_running(jobs: JobsService, running: RunningJob) -> None:
    updated, finished = await asyncio.gather(running.update("alive"), running.finish("end"))
    assert (updated.state, updated.data) == (JobState.RUNNING, "alive")
    assert (finished.state, finished.data) == (JobState.FINISHED, "end")
