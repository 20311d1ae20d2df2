"""Those who stand still while jobs end that they follow, and others have long heard of it: they hear of it as well."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, ClassVar, Final

from jobs_service import JobsError, JobType
from jobs_service.testing import Process
from tests.simulation.client import Client
from tests.simulation.workloads.subscribers import Subscribers

_TIMEOUT: Final = 20.0
_WITH_OTHERS: Final = 0.7
_BEGUN: Final = 1.0
"""Seconds after which those who subscribe have heard of their jobs once."""


class Nappers(Subscribers):
    """Follow jobs in two processes, have one of them stand still, end the jobs meanwhile, and wake it."""

    name = "nappers"
    weight: ClassVar[int] = 8

    def __init__(self, run: Any) -> None:
        super().__init__(run)
        self._types: list[JobType] = [("napped", number) for number in range(3)]

    async def start(self, client: Client) -> None:
        await self.make_types(client, self._types, _TIMEOUT)

    async def step(self, client: Client) -> None:
        self.look()
        type, others = self.random.choice(self._types), self._others(client)
        ids = [f"n{number}" for number in range(self.random.randint(1, 4))]
        await client.add_many(type, ids, if_exists="resubmit")
        async with asyncio.TaskGroup() as group:
            # Where nobody else listens, what is noted of changes is removed as what nobody reads.
            for process in [*others, *([client.process] if self.random.random() < _WITH_OTHERS else [])]:
                there = Client(self.run, process, self.run.services[process])
                for id in ids:
                    group.create_task(self._listen(there, type, id), context=process.context)
            await asyncio.sleep(_BEGUN)
            for process in others:
                self._nap(process, self.random.uniform(0.5, 6.0))
            for _ in ids:
                await asyncio.sleep(self.random.choice([0.0, 0.2, 1.0]))
                await self._change(client, type)

    def _others(self, client: Client) -> list[Process]:
        """Return another process that can follow jobs, if there is one."""
        found = [
            process
            for process, jobs in self.run.services.items()
            if process is not client.process and process.running and jobs._tree.root is not None
        ]
        return self.random.sample(found, min(1, len(found)))

    def _nap(self, process: Process, seconds: float) -> None:
        if process.running and process.alive:
            process.pause()
            self.run.quiet.disturb("pause")
            self.run.quiet.hold_up(seconds)
            loop = self.run.world.loop
            loop.call_later(seconds, process.go_on, context=self.run.world.cluster.context)

    async def _listen(self, client: Client, type: JobType, id: Any) -> None:
        if client.jobs._tree.root is not None:
            with contextlib.suppress(JobsError):
                await self.follow(client, type, id)

    async def _change(self, client: Client, type: JobType) -> None:
        """End some jobs, or have them run again."""
        with contextlib.suppress(JobsError):
            for job in await client.accept(type, self.random.choice([1, 1, 4]), timeout=0):
                await client.finish(job)

    async def settle(self, client: Client) -> None:
        """Leave nothing behind: nobody else ends these jobs."""
        while client.process.name == "p0":
            for type in self._types:
                await self._change(client, type)
            await asyncio.sleep(1.0)
