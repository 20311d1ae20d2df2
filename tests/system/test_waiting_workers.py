"""Workers that wait for jobs: no job waits while a worker does, and no worker that goes away takes a job with it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from jobs_service import JobsService, JobState, NewJob, Settings
from jobs_service.sources import Sources
from jobs_service.store.memory import Faults, MemoryStore, MemoryTransaction
from tests.stores import EVERY_STORE, StoreKind
from tests.virtual_time import in_virtual_time, run_virtual

T1 = "t1"
PATIENCE = 20.0
"""Seconds after which a worker that waits for what is there has failed."""


@pytest.fixture(params=EVERY_STORE)
async def jobs(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[JobsService]:
    """A service without a tree: nobody but the worker itself notices that there are jobs."""
    kind: StoreKind = request.param
    async with JobsService(kind.address(tmp_path), supervise=False) as service:
        await service.set_type_timeout(T1, 60)
        yield service


async def test_a_job_added_in_the_same_turn_of_the_loop_is_found_by_a_waiting_worker(jobs: JobsService) -> None:
    async with asyncio.timeout(PATIENCE):
        worker, _ = await asyncio.gather(jobs.accept(T1), jobs.add(T1, "a"))
    assert worker is not None
    assert worker.id == "a"


async def test_a_worker_wakes_for_a_scheduled_job_that_was_added_in_the_same_turn(jobs: JobsService) -> None:
    async with asyncio.timeout(PATIENCE):
        worker, _ = await asyncio.gather(jobs.accept(T1), jobs.add(T1, "a", run_at=time.time() + 0.1))
    assert worker is not None
    assert worker.id == "a"


async def test_every_one_of_many_workers_finds_a_job_whatever_order_they_come_in(jobs: JobsService) -> None:
    async with asyncio.timeout(PATIENCE):
        for round in range(20):
            adding = [jobs.add(T1, f"{round}/{number}") for number in range(5)]
            accepting = [jobs.accept(T1) for _ in range(5)]
            mixed = [call for pair in zip(accepting, adding, strict=True) for call in pair]
            await asyncio.gather(*mixed)
    assert await jobs.pending_count(T1) == 0
    assert len(await jobs.active_ids(T1)) == 100


@pytest.mark.parametrize("waiting", [True, False])
def test_a_worker_canceled_at_any_moment_strands_no_job(waiting: bool) -> None:
    """At every step of the loop in turn: the job is pending afterwards, or the worker has it."""

    async def scenario(step: int) -> bool:
        async with JobsService("memory:", supervise=False) as jobs:
            await jobs.set_type_timeout(T1, 60)
            if not waiting:
                await jobs.add(T1, "a")
            task = asyncio.create_task(jobs.accept(T1, timeout=10 if waiting else 0))
            if waiting:
                await asyncio.sleep(1)  # virtual: it waits in line now
                await jobs.add(T1, "a")
            for _ in range(step):
                await asyncio.sleep(0)
            was_done = task.done()
            task.cancel()
            await asyncio.wait([task])
            await asyncio.sleep(1)  # virtual: what had to be given back has been
            job = await jobs.get(T1, "a")
            assert (job.state is JobState.RUNNING) == (not task.cancelled()), f"canceled after {step} turns of the loop"
            return was_done

    step = 0
    while not run_virtual(scenario(step)):
        step += 1
    assert step > 3


class Runs(Faults):
    """Interferes with nothing; counts the runs of transaction functions."""

    count = 0

    async def before_commit(self, transaction: MemoryTransaction) -> None:
        self.count += 1


@pytest.mark.parametrize(("spread", "collisions"), [(1, True), (400, False)])
@in_virtual_time
async def test_workers_that_spread_over_the_queue_do_not_run_into_each_other(spread: int, collisions: bool) -> None:
    workers = 8
    store = MemoryStore(settings=Settings(), sources=Sources(1))
    await store.open()
    async with AsyncExitStack() as stack:
        # Each is a service of its own, as in processes of their own: they share no transaction.
        services = [
            await stack.enter_async_context(JobsService(store, supervise=False, sources=Sources(seed)))
            for seed in range(workers)
        ]
        await services[0].set_type_timeout(T1, 60)
        await services[0].add_many(T1, [NewJob(str(number)) for number in range(400)])
        runs = store.faults = Runs()
        taken = await asyncio.gather(*(jobs.accept(T1, timeout=0, spread=spread) for jobs in services))
        assert len({worker.id for worker in taken if worker is not None}) == workers
        assert (runs.count > workers) is collisions
    await store.close()
