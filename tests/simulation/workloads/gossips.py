"""Those who change many jobs at once, each in a transaction of its own, while others listen."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import ClassVar

from jobs_service import JobId, JobNotFound, JobTransaction, JobType
from jobs_service.model import UNSET
from tests.simulation.client import Client
from tests.simulation.workloads.planners import together
from tests.simulation.workloads.subscribers import Subscribers

_LATER = 2.0


class Gossips(Subscribers):
    """Subscribe to jobs one by one, just added or long there, while all of them change."""

    name = "gossips"
    weight: ClassVar[int] = 2

    async def step(self, client: Client) -> None:
        self.look()
        latency = self.run.world.cluster.latency
        type, others = self.some_type(), self.some_type()
        ids = self.random.sample(self.run.ids, min(6, len(self.run.ids)))
        listeners = []
        for of, id in [(type, id) for id in ids[:4]] + [(others, self.some_id())]:
            listeners.append(self._listen(client, of, id, self.random.choice([0.0, 0.0, 0.01, 5 * latency])))
        changes = [
            partial(
                self._change,
                client,
                type,
                id,
                self.random.choice([0.0, 0.02, 0.5, self.random.uniform(0, 4 * latency)]),
            )
            for id in ids * self.random.choice([1, 2])
        ]

        async def change_all() -> None:
            await together(change() for change in changes)
            await asyncio.sleep(_LATER)
            self.look()

        await together([*listeners, change_all()])

    async def _listen(self, client: Client, type: JobType, id: JobId, pause: float) -> None:
        await asyncio.sleep(pause)
        if self.random.random() < 0.5:
            await client.add(type, id, if_exists="resubmit")
        await self.follow(client, type, id)

    async def _change(self, client: Client, type: JobType, id: JobId, pause: float) -> None:
        """Change a job in a transaction that nobody shares."""
        await asyncio.sleep(pause)
        call = client.begin("resubmit", type, id)
        options = self.some_options(client) if self.random.random() < 0.7 else {}

        async def resubmit(tx: JobTransaction) -> None:
            # Sometimes only when it runs is another.
            await tx.resubmit(type, id, data=client.data(call) if call.number % 3 else UNSET, **options)

        try:
            await client.transact([call], resubmit)
        except JobNotFound:
            return
        finally:
            if not call.number % 3:
                # Nothing that was written bears its number.
                call.outcome = "unnamed"
