"""What many types cost, and how soon many lost jobs are found."""

from __future__ import annotations

import asyncio
import time

from benchmarks.base import TYPE, Figure, Measurements, timed, together
from jobs_service import JobsService, JobTransaction, NewJob


class MonitoringMeasurements(Measurements):
    """The supervisor tree with very much to watch over."""

    async def many_types(self) -> list[Figure]:
        """A tree with 1,000 types: how long it takes to start and to stop, and what it costs when nothing happens."""
        total = self.count(1000)
        with self.address() as address:
            async with JobsService(address, supervise=False) as jobs:
                await jobs.transact(lambda tx: _set_types(tx, total))
            service = JobsService(address)
            began = time.perf_counter()
            await service.__aenter__()
            start = time.perf_counter() - began
            await asyncio.sleep(2)
            began, cpu = time.perf_counter(), time.process_time()
            await asyncio.sleep(8)
            idle = 100 * (time.process_time() - cpu) / (time.perf_counter() - began)
            began = time.perf_counter()
            await service.__aexit__(None, None, None)
            stop = time.perf_counter() - began
        return [
            Figure("types_1000_start_s", start, "s", 2.0, False, "1,000 types: start of the tree"),
            Figure("types_1000_idle_percent", idle, "%", 3.0, False, "1,000 types, timeout 30 s, idle: of one core"),
            Figure("types_1000_stop_s", stop, "s", 1.0, False, "1,000 types: stop of the tree"),
        ]

    async def idle_types(self) -> list[Figure]:
        """100,000 types, made one by one: what they cost a service when nothing happens with them."""
        total = self.count(100_000)
        with self.address() as address:
            async with JobsService(address) as jobs:
                made = await timed(lambda: _make_types(jobs, total))
            before = _memory()
            service = JobsService(address)
            opened = await timed(service.__aenter__)
            await asyncio.sleep(2)
            began, cpu = time.perf_counter(), time.process_time()
            await asyncio.sleep(8)
            idle = 100 * (time.process_time() - cpu) / (time.perf_counter() - began)
            memory = _memory() - before
            await service.__aexit__(None, None, None)
        return [
            Figure("types_100k_made_s", made, "s", 60, False, "100,000 types, made one by one"),
            Figure("types_100k_open_s", opened, "s", 3, False, "100,000 types: a service opens"),
            Figure("types_100k_mb", memory, "MB", 240, False, "100,000 types: memory that this takes"),
            Figure("types_100k_idle_percent", idle, "%", 2, False, "100,000 types, idle: of one core"),
        ]

    async def lost_jobs(self) -> list[Figure]:
        """100,000 jobs are lost while 1,000,000 come due and 1,000,000 expire, all of one type and at the same time."""
        many, lost = self.count(1_000_000), self.count(100_000)
        timeout = 20.0
        with self.address() as address:
            async with JobsService(address, supervise=False) as jobs:
                await jobs.set_type_timeout(TYPE, timeout)
                await jobs.set_retention(TYPE, keep=0.001)
                for first in range(0, many, 1000):
                    await jobs.add_many(TYPE, (NewJob(f"expired-{first + n}") for n in range(1000)))
                    await together(job.finish() for job in await jobs.accept_many(TYPE, 1000))
                await jobs.add_many(TYPE, (NewJob(f"lost-{n}") for n in range(lost)))
                taken = 0
                while taken < lost:
                    taken += len(await jobs.accept_many(TYPE, 1000))
                await jobs.add_many(TYPE, (NewJob(f"due-{n}", run_at=time.time() + 1) for n in range(many)))
            async with JobsService(address) as jobs:
                began = time.perf_counter()
                # Those that were active last are found last.
                await jobs.wait(TYPE, f"lost-{lost - 1}", "pending")
                seconds = time.perf_counter() - began
        what = "100,000 lost while 1,000,000 come due and 1,000,000 expire, timeout 20 s: all found after"
        return [Figure("lost_found_s", seconds, "s", 1.5 * timeout + 1, False, what)]


async def _make_types(jobs: JobsService, count: int) -> None:
    for number in range(count):
        await jobs.set_type_timeout(f"type {number}", 30)


def _memory() -> float:
    """Return the memory of this process, in megabytes."""
    with open("/proc/self/status") as status:
        (size,) = [line.split()[1] for line in status if line.startswith("VmRSS:")]
    return int(size) / 1024


async def _set_types(tx: JobTransaction, total: int) -> None:
    for number in range(total):
        await tx.set_type_timeout(f"type-{number}", 30)
