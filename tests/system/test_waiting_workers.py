"""Workers that wait for jobs: no job waits while a worker does, and no worker that goes away takes a job with it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from jobs_service import JobsService, JobState
from jobs_service.sources import Sources
from tests.stores import EVERY_STORE, StoreKind
from tests.virtual_time import run_virtual

T1 = "t1"
PATIENCE = 20.0
"""Seconds after which a worker that waits for what is there has failed."""


@pytest.fixture(params=EVERY_STORE)
async def jobs(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[JobsService]:
    """A service without a tree: nobody but the worker itself notices that there are jobs."""
    kind: StoreKind = request.param
    async with JobsService(kind.address_in(tmp_path), supervise=False) as service:
        await service.set_type_timeout(T1, 60)
        yield service


async def test_a_job_added_in_the_same_turn_of_the_loop_is_found_by_a_waiting_worker(jobs: JobsService) -> None:
    async with asyncio.timeout(PATIENCE):
        worker, _ = await asyncio.gather(jobs.accept(T1), jobs.add(T1, "a"))
    assert worker is not None
    assert worker.id == "a"


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


@pytest.mark.parametrize("seed", range(3))
def test_every_waiting_worker_gets_a_job_whoever_gives_up_meanwhile(seed: int) -> None:
    async def scenario() -> None:
        choose = random.Random(seed)
        got: list[object] = []

        async def wait(service: JobsService, seconds: float | None) -> None:
            job = await service.accept(T1, timeout=seconds)
            if job is not None:
                got.append(job.id)

        async with JobsService("memory:", supervise=False, sources=Sources(seed)) as jobs:
            await jobs.set_type_timeout(T1, 600)
            for round in range(30):
                steady = [asyncio.create_task(wait(jobs, None)) for _ in range(5)]
                fickle = [asyncio.create_task(wait(jobs, choose.choice([0.5, 1, 1.5, None]))) for _ in range(10)]
                got.clear()
                added = 0
                while not all(task.done() for task in [*steady, *fickle]):
                    for _ in range(choose.randrange(3)):
                        await jobs.add(T1, f"{round} {added}")
                        added += 1
                    choose.choice(fickle).cancel()
                    await asyncio.sleep(choose.choice([0, 0, 0.001, 0.5]))
                    if await jobs.pending_count(T1):
                        await asyncio.sleep(0.1)  # a worker that waits has had its chance
                        waiting = sum(not task.done() for task in [*steady, *fickle])
                        assert not (waiting and await jobs.pending_count(T1)), "a job waits, and so does a worker"
                await asyncio.gather(*steady)
                await asyncio.sleep(1)
                # What came for a worker that had gone was given back.
                left = await jobs.accept_many(T1, 1000, timeout=0)
                assert sorted([*map(str, got), *(str(job.id) for job in left)]) == sorted(
                    f"{round} {number}" for number in range(added)
                )

    run_virtual(scenario())
