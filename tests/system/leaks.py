"""A service whose life of an hour passes in minutes: memory, threads, futures and watches stay as many as they were.

`python -m tests.system.leaks --store fdb:FILE --minutes 10` prints a line now and then, and exits 1 if anything grows.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import random
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from typing import Any

from jobs_service import JobNotFound, JobsService, JobTransaction, RunningJob, Settings, WorkerConflict
from jobs_service.store.fdb import FdbStore
from tests.system.roles import quiet
from tests.system.workloads import KIND, empty

TYPES = 20
WORKERS = 40
PENDING = 200
LONGEST_WAIT = 0.5


@dataclass(frozen=True)
class Held:
    """What a process holds, when nothing is going on.

    Attributes:
        megabytes: of memory.
        threads: of the operating system.
        objects: that the garbage collector knows.
        futures: of the client that have not told yet.
        watches: of the store.
    """

    megabytes: float
    threads: float
    objects: float
    futures: float
    watches: float

    @classmethod
    def now(cls, jobs: JobsService) -> Held:
        """Return what is held now."""
        gc.collect()
        with open("/proc/self/status") as status:
            lines = dict(line.split(":", 1) for line in status)
        store: Any = jobs.store
        client = isinstance(store, FdbStore)
        return cls(
            megabytes=int(lines["VmRSS"].split()[0]) / 1024,
            threads=int(lines["Threads"]),
            objects=len(gc.get_objects()),
            futures=len(store._network._sinks) if client else 0,
            watches=store._watches.number if client else 0,
        )

    @classmethod
    def middle(cls, looks: Sequence[Held]) -> Held:
        """Return the medians of several looks."""
        return cls(*(statistics.median(values) for values in zip(*map(astuple, looks), strict=True)))

    def grown_since(self, before: Held) -> list[str]:
        """Say what is more than it was, beyond what an allocator and caches may take."""
        return [
            f"{name}: {getattr(before, name)} -> {getattr(self, name)}"
            for name, factor, more in (
                ("megabytes", 1.15, 10),
                ("threads", 1, 0),
                ("objects", 1.1, 3000),
                ("futures", 1, 5),
                ("watches", 1, 5),
            )
            if getattr(self, name) > factor * getattr(before, name) + more
        ]


class Traffic:
    """Everything that makes and drops futures, watches and subscriptions, again and again.

    Attributes:
        finished: how many jobs.
    """

    def __init__(self, jobs: JobsService, seed: int) -> None:
        self.finished = 0
        self._jobs = jobs
        self._choose = random.Random(seed)
        self._number = 0

    async def flow(self, seconds: float) -> None:
        """Go on for so long; what is begun then comes to its end."""
        end = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            for _ in range(WORKERS):
                group.create_task(self._work(end))
            for _ in range(4):
                group.create_task(self._create(end))
            for _ in range(8):
                group.create_task(self._change_minds(end))
        await self._clear()

    def _type(self) -> str:
        return f"{KIND}-{self._choose.randrange(TYPES)}"

    async def _create(self, end: float) -> None:
        while time.monotonic() < end:
            type = self._type()
            if await self._jobs.pending_count(type, limit=PENDING) < PENDING / TYPES:
                self._number += 1
                await self._jobs.add(type, f"job-{self._number}", {"n": self._number})
            else:
                await asyncio.sleep(0.001)

    async def _work(self, end: float) -> None:
        while time.monotonic() < end:
            job = await self._jobs.accept(
                self._type(), timeout=self._choose.uniform(0, LONGEST_WAIT), spread="adaptive"
            )
            if job is None:
                continue
            with suppress(WorkerConflict):
                await job.update({"half": True})
                await self._jobs.transact(lambda tx, job=job: _finish_and_forget(tx, job))  # type: ignore[misc]
                self.finished += 1

    async def _change_minds(self, end: float) -> None:
        """Subscribe, watch and call, and think better of it."""
        while time.monotonic() < end:
            call = self._choose.choice([self._follow, self._wait_for_a_job, self._look])
            task = asyncio.create_task(call())
            await asyncio.sleep(self._choose.uniform(0, 0.02))
            task.cancel()
            with suppress(asyncio.CancelledError, JobNotFound, WorkerConflict):
                await task

    async def _wait_for_a_job(self) -> None:
        job = await self._jobs.accept(self._type())
        assert job is not None
        await job.release()

    async def _look(self) -> None:
        await self._jobs.get_type_timeout(self._type())

    async def _follow(self) -> None:
        async for _ in self._jobs.subscribe(self._type(), f"job-{self._number}"):
            pass

    async def _clear(self) -> None:
        for number in range(TYPES):
            for job in [job async for job in self._jobs.list(f"{KIND}-{number}")]:
                with suppress(JobNotFound):
                    await self._jobs.remove(job.type, job.id, force=True)


async def _finish_and_forget(tx: JobTransaction, job: RunningJob) -> None:
    await tx.finish(job)
    await tx.remove(job.type, job.id)


async def live(address: str, seconds: float, every: float, seed: int = 0) -> list[str]:
    """Live for so long, looking at what is held every so often; return what has grown in the second half."""
    looks: list[Held] = []
    async with JobsService(address, settings=Settings(notify_holdoff=0.01)) as jobs:
        await empty(jobs)
        for number in range(TYPES):
            await jobs.set_type_timeout(f"{KIND}-{number}", 30)
        traffic = Traffic(jobs, seed)
        end = time.monotonic() + seconds
        while time.monotonic() < end or len(looks) < 4:
            await traffic.flow(every)
            await asyncio.sleep(0.2)
            looks.append(Held.now(jobs))
            print(f"{traffic.finished} jobs; {looks[-1]}", flush=True)
        await empty(jobs)
    # What waits at one moment is chance; what the first look sees is still being loaded.
    half = (len(looks) + 1) // 2
    return Held.middle(looks[half:]).grown_since(Held.middle(looks[1:half]))


def main() -> None:
    """Live from the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.system.leaks", description=__doc__)
    parser.add_argument("--store", required=True, help="an address; the store is emptied")
    parser.add_argument("--minutes", type=float, default=10.0)
    arguments = parser.parse_args()
    quiet()
    seconds = 60 * arguments.minutes
    print(f"process {os.getpid()}")
    if grown := asyncio.run(live(arguments.store, seconds, seconds / 20)):
        print("grown:", *grown, sep="\n")
        sys.exit(1)
    print("nothing has grown")


if __name__ == "__main__":
    main()
