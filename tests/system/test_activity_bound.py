"""The activity monitor's bound in virtual time: no job is taken for lost before its timeout, every one soon after.

A waiting worker tells when a job was re-enqueued: on the memory store, in virtual time, it has it at that very moment.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from jobs_service import JobsService, NewJob, RunningJob, Settings, WorkerConflict
from jobs_service.sources import Sources
from jobs_service.store.memory import MemoryStore
from tests.checker import assert_sound
from tests.virtual_time import EPOCH, VirtualTimeLoop, run_virtual

TIMEOUTS = [0.5, 0.51, 0.75, 1.0, 1.3, 2.0, 3.3, 5.0, 7.7, 10.0, 17.0, 30.0, 61.8, 120.0, 300.0, 600.0]
SLACK = 1.0
"""Seconds that the bound allows beyond 1.5 timeouts."""


def now() -> float:
    """Return the virtual time."""
    return asyncio.get_running_loop().time()


def wall_time() -> float:
    """Return the wall-clock time of the virtual loop, seconds since the epoch."""
    return EPOCH + now()


@asynccontextmanager
async def services(seed: int, count: int, **settings: Any) -> AsyncIterator[list[JobsService]]:
    """Open services with a tree each on one memory store, as processes would be."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    store = MemoryStore(settings=Settings(), sources=Sources(seed))
    await store.open()
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                JobsService(
                    store, settings=Settings(**settings), sources=Sources(f"{seed} {n}", wall_time=loop.wall_time)
                )
            )
            for n in range(count)
        ]
    await store.close()


def twin(choose: random.Random) -> random.Random:
    """Return another source of choices."""
    return random.Random(choose.random())


@dataclass
class Measure:
    """What silence is measured with: a timeout, and since when.

    Attributes:
        timeout: in seconds.
        since: when it was set, before and after the call.
        noticed_within: seconds that a service may take to notice that another one has set it.
        missed: whether a service may have missed it, if it was the same before the change before.
    """

    timeout: float
    since: tuple[float, float] = (0.0, 0.0)
    noticed_within: float = 0.0
    missed: bool = False

    def complaint(self, last: tuple[float, float]) -> str | None:
        """Say what is wrong when a job that was last active at a time (before and after the call) was lost just now."""
        silent = now() - (last[0] if self.missed else max(last[0], self.since[0]))
        if silent < self.timeout:
            return f"lost after {silent} s already; its timeout is {self.timeout} s"
        silent = now() - max(last[1], self.since[1] + self.noticed_within)
        if silent >= 1.5 * self.timeout + SLACK:
            return f"lost after {silent} s only; its timeout is {self.timeout} s"
        return None


@dataclass
class Watched:
    """One type, whose jobs are run by workers that fall silent, and what is known of them.

    Attributes:
        measure: the present one.
        former: the one before.
        times: how often each job is to be lost.
        shared: whether another service watches over it as well.
        last: when a job was last active, before and after the call.
        losses: how often each job was lost.
    """

    jobs: JobsService
    type: Any
    measure: Measure
    times: int
    choose: random.Random
    shared: bool = False
    former: Measure | None = None
    last: dict[Any, tuple[float, float]] = field(default_factory=dict)
    losses: dict[Any, int] = field(default_factory=lambda: defaultdict(int))
    conflicts: int = 0
    ended: bool = False

    async def run(self, count: int) -> None:
        """Run jobs until each was lost so many times as it should be."""
        await self.jobs.set_type_timeout(self.type, self.measure.timeout)
        await self.jobs.add_many(self.type, [NewJob(f"{number}") for number in range(count)])
        left = count
        async with asyncio.TaskGroup() as group:
            while left:
                job = await self.jobs.accept(self.type)
                assert job is not None
                if job.id in self.last:
                    self._check(job)
                    self.losses[job.id] += 1
                if self.losses[job.id] == self.times:
                    await job.finish()
                    left -= 1
                else:
                    self.last[job.id] = (now(), now())
                    group.create_task(self._work(job))
        self.ended = True
        # No more samples: those of short timeouts are most of this test's work.
        await self.jobs.clear_type_timeout(self.type)

    async def change(self, by: JobsService, timeout: float, noticed_within: float) -> None:
        """Set the type's timeout; the measurement starts anew if it is another one."""
        if timeout == self.measure.timeout:
            await by.set_type_timeout(self.type, timeout)
            return
        self.former, self.measure = self.measure, Measure(timeout, (now(), now()), noticed_within, self.shared)
        await by.set_type_timeout(self.type, timeout)
        self.measure.since = (self.measure.since[0], now())

    async def _work(self, job: RunningJob) -> None:
        """Be active for a while, with ever so long pauses as are allowed, and then fall silent."""
        for _ in range(self.choose.choice([0, 0, 1, 2, 4])):
            await asyncio.sleep(self.choose.uniform(0.05, 0.97) * self.measure.timeout)
            before = now()
            try:
                await job.update()
            except WorkerConflict:
                self.conflicts += 1
                return
            self.last[job.id] = (before, now())

    def _check(self, job: RunningJob) -> None:
        """Check when a job that was silent came back."""
        complaint = self.measure.complaint(self.last[job.id])
        if complaint and self.former and now() - self.measure.since[0] < 0.1:
            # It was re-enqueued just before the change.
            complaint = self.former.complaint(self.last[job.id])
        assert complaint is None, f"{job!r} was {complaint}; {self}"


def test_no_job_is_lost_before_its_timeout_and_every_one_within_one_and_a_half() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")

    async def scenario() -> int:
        choose = random.Random(seed)
        async with services(seed, 2) as [jobs, *_]:
            types = [
                Watched(jobs, f"{timeout}", Measure(timeout), 1 if timeout > 60 else 5, twin(choose))
                for timeout in TIMEOUTS
            ]
            async with asyncio.TaskGroup() as group:
                for watched in types:
                    group.create_task(watched.run(10))
            await assert_sound(jobs.store)
            assert sum(watched.conflicts for watched in types) == 0
            return sum(sum(watched.losses.values()) for watched in types)

    lost = run_virtual(scenario())
    print(f"{lost} jobs lost")
    assert lost > 500


@pytest.mark.parametrize("who", ["its own service", "any"])
def test_a_changed_timeout_starts_the_measurement_anew(who: str) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    period, jitter = 3.0, 1.0

    async def changing(watched: Watched, others: list[JobsService], choose: random.Random) -> None:
        while not watched.ended:
            await asyncio.sleep(choose.uniform(0.5, 4) * watched.measure.timeout)
            by = watched.jobs if who == "its own service" else choose.choice(others)
            timeout = choose.choice([0.5, 0.8, 1, 3, 10, 30, 60, watched.measure.timeout])
            if not watched.ended:
                await watched.change(by, timeout, 0 if by is watched.jobs else period + jitter)

    async def scenario() -> int:
        choose = random.Random(seed)
        # Alone, a service notices every change; several may miss that a timeout was changed and changed back.
        count = 1 if who == "its own service" else 2
        opened = services(seed, count, type_check_period=period)
        async with opened as [jobs, *rest], JobsService(jobs.store, supervise=False) as bare:
            others = [jobs, *rest, bare]
            types = [
                Watched(jobs, n, Measure(choose.choice([0.5, 2, 20])), 6, twin(choose), count > 1) for n in range(20)
            ]
            async with asyncio.TaskGroup() as group:
                for watched in types:
                    group.create_task(watched.run(6))
                    group.create_task(changing(watched, others, twin(choose)))
            await assert_sound(jobs.store)
            return sum(sum(watched.losses.values()) for watched in types)

    assert run_virtual(scenario()) == 20 * 6 * 6
