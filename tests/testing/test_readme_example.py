"""The README's example of a test of one's own workers, as it stands there."""

from __future__ import annotations

import asyncio

import pytest

from jobs_service import JobsService, JobTransaction, RunningJob, StoreError, WorkerConflict
from jobs_service.testing import FAULTS, Process, World

ORDERS = [f"order-{number}" for number in range(5)]


async def send_bills(jobs: JobsService) -> None:
    """The worker to be tested."""
    while True:
        try:
            job = await jobs.accept("bill")
            if job is not None:
                await asyncio.sleep(1)  # the work itself
                await send_bill(jobs, job)
        except (StoreError, WorkerConflict):  # try again; or the job was taken for lost, and another worker has it
            await asyncio.sleep(0.1)


async def send_bill(jobs: JobsService, job: RunningJob) -> None:
    async def finish(tx: JobTransaction) -> None:
        tx.kv.add(f"bills/{job.id!r}".encode(), b"\1")  # the effect, in the transaction that finishes the job
        await tx.finish(job)

    await jobs.transact(finish)


async def worker(process: Process) -> None:
    async with process.service() as jobs:
        await send_bills(jobs)


async def shop(process: Process) -> None:
    async with process.service() as jobs:
        await jobs.set_type_timeout("bill", 5)
        await asyncio.gather(*[jobs.add("bill", order) for order in ORDERS])
        world = process.world
        world.choices.rates = dict.fromkeys(FAULTS, 0.05)  # bad weather from here on
        killed, _ = world.start("worker", worker), world.start("worker", worker, ahead=30)  # its clock is fast
        await asyncio.sleep(world.choices.stream("test").uniform(0, 5))
        killed.kill()  # wherever it is: no `finally` of it runs
        await asyncio.sleep(10)
        world.choices.calm()
        for order in ORDERS:
            await jobs.wait("bill", order, "finished", timeout=60)
        bills = await jobs.transact(lambda tx: tx.kv.get_range(b"bills/", b"bills0"))
        assert [count for _, count in bills] == [b"\1"] * len(ORDERS)


async def run_shop(world: World) -> None:
    process = world.start("shop", shop)
    await process.ended()
    assert process.failure is None, world.events


@pytest.mark.parametrize("seed", range(50))
def test_every_order_is_billed_once(seed: int) -> None:
    World(seed, latency=0.01).run(run_shop)
