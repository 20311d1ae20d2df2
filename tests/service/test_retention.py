"""Retention: finished jobs are kept as long as their type says, failed ones as long as it says of those."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jobs_service import JobsService, JobState, JobTransaction, Outcome, Settings
from jobs_service.layer import creation
from jobs_service.testing.world import Process
from tests.checker import assert_sound
from tests.service.support import (
    J1,
    T1,
    T2,
    TIMEOUT,
    accepted,
    contents,
    finished,
    in_a_process,
    listed,
    new_jobs,
    running,
)
from tests.stores import QUICKEST_AND_CLUSTER, one_of, settings_with

# What they do is above the stores, which keep their contract: one, and the cluster, are enough.
store_kind = one_of(QUICKEST_AND_CLUSTER)


SUCCEEDED, FAILED, CANCELED = Outcome.SUCCEEDED, Outcome.FAILED, Outcome.CANCELED


async def expiring(jobs: JobsService) -> list[bytes]:
    """Return the keys of the index of jobs that expire."""
    keys = jobs._context.keyspace.sections[11]
    return [key for key in await contents(jobs) if key.startswith(keys)]


async def prune(jobs: JobsService, later: float, type: str = T1) -> int:
    """Remove what has expired so many seconds from now."""
    keys = jobs._context.keyspace.of(type)
    until = jobs._context.sources.wall_time() + later
    return await jobs._context.transact(lambda unit: creation.remove_expired(unit, keys, until, 100))


async def ended(jobs: JobsService, id: str, outcome: Outcome) -> None:
    """Add a job and have it end so."""
    worker = await running(jobs, id)
    await worker.finish(outcome=outcome)


async def one_of_each(jobs: JobsService) -> None:
    """Have a job end in every way."""
    for outcome in Outcome:
        await ended(jobs, outcome.value, outcome)


@pytest.mark.parametrize(
    ("keep", "left"),
    [
        ({"keep": 100}, ["failed"]),
        ({"keep_failed": 100}, ["canceled", "succeeded"]),
        ({"keep": 100, "keep_failed": 1000}, ["failed"]),
        ({"keep": 1000.5, "keep_failed": 1}, ["canceled", "succeeded"]),
        ({}, ["canceled", "failed", "succeeded"]),
    ],
    ids=str,
)
async def test_jobs_are_kept_as_long_as_their_outcome_says(
    quiet: JobsService, keep: dict[str, Any], left: list[str]
) -> None:
    await quiet.set_retention(T1, **keep)
    await one_of_each(quiet)
    await prune(quiet, -60)
    assert len(await listed(quiet)) == 3
    await prune(quiet, 200)
    assert [job.id for job in await listed(quiet)] == left
    await assert_sound(quiet.store)


async def test_a_retention_is_of_one_type_and_of_those_that_finish_from_then_on(quiet: JobsService) -> None:
    await finished(quiet, "before")
    await quiet.set_retention(T1, keep=10)
    await finished(quiet, "with")
    await quiet.set_retention(T1)
    await finished(quiet, "after")
    await quiet.add(T2, J1)
    await (await accepted(quiet, T2)).finish()
    assert len(await expiring(quiet)) == 1
    await prune(quiet, 20)
    await prune(quiet, 20, T2)
    assert [job.id for job in await listed(quiet)] == ["after", "before", J1]


# In one transaction


async def test_within_a_transaction_a_job_can_finish_and_run_again_or_be_removed(quiet: JobsService) -> None:
    await quiet.set_retention(T1, keep=10)
    await quiet.add_many(T1, new_jobs("a", "b", "c"))

    async def work(tx: JobTransaction) -> None:
        for job in await tx.accept_many(T1, 3):
            await tx.finish(job)
        await tx.resubmit(T1, "a")
        await tx.remove(T1, "b")
        await tx.resubmit(T1, "c")
        again = await tx.accept(T1)
        assert again is not None
        await tx.finish(again, outcome="failed")  # type: ignore[arg-type]

    await quiet.transact(work)
    await assert_sound(quiet.store)
    assert await expiring(quiet) == []
    assert [(job.id, job.state) for job in await listed(quiet)] == [("a", JobState.FINISHED), ("c", JobState.PENDING)]


# The activity monitor


def test_what_has_expired_is_removed_within_the_period_also_where_the_timeout_is_long_and_others_run() -> None:
    settings = Settings()
    left: list[list[Any]] = []

    async def serve(process: Process) -> None:
        async with process.service() as jobs:
            await jobs.set_type_timeout(T1, 86_400)
            await jobs.set_retention(T1, keep=100)
            await jobs.add_many(T1, new_jobs("runs on", "short"))
            [_, short] = await jobs.accept_many(T1, 2)
            # The monitor has found nothing that expires, and the type's activity is sampled every three hours.
            await asyncio.sleep(1000)
            await short.finish()
            for pause in (99, 63):
                await asyncio.sleep(pause)
                left.append([job.id async for job in jobs.list(T1)])

    in_a_process(serve, settings=settings)
    assert left == [["runs on", "short"], ["runs on"]]


def test_the_activity_monitor_removes_what_has_expired_within_its_period() -> None:
    settings = settings_with(pending_batch=5)
    times: list[float] = []

    async def serve(process: Process) -> None:
        async with process.service() as jobs:
            await jobs.set_type_timeout(T1, TIMEOUT)
            await jobs.set_retention(T1, keep=100, keep_failed=300)
            await jobs.add_many(T1, new_jobs(*(f"{number:02}" for number in range(23))))
            for job in await jobs.accept_many(T1, 23):
                await job.finish(outcome=FAILED if job.id in ("00", "01") else SUCCEEDED)
            begin = process.clock.wall_time()
            left = 23
            while left:
                await asyncio.sleep(1)
                now = len([job async for job in jobs.list(T1)])
                times.extend([process.clock.wall_time() - begin] * (left - now))
                left = now
            assert (await jobs.counts())[T1].jobs == 0

    in_a_process(serve, settings=settings)
    assert len(times) == 23
    assert all(100 <= at <= 100 + 62 for at in times[:21]), times
    assert all(300 <= at <= 300 + 62 for at in times[21:]), times
