"""Handlers with the option fifo: jobs begin in exact order, also where processes collide on the queue."""

from __future__ import annotations

import asyncio

from jobs_service import RunningJob
from jobs_service.testing import World
from jobs_service.testing.world import Process
from tests.runner.support import TYPE
from tests.service.support import new_jobs

PROCESSES = 6
IDS = [f"{number:03}" for number in range(120)]


def begun(*, fifo: bool) -> list[object]:
    """Return the ids of jobs in the order in which several processes begin them, on a cluster with many conflicts."""
    found: list[object] = []

    async def main(world: World) -> None:
        adding = world.start("adding", add)
        await adding.ended()
        processes = [world.start(f"process {number}", run) for number in range(PROCESSES)]
        for process in (adding, *processes):
            await process.ended()
            assert process.failure is None, process.failure

    async def add(process: Process) -> None:
        async with process.service(supervise=False) as jobs:
            await jobs.set_type_timeout(TYPE, 60)
            await jobs.add_many(TYPE, new_jobs(*IDS))

    async def run(process: Process) -> None:
        jobs = process.service()

        @jobs.handler(TYPE, slots=1, fifo=fifo)
        async def work(job: RunningJob) -> None:
            found.append(job.id)
            if len(found) == len(IDS):
                all_begun.set()

        async with jobs:
            running = asyncio.create_task(jobs.run())
            await all_begun.wait()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    all_begun = asyncio.Event()
    World(1, rates={"conflict": 0.3}).run(main)
    return found


def farthest(found: list[object]) -> int:
    """Return by how many places a job began before or after its turn, at most."""
    assert sorted(map(str, found)) == IDS
    return max(abs(place - int(str(id))) for place, id in enumerate(found))


def test_jobs_of_a_handler_in_exact_order_begin_so_however_many_processes_collide() -> None:
    assert farthest(begun(fifo=True)) < PROCESSES  # who is answered first begins first


def test_jobs_of_other_handlers_spread_where_processes_collide() -> None:
    assert farthest(begun(fifo=False)) > PROCESSES
