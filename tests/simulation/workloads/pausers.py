"""Types of handlers that are paused and go on."""

from __future__ import annotations

import asyncio
from typing import Final

from tests.simulation.client import Client
from tests.simulation.workloads.base import Workload, patiently
from tests.simulation.workloads.runner_state import CONTINUOUS, ONE_SHOT, Order
from tests.simulation.workloads.tickers import MINUTELY, TICKING

_SHORT: Final = 3.0


class Pausers(Workload):
    """Pause and resume the handlers' types: nobody accepts meanwhile, and all are accepted afterwards."""

    name = "pausers"

    async def step(self, client: Client) -> None:
        type = self.random.choice([ONE_SHOT, CONTINUOUS, TICKING, MINUTELY])
        if self.random.random() < 0.5:
            await client.jobs.resume(type)
            return
        if type in client.jobs.handlers and type not in (TICKING, MINUTELY):
            # Who accepts it may do so in the very moment in which the type is paused.
            await client.enqueue(client.jobs.handlers[type], Order)
            await asyncio.sleep(self.random.uniform(0.0, 2 * self.run.world.cluster.latency))
        await client.jobs.pause(type)

    async def settle(self, client: Client) -> None:
        """Have all go on, when no pause is under way any more."""
        cluster = self.run.world.cluster
        await asyncio.sleep(_SHORT + max(0.0, cluster.quiet_at - self.run.world.loop.time()))
        for type in (ONE_SHOT, CONTINUOUS, TICKING, MINUTELY):
            await patiently(lambda type=type: client.jobs.resume(type))  # type: ignore[misc]
