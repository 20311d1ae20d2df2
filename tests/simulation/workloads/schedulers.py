"""Schedulers: they make, change, hold up and remove the schedules of the store, several of them at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any, ClassVar, Final

from jobs_service import JobNotFound, JobState, ScheduleNotFound
from jobs_service.sources import MOST_AHEAD
from tests.simulation.client import Client
from tests.simulation.workloads.base import Workload, patiently

TYPE: Final = "on schedule"
_KEPT: Final = "one"
_REMOVED: Final = "two"
"""Names of schedules. One that was removed and is made again is new: by another clock a tick may come again."""

_AGAIN: Final = 2.0


class Schedulers(Workload):
    """Set, pause, resume and remove a few schedules, and finish some of their jobs: each of their ticks comes once."""

    name = "schedulers"
    weight: ClassVar[int] = 2

    async def start(self, client: Client) -> None:
        await self.make_types(client, [TYPE], 20.0)

    async def step(self, client: Client) -> None:
        name, choose = self.random.choice([_KEPT, _REMOVED]), self.random.choice
        schedules = client.jobs.schedules
        change = choose(["set", "set", "set", "pause", "resume", "resume", "remove"])
        if change == "set":
            how: dict[str, Any] = {"every": choose([1.0, 2.0, 5.0]), "missed": choose(["skip", "once", "all"])}
            await schedules.set(name, TYPE, choose(["a", "b"]), overlap=choose([True, True, False]), **how)
        elif (name, change) != (_KEPT, "remove"):
            with contextlib.suppress(ScheduleNotFound):
                await getattr(schedules, change)(name)
        await asyncio.sleep(self.random.uniform(0.0, 6.0))
        for job in await client.accept(TYPE, 2, timeout=0) if self.random.random() < 0.5 else ():
            await client.finish(job)

    async def settle(self, client: Client) -> None:
        """Hold up all schedules, then remove the jobs that they have added."""

        async def remove_all() -> None:
            for each in await client.jobs.schedules.list():
                with contextlib.suppress(ScheduleNotFound):
                    end = client.jobs.schedules.pause if each.name == _KEPT else client.jobs.schedules.remove
                    await end(each.name)
            async for job in client.jobs.list(TYPE):
                with contextlib.suppress(JobNotFound):
                    await client.remove(TYPE, job.id, force=True)

        while True:  # another process may still be about to set one
            await patiently(remove_all)
            await asyncio.sleep(_AGAIN)

    def open(self) -> Iterator[str]:
        jobs = self.run.history.model.jobs
        yield from (f"{id!r} is there" for type, id in jobs if type == TYPE)

    def check(self) -> Iterator[str]:
        run = self.run
        if run.latest_clock - run.earliest_clock >= MOST_AHEAD:
            return  # a tick may come again where clocks differ so much
        for type, id in run.history.known():
            if type != TYPE or not str(id).startswith(_KEPT):
                continue
            states = [each.state for each in run.history.states(type, id)]
            before = [JobState.REMOVED, *states]
            came = sum(
                first in (JobState.REMOVED, JobState.FINISHED) and second is JobState.PENDING
                for first, second in zip(before, states, strict=False)
            )
            if came > 1:
                yield f"schedules: {id!r} came {came} times"
