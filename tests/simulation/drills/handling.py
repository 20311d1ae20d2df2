"""What drills of handlers need: a service that runs them for a while, and what its log says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from jobs_service import JobsService, JobType
from tests.simulation.checks import held_after
from tests.simulation.drills.drill import Drill, all_ended


class LogBook:
    """All that services log from some moment on, as warnings at least; whoever was told before is told still.

    Args:
        before: what was told before.
    """

    def __init__(self, before: Callable[[str, Mapping[str, Any]], object]) -> None:
        self.events: list[tuple[str, Mapping[str, Any]]] = []
        self._before = before

    def __call__(self, event: str, fields: Mapping[str, Any]) -> None:
        self.events.append((event, fields))
        self._before(event, fields)

    def of(self, type: JobType, *names: str) -> list[tuple[str, Mapping[str, Any]]]:
        """Return what was said of a type, of these names."""
        return [(event, fields) for event, fields in self.events if fields.get("type") == type and event in names]


def log_of(drill: Drill) -> LogBook:
    """Return what is logged in a run from the first such call on."""
    world = drill.run.world
    if not isinstance(world.on_log, LogBook):
        world.on_log = LogBook(world.on_log)
    return world.on_log


@asynccontextmanager
async def running(
    drill: Drill, service: JobsService, longest: float, **options: Any
) -> AsyncIterator[asyncio.Task[None]]:
    """Run the handlers of an open service until left; then it ends soon, and holds nothing.

    Args:
        drill: that it is part of.
        service: whose handlers run.
        longest: seconds that it may take to end, by the graces of its handlers.
        options: of `run`.
    """
    begun: list[object] = []
    started = asyncio.Event()

    def start() -> None:
        begun.append(None)
        started.set()

    work = asyncio.create_task(service.run(started=start, **options), name=f"{drill.type} runs")
    waiting = asyncio.create_task(started.wait())
    try:
        await asyncio.wait([work, waiting], return_when="FIRST_COMPLETED")
        waiting.cancel()
        if work.done():
            drill.complain(f"handlers were to run, and have ended: {work!r}")
        yield work
    finally:
        waiting.cancel()
        asked = not work.done()
        work.cancel()
        if await all_ended([work], drill.moment + longest):
            drill.complain(f"handlers were to end within {longest} s, and go on")
        elif asked and not work.cancelled():
            drill.complain(f"handlers were canceled, and have ended as {work!r}")
        if len(begun) != 1:
            drill.complain(f"it was said {len(begun)} times that handlers have started")
        if service.slot_uses() or service._registry.runner is not None:
            drill.complain(f"handlers have ended, and use {service.slot_uses()}")


@asynccontextmanager
async def opened(drill: Drill, service: JobsService) -> AsyncIterator[JobsService]:
    """Have a service be open until left; then it holds nothing."""
    async with service:
        yield service
    for what in held_after(service):
        drill.complain(f"a service was left, and holds {what}")
