"""Parts of small trees of actors, and what is known of what they have done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Final

from jobs_service.supervision import Actor, ChildSpec, Down, Process, Restart, run_tree
from tests.simulation.drills.drill import Drill

SLOW: Final = 0.2
"""Seconds that a part takes to begin or to end, if it is a slow one."""
SETTLED: Final = 3.0
"""Seconds after which some parts have ended and have begun again."""


class Broken(Exception):
    """What parts end with."""


class Part(Actor):
    """One actor, which notes when it begins and ends.

    Args:
        log: where it does.
        random: draws how slow it is.
        name: its own.
        fails: how many of its starts fail from now on, by name.
    """

    def __init__(self, log: list[str], random: Random, name: str, fails: dict[str, int]) -> None:
        super().__init__(name)
        self._log = log
        self._fails = fails
        self._slow = random.choice([0.0, 0.0, SLOW])
        self.heard: list[Any] = []

    async def init(self) -> None:
        await asyncio.sleep(self._slow)
        if self._fails.get(self.name):
            self._fails[self.name] -= 1
            self._log.append(f"{self.name} fails")
            raise Broken
        self._log.append(f"{self.name} begins")

    async def terminate(self) -> None:
        await asyncio.sleep(self._slow)
        self._log.append(f"{self.name} ends")

    async def handle(self, message: Any) -> Any:
        if message == "break":
            raise Broken
        if message == "break beside":
            self.spawn_link(fail(), "beside")
        elif message == "stop":
            self.request_stop()
        elif isinstance(message, Down):
            self.heard.append((message.process, message.cause))
        elif isinstance(message, int):
            self._log.append(f"{self.name} {message}")
        elif callable(message):
            return await message(self)
        return message

    async def run(self) -> None:
        while True:
            message = await self.receive()
            if message is not None:
                if message.body == "leave":
                    return
                message.reply(await self.handle(message.body))


class Tree:
    """What is there of a tree.

    Args:
        drill: that it is part of.

    Attributes:
        name: of its root.
        log: what its parts have done, in order.
        fails: how many starts fail from now on, by name.
    """

    def __init__(self, drill: Drill) -> None:
        self.drill = drill
        self.random = drill.random
        self.name = f"{drill.type} tree"
        self.log: list[str] = []
        self.fails: dict[str, int] = {}

    def spec(self, name: str, restart: Restart = Restart.PERMANENT) -> ChildSpec[Part]:
        """Return how a part is started."""
        return ChildSpec(name, lambda: Part(self.log, self.random, name, self.fails), restart)

    def complain(self, what: str) -> None:
        """Say what is wrong."""
        self.drill.complain(f"parts: {what}")

    def compare(self, what: str, wanted: list[str]) -> bool:
        """Complain if the parts have done something else, or in another order, since this was asked last."""
        done, self.log[:] = [*self.log], []
        if done != wanted:
            self.complain(f"{what}: {done} has happened, not {wanted}")
        return done == wanted

    async def within(self, supervisor: Process, work: Callable[[], Awaitable[None]]) -> BaseException | None:
        """Run a tree while something is done to it; return with what it has failed, if it has."""
        started = asyncio.Event()
        tree = asyncio.create_task(run_tree(supervisor, started=started.set), name=f"{self.drill.type} tree")
        try:
            await asyncio.sleep(SETTLED)
            if not started.is_set():
                self.complain("a tree has not started")
            await work()
        finally:
            tree.cancel()
            await asyncio.wait([tree])
        return None if tree.cancelled() else tree.exception()


async def refused(tree: Tree, work: Awaitable[object], error: type[BaseException], what: str) -> None:
    """Complain if something is not refused."""
    try:
        await work
    except error:
        return
    tree.complain(what)


async def fail() -> None:
    """End whoever is linked to this."""
    raise Broken
