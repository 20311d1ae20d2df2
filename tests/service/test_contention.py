"""Workers of several services on one queue: they collide, spread over it, and go back to exact order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Literal

from jobs_service import JobsService, NewJob, RunningJob, Settings
from jobs_service.errors import TransactionConflict
from jobs_service.sources import Sources
from jobs_service.store.memory import Faults, MemoryStore, MemoryTransaction
from tests.virtual_time import in_virtual_time

T1 = "t1"
WAY = 0.003
"""Seconds that a commit takes to get to the store, while others run."""

Spread = int | Literal["adaptive"]


class Far(Faults):
    """A store that is some way off; it counts commits, and the runs that conflicts were the end of."""

    def __init__(self) -> None:
        self.runs = 0
        self.commits = 0
        self.between: list[Callable[[], Awaitable[Any]]] = []

    @property
    def conflicts(self) -> int:
        """How often a function was run in vain, when nothing is under way."""
        return self.runs - self.commits

    async def before_commit(self, transaction: MemoryTransaction) -> None:
        self.runs += 1
        if self.between:
            await self.between.pop()()
        await asyncio.sleep(WAY)

    async def after_commit(self, transaction: MemoryTransaction) -> None:
        self.commits += 1


@asynccontextmanager
async def services(count: int, jobs: int, *, supervise: bool = False) -> AsyncIterator[tuple[Far, list[JobsService]]]:
    """So many services on one store, each as in a process of its own, and so many jobs: "000", "001", ..."""
    store = MemoryStore(settings=Settings(), sources=Sources(1))
    await store.open()
    try:
        async with AsyncExitStack() as stack:
            opened = [
                await stack.enter_async_context(JobsService(store, supervise=supervise, sources=Sources(seed)))
                for seed in range(count)
            ]
            await opened[0].set_type_timeout(T1, 600)
            await opened[0].add_many(T1, [NewJob(f"{number:03}") for number in range(jobs)])
            far = store.faults = Far()
            yield far, opened
    finally:
        await store.close()


async def work_off(jobs: JobsService, spread: Spread, taken: list[RunningJob], pace: random.Random) -> None:
    """Run one job after the other, as long as there are any."""
    while (job := await jobs.accept(T1, timeout=0, spread=spread)) is not None:
        taken.append(job)
        await asyncio.sleep(pace.uniform(0, 2 * WAY))
        await job.finish()


async def crowd(opened: list[JobsService], spread: Spread, workers: int = 1) -> list[RunningJob]:
    """Have workers of all services run all jobs; return these in the order in which their accepts took effect."""
    taken: list[RunningJob] = []
    async with asyncio.TaskGroup() as tasks:
        for number, jobs in enumerate(opened * workers):
            tasks.create_task(work_off(jobs, spread, taken, random.Random(number)))
    return in_order(taken)


def in_order(taken: list[RunningJob]) -> list[RunningJob]:
    """Return jobs in the order in which their accepts took effect."""
    return sorted(taken, key=lambda job: job.seq or b"")


def ids(jobs: list[RunningJob]) -> list[Any]:
    return [job.id for job in jobs]


def expected(count: int) -> list[str]:
    return [f"{number:03}" for number in range(count)]


@in_virtual_time
async def test_adaptive_workers_take_every_job_once_with_a_fraction_of_the_conflicts() -> None:
    conflicts: dict[Spread, int] = {}
    spreads: list[Spread] = [1, "adaptive"]
    for spread in spreads:
        async with services(6, 150) as (far, opened):
            came = ids(await crowd(opened, spread))
            assert sorted(came) == expected(150)
            assert (came == expected(150)) is (spread == 1)
            conflicts[spread] = far.conflicts
    assert conflicts[1] > 75
    assert 3 * conflicts["adaptive"] < conflicts[1]


@in_virtual_time
async def test_conflicts_that_are_not_about_the_queue_leave_the_order_exact() -> None:
    async def fail() -> None:
        raise TransactionConflict("somebody else has changed what this transaction has read beside the queue")

    async with services(1, 100) as (far, [jobs]):
        came = []
        while job := await jobs.accept(T1, timeout=0, spread="adaptive"):
            came.append(job.id)
            far.between = [fail, fail]
        assert came == expected(100)
        assert far.conflicts >= 198


# What is a conflict in exact order


@in_virtual_time
async def test_a_job_that_comes_in_behind_those_taken_is_no_conflict() -> None:
    async with services(2, 2) as (far, [jobs, other]):
        far.between = [lambda: other.add(T1, "behind")]
        assert ids(await jobs.accept_many(T1, 2, timeout=0)) == expected(2)
        far.between = [lambda: other.add(T1, "farther behind")]
        assert ids(await jobs.accept_many(T1, 5, timeout=0)) == ["behind"]
        assert not far.conflicts
        assert ids(await jobs.accept_many(T1, 5, timeout=0)) == ["farther behind"]


@in_virtual_time
async def test_a_waiting_worker_is_woken_by_a_job_that_came_in_as_it_looked() -> None:
    async with services(2, 1) as (far, [jobs, other]):
        [held] = await jobs.accept_many(T1, 1)
        waiting = asyncio.create_task(jobs.accept(T1))
        # The look shares a transaction that writes, so that it could conflict.
        ending = asyncio.create_task(held.finish())
        far.between = [lambda: other.add(T1, "a")]
        async with asyncio.timeout(1):
            job = await waiting
        await ending
    assert job is not None
    assert job.id == "a"
    assert not far.conflicts
