"""A world with a clock, a handler of every minute, and a record of its runs, for the tests of tickers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from jobs_service import JobsService, Settings
from jobs_service.runner.ticker import tick_id
from jobs_service.testing import World
from jobs_service.testing.world import EPOCH, Process
from tests.checker import check_store

MINUTE = 60.0
START = EPOCH
"""1,700,000,000 is 20 s into a minute: the first tick of a whole minute comes 40 s later."""
FIRST = 40.0
SETTINGS = Settings(type_check_period=3600.0, activity_samples=4)
Register = Callable[[JobsService], object]


class RunRecord:
    """What the jobs of one world did.

    Attributes:
        ran: ids in the order in which they ran, with the world's time.
    """

    def __init__(self) -> None:
        self.ran: list[tuple[str, float]] = []

    @property
    def ids(self) -> list[str]:
        """The ids, in order."""
        return sorted(id for id, _ in self.ran)

    def note(self, job: Any) -> None:
        """Note that a job runs now."""
        self.ran.append((str(job.id), asyncio.get_running_loop().time()))


def every_minute(seen: RunRecord, **options: Any) -> Register:
    """Return what registers a handler that ticks every minute, and notes its runs."""

    def register(jobs: JobsService) -> object:
        @jobs.every("1m", type="minute", **options)
        async def minute(job: Any) -> None:
            seen.note(job)

        return minute

    return register


def serving(*registers: Register) -> Callable[[Process], Awaitable[None]]:
    """Return the program of a process that runs these handlers."""

    async def serve(process: Process) -> None:
        jobs = process.service()
        for register in registers:
            register(jobs)
        async with jobs:
            await jobs.run()

    return serve


def ticks(count: int, first: float = FIRST, period: float = MINUTE) -> list[str]:
    """Return the ids of so many ticks of a period, the first of them so many seconds after the start."""
    return [str(tick_id(START + first + number * period)) for number in range(count)]


def in_a_world(main: Callable[[World], Any], *, seed: int = 1, **how: Any) -> Any:
    """Run in a world of its own; nothing may fail or go unhandled, and the store must be sound."""
    world = World(seed, settings=SETTINGS, **how)

    async def checked(world: World) -> Any:
        result = await main(world)
        failures = [process.failure for process in world._processes if process.failure]
        assert failures == [], list(world.events)[-20:]
        ahead = max((process.clock.ahead for process in world._processes), default=0.0)
        now = START + world.loop.time() + max(ahead, 0.0)
        async with Observer(world) as observer:
            assert await check_store(observer.store, now=now) == []
        return result

    result = world.run(checked)
    assert world.unhandled == []
    return result


class Observer:
    """A service of the test's own in a world, beside the processes."""

    def __init__(self, world: World) -> None:
        self._ready = asyncio.get_running_loop().create_future()
        self._over = asyncio.Event()
        self._process = world.start("observer", self._observe)

    async def _observe(self, process: Process) -> None:
        async with process.service(supervise=False) as jobs:
            self._ready.set_result(jobs)
            await self._over.wait()

    async def __aenter__(self) -> JobsService:
        jobs: JobsService = await self._ready
        return jobs

    async def __aexit__(self, *_: object) -> None:
        self._over.set()
        await self._process.ended()


class Noting:
    """A handler that notes its runs."""

    def __init__(self, seen: RunRecord) -> None:
        self._seen = seen

    async def __call__(self, job: Any) -> None:
        self._seen.note(job)
