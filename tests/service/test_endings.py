"""Nothing is left behind by what fails, ends, or is canceled: in transactions, subscriptions and reads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from jobs_service import JobsService, JobState, JobTransaction, NewJob, RunningJob, StoreError
from jobs_service.layer.reads import Listing
from jobs_service.store.memory import Faults, MemoryStore, MemoryTransaction
from tests.service.support import J1, J2, PATIENCE, T1, accepted, eventually, listed, new_jobs, running

PENDING, RUNNING = JobState.PENDING, JobState.RUNNING


# jobs that run again


class Meanwhile(Faults):
    """Has something done just before a transaction commits.

    Args:
        number: of the transaction, from 1 on.
        work: what is done.
    """

    def __init__(self, number: int, work: Callable[[], Awaitable[None]]) -> None:
        self._left = number
        self._work = work

    async def before_commit(self, transaction: MemoryTransaction) -> None:
        self._left -= 1
        if not self._left:
            await self._work()


async def test_stop_and_remove_waits_for_the_next_worker_if_the_job_runs_again_before_it_is_removed() -> None:
    async with JobsService("memory:", supervise=False) as jobs:
        await jobs.set_type_timeout(T1, 60)
        worker = await running(jobs)
        again: asyncio.Future[RunningJob] = asyncio.get_running_loop().create_future()

        async def run_again() -> None:
            await jobs.resubmit(T1, J1)
            again.set_result(await accepted(jobs))

        async def is_canceled() -> bool:
            return (await jobs.get(T1, J1)).cancel

        removing = asyncio.create_task(jobs.stop_and_remove(T1, J1, timeout=PATIENCE))
        await eventually(is_canceled)
        assert isinstance(jobs.store, MemoryStore)
        # The first transaction ends the job, the second is to remove it.
        jobs.store.faults = Meanwhile(2, run_again)
        await worker.finish()
        next_worker = await again
        await eventually(is_canceled)
        await next_worker.finish()
        await removing
        assert await listed(jobs) == []


# a transaction that has ended


async def test_a_transaction_that_is_kept_after_its_end_refuses_everything(quiet: JobsService) -> None:
    await quiet.add(T1, J1, {"a": 1})
    kept: list[JobTransaction] = []
    lists: list[Listing] = []
    workers: list[RunningJob] = []

    async def keep(tx: JobTransaction) -> None:
        job = await tx.accept(T1)
        assert job is not None
        workers.append(job)
        await tx.get(T1, J1)
        kept.append(tx)
        lists.append(tx.list(T1))

    await quiet.transact(keep)
    [tx] = kept
    calls: dict[str, Callable[[], Any]] = {
        "get": lambda: tx.get(T1, J1),
        "add": lambda: tx.add(T1, J2),
        "add_many": lambda: tx.add_many(T1, [NewJob(J2)]),
        "remove": lambda: tx.remove(T1, J1),
        "accept": lambda: tx.accept(T1),
        "finish": lambda: tx.finish(workers[0]),
        "update": lambda: tx.update(workers[0]),
        "active_ids": lambda: tx.active_ids(T1),
        "types": lambda: tx.types(),
        "pause": lambda: tx.pause(T1),
        "list": lambda: tx.list(T1),
        "a list": lambda: lists[0],
    }
    for call in calls.values():
        with pytest.raises(StoreError, match=r"^this transaction has ended"):
            await call()
    with pytest.raises(StoreError, match=r"^this transaction has ended"):
        tx.kv  # noqa: B018
    assert (await workers[0].finish()).state is JobState.FINISHED


@pytest.mark.parametrize("turns", range(6))
async def test_a_job_that_a_canceled_transaction_has_accepted_is_given_back(quiet: JobsService, turns: int) -> None:
    await quiet.add_many(T1, new_jobs(*(f"{number}" for number in range(50))))

    async def take(tx: JobTransaction) -> RunningJob | None:
        job = await tx.accept(T1)
        ended = await tx.accept(T1)
        assert ended is not None
        await tx.finish(ended)
        return job

    mine: set[Any] = set()
    for number in range(20):
        task = asyncio.create_task(quiet.transact(take))
        for _ in range(turns + number % 3):
            await asyncio.sleep(0)
        task.cancel()
        try:
            job = await task
            assert job is not None
            mine.add(job.id)
        except asyncio.CancelledError:
            pass

    async def nobody_elses_runs() -> bool:
        return {job.id for job in await listed(quiet, T1, state=RUNNING)} == mine

    await eventually(nobody_elses_runs)


# reads


async def test_a_worker_that_is_canceled_in_the_very_turn_of_its_answer_keeps_no_job(quiet: JobsService) -> None:
    await quiet.add(T1, J1)

    async def take(tx: JobTransaction) -> RunningJob | None:
        return await tx.accept(T1)

    task = asyncio.create_task(quiet.transact(take))

    async def committed() -> bool:
        return bool(await listed(quiet, T1, state=RUNNING))

    while not task.done() and not await committed():
        pass
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:

        async def is_pending() -> bool:
            return bool(await listed(quiet, T1, state=PENDING))

        await eventually(is_pending)
        await accepted(quiet)
