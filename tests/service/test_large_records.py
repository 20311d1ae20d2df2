"""Many jobs whose records are large, although little is new in them: each transaction takes as many as it can hold."""

from __future__ import annotations

import asyncio

from jobs_service import JobsService, NewJob, RunningJob
from jobs_service.model import JobState
from tests.service.support import T1

COUNT = 150
LARGE = "x" * 90_000
"""So many of these are more than one transaction may write."""


async def finish_all(jobs: JobsService) -> None:
    """Run all jobs that are ready; each has a large result."""
    while found := await jobs.accept_many(T1, 50, timeout=0):
        await asyncio.gather(*[job.finish(result=LARGE) for job in found])


async def test_running_jobs_with_large_data_are_flagged_in_transactions_that_hold_them(quiet: JobsService) -> None:
    ids = [f"{number:03}" for number in range(COUNT)]
    await quiet.add_many(T1, [NewJob(id, LARGE) for id in ids])
    running: list[RunningJob] = []
    while found := await quiet.accept_many(T1, 50, timeout=0):
        running += found
    flagged = await quiet.add_many(T1, [NewJob(id, "again") for id in ids], if_exists="resubmit")
    assert [(job.id, job.resubmit) for job in flagged] == [(id, True) for id in ids]
    again = await asyncio.gather(*[job.finish("small") for job in running])
    assert {job.state for job in again} == {JobState.PENDING}


async def test_unique_jobs_with_large_results_run_again_in_transactions_that_hold_them(quiet: JobsService) -> None:
    @quiet.handler(T1)
    async def handler(args: int) -> None: ...

    first = await quiet.enqueue_many(handler, range(COUNT), unique=True)
    await finish_all(quiet)
    again = await quiet.enqueue_many(handler, range(COUNT), unique=True)
    assert [job.id for job in again] == [job.id for job in first]
    assert {job.state for job in again} == {JobState.PENDING}
