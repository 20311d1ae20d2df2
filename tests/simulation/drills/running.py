"""A service that runs handlers: those that it was asked to, and no more of their jobs at a time than it was told."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import Final

from jobs_service import JobsService, JobType, RunningJob, ServiceClosed
from tests.simulation.drills.drill import Drill, all_ended

_PERIOD: Final = 1.5
"""Seconds between two jobs that come by themselves."""

_TAKES: Final = 0.7
"""Seconds that a handler takes."""


class _Runs:
    """What handlers do.

    Args:
        drill: that they are part of.
        service: whose handlers they are.

    Attributes:
        slots: of each handler, by type.
        ticking: those whose jobs come by themselves.
        busy: how many jobs each runs just now; most: how many at the same time at most, all together.
        begun: how many each has begun.
    """

    def __init__(self, drill: Drill, service: JobsService) -> None:
        self.slots: dict[JobType, int] = {}
        self.ticking: list[JobType] = []
        self.busy: Counter[JobType] = Counter()
        self.begun: Counter[JobType] = Counter()
        self.most = 0
        self._drill = drill
        for letter in "ab"[: drill.random.randint(1, 2)]:
            slots = drill.random.randint(1, 3)
            self._register(
                service.handler((drill.type, letter), slots=slots, timeout=60.0), (drill.type, letter), slots
            )
        for letter in "cd"[: drill.random.randint(1, 2)]:
            self.ticking.append((drill.type, letter))
            self._register(service.every(_PERIOD, type=(drill.type, letter), timeout=60.0), (drill.type, letter), 1)

    def _register(self, make: object, type: JobType, slots: int) -> None:
        async def run(job: RunningJob, *, call: int = 0) -> None:
            await self._run(type)

        make(run)  # type: ignore[operator]
        self.slots[type] = slots

    async def _run(self, type: JobType) -> None:
        self.busy[type] += 1
        self.begun[type] += 1
        self.most = max(self.most, self.busy.total())
        if self.busy[type] > self.slots[type]:
            self._drill.complain(f"{self.busy[type]} jobs of {type!r} run, which has {self.slots[type]} slots")
        try:
            await asyncio.sleep(_TAKES)
        finally:
            self.busy[type] -= 1


async def run_some_handlers(drill: Drill) -> None:
    """Run the handlers of some types or of all, so many at a time, with a service that is open or not."""
    random, service = drill.random, drill.client.process.service()
    runs = _Runs(drill, service)
    every = [*runs.slots]
    wanted = None if random.random() < 0.25 else random.sample(every, random.randint(1, len(every) - 1))
    cap = random.choice([None, 1, 1, 2])
    started = asyncio.Event()
    is_open = random.random() < 0.4
    async with contextlib.AsyncExitStack() as stack:
        if is_open:
            await stack.enter_async_context(service)
        work = service.run(types=wanted, max_jobs=cap, started=started.set)
        running = asyncio.create_task(work, name=f"{drill.type} runs")
        try:
            await _look(drill, runs, running, started, wanted or every, cap)
        finally:
            await all_ended([running], 0)
        if not is_open:
            with contextlib.suppress(ServiceClosed):
                await service.types()
                drill.complain("the service has opened itself to run handlers, and is open still")
    await drill.settle()
    if runs.busy.total():
        drill.complain(f"{runs.busy} run, and nobody runs handlers any more")


async def _look(
    drill: Drill,
    runs: _Runs,
    running: asyncio.Task[None],
    started: asyncio.Event,
    wanted: list[JobType],
    cap: int | None,
) -> None:
    """Add jobs, and look what becomes of them, and what comes by itself."""
    await asyncio.wait([running, beginning := asyncio.create_task(started.wait())], return_when="FIRST_COMPLETED")
    beginning.cancel()
    if running.done():
        drill.complain(f"handlers of {wanted} were to run, and have ended: {running!r}")
        return
    plain = [type for type in runs.slots if type not in runs.ticking]
    for type in plain:
        if type not in wanted:
            await drill.make_type(type=type)
        await drill.client.add_many(type, ["1", "2", "3"])
    await asyncio.sleep(drill.moment + 2 * _PERIOD)
    if running.done():
        drill.complain(f"handlers were to run, and have ended: {running!r}")
    for type in runs.slots:
        come = drill.all(type)
        if type not in wanted and (runs.begun[type] or (type in runs.ticking and come)):
            drill.complain(f"{type!r} does not run here, and has {come}; {runs.begun[type]} were begun")
        if type in wanted and type in runs.ticking and not come:
            drill.complain(f"{type!r} was to tick, and has no job")
    slots = sum(runs.slots[type] for type in wanted)
    if runs.most > min(slots, slots if cap is None else cap):
        drill.complain(f"{runs.most} jobs ran at a time, with {slots} slots and at most {cap}")
    if not any(runs.begun[type] for type in wanted) and plain:
        drill.complain(f"no job of {wanted} was begun")
