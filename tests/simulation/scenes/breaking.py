"""Scenes in which parts of a service crash: the others go on, and what has crashed is there again in a moment."""

from __future__ import annotations

import asyncio
from contextvars import Context
from typing import ClassVar, Final

from tests.simulation.client import Client
from tests.simulation.scenes.losing import Losses
from tests.simulation.weather import crash

_RECOVERED: Final = 1.5
_TIMEOUT: Final = 2.0


class Breakdowns(Losses):
    """Have parts of a service crash, also while they are started again; then change a job, and lose another one."""

    name: ClassVar[str] = "breakdowns"

    async def play(self) -> None:
        await self.within(self._live, max_restarts=1000, type_idle_after=self.random.choice([0.5, 10.0]))

    async def _live(self, client: Client) -> None:
        random, latency = self.random, self.run.world.cluster.latency
        followed = (self.type, "followed")
        await client.jobs.set_type_timeout(self.type, _TIMEOUT)
        await client.jobs.set_type_timeout(followed, 600.0)
        job = await self.take(client, "j", followed)
        assert job is not None
        heard = self.heard(client, "j", followed)
        async with self.listeners(client, [(heard, 0.0)]):
            await self.all_know([heard], self.moment, "who has just subscribed knows what it waits for")
            for number in range(6):
                held = random.random() < 0.5
                if held:  # its type has a monitor that may crash
                    await self.take(client, f"l{number}")
                for _ in range(random.choice([1, 1, 2, 3])):
                    self._crash(client)
                    await asyncio.sleep(random.uniform(0.0, 8 * latency))
                    await asyncio.sleep(random.choice([0.0, 0.0, random.uniform(0.0, 0.01)]))
                await asyncio.sleep(_RECOVERED + 20 * latency)
                await client.update(job)
                await self.all_know([heard], self.moment, "who had subscribed before a crash knows what has changed")
                if not held:
                    await self.take(client, f"l{number}")
                await self.lost([f"l{number}"], _TIMEOUT + 1.0)
                await client.remove(self.type, f"l{number}", force=True)
        await self.clean(client, [followed])

    def _crash(self, client: Client) -> None:
        """Have one part crash, as the fault does it."""
        choices = self.run.world.choices
        with self.weather(crash=1.0):
            hard = choices.fault("crash")
        if hard is not None:
            # As by a stranger's hand, not by the process itself.
            self.run.world.loop.call_soon(crash, self.run, client.process, hard, context=Context())
