"""Scenes of those who subscribe: whoever waits knows a job as it is a moment after it has changed."""

from __future__ import annotations

import asyncio
import contextlib
from typing import ClassVar, Final

from jobs_service import JobType, RunningJob, StoreError
from tests.simulation.client import Client
from tests.simulation.scenes.stage import Scene, children_of, some_turns
from tests.simulation.workloads.subscribers import Heard

_LONG: Final = 600.0


class Bursts(Scene):
    """Change running jobs a few times in a row, in data or in progress alone, and then let them be for a while."""

    name: ClassVar[str] = "bursts"

    async def play(self) -> None:
        random = self.random
        await self.within(
            self._live,
            notify_holdoff=random.choice([0.0, 0.05, 0.3]),
            notifier_batch=random.choice([1, 3, 1000]),
        )

    async def _live(self, client: Client) -> None:
        random = self.random
        await client.jobs.set_type_timeout(self.type, _LONG)
        count = random.choice([1, 2, 12])
        jobs: list[RunningJob] = []
        for number in range(count):
            job = await self.take(client, f"j{number}")
            jobs += [job] if job is not None else []
        slow = random.choice([0.0, 0.3, 1.0])
        wanted = [(self.heard(client, job.id), random.choice([0.0, slow])) for job in jobs * (2 if count < 3 else 1)]
        async with self.listeners(client, wanted):
            heard = [each for each, _ in wanted]
            await self.all_know(heard, self.moment + 2 * slow, "those who have just subscribed know what they wait for")
            for _ in range(3):
                for _ in range(random.randint(1, 5)):
                    await self._change(client, random.choice(jobs))
                    await asyncio.sleep(random.choice([0.0, random.uniform(0.0, 0.1), random.uniform(0.0, 0.6)]))
                await self.all_know(heard, self.moment + 2 * slow, "those who wait know what has changed")
            for job in jobs:
                await client.finish(job)
            await self.all_know(heard, self.moment + 2 * slow, "those who wait know the end")
        await self.clean(client)

    async def _change(self, client: Client, job: RunningJob) -> None:
        what = self.random.random()
        if what < 0.5:
            await client.update(job)
        elif what < 0.9:
            await job.progress(self.random.randint(0, 9), 9)
        else:
            await job.update()


class Arrivals(Scene):
    """Many subscribe to jobs of some types within a moment, while the parts that tell them are only being started."""

    name: ClassVar[str] = "arrivals"

    async def play(self) -> None:
        await self.within(self._live)

    async def _live(self, client: Client) -> None:
        random = self.random
        types: list[JobType] = [(self.type, number) for number in range(4)]
        for type in types:
            await client.jobs.set_type_timeout(type, _LONG)
            await client.add_many(type, ["a", "b", "c"])
        for some in (types[:2], types):
            wanted = [self.heard(client, random.choice("abc"), random.choice(some)) for _ in range(8)]
            tasks = [asyncio.create_task(self._arrive(client, heard)) for heard in wanted]
            try:
                await asyncio.sleep(0.02 + 6 * self.run.world.cluster.latency)
                await self.all_know(wanted, self.moment, "those who have just subscribed know what they wait for")
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        await self.clean(client, types)

    async def _arrive(self, client: Client, heard: Heard) -> None:
        latency = self.run.world.cluster.latency
        pause = self.random.choice([0.0, 0.0, self.random.uniform(0.0, 6 * latency), self.random.uniform(0.0, 0.02)])
        await asyncio.sleep(pause)
        await some_turns(self.random.randint(0, 20))
        await self.listen(client, heard)


class Changers(Scene):
    """Change a job that others follow, and subscribe to it at once, while reads may take long.

    Whoever has changed a job is not told what it was before.
    """

    name: ClassVar[str] = "changers"

    async def play(self) -> None:
        await self.within(self._live)

    async def _live(self, client: Client) -> None:
        await client.jobs.set_type_timeout(self.type, _LONG)
        ids = ["a", "b"]
        await client.add_many(self.type, ids)
        async with self.listeners(client, [(self.heard(client, id), 0.0) for id in ids]):
            with self.weather(slow_read=self.random.choice([0.1, 0.3]), suspend=0.3):
                async with asyncio.TaskGroup() as group:
                    for number in range(4):
                        group.create_task(self._change(client, ids[number % 2]))
            # What was held up is told before they go.
            await asyncio.sleep(3.0)
        await self.clean(client)

    async def _change(self, client: Client, id: str) -> None:
        for _ in range(4):
            await asyncio.sleep(self.random.uniform(0.0, 1.5))
            with contextlib.suppress(TimeoutError, StoreError):  # rarely, a read takes longer than it may
                await client.resubmit(self.type, id)
                heard = self.heard(client, id)
                async with asyncio.timeout(self.random.uniform(0.0, 2.0)):
                    await self.listen(client, heard)


class Returners(Scene):
    """Leave, and subscribe again while a service looks which of its notifiers nobody needs any more."""

    name: ClassVar[str] = "returners"
    _period: ClassVar[float] = 5.0

    async def play(self) -> None:
        await self.within(self._live, type_check_period=self._period)

    async def _live(self, client: Client) -> None:
        random, opened = self.random, self.now
        types: list[JobType] = [(self.type, number) for number in range(6)]
        for type in types:
            await client.jobs.set_type_timeout(type, _LONG)
            await client.add(type, "j")
        # Nobody is there when the service looks for the first time.
        async with self.listeners(client, [(self.heard(client, "j", type), 0.0) for type in types]):
            await asyncio.sleep(random.uniform(0.5, 1.5))
        await self._come_back(client, types, opened + 2 * self._period)
        await asyncio.sleep(opened + 3.4 * self._period - self.now)
        await self._stay(client, random.sample(types, 3), opened + 4.5 * self._period)
        await self.clean(client, types)

    async def _stay(self, client: Client, types: list[JobType], until: float) -> None:
        """Have left in one look, and be there in the next one: those who tell of these types go on."""
        wanted = [self.heard(client, "j", type) for type in types]
        async with self.listeners(client, [(heard, 0.0) for heard in wanted]):
            since = self.now
            await self.all_know(wanted, self.moment, "those who have come back know what they wait for")
            while self.now < until:
                for child in children_of(client.jobs.supervision(), "notifiers"):
                    seconds = child["seconds"]
                    if child["state"] == "running" and seconds < self.now - since - self.moment:
                        self.complain(f"the notifier {child['name']} runs for {seconds:.3f} s, and was needed before")
                        return
                await asyncio.sleep(0.5)

    async def _come_back(self, client: Client, types: list[JobType], at: float) -> None:
        """Come just as the service stops those who tell of these types."""
        wanted = [self.heard(client, "j", type) for type in types]
        await asyncio.sleep(at - self.now)
        tasks = [asyncio.create_task(self._arrive(client, heard)) for heard in wanted]
        try:
            await asyncio.sleep(10 * self.run.world.cluster.latency)
            await self.all_know(wanted, self.moment, "those who have come back know what they wait for")
            await asyncio.gather(*(client.resubmit(type, "j", priority=1) for type in types))
            await self.all_know(wanted, self.moment, "those who have come back know what has changed")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _arrive(self, client: Client, heard: Heard) -> None:
        await asyncio.sleep(self.random.uniform(0.0, 4 * self.run.world.cluster.latency))
        await some_turns(self.random.randint(0, 150))
        await self.listen(client, heard)
