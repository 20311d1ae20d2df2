"""Those who rush to one queue from several processes at once: they get out of each other's way after a while."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any, ClassVar, Final

from jobs_service import JobId, JobsError, JobTransaction, JobType, NewJob
from tests.simulation.client import Client
from tests.simulation.workloads.base import Workload

_TYPE: Final[JobType] = "rushed"
_TIMEOUT: Final = 600.0
_JOBS: Final = 120
_ROWS: Final = 12
"""Jobs that one user takes, one after the other."""
_ENOUGH: Final = 100
"""Accepts that tell whether they have learnt."""
_LEARNT: Final = 40
"""Accepts after which all have noticed that they collide."""
_MOST: Final = 0.4
"""Of the accepts after these, the share that may run again. The spread settles where one of nine collides; where nobody
learns, more than half of them do."""


class Rushes(Workload):
    """Take jobs one by one with `spread="adaptive"`, while those in other processes do the same."""

    name = "rushes"
    weight: ClassVar[int] = 8

    def __init__(self, run: Any) -> None:
        super().__init__(run)
        # Of every accept that has found a job, how often its transaction ran.
        self._runs: list[int] = []
        self._ids: list[JobId] = [f"r{number}" for number in range(_JOBS)]

    async def start(self, client: Client) -> None:
        with contextlib.suppress(JobsError):
            await client.jobs.set_type_timeout(_TYPE, _TIMEOUT)
            await client.jobs.set_retention(_TYPE, keep=0.0, keep_failed=None)
            await self._add(client)

    async def _add(self, client: Client) -> None:
        calls = [client.begin("add", _TYPE, id) for id in self._ids]
        jobs = [NewJob(id, client.data(call)) for id, call in zip(self._ids, calls, strict=True)]
        await client.many(calls, client.jobs.add_many(_TYPE, jobs))

    async def step(self, client: Client) -> None:
        for _ in range(_ROWS if len(self._runs) < _ENOUGH else 0):
            await self._take(client)

    async def _take(self, client: Client) -> None:
        """Take a job and end it, and note how often that was tried."""
        accepted, finished = client.begin("accept", _TYPE, None), client.begin("finish", _TYPE, None)
        runs, locks = 0, list[bytes]()

        async def take(tx: JobTransaction) -> None:
            nonlocal runs
            runs += 1
            locks.clear()
            job = await tx.accept(_TYPE, spread="adaptive")
            if job is not None:
                locks.append(job.lock)
                await tx.finish(job, client.data(finished))

        await client.transact([accepted, finished], take)
        accepted.locks = tuple(locks)
        if locks:
            self._runs.append(runs)
        else:
            finished.outcome = "nothing"

    def check(self) -> Iterator[str]:
        """Who has learnt that others take from the same queue collides with them rarely."""
        later = self._runs[_LEARNT:]
        again = sum(runs > 1 for runs in later)
        if len(later) >= _LEARNT and again > _MOST * len(later) and not self.run.world.choices.faults:
            yield f"collisions: {again} of {len(later)} accepts that spread over their queue had to run again"

    def _left(self) -> list[JobId]:
        jobs = self.run.history.model.jobs
        return [id for id in self._ids if (_TYPE, id) in jobs and jobs[_TYPE, id].state != "finished"]

    async def settle(self, client: Client) -> None:
        """Leave nothing behind: nobody else ends these jobs."""
        while client.process.name == "p0":
            for id in self._left():
                with contextlib.suppress(JobsError):
                    await client.remove(_TYPE, id, force=True)
            await asyncio.sleep(1.0)
