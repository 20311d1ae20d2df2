"""One drill: where it is done, the type that is its own, and what is known of that type's jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from random import Random
from typing import TYPE_CHECKING, Any, Final

from jobs_service import JobId, JobsService, JobType
from tests.simulation.client import Client
from tests.simulation.model_job import ModelJob

if TYPE_CHECKING:
    from tests.simulation.run import Run

LONG: Final = 600.0
"""Seconds of a timeout that never comes."""


class Drill:
    """What a drill has.

    Args:
        run: that it is part of.
        client: of the process in which it is done.
        random: its draws.
        number: no other drill of the run has it.

    Attributes:
        type: of its jobs; nobody else touches it.
        moment: seconds within which everybody has noticed what has happened, and has done what is to be done at once.
    """

    def __init__(self, run: Run, client: Client, random: Random, number: int) -> None:
        self.run = run
        self.client = client
        self.random = random
        self.type = f"drill {number}"
        self.latency = run.world.cluster.latency
        self.moment = 1.0 + 12 * self.latency

    @property
    def jobs(self) -> JobsService:
        """The service of the process, which others use as well."""
        return self.client.jobs

    @property
    def is_watched_over(self) -> bool:
        """Whether the process has a supervisor tree."""
        return bool(self.jobs.supervision())

    def time(self) -> float:
        """Return the time of the loop's clock, seconds."""
        return self.run.world.loop.time()

    def complain(self, what: str) -> None:
        """Say what is wrong."""
        self.run.complain(f"drill: {self.client.process}, {self.type!r}: {what}")

    def some_time(self) -> float:
        """Return about as many seconds as the store needs for a few requests, often none."""
        return self.random.choice([0.0, 0.0, self.random.uniform(0.0, 4 * self.latency), 0.3])

    async def pass_turns(self) -> None:
        """Let others have some turns of the loop, while no time passes."""
        for _ in range(self.random.randint(0, 12)):
            await asyncio.sleep(0)

    async def settle(self) -> None:
        """Wait until everybody has noticed what was done."""
        await asyncio.sleep(self.moment)

    async def make_type(self, seconds: float = LONG, type: JobType | None = None) -> None:
        """Make the drill's type, or another one of its own."""
        await self.jobs.set_type_timeout(self.type if type is None else type, seconds)

    async def add(self, *ids: JobId, type: JobType | None = None, **options: Any) -> None:
        """Add jobs, one after the other."""
        for id in ids:
            await self.client.add(self.type if type is None else type, id, **options)

    # What is so, as far as was committed

    def job(self, id: JobId, type: JobType | None = None) -> ModelJob | None:
        """Return what a job is; None where there is none."""
        return self.run.history.model.jobs.get((self.type if type is None else type, id))

    def all(self, type: JobType | None = None) -> dict[JobId, ModelJob]:
        """Return the jobs of a type."""
        wanted = self.type if type is None else type
        return {id: job for (each, id), job in self.run.history.model.jobs.items() if each == wanted}

    def pending(self, type: JobType | None = None) -> list[JobId]:
        """Return those that wait for a worker, or for their time."""
        return [id for id, job in self.all(type).items() if job.pending]

    def running(self, type: JobType | None = None) -> list[JobId]:
        """Return those that run."""
        return [id for id, job in self.all(type).items() if job.lock is not None]


async def all_ended(tasks: Iterable[asyncio.Task[Any]], seconds: float) -> list[asyncio.Task[Any]]:
    """Return the tasks that have not ended so many seconds later; they are canceled then."""
    wanted = list(tasks)
    if not wanted:
        return []
    try:
        _, late = await asyncio.wait(wanted, timeout=seconds)
    except asyncio.CancelledError:
        await _cancel(wanted)
        raise
    # Not in a `finally`: where a run is given up nothing may be awaited any more.
    await _cancel(wanted)
    return sorted(late, key=wanted.index)


async def _cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    for each in tasks:
        each.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
