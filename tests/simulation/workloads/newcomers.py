"""Those who enqueue jobs of types that nobody has made yet, while others make and remove them."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from typing import Any

from jobs_service import JobsError, JobType, NoTypeTimeout, RunningJob
from tests.simulation.client import Client
from tests.simulation.workloads.base import Workload
from tests.simulation.workloads.planners import together

_DECLARED = 5.0
_SET = 9.0


class Newcomers(Workload):
    """Open a service with a handler of a new type, enqueue its jobs, take them by hand, and enqueue them again."""

    name = "newcomers"

    def __init__(self, run: Any) -> None:
        super().__init__(run)
        self._types: list[JobType] = []

    async def step(self, client: Client) -> None:
        type: JobType = ("new", len(self._types))
        self._types.append(type)
        service = client.process.service(supervise=False)

        @service.handler(type, timeout=_DECLARED)
        async def made(job: RunningJob, *, call: int, pad: str = "") -> None:
            raise AssertionError("nobody runs it")

        async with service as jobs:
            visitor = Client(self.run, client.process, jobs)
            await self._begin(client, visitor, type, made)
            if self.random.random() < 0.4:
                await self._remove_type(client, visitor, type, made)
            else:
                for _ in range(self.random.choice([1, 2, 3])):
                    await self._work(client, visitor, type, made)

    async def _begin(self, client: Client, visitor: Client, type: JobType, handler: Any) -> None:
        """Enqueue the first jobs, perhaps while somebody says what the type's timeout is."""
        latency = self.run.world.cluster.latency

        async def set_timeout() -> None:
            await asyncio.sleep(self.random.choice([0.0, self.random.uniform(0.0, 4 * latency)]))
            await client.jobs.set_type_timeout(type, _SET)

        delay = self.random.choice([None, 0.0, 2.0, timedelta(days=1), timedelta(days=2, seconds=-3, milliseconds=5)])
        options: dict[str, Any] = {"unique": "a"} if delay is None else {"delay": delay}
        calls: list[Any] = [self._enqueue(visitor, handler, **options)]
        if self.random.random() < 0.6:
            calls.append(set_timeout())
        if self.random.random() < 0.3:
            calls.append(self._enqueue(visitor, handler, unique="b"))
        await together(calls)

    async def _enqueue(self, visitor: Client, handler: Any, **options: Any) -> None:
        limits = {
            "max_attempts": self.random.choice([None, 1, 4]),
            "time_limit": self.random.choice([None, 2.0, 50.0]),
        }
        wanted = {name: limit for name, limit in limits.items() if limit is not None}
        job = await visitor.enqueue(handler, _arguments, **options, **wanted)
        if job.created:
            found = {"max_attempts": job.max_attempts, "time_limit": job.time_limit}
            if found != limits:
                self.run.complain(f"options: {job!r} was enqueued with {limits}, and has {found}")

    async def _work(self, client: Client, visitor: Client, type: JobType, handler: Any) -> None:
        """Finish what there is, and have the same jobs run again, with other limits or without a word on them."""
        with contextlib.suppress(JobsError):
            for job in await client.accept(type, 3, timeout=0):
                await client.finish(job)
        with contextlib.suppress(NoTypeTimeout):
            await self._enqueue(visitor, handler, unique=self.random.choice(["a", "b"]))

    async def _remove_type(self, client: Client, visitor: Client, type: JobType, handler: Any) -> None:
        """What somebody has removed is not made again by who enqueues: see the history."""
        await client.jobs.clear_type_timeout(type)
        with contextlib.suppress(NoTypeTimeout):
            await self._enqueue(visitor, handler, unique="c")

    async def settle(self, client: Client) -> None:
        """Remove what is left: no handler runs these jobs."""
        while True:
            for type, id in self._left():
                with contextlib.suppress(JobsError):
                    await client.remove(type, id, force=True)
            await asyncio.sleep(1.0)

    def _left(self) -> list[Any]:
        types = {*self._types}
        return [key for key, job in self.run.history.model.jobs.items() if key[0] in types and job.state != "finished"]


def _arguments(number: int) -> dict[str, int]:
    return {"call": number}
