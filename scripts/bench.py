"""Measures the figures of docs/performance.md: prints a table for people, or one JSON line per figure.

Every figure is measured through the public interface only. `--store fdb:FILE` measures on a cluster, with other goals;
the jobs that are in a given store are removed. `--against DIR` measures another checkout of this
repository as well, in turn with this one, and prints the ratio: so a change is shown before and after in one run.
The garbage collector is set as `jobs-service serve` sets it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import structlog

from jobs_service import JobsService, JobTransaction, NewJob, Settings, StoreUnavailable, WorkerConflict
from jobs_service.cli.daemon import GC_THRESHOLDS

TYPE = "bench"
TIMEOUT = 300.0

GOALS_ON_A_CLUSTER = {
    "add_concurrent": 6000,
    "add_many": 30_000,
    "accept_finish": 1500,
    "accept_many_finish": 1500,
    "add_median_ms": 2,
    "add_p99_ms": 10,
    "finish_to_event_ms": 10,
    "subscriptions_10k_s": 10,
    "accept_other_process_ms": 15,
    "runner": 5000,
    "runner_two_processes": 5000,
    "runner_types": 4000,
}
"""Of one server process that shares the machine with what is measured."""
CONTENDERS = (1, 8, 32, 128)


@dataclass(frozen=True)
class Figure:
    """One measured figure.

    Attributes:
        name: as in the table of docs/performance.md.
        value: in `unit`.
        unit: "/s", "ms", "s" or "" for a ratio.
        goal: what it should reach.
        higher: whether more is better.
        what: for people.
    """

    name: str
    value: float
    unit: str
    goal: float
    higher: bool
    what: str

    @property
    def met(self) -> bool:
        """Whether the goal is reached."""
        return self.value >= self.goal if self.higher else self.value <= self.goal


class Bench:
    """Runs the measurements, each on a fresh store.

    Args:
        store: an address; None for an embedded store in a temporary directory.
        scale: multiplies the number of jobs; 1 for the real figures.
    """

    def __init__(self, store: str | None, scale: float) -> None:
        self._store = store
        self._scale = scale
        self._cluster = store is not None and store.startswith("fdb:")

    async def measure(self, name: str) -> list[Figure]:
        """Return the figures of one measurement."""
        await self._fresh()
        figures: list[Figure] = await getattr(self, name)()
        goals = GOALS_ON_A_CLUSTER if self._cluster else {}
        return [replace(figure, goal=goals.get(figure.name, figure.goal)) for figure in figures]

    async def _fresh(self) -> None:
        """Remove all jobs of a store that was given."""
        if self._store is None:
            return
        async with JobsService(self._store, supervise=False) as jobs:
            prefix = await jobs.store.prefix()

            async def clear(tx: JobTransaction) -> None:
                tx.kv.clear_range(prefix, prefix + b"\xff")

            await jobs.transact(clear)

    def count(self, jobs: int) -> int:
        """Return how many jobs to measure with."""
        return max(10, int(jobs * self._scale))

    @contextmanager
    def _address(self) -> Iterator[str]:
        if self._store is not None:
            yield self._store
            return
        with tempfile.TemporaryDirectory(prefix="jobs-bench-") as directory:
            yield f"lmdb:{directory}/store"

    @contextmanager
    def service(self, **settings: float) -> Iterator[JobsService]:
        """Yield a service, not yet entered, on a fresh store."""
        with self._address() as address:
            yield JobsService(address, settings=Settings(**settings))

    async def add_concurrent(self) -> list[Figure]:
        """`add` by 1,000 callers at once; on a cluster by 256."""
        total = self.count(60_000)
        callers = min(256 if self._cluster else 1000, total)
        with self.service() as service:
            async with service as jobs:
                await jobs.set_type_timeout(TYPE, TIMEOUT)

                async def caller(first: int) -> None:
                    for number in range(first, total, callers):
                        await jobs.add(TYPE, f"job-{number}", {"n": number})

                seconds = await _timed(lambda: _together(caller(first) for first in range(callers)))
        return [Figure("add_concurrent", total / seconds, "/s", 40_000, True, f"add by {callers:,} concurrent callers")]

    async def add_many(self) -> list[Figure]:
        """`add_many` of 100,000."""
        total = self.count(100_000)
        with self.service() as service:
            async with service as jobs:
                await jobs.set_type_timeout(TYPE, TIMEOUT)
                new = [NewJob(f"job-{number}", {"n": number}) for number in range(total)]
                seconds = await _timed(lambda: jobs.add_many(TYPE, new))
        return [Figure("add_many", total / seconds, "/s", 80_000, True, "add_many of 100,000")]

    async def accept_finish(self) -> list[Figure]:
        """`accept` and `finish` by 200 hand-written workers; on a cluster by 64."""
        total = self.count(20_000)
        workers = 64 if self._cluster else 200
        with self.service() as service:
            async with service as jobs:
                await jobs.set_type_timeout(TYPE, TIMEOUT)
                await jobs.add_many(TYPE, (NewJob(f"job-{number}") for number in range(total)))
                seconds = await _timed(lambda: _work(jobs, workers, spread="adaptive" if self._cluster else 1))
        what = f"accept + finish by {workers} workers, jobs"
        return [Figure("accept_finish", total / seconds, "/s", 12_000, True, what)]

    async def contention(self) -> list[Figure]:
        """Workers that collide: each a service of its own, in up to four processes, all on one type."""
        total = self.count(4000)
        figures = []
        with self._address() as address:
            for workers in CONTENDERS:
                for spread in ("1", "adaptive"):
                    await self._fresh()
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

    async def accept_many_finish(self) -> list[Figure]:
        """`accept_many` of 100, one concurrent `finish` each."""
        total = self.count(20_000)
        with self.service() as service:
            async with service as jobs:
                await jobs.set_type_timeout(TYPE, TIMEOUT)
                await jobs.add_many(TYPE, (NewJob(f"job-{number}") for number in range(total)))

                async def worker() -> None:
                    while taken := await jobs.accept_many(TYPE, 100, timeout=0):
                        await _together(job.finish() for job in taken)

                seconds = await _timed(lambda: _together(worker() for _ in range(4)))
        return [
            Figure("accept_many_finish", total / seconds, "/s", 16_000, True, "accept_many of 100, a finish each, jobs")
        ]

    async def add_single(self) -> list[Figure]:
        """One `add` after the other."""
        took: list[float] = []
        with self.service() as service:
            async with service as jobs:
                await jobs.set_type_timeout(TYPE, TIMEOUT)
                for number in range(self.count(2000)):
                    began = time.perf_counter()
                    await jobs.add(TYPE, f"job-{number}", {"n": number})
                    took.append(1000 * (time.perf_counter() - began))
        took.sort()
        return [
            Figure("add_median_ms", statistics.median(took), "ms", 0.5, False, "single add, median"),
            Figure("add_p99_ms", took[int(len(took) * 0.99)], "ms", 2.0, False, "single add, 99th percentile"),
        ]

    async def finish_to_event(self) -> list[Figure]:
        """From `finish` to the event at a subscriber of the same process, without holdoff."""
        took: list[float] = []
        with self.service(notify_holdoff=0) as service:
            async with service as jobs:
                await jobs.set_type_timeout(TYPE, TIMEOUT)
                for number in range(self.count(300)):
                    await jobs.add(TYPE, f"job-{number}")
                    running = await jobs.accept(TYPE)
                    assert running is not None
                    async with jobs.subscribe(TYPE, running.id) as events:
                        await anext(events)
                        began = time.perf_counter()
                        await running.finish()
                        await anext(events)
                        took.append(1000 * (time.perf_counter() - began))
        return [Figure("finish_to_event_ms", statistics.median(took), "ms", 2.0, False, "finish to event, median")]

    async def subscriptions(self) -> list[Figure]:
        """10,000 subscriptions to 10,000 jobs, all finished."""
        total = self.count(10_000)
        with self.service() as service:
            async with service as jobs:
                await jobs.set_type_timeout(TYPE, TIMEOUT)
                await jobs.add_many(TYPE, (NewJob(f"job-{number}") for number in range(total)))

                async def subscriber(number: int) -> None:
                    states = []
                    async for event in jobs.subscribe(TYPE, f"job-{number}"):
                        states.append(event.state)
                        begun.discard(number)
                        if not begun:
                            all_begun.set()
                    assert states[-1] == "finished"

                begun = set(range(total))
                all_begun = asyncio.Event()
                async with asyncio.TaskGroup() as group:
                    for number in range(total):
                        group.create_task(subscriber(number))
                    await all_begun.wait()
                    began = time.perf_counter()
                    await _work(jobs, 200)
                seconds = time.perf_counter() - began
        return [
            Figure(
                "subscriptions_10k_s", seconds, "s", 3.0, False, "10,000 subscriptions, all jobs run: last event told"
            )
        ]

    async def pending_growth(self) -> list[Figure]:
        """Rate of accept and finish with 1,000,000 pending jobs, against that with 1,000."""
        sample = self.count(5000)
        rates: list[float] = []
        for pending in (1000, self.count(1_000_000)):
            await self._fresh()
            with self.service() as service:
                async with service as jobs:
                    await jobs.set_type_timeout(TYPE, TIMEOUT)
                    await jobs.add_many(TYPE, (NewJob(f"job-{number}") for number in range(pending + sample)))
                    seconds = await _timed(lambda jobs=jobs: _work(jobs, 200, sample))  # type: ignore[misc]
            rates.append(sample / seconds)
        return [
            Figure("pending_growth", rates[1] / rates[0], "", 0.7, True, "accept + finish, 1,000,000 pending / 1,000")
        ]

    async def many_types(self) -> list[Figure]:
        """A tree with 1,000 types: how long it takes to start and to stop, and what it costs when nothing happens."""
        total = self.count(1000)
        with self._address() as address:
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
        with self._address() as address:
            async with JobsService(address) as jobs:
                made = await _timed(lambda: _make_types(jobs, total))
            before = _memory()
            service = JobsService(address)
            opened = await _timed(service.__aenter__)
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
        with self._address() as address:
            async with JobsService(address, supervise=False) as jobs:
                await jobs.set_type_timeout(TYPE, timeout)
                await jobs.set_retention(TYPE, keep=0)
                for first in range(0, many, 1000):
                    await jobs.add_many(TYPE, (NewJob(f"expired-{first + n}") for n in range(1000)))
                    await _together(job.finish() for job in await jobs.accept_many(TYPE, 1000))
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

    async def other_process(self) -> list[Figure]:
        """From an `add` and a `finish` here to a worker and a subscriber in another process."""
        accepts: list[float] = []
        events: list[float] = []
        with self._address() as address:
            async with JobsService(address) as jobs:
                await jobs.set_type_timeout(TYPE, TIMEOUT)
                await jobs.set_type_timeout("watched", TIMEOUT)
                other = await asyncio.create_subprocess_exec(
                    sys.executable, __file__, "--other", address, stdin=subprocess.PIPE, stdout=subprocess.PIPE
                )
                assert other.stdin is not None
                assert other.stdout is not None
                for number in range(self.count(100)):
                    id = f"job-{number}"
                    await jobs.add("watched", id)
                    running = await jobs.accept("watched")
                    assert running is not None
                    other.stdin.write(f"{id}\n".encode())
                    assert await other.stdout.readline() == b"ready\n"
                    # Beyond the holdoff of what came before, as a lonely event is.
                    await asyncio.sleep(0.1)
                    began = time.monotonic()
                    await jobs.add(TYPE, id)
                    accepts.append(1000 * (float(await other.stdout.readline()) - began))
                    began = time.monotonic()
                    await running.finish()
                    events.append(1000 * (float(await other.stdout.readline()) - began))
                other.stdin.close()
                await other.wait()
        return [
            Figure("accept_other_process_ms", statistics.median(accepts), "ms", 20, False, "add to accept elsewhere"),
            Figure("event_other_process_ms", statistics.median(events), "ms", 80, False, "finish to event elsewhere"),
        ]

    async def runner(self) -> list[Figure]:
        """Handlers that do nothing, in 500 slots of one process."""
        total = self.count(60_000)
        with self.service() as service:
            async with service as jobs:
                await jobs.set_type_timeout(TYPE, TIMEOUT)
                await jobs.add_many(TYPE, (NewJob(f"job-{number}") for number in range(total)))
                ran = Ran(jobs, {TYPE: 500})
                seconds = await _timed(lambda: ran.run(total))
                assert await jobs.pending_count(TYPE, limit=1) == 0
                assert await jobs.active_ids(TYPE) == []
        return [Figure("runner", total / seconds, "/s", 20_000, True, "runner: no-op handlers, 500 slots, jobs")]

    async def runner_two_processes(self) -> list[Figure]:
        """The same with two processes on one store: the sum of what both have done at the same time."""
        seconds = 4 * min(self._scale, 1)
        total = self.count(240_000)
        with self._address() as address:
            async with JobsService(address, supervise=False) as jobs:
                await jobs.set_type_timeout(TYPE, TIMEOUT)
                await jobs.add_many(TYPE, (NewJob(f"job-{number}") for number in range(total)))
            command = [sys.executable, __file__, "--runner", address, *(["--default-gc"] if _gc_is_default() else [])]
            pipe = subprocess.PIPE
            both = [await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe) for _ in range(2)]
            for process in both:
                assert process.stdout is not None
                assert await process.stdout.readline() == b"ready\n"
            said = await asyncio.gather(*(process.communicate(f"{seconds}\n".encode()) for process in both))
            rates = [float(out) for out, _ in said]
        what = "runner: the same, the sum of two processes on one store"
        return [Figure("runner_two_processes", sum(rates), "/s", 20_000, True, what)]

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
                await ran.run_for(4 * min(self._scale, 1))
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


async def _run_no_ops(address: str) -> None:
    """One of two processes: says how many jobs per second it has run."""
    async with JobsService(address) as jobs:
        ran = Ran(jobs, {TYPE: 500})
        print("ready", flush=True)
        await ran.run_for(float(await asyncio.to_thread(sys.stdin.readline)))
        print(ran.rate(TYPE), flush=True)


def _gc_is_default() -> bool:
    return gc.get_threshold() != GC_THRESHOLDS


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


async def _other(address: str) -> None:
    """The other process: tells when a job arrives and when an event does."""
    async with JobsService(address) as jobs:
        while id := (await asyncio.to_thread(sys.stdin.readline)).strip():
            async with jobs.subscribe("watched", id) as events:
                await anext(events)
                accept = asyncio.create_task(jobs.accept(TYPE))
                await asyncio.sleep(0)
                print("ready", flush=True)
                job = await accept
                print(time.monotonic(), flush=True)
                assert job is not None
                async for event in events:
                    if event.state == "finished":
                        print(time.monotonic(), flush=True)
                await job.finish()


async def _timed(work: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


async def _together(works: Iterator[Awaitable[object]]) -> None:
    await asyncio.gather(*works)


async def _contend(address: str, workers: int, spread: str) -> tuple[float, int]:
    """Return the seconds that workers need for all jobs, and how many of their commits conflicted."""
    count = min(workers, 4)
    command = [sys.executable, __file__, "--contender", address, spread, str(workers // count)]
    pipe = subprocess.PIPE
    processes = [await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe) for _ in range(count)]
    for process in processes:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
    began = time.perf_counter()
    said = await asyncio.gather(*(process.communicate(b"\n") for process in processes))
    return time.perf_counter() - began, sum(int(out) for out, _ in said)


async def _contender(address: str, spread: str, workers: int) -> None:
    """One of the processes: as many services, with a worker each."""
    async with contextlib.AsyncExitStack() as stack:
        services = [await stack.enter_async_context(JobsService(address, supervise=False)) for _ in range(workers)]
        await _together(jobs.get_type_timeout(TYPE) for jobs in services)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        wanted: int | Literal["adaptive"] = "adaptive" if spread == "adaptive" else int(spread)
        await _together(_work_stubbornly(jobs, wanted) for jobs in services)
        print(sum(getattr(jobs.store, "conflicts", 0) for jobs in services), flush=True)


async def _work_stubbornly(jobs: JobsService, spread: int | Literal["adaptive"]) -> None:
    """Accept and finish jobs until there are none, whoever gets in the way."""
    while True:
        with contextlib.suppress(StoreUnavailable, WorkerConflict):
            return await _work(jobs, 1, spread=spread)


async def _work(
    jobs: JobsService, workers: int, most: int | None = None, spread: int | Literal["adaptive"] = 1
) -> None:
    """Accept and finish jobs until there are none, or `most` are done."""
    left = most

    async def worker() -> None:
        nonlocal left
        while left is None or left > 0:
            if left is not None:
                left -= 1
            job = await jobs.accept(TYPE, timeout=0, spread=spread)
            if job is None:
                return
            await job.finish()

    await _together(worker() for _ in range(workers))


def _measure(names: list[str], store: str | None, scale: float) -> Iterator[Figure]:
    bench = Bench(store, scale)
    for name in names:
        yield from asyncio.run(bench.measure(name))


def _measure_there(checkout: Path, names: list[str], arguments: argparse.Namespace) -> list[Figure]:
    """Measure another checkout of the repository with this very program."""
    command = [sys.executable, __file__, "--json", "--scale", str(arguments.scale), *names]
    if arguments.default_gc:
        command.append("--default-gc")
    if arguments.store:
        command += ["--store", arguments.store]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    done = subprocess.run(command, env=environment, cwd=checkout, capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return [Figure(line["name"], line["value"], line["unit"], 0, True, "") for line in lines]


MEASUREMENTS = [
    "add_concurrent",
    "add_many",
    "accept_finish",
    "accept_many_finish",
    "contention",
    "add_single",
    "finish_to_event",
    "subscriptions",
    "pending_growth",
    "many_types",
    "idle_types",
    "lost_jobs",
    "other_process",
    "runner",
    "runner_two_processes",
    "runner_types",
    "runner_idle",
]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("measurements", nargs="*", help=f"of {', '.join(MEASUREMENTS)}; all when none is named")
    parser.add_argument("--json", action="store_true", help="one line per figure: name, value, unit")
    parser.add_argument("--store", help="a store address; an embedded store in a temporary directory by default")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the number of jobs")
    parser.add_argument("--against", type=Path, metavar="DIR", help="another checkout to measure in turn")
    parser.add_argument(
        "--default-gc",
        action="store_true",
        help="leave Python's garbage collector as it is, unlike `jobs-service serve`",
    )
    parser.add_argument("--other", metavar="ADDRESS", help=argparse.SUPPRESS)
    parser.add_argument("--runner", metavar="ADDRESS", help=argparse.SUPPRESS)
    parser.add_argument("--contender", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.other:
        asyncio.run(_other(arguments.other))
        return
    unknown = [name for name in arguments.measurements if name not in MEASUREMENTS]
    if unknown:
        parser.error(f"no measurement {unknown[0]!r}; there are {', '.join(MEASUREMENTS)}")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    if not arguments.default_gc:
        gc.set_threshold(*GC_THRESHOLDS)
    if arguments.runner:
        asyncio.run(_run_no_ops(arguments.runner))
        return
    if arguments.contender:
        address, spread, workers = arguments.contender
        asyncio.run(_contender(address, spread, int(workers)))
        return
    on_a_cluster = str(arguments.store).startswith("fdb:")
    names = arguments.measurements or [name for name in MEASUREMENTS if name != "contention" or on_a_cluster]
    if not arguments.json:
        print(f"{'figure':22} {'value':>12}     {'goal':>10}   what")
    for name in names:
        there = _measure_there(arguments.against, [name], arguments) if arguments.against else []
        for position, figure in enumerate(_measure([name], arguments.store, arguments.scale)):
            if arguments.json:
                print(json.dumps({"name": figure.name, "value": figure.value, "unit": figure.unit}), flush=True)
                continue
            sign = ">=" if figure.higher else "<="
            ratio = f"   this/other {figure.value / there[position].value:.2f}" if there else ""
            print(
                f"{figure.name:22} {figure.value:>12,.2f} {figure.unit:2} {sign} {figure.goal:>8,g}   "
                f"{'met   ' if figure.met else 'MISSED'} {figure.what}{ratio}",
                flush=True,
            )


if __name__ == "__main__":
    main()
