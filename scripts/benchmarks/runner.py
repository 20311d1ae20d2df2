"""How many jobs handlers run per second."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import time

from benchmarks.base import PROGRAM, TIMEOUT, TYPE, Figure, Measurements, timed
from jobs_service import JobsService, NewJob
from jobs_service.cli.daemon import GC_THRESHOLDS


class RunnerMeasurements(Measurements):
    """Handlers that do nothing."""

    async def runner(self) -> list[Figure]:
        """Handlers that do nothing, in 500 slots of one process."""
        total = self.count(60_000)
        with self.service() as service:
            async with service as jobs:
                await jobs.set_type_timeout(TYPE, TIMEOUT)
                await jobs.add_many(TYPE, (NewJob(f"job-{number}") for number in range(total)))
                ran = Ran(jobs, {TYPE: 500})
                seconds = await timed(lambda: ran.run(total))
                assert await jobs.pending_count(TYPE, limit=1) == 0
                assert await jobs.active_ids(TYPE) == []
        return [Figure("runner", total / seconds, "/s", 20_000, True, "runner: no-op handlers, 500 slots, jobs")]

    async def runner_two_processes(self) -> list[Figure]:
        """The same with two processes on one store: the sum of what both have done at the same time."""
        seconds = 4 * min(self.scale, 1)
        total = self.count(240_000)
        with self.address() as address:
            async with JobsService(address, supervise=False) as jobs:
                await jobs.set_type_timeout(TYPE, TIMEOUT)
                await jobs.add_many(TYPE, (NewJob(f"job-{number}") for number in range(total)))
            command = [sys.executable, PROGRAM, "--runner", address, *(["--default-gc"] if _gc_is_default() else [])]
            pipe = subprocess.PIPE
            both = [await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe) for _ in range(2)]
            for process in both:
                assert process.stdout is not None
                assert await process.stdout.readline() == b"ready\n"
            said = await asyncio.gather(*(process.communicate(f"{seconds}\n".encode()) for process in both))
            rates = [float(out) for out, _ in said]
        what = "runner: the same, the sum of two processes on one store"
        return [Figure("runner_two_processes", sum(rates), "/s", 20_000, True, what)]

    async def runner_isolated(self) -> list[Figure]:
        """A plain handler that does nothing, in a process of its own and in a thread, one job after the other."""
        total = self.count(1000)
        took: list[float] = []
        for isolated in (True, False):
            with self.service() as service:
                async with service as jobs:
                    jobs.handler(TYPE, slots=1, timeout=TIMEOUT, keep=None, isolated=isolated)(nothing)
                    running = asyncio.create_task(jobs.run())
                    warm = await jobs.enqueue(TYPE, id="warm")
                    await jobs.result(TYPE, warm.id)
                    await jobs.pause(TYPE)
                    await jobs.add_many(TYPE, (NewJob(f"job-{number}") for number in range(total)))

                    async def all_have_ended(jobs: JobsService = jobs) -> None:
                        await jobs.resume(TYPE)
                        await jobs.result(TYPE, f"job-{total - 1}")

                    took.append(await timed(all_have_ended))
                    await _stopped(running)
        more = 1000 * (took[0] - took[1]) / total
        what = "runner: a plain no-op in a process of its own, more than in a thread, mean"
        return [Figure("runner_isolated_more_ms", more, "ms", 1.0, False, what)]

    async def runner_types(self) -> list[Figure]:
        """4 types with 1, 10, 100 and 1,000 slots, all with jobs that wait."""
        waiting = {1: 20_000, 10: 40_000, 100: 80_000, 1000: 120_000}
        with self.service() as service:
            async with service as jobs:
                for slots, count in waiting.items():
                    type = f"slots-{slots}"
                    await jobs.set_type_timeout(type, TIMEOUT)
                    await jobs.add_many(type, (NewJob(f"job-{number}") for number in range(self.count(count))))
                ran = Ran(jobs, {f"slots-{slots}": slots for slots in waiting})
                await ran.run_for(4 * min(self.scale, 1))
        rates = {slots: ran.rate(f"slots-{slots}") for slots in waiting}
        what = "runner: 4 types with 1, 10, 100 and 1,000 slots"
        # A turn of the loop is one of every slot: the type with one slot has one job per turn.
        return [
            Figure("runner_types", sum(rates.values()), "/s", 15_000, True, f"{what}, jobs of all"),
            Figure("runner_types_1", rates[1], "/s", 10, True, f"{what}, jobs of the one with 1"),
        ]

    async def runner_idle(self) -> list[Figure]:
        """A runner of 50 types that has nothing to do."""
        with self.service() as service:
            async with service as jobs:
                ran = Ran(jobs, {f"type-{number}": 10 for number in range(50)})
                running = asyncio.create_task(jobs.run())
                await asyncio.sleep(2)
                began, cpu = time.perf_counter(), time.process_time()
                await asyncio.sleep(10)
                idle = 100 * (time.process_time() - cpu) / (time.perf_counter() - began)
                await _stopped(running)
                assert not ran.count
        return [Figure("runner_idle_percent", idle, "%", 1.0, False, "runner: 50 types, idle: of one core")]


def nothing() -> None:
    """Do nothing."""


class Ran:
    """Handlers that do nothing, and a count of the jobs that they were given.

    Args:
        jobs: an open service.
        slots: of each type.

    Attributes:
        count: of jobs by type.
    """

    def __init__(self, jobs: JobsService, slots: dict[str, int]) -> None:
        self._jobs = jobs
        self.count: dict[str, int] = {}
        self._last: dict[str, float] = {}
        self._left = 0
        self._all = asyncio.Event()
        self._began = 0.0
        for type, number in slots.items():
            self._register(type, number)

    def _register(self, type: str, slots: int) -> None:
        @self._jobs.handler(type, slots=slots, timeout=TIMEOUT, keep=None)
        async def nothing() -> None:
            self.count[type] = self.count.get(type, 0) + 1
            self._last[type] = time.perf_counter()
            self._left -= 1
            if not self._left:
                self._all.set()

    async def run(self, total: int) -> None:
        """Run so many jobs; all have finished when it returns."""
        self._left = total
        running = asyncio.create_task(self._jobs.run())
        await self._all.wait()
        await _stopped(running)

    async def run_for(self, seconds: float) -> None:
        """Run jobs for so long."""
        self._began = time.perf_counter()
        running = asyncio.create_task(self._jobs.run())
        await asyncio.sleep(seconds)
        await _stopped(running)

    def rate(self, type: str) -> float:
        """Return how many jobs of a type there were per second, as long as there were any."""
        return self.count[type] / (self._last[type] - self._began)


async def _stopped(running: asyncio.Task[None]) -> None:
    running.cancel()
    await asyncio.wait([running])
    if not running.cancelled():
        running.result()


async def run_no_ops(address: str) -> None:
    """One of two processes: says how many jobs per second it has run."""
    async with JobsService(address) as jobs:
        ran = Ran(jobs, {TYPE: 500})
        print("ready", flush=True)
        await ran.run_for(float(await asyncio.to_thread(sys.stdin.readline)))
        print(ran.rate(TYPE), flush=True)


def _gc_is_default() -> bool:
    return gc.get_threshold() != GC_THRESHOLDS
