"""Those who come all at once: callers whose operations share transactions, and idle workers who wait in line."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, ClassVar

from jobs_service import JobsError, JobType, RunningJob
from tests.simulation.checks import held_after
from tests.simulation.client import Client
from tests.simulation.workloads.base import Workload


class Crowds(Workload):
    """Several calls at about the same time; some of the callers go away before they are answered."""

    name = "crowds"
    weight: ClassVar[int] = 2

    async def step(self, client: Client) -> None:
        moment = 2 * self.run.world.cluster.latency
        calls = [self._call(client, self.some_type()) for _ in range(self.random.randint(2, 6))]
        async with asyncio.TaskGroup() as group:
            for call in calls:
                pause = self.random.choice([0.0, 0.0, self.random.uniform(0.0, moment)])
                patience = self.random.choice([None, None, None, 0.0, self.random.uniform(0.0, moment)])
                group.create_task(_within(pause, patience, call))

    def _call(self, client: Client, type: JobType) -> Callable[[], Awaitable[object]]:
        name = self.random.choice(["add", "add", "resubmit", "remove", "accept", "accept"])
        if name == "accept":
            terms = {"spread": self.random.choice([1, 1, 3, "adaptive"]), "timeout": self.random.choice([0, 0, 2.0])}
            return partial(_work, client, type, **terms)
        id, options = self.some_id(), self.some_options(client)
        if name == "remove":
            return partial(client.remove, type, id)
        if name == "resubmit":
            return partial(client.resubmit, type, id, **options)
        rule = self.random.choice(["error", "resubmit", "ignore"])
        return partial(client.add, type, id, if_exists=rule, **options)


class Idlers(Workload):
    """Workers who wait for the same jobs, each for one; some go away, and a job may come at any moment."""

    name = "idlers"
    weight: ClassVar[int] = 2

    async def step(self, client: Client) -> None:
        type = self.some_type()
        async with asyncio.TaskGroup() as group:
            for _ in range(self.random.randint(1, 4)):
                pause = self.random.choice([0.0, 0.0, self.random.uniform(0.0, 0.5)])
                patience = self.random.choice([None, None, 0.0, self.random.uniform(0.0, 3.0)])
                group.create_task(_within(pause, patience, partial(_work, client, type, timeout=3.0)))
            for _ in range(self.random.choice([0, 1])):
                pause = self.random.choice([0.0, self.random.uniform(0.0, 6 * self.run.world.cluster.latency)])
                group.create_task(_within(pause, None, self._add(client, type)))

    def _add(self, client: Client, type: JobType) -> Callable[[], Awaitable[object]]:
        """Return what adds a job: alone it shares the transaction of workers, among many it has its own."""
        id = self.some_id()
        if self.random.random() < 0.5:
            return partial(client.add, type, id, if_exists="resubmit")
        return partial(client.add_many, type, [id], if_exists="resubmit")


class Racers(Workload):
    """Several look for a job; as soon as one of them has got one, the others go away."""

    name = "racers"

    async def step(self, client: Client) -> None:
        type, timeout = self.some_type(), self.random.choice([0, 2.0])
        racers = [
            asyncio.create_task(client.accept(type, timeout=timeout), name=f"{client.process} racer {number}")
            for number in range(self.random.randint(2, 4))
        ]
        try:
            await asyncio.wait(racers, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for racer in racers:
                racer.cancel()
            ended = await asyncio.gather(*racers, return_exceptions=True)
        for found in ended:
            if isinstance(found, Exception) and not isinstance(found, JobsError):
                raise found
            for job in [] if isinstance(found, BaseException) else found:
                await _finish(client, job)


class Visitors(Workload):
    """Open a service of their own, make some calls, and leave it before they are answered."""

    name = "visitors"

    async def step(self, client: Client) -> None:
        type, moment = self.some_type(), self.random.uniform(0.0, 3 * self.run.world.cluster.latency)
        timeouts = [self.random.choice([0, 0, 1.0]) for _ in range(self.random.randint(1, 3))]
        service = client.process.service(supervise=False)
        async with service as jobs:
            visitor = Client(self.run, client.process, jobs)
            calls = [asyncio.create_task(visitor.accept(type, timeout=timeout)) for timeout in timeouts]
            try:
                await asyncio.sleep(moment)
            finally:
                for call in calls:
                    call.cancel()
                await asyncio.gather(*calls, return_exceptions=True)
        for what in held_after(service):
            self.run.complain(f"held: a visitor in {client.process} has left, but holds {what}")


class Deserters(Workload):
    """Take many jobs at once and drop all of them: they are lost together."""

    name = "deserters"

    async def step(self, client: Client) -> None:
        for job in await client.accept(self.some_type(), self.random.choice([2, 5]), timeout=0):
            client.run.world.note(f"drops {job.type!r}/{job.id!r}", client.process)


class Heartbeats(Workload):
    """Show again and again that a job is alive, without a word on how it is."""

    name = "heartbeats"

    async def step(self, client: Client) -> None:
        type = self.some_type()
        # Some come just as the job is taken for lost.
        timeout = self.run.history.model.timeouts.get(type, 1.0)
        beats = [self.random.choice([0.5, timeout, 1.5 * timeout]) for _ in range(self.random.randint(1, 5))]
        beats = [self.random.uniform(0.6, 1.0) * beat for beat in beats]
        for job in await client.accept(type, timeout=0):
            with contextlib.suppress(JobsError):
                for pause in beats:
                    await asyncio.sleep(pause)
                    await job.update()
            await _finish(client, job)


async def _within(pause: float, patience: float | None, call: Callable[[], Awaitable[object]]) -> None:
    """Make a call after so many seconds, and go away after so many more; it may fail in any way that is promised."""
    await asyncio.sleep(pause)
    with contextlib.suppress(JobsError, TimeoutError):
        async with asyncio.timeout(patience):
            await call()


async def _work(client: Client, type: JobType, **terms: Any) -> None:
    """Wait for a job and finish it."""
    for job in await client.accept(type, **terms):
        await _finish(client, job)


async def _finish(client: Client, job: RunningJob) -> None:
    with contextlib.suppress(JobsError):
        await client.finish(job)
