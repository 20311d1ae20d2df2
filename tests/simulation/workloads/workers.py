"""Those who run jobs: well, badly, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import ClassVar

from jobs_service import JobCanceled, JobError, JobType, Outcome, RunningJob, StoreError, WorkerConflict
from tests.simulation.client import EFFECTS, Client
from tests.simulation.workloads.base import Workload

_TRIES = 4


class Workers(Workload):
    """Accept jobs and finish them: with effects, late, after they lost them, or never."""

    name = "workers"
    weight: ClassVar[int] = 8

    async def step(self, client: Client) -> None:
        limit = self.random.choice([1, 1, 1, 3])
        terms = {
            "spread": self.random.choice([1, 1, 2, 5, "adaptive"]),
            "timeout": self.random.choice([0, 0, 0.5, 5.0]),
            "max_priority": self.random.choice([None, None, None, 0]),
            "due_by": self.random.choice([None, None, None, None, client.process.clock.wall_time() + 4.0]),
        }
        type = self.some_type()
        fates = [self.random.random() for _ in range(limit)]
        found = await client.accept(type, limit, **terms)
        for job, fate in zip(found, fates, strict=False):
            await self._work(client, job, fate)

    async def settle(self, client: Client) -> None:
        """Wait for jobs as long as it takes: one that nobody is woken for is stuck."""
        async with asyncio.TaskGroup() as group:
            for type in self.run.types:
                group.create_task(self._run_all(client, type))

    async def _run_all(self, client: Client, type: JobType) -> None:
        while True:
            try:
                for job in await client.accept(type, timeout=None):
                    await self._finish(client, job, 0.0)
            except StoreError as error:
                self.run.world.note(f"{error!r}", client.process)
                await asyncio.sleep(0.5)

    async def _work(self, client: Client, job: RunningJob, fate: float) -> None:
        longest = self.run.timeouts[job.type]
        try:
            if fate < 0.1:
                return  # It dies; the job is lost.
            if fate < 0.3:
                await asyncio.sleep(self.random.uniform(0, longest / 4))
                job = await client.update(job)
            if 0.2 < fate < 0.35:
                await asyncio.sleep(self.random.uniform(0, longest / 4))
                job = await client.again(job, **self.some_options(client))
            if fate > 0.9:
                await asyncio.sleep(self.random.uniform(longest / 2, 3 * longest))  # It hangs, and then goes on.
            if 0.8 < fate < 0.9:
                await client.release(job)
                return
        except JobCanceled:
            pass
        except WorkerConflict:
            if fate < 0.25:
                return
        await self._finish(client, job, fate)

    async def _finish(self, client: Client, job: RunningJob, fate: float) -> None:
        for _ in range(_TRIES):
            try:
                if 0.4 < fate < 0.5:
                    error = JobError("Failed", "as it was to be")
                    await client.finish(job, outcome=Outcome.FAILED, error=error)
                elif 0.5 < fate < 0.6:
                    await client.finish(job)
                else:
                    await client.finish_with_effect(job)
                return
            except WorkerConflict:
                return
            except StoreError as error:
                if not error.retryable:
                    raise
            await asyncio.sleep(0.1)

    def check(self) -> Iterator[str]:
        """Every effect is there exactly once if its finish was committed, else not at all."""
        versions = self.run.world.cluster.versions
        ended = self.run.effects_committed
        for lock in self.run.effects:
            value = versions.get(EFFECTS + lock)
            if value != (b"\x01" if lock in ended else None):
                yield f"effects: of the lock {lock.hex()[:6]} there are {value!r}, committed: {lock in ended}"
