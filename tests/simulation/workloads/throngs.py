"""Those who are many: types of which hardly any has jobs, hundreds of jobs of one type, and many who follow them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, ClassVar, Final

from jobs_service import JobsError, JobType, NoTypeTimeout, RunningJob
from tests.simulation.client import Client
from tests.simulation.workloads.base import Workload, patiently
from tests.simulation.workloads.planners import together
from tests.simulation.workloads.subscribers import Subscribers

_MANY: Final = "many"
_TIMEOUT: Final = 10.0
_ALL: Final = 1000
_TRIES: Final = 4


class Throngs(Workload):
    """Add hundreds of jobs of one type and end them together, follow many of them, and wake types that sleep."""

    name = "throngs"
    weight: ClassVar[int] = 20
    always: ClassVar[bool] = True

    def __init__(self, run: Any) -> None:
        super().__init__(run)
        self._asleep: list[JobType] = [("asleep", number) for number in range(self.random.choice([100, 300]))]
        self._ids = [f"of-many-{number}" for number in range(self.random.choice([100, 200]))]

    async def start(self, client: Client) -> None:
        async def make(type: JobType) -> None:
            await patiently(lambda: client.jobs.set_type_timeout(type, _TIMEOUT * (60 if self.run.long else 1)))

        await asyncio.gather(*map(make, [_MANY, *self._asleep]))

    async def step(self, client: Client) -> None:
        await self.random.choice([self._add, self._take, self._follow, self._wake])(client)

    async def _add(self, client: Client) -> None:
        run_at = self.random.choice([None, client.process.clock.wall_time() + 2.0])
        with contextlib.suppress(NoTypeTimeout):
            await client.add_many(_MANY, self._ids, if_exists="resubmit", run_at=run_at)

    async def _take(self, client: Client) -> None:
        """Take all that are there, and finish most of them; the others are lost with their worker."""
        found: list[RunningJob] = []
        for _ in range(_TRIES):
            found += await client.accept(_MANY, _ALL, timeout=0)
        dropped = self.random.choice([0, 0, 1, len(found) // 2])
        await together(client.finish(job) for job in found[dropped:])

    async def _follow(self, client: Client) -> None:
        """Have many subscribe to jobs of one type, each for a while."""
        subscribers = next((each for each in self.run.workloads if isinstance(each, Subscribers)), None)
        if client.jobs._tree.root is None or subscribers is None:
            return
        if not self._left():
            await self._add(client)
        ids = self.random.choices(self._ids, k=self.random.choice([20, 60]))
        seconds = self.random.uniform(1.0, 4.0)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await together(subscribers.follow(client, _MANY, id) for id in ids)

    async def _wake(self, client: Client) -> None:
        """Have a job of some type that slept run at once, or in a moment."""
        type = self.random.choice(self._asleep)
        run_at = self.random.choice([None, client.process.clock.wall_time() + 2.0])
        await client.add(type, "j", if_exists="resubmit", run_at=run_at)
        for job in await client.accept(type, timeout=4.0):
            await client.finish(job)

    async def settle(self, client: Client) -> None:
        """Leave nothing behind: nobody else ends these jobs."""
        while client.process.name == "p0":
            await together(self._removed(client, type, id) for type, id in self._left())
            await asyncio.sleep(1.0)

    async def _removed(self, client: Client, type: JobType, id: Any) -> None:
        with contextlib.suppress(JobsError):
            await client.remove(type, id, force=True)

    def _left(self) -> list[Any]:
        types = {_MANY, *self._asleep}
        return [key for key, job in self.run.history.model.jobs.items() if key[0] in types and job.state != "finished"]
