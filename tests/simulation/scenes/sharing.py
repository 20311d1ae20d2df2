"""Scenes of subscriptions to several jobs, to jobs that leave with their end, and of services that are closed."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import ClassVar, Final

import fdb.tuple

from jobs_service import JobEvent, JobsError, JobState, RunningJob
from jobs_service.testing import Process
from tests.simulation.client import Client
from tests.simulation.rows import section
from tests.simulation.scenes.stage import Scene

_LONG: Final = 600.0
_SEEN: Final = 25
"""Seconds for which rows of changes stay that all followers have seen: ten until the next look, and a look."""
_EVERY: Final = 3.0
_REMOVED: Final = 140.0
"""Seconds after which nothing is left of a job that has left with its end: two looks of a minute each, and a moment."""


class Shares(Scene):
    """Have several tasks take from one subscription to several jobs: each event comes to one of them, the end to all.

    Whoever waits when the service is closed is told so.
    """

    name: ClassVar[str] = "shares"

    async def play(self) -> None:
        await self.within(self._live, notifier_batch=self.random.choice([1, 3, 1000]))

    async def _live(self, client: Client) -> None:
        random = self.random
        await client.jobs.set_type_timeout(self.type, _LONG)
        for number in range(2):
            jobs: list[RunningJob] = []
            for place in range(random.choice([1, 3, 10])):
                job = await self.take(client, f"j{number}-{place}")
                jobs += [job] if job is not None else []
            await self._share(client, jobs)
        await self.clean(client)
        await self._close(client)

    async def _share(self, client: Client, jobs: list[RunningJob]) -> None:
        random, told = self.random, list[JobEvent]()
        subscription = client.jobs.subscribe_many([(self.type, job.id) for job in jobs])
        slow = random.choice([0.0, 0.0, 0.1])

        async def take() -> None:
            async for event in subscription:
                told.append(event)
                await asyncio.sleep(slow)

        takers = [asyncio.create_task(take()) for _ in range(random.choice([1, 2, 3]))]
        try:
            await asyncio.sleep(random.choice([0.0, self.moment]))
            for job in random.sample(jobs, len(jobs)):
                if random.random() < 0.5:
                    await client.update(job)
                    await asyncio.sleep(random.choice([0.0, random.uniform(0.0, 0.2)]))
                await client.finish(job)
            _, left = await asyncio.wait(takers, timeout=self.moment + 3 * slow * len(jobs))
            if left:
                self.complain(f"all jobs have ended, but {len(left)} of {len(takers)} still wait for events")
            self._compare(told, jobs)
        finally:
            for taker in takers:
                taker.cancel()
            for ended in await asyncio.gather(*takers, return_exceptions=True):
                if isinstance(ended, Exception):
                    self.complain(f"a subscription failed with {ended!r}")

    def _compare(self, told: list[JobEvent], jobs: list[RunningJob]) -> None:
        ends = Counter(event.id for event in told if event.state is JobState.FINISHED)
        if ends != Counter(job.id for job in jobs):
            self.complain(f"of {[job.id for job in jobs]}, which have all ended once, these ends were told: {ends}")
        last = {event.id: event for event in told}
        for id, event in last.items():
            if event.state is not JobState.FINISHED:
                self.complain(f"the last event of {id!r} was {event}")

    async def _close(self, client: Client) -> None:
        """Close a service while somebody waits for events."""
        await client.add(self.type, "j")
        heard = [self.heard(client, "j") for _ in range(self.random.choice([1, 3]))]
        async with client.process.service(settings=client.jobs.settings) as jobs:
            visitor = Client(self.run, client.process, jobs)
            tasks = [asyncio.create_task(self.listen(visitor, each)) for each in heard]
            await asyncio.sleep(self.random.choice([0.0, self.moment]))
        _, left = await asyncio.wait(tasks, timeout=self.moment)
        if left:
            self.complain(f"the service is closed, but {len(left)} of {len(tasks)} still wait for events")
        for task in left:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if not isinstance(ended, JobsError):
                self.complain(f"the service was closed, but whoever waited for events has ended with {ended!r}")
        await self.clean(client)


class Departures(Scene):
    """Wait for jobs that leave with their end: all are told of it, and a while later nothing of them is left."""

    name: ClassVar[str] = "departures"

    async def play(self) -> None:
        await self.within(self._live, notifier_batch=self.random.choice([1, 3, 1000]))

    async def _live(self, client: Client) -> None:
        random = self.random
        await client.jobs.set_type_timeout(self.type, _LONG)
        known = random.random() < 0.5
        if known:
            await client.jobs.set_retention(self.type, keep=0.0)
        jobs: list[RunningJob] = []
        for number in range(random.choice([1, 3, 12])):
            job = await self.take(client, f"j{number}")
            jobs += [job] if job is not None else []
        wanted = [(self.heard(client, job.id), random.choice([0.0, 0.0, 0.3])) for job in jobs]
        async with self.listeners(client, wanted):
            await asyncio.sleep(self.moment)
            if not known:
                await client.jobs.set_retention(self.type, keep=0.0)
            await asyncio.sleep(random.choice([0.0, self.moment]))
            for job in jobs:
                await client.finish(job)
                await asyncio.sleep(random.choice([0.0, random.uniform(0.0, 0.1)]))
            await self.until(
                lambda: not [heard for heard, _ in wanted if not heard.over],
                self.moment + 0.6 + 4 * len(jobs) * self.run.world.cluster.latency,  # they may be read one by one
                "those who waited for jobs that have left were told of their end",
            )
            for heard, _ in wanted:
                if heard.events and heard.events[-1].state is not JobState.FINISHED:
                    self.complain(f"{heard} was told {heard.events[-1]}, although its job had ended")
        await self.until(lambda: not [*self.run.history.unread()], _REMOVED, "nothing was left of jobs that have left")
        await self.clean(client)


class Traces(Scene):
    """Follow many jobs while some end now and then: what is noted of that is removed when it was seen.

    When all followers have died, those who watch over the type remove the rest.
    """

    name: ClassVar[str] = "traces"

    async def play(self) -> None:
        self._left = asyncio.Event()
        follower = self.begin(self._follow)
        await self.within(partial(self._watch, follower))

    async def _follow(self, client: Client) -> None:
        await client.jobs.set_type_timeout(self.type, _LONG)
        ids = [f"j{number}" for number in range(12)]
        await client.add_many(self.type, ids, run_at=client.process.clock.wall_time() + _LONG)
        async with self.listeners(client, [(self.heard(client, id), 0.0) for id in ids]):
            await asyncio.sleep(self.moment)
            for number in range(self.random.choice([4, 20])):
                job = await self.take(client, f"short{number % 3}")
                if job is not None:
                    await client.finish(job)
                await asyncio.sleep(_EVERY)
            rows, most = self._rows(), 3 * int(_SEEN / _EVERY)
            if rows > most:
                self.complain(f"{rows} rows of changes are there, more than the {most} that may just have been made")
            self._left.set()
            await asyncio.sleep(_LONG)

    async def _watch(self, follower: Process, client: Client) -> None:
        await asyncio.sleep(self.moment)
        await self.take(client, "busy")
        await self._left.wait()
        if follower.alive and self.random.random() < 0.5:
            self.run.quiet.disturb("kill")
            follower.kill()
        elif follower.alive:
            follower.request_stop()
        await self.end(follower)
        await self.until(lambda: not self._rows(), _REMOVED, "no rows of changes were left of those who have gone")
        await self.clean(client)

    def _rows(self) -> int:
        """Return how many rows of changes there are of the type."""
        versions = self.run.world.cluster.versions
        version = versions.enter()
        of_type: bytes = section("CHANGES") + fdb.tuple.pack((self.type,))
        pairs = list(versions.scan_at(version, of_type + b"\x00", of_type + b"\xff", False))
        versions.leave(version)
        return len(pairs)
