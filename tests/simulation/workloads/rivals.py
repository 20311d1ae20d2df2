"""Those who take jobs in transactions that dawdle, while others add better ones, follow them, stop the queue."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, ClassVar, Final

from jobs_service import JobNotFound, JobsError, JobTransaction, JobType
from tests.simulation.client import Client
from tests.simulation.workloads.planners import together
from tests.simulation.workloads.subscribers import Subscribers

_TYPES: Final = 3
_TIMEOUT: Final = 600.0
_IDS: Final = ("a", "b", "c", "d", "e", "f")
_OF_READY: Final = 0.4
"""The share of the steps in which jobs are ready that are added; in the others they are due later."""
_LONGEST: Final = 1.0
"""Seconds that a transaction dawdles at most: well within its time limit."""


class Rivals(Subscribers):
    """Accept on all kinds of terms in a transaction that takes its time; meanwhile the queue changes."""

    name = "rivals"
    weight: ClassVar[int] = 8

    def __init__(self, run: Any) -> None:
        super().__init__(run)
        self._ready = False
        self._types: list[JobType] = [("contested", number) for number in range(_TYPES)]

    async def start(self, client: Client) -> None:
        await self.make_types(client, self._types, _TIMEOUT)

    async def step(self, client: Client) -> None:
        self.look()
        # Mostly of one kind: what is ready would always come before what is due later.
        self._ready = self.random.random() < _OF_READY
        type = self.random.choice(self._types)
        for _ in range(self.random.choice([0, 1, 2])):
            await self._add(client, type, 0.0)
        pause = self.random.uniform(0.1, _LONGEST)
        changes = [*[self._add] * 6, self._follow, self._follow, self._remove, self._resubmit, self._stop]
        others = [self.random.choice(changes)(client, type, self.random.uniform(0.0, pause)) for _ in range(2)]
        await together([self._take(client, type, pause), *others])

    async def _take(self, client: Client, type: JobType, pause: float) -> None:
        """Take one or two jobs, dawdle when that is tried first, and end them."""
        limit = self.random.choice([1, 1, 2])
        terms: dict[str, Any] = {
            "max_priority": self.random.choice([None, None, 0, 1]),
            "due_by": self.random.choice([None, *[client.process.clock.wall_time() + 30.0] * 3]),
            "spread": self.random.choice([1, 1, 1, 2]),
        }
        accepted = client.begin("accept", type, None)
        finished = [client.begin("finish", type, None) for _ in range(limit)]
        locks: list[bytes] = []
        pauses = [pause]

        async def take(tx: JobTransaction) -> None:
            locks.clear()
            found = await tx.accept_many(type, limit, **terms)
            await asyncio.sleep(pauses.pop() if pauses else 0.0)
            for job, call in zip(found, finished, strict=False):
                locks.append(job.lock)
                await tx.finish(job, client.data(call))

        await client.transact([accepted, *finished], take)
        accepted.locks = tuple(locks)
        for call in finished[len(locks) :]:
            call.outcome = "nothing"

    async def _add(self, client: Client, type: JobType, pause: float) -> None:
        await asyncio.sleep(pause)
        await client.add(type, self.random.choice(_IDS), if_exists="resubmit", **self._options(client))

    async def _resubmit(self, client: Client, type: JobType, pause: float) -> None:
        await asyncio.sleep(pause)
        with contextlib.suppress(JobNotFound):
            await client.resubmit(type, self.random.choice(_IDS), **self._options(client))

    async def _remove(self, client: Client, type: JobType, pause: float) -> None:
        await asyncio.sleep(pause)
        with contextlib.suppress(JobNotFound):
            await client.remove(type, self.random.choice(_IDS), force=True)

    async def _stop(self, client: Client, type: JobType, pause: float) -> None:
        """Stop the queue for a moment."""
        await asyncio.sleep(pause)
        await client.jobs.pause(type)
        await asyncio.sleep(pause)
        await client.jobs.resume(type)

    async def _follow(self, client: Client, type: JobType, pause: float) -> None:
        """Begin to follow a job, and perhaps its type, while others are about to change jobs."""
        await asyncio.sleep(pause)
        if client.jobs._tree.root is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2.0):
                    await self.follow(client, type, self.random.choice(_IDS))

    def _options(self, client: Client) -> dict[str, Any]:
        now = client.process.clock.wall_time()
        later = [now + self.random.uniform(5.0, 25.0), now + self.random.uniform(5.0, 25.0)]
        return {
            "priority": self.random.choice([-2, -1, 0, 0, 1]),
            "run_at": self.random.choice([None, now - 1.0] if self._ready else [now - 1.0, *later, *later]),
        }

    async def settle(self, client: Client) -> None:
        """Leave nothing behind: nobody else ends these jobs."""
        while client.process.name == "p0":
            jobs = self.run.history.model.jobs
            for type, id in [key for key, job in jobs.items() if key[0] in self._types and job.state != "finished"]:
                with contextlib.suppress(JobsError):
                    await client.remove(type, id, force=True)
            await asyncio.sleep(1.0)
