"""Jobs that are not kept are gone with the transaction that ends them, and those who wait for them are told how."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from jobs_service import JobEvent, JobNotFound, JobsService, JobTooLarge, JobTransaction, Outcome, Removal
from jobs_service.actors import activity_monitor
from jobs_service.layer import changes
from jobs_service.testing.world import Process
from tests.checker import assert_sound
from tests.service.subscriptions.support import FINISHED, REMOVED
from tests.service.support import (
    J1,
    J2,
    T1,
    TIMEOUT,
    accepted,
    canceled,
    contents,
    finished,
    in_a_process,
    listed,
    new_jobs,
    running,
    told,
)

MANY = 12
"""More jobs than a notifier simply reads each time."""


async def last_records(jobs: JobsService) -> list[bytes]:
    """Return the keys of the last records of jobs that have left."""
    section = jobs._context.keyspace.sections[26]
    return [key for key in await contents(jobs) if key.startswith(section)]


@asynccontextmanager
async def waiting(jobs: JobsService, *ids: str) -> AsyncIterator[list[JobEvent]]:
    """Take events of jobs as they come, from when the first one of each is there; at the end all have ended."""
    events: list[JobEvent] = []

    async def take() -> None:
        async for event in jobs.subscribe_many([(T1, id) for id in ids]):
            events.append(event)

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(take())
        await told(jobs, len(ids))
        yield events


# What is left


async def test_a_job_that_is_not_kept_is_gone_with_its_end(quiet: JobsService) -> None:
    await quiet.set_retention(T1, keep=0)
    worker = await running(quiet)
    ended = await worker.finish({"done": True}, result=7)
    assert (ended.state, ended.outcome, ended.data, ended.result) == (FINISHED, Outcome.SUCCEEDED, {"done": True}, 7)
    assert ended.seq is not None
    with pytest.raises(JobNotFound):
        await quiet.get(T1, J1)
    with pytest.raises(JobNotFound):
        await quiet.resubmit(T1, J1)
    with pytest.raises(JobNotFound):
        await quiet.remove(T1, J1)
    assert await listed(quiet) == []
    counts = (await quiet.counts(T1))[T1]
    assert (counts.running, counts.succeeded, counts.totals.succeeded, counts.totals.expired) == (0, 0, 1, 1)
    assert (await quiet.add(T1, J1, if_exists="resubmit")).attempts == 0
    await assert_sound(quiet.store)


async def test_an_end_that_is_refused_counts_as_none(quiet: JobsService) -> None:
    await quiet.set_retention(T1, keep=0)
    worker = await running(quiet)
    with pytest.raises(JobTooLarge):
        await worker.finish("x" * 200_000)

    async def ended_in_turn(tx: JobTransaction) -> None:
        with pytest.raises(JobTooLarge):
            await tx.finish(worker, "x" * 200_000)
        await tx.finish(worker)

    await quiet.transact(ended_in_turn)
    assert (await quiet.counts(T1))[T1].totals.expired == 1
    await assert_sound(quiet.store)


async def test_a_canceled_job_leaves_when_it_is_given_back(quiet: JobsService) -> None:
    await quiet.set_retention(T1, keep=0)
    ended = await (await canceled(quiet)).release()
    assert (ended.state, ended.outcome) == (FINISHED, Outcome.CANCELED)
    assert await listed(quiet) == []


async def test_after_a_change_nobody_waits_for_nothing_is_left(quiet: JobsService) -> None:
    await quiet.set_retention(T1, keep=0)
    keys = quiet._context.keyspace.of(T1)
    doubted = (await contents(quiet))[keys.followed]
    await quiet._context.transact(lambda unit: changes.forget(unit.transaction, keys, doubted))
    await finished(quiet)
    await finished(quiet, J2)
    assert await last_records(quiet) == []
    await assert_sound(quiet.store)


# Within one transaction


async def test_within_a_transaction_a_job_that_has_left_is_added_anew(quiet: JobsService) -> None:
    await quiet.add_many(T1, new_jobs("a", "b", "c"))

    async def work(tx: JobTransaction) -> None:
        first, second, third = await tx.accept_many(T1, 3)
        await tx.set_retention(T1, keep=0)
        for job in (first, second, third):
            assert (await tx.finish(job)).state is FINISHED
            with pytest.raises(JobNotFound):
                await tx.get(T1, job.id)
        await tx.add(T1, "b", "again")
        await tx.add(T1, "c")
        assert await tx.remove(T1, "c") is Removal.REMOVED

    await quiet.transact(work)
    assert [(job.id, job.data) for job in await listed(quiet)] == [("b", "again")]
    assert len(await last_records(quiet)) == 1  # of "a"
    await assert_sound(quiet.store)


# Who waits


@pytest.mark.parametrize("count", [1, MANY])
async def test_whoever_waits_is_told_of_the_end(jobs: JobsService, count: int) -> None:
    ids = [f"{number:02}" for number in range(count)]
    await jobs.set_retention(T1, keep=0, keep_failed=0)
    await jobs.add_many(T1, new_jobs(*ids))
    workers = await jobs.accept_many(T1, count)
    async with waiting(jobs, *ids) as events:
        for worker in workers:
            await worker.finish({"by": worker.id}, result=worker.id)
    ended = {event.id: event for event in events if event.state is FINISHED}
    assert {id: (event.outcome, event.data, event.result) for id, event in ended.items()} == {
        id: (Outcome.SUCCEEDED, {"by": id}, id) for id in ids
    }
    assert await listed(jobs) == []
    await assert_sound(jobs.store)


async def test_a_job_that_is_added_again_and_removed_is_not_told_of_as_the_one_before(jobs: JobsService) -> None:
    await jobs.set_retention(T1, keep=0)
    await jobs.add(T1, J2)
    async with waiting(jobs, J2):
        await finished_one(jobs)
        await jobs.add(T1, J1)
        async with waiting_for_removal(jobs):
            await jobs.remove(T1, J1)
        assert await last_records(jobs) == []
        await jobs.remove(T1, J2)


async def finished_one(jobs: JobsService) -> None:
    await jobs.add(T1, J1, priority=-1)
    await (await accepted(jobs)).finish()


@asynccontextmanager
async def waiting_for_removal(jobs: JobsService) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        gone = group.create_task(jobs.wait(T1, J1, REMOVED, timeout=30))
        await told(jobs, 2)
        yield
    assert gone.result().state is REMOVED


# What the monitor removes


def test_last_records_are_removed_when_whoever_waits_had_time_for_them() -> None:
    left: list[int] = []

    async def serve(process: Process) -> None:
        async with process.service() as jobs:
            await jobs.set_type_timeout(T1, TIMEOUT)
            await jobs.set_retention(T1, keep=0)
            await jobs.add_many(T1, new_jobs(*(f"{number:02}" for number in range(23))))
            async with waiting(jobs, "00") as events:
                for job in await jobs.accept_many(T1, 23):
                    await job.finish()
            assert events[-1].state is FINISHED
            for _ in range(5):
                left.append(len(await last_records(jobs)))
                await asyncio.sleep(0.9 * activity_monitor._UNREAD_FOR)
            await assert_sound(jobs.store)

    in_a_process(serve, 7)
    assert left[:2] == [23, 23]
    assert left[-1] == 0
