"""Actors that write down what happens to them, and shorthands for the trees that the tests build from them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from jobs_service.supervision import Actor, ChildSpec, Strategy, SupervisedProcess, Supervisor


class Crash(Exception):
    """The exception with which probes die on request."""


class Trace:
    """What happened to the probes, in order.

    Attributes:
        events: "start NAME" when it has initialized, "fail NAME" when that failed; when it begins to clean up "stop
            NAME" if its supervisor stops it, "return NAME" if it asked itself, "crash NAME" for any other reason; "end
            NAME" when it has cleaned up.
        failing_starts: how many of the next starts of a name fail.
        failing_ends: how many of the next clean-ups of a name fail.
    """

    def __init__(self) -> None:
        self.events: list[str] = []
        self.failing_starts: Counter[str] = Counter()
        self.failing_ends: Counter[str] = Counter()

    def take(self) -> list[str]:
        """Return the events since the last time."""
        events, self.events = self.events, []
        return events

    def starts_and_stops(self) -> list[str]:
        """As `take`, without the ends."""
        return [event for event in self.take() if not event.startswith("end")]


class Probe(Actor):
    """An actor that traces its life, and dies when told to.

    Messages: "crash" raises Crash, "return" ends it well.
    """

    def __init__(self, name: str, trace: Trace, *, pause: float = 0.0) -> None:
        super().__init__(name)
        self.trace = trace
        self.pause = pause
        self.returned = False

    async def init(self) -> None:
        await asyncio.sleep(self.pause)
        if self.trace.failing_starts[self.name] > 0:
            self.trace.failing_starts[self.name] -= 1
            self.trace.events.append(f"fail {self.name}")
            raise Crash(f"{self.name} does not start")
        self.trace.events.append(f"start {self.name}")

    async def handle(self, message: Any) -> None:
        if message == "crash":
            raise Crash(self.name)
        if message == "return":
            self.returned = True
            self.request_stop()

    async def terminate(self) -> None:
        why = "return" if self.returned else "stop" if self._stop_requested else "crash"
        self.trace.events.append(f"{why} {self.name}")
        await asyncio.sleep(self.pause)
        self.trace.events.append(f"end {self.name}")
        if self.trace.failing_ends[self.name] > 0:
            self.trace.failing_ends[self.name] -= 1
            raise Crash(f"{self.name} does not clean up")


def probe(name: str, trace: Trace, *, pause: float = 0.0) -> ChildSpec[Probe]:
    """Return the spec of a probe."""
    return ChildSpec(name, lambda: Probe(name, trace, pause=pause))


def of_probes(
    trace: Trace,
    names: str = "abc",
    *,
    strategy: Strategy = Strategy.ONE_FOR_ONE,
    name: str = "top",
    max_restarts: int = 3,
    restart_period: float = 10.0,
) -> Supervisor:
    """Return a supervisor of probes, one per letter of `names`."""
    specs = [probe(letter, trace) for letter in names]
    return Supervisor(name, specs, strategy=strategy, max_restarts=max_restarts, restart_period=restart_period)


@asynccontextmanager
async def running(process: SupervisedProcess) -> AsyncIterator[None]:
    """Run a process for the length of a block."""
    await process.start()
    try:
        yield
    finally:
        await process.stop()


async def settled() -> None:
    """Return when nothing is left to do at this moment of virtual time."""
    await asyncio.sleep(1e-6)


def tell(process: SupervisedProcess | None, message: Any) -> None:
    """Cast a message to an actor, for processes whose kind the type checker cannot know."""
    assert isinstance(process, Actor)
    process.cast(message)
