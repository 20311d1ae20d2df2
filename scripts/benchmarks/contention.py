"""Workers of several processes that collide at one queue."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from typing import Literal

from benchmarks.base import PROGRAM, TIMEOUT, TYPE, Figure, Measurements, together, work
from jobs_service import JobsService, NewJob, StoreUnavailable, WorkerConflict

CONTENDERS = (1, 8, 32, 128)
"""Numbers of workers."""


class ContentionMeasurements(Measurements):
    """What workers lose to each other."""

    async def contention(self) -> list[Figure]:
        """Workers that collide: each a service of its own, in up to four processes, all on one type."""
        total = self.count(4000)
        figures = []
        with self.address() as address:
            for workers in CONTENDERS:
                for spread in ("1", "adaptive"):
                    await self.fresh()
                    async with JobsService(address, supervise=False) as jobs:
                        await jobs.set_type_timeout(TYPE, TIMEOUT)
                        await jobs.add_many(TYPE, (NewJob(f"job-{number}") for number in range(total)))
                    seconds, conflicts = await _contend(address, workers, spread)
                    name, what = f"contention_{workers}_{spread}", f"{workers} workers, spread {spread}"
                    figures += [
                        Figure(name, total / seconds, "/s", 0, True, f"{what}, jobs"),
                        Figure(f"{name}_conflicts", conflicts / total, "", 100, False, f"{what}, conflicts per job"),
                    ]
        return figures


async def _contend(address: str, workers: int, spread: str) -> tuple[float, int]:
    """Return the seconds that workers need for all jobs, and how many of their commits conflicted."""
    count = min(workers, 4)
    command = [sys.executable, PROGRAM, "--contender", address, spread, str(workers // count)]
    pipe = subprocess.PIPE
    processes = [await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe) for _ in range(count)]
    for process in processes:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
    began = time.perf_counter()
    said = await asyncio.gather(*(process.communicate(b"\n") for process in processes))
    return time.perf_counter() - began, sum(int(out) for out, _ in said)


async def contender(address: str, spread: str, workers: int) -> None:
    """One of the processes: as many services, with a worker each."""
    async with contextlib.AsyncExitStack() as stack:
        services = [await stack.enter_async_context(JobsService(address, supervise=False)) for _ in range(workers)]
        await together(jobs.get_type_timeout(TYPE) for jobs in services)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        wanted: int | Literal["adaptive"] = "adaptive" if spread == "adaptive" else int(spread)
        await together(_work_stubbornly(jobs, wanted) for jobs in services)
        print(sum(getattr(jobs.store, "conflicts", 0) for jobs in services), flush=True)


async def _work_stubbornly(jobs: JobsService, spread: int | Literal["adaptive"]) -> None:
    """Accept and finish jobs until there are none, whoever gets in the way."""
    while True:
        with contextlib.suppress(StoreUnavailable, WorkerConflict):
            return await work(jobs, 1, spread=spread)
