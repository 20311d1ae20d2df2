"""Those who do with many jobs at once what others do with one: all are added, come due, run or are lost together."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterable
from typing import Any, ClassVar, Final

from jobs_service import JobsError, JobType, NoTypeTimeout, RunningJob
from tests.simulation.client import Client
from tests.simulation.workloads.base import Workload

_MOST: Final = 24
"""How many jobs are there at the same time: several transactions of the largest ones."""


class Bulk(Workload):
    """Add many jobs at once, take them all, and drop them, keep them alive or finish them together."""

    name = "bulk"
    weight: ClassVar[int] = 8

    async def step(self, client: Client) -> None:
        type = self.some_type()
        if self.random.random() < 0.5:
            await self._add(client, type)
        else:
            await self._take(client, type)

    async def _add(self, client: Client, type: JobType) -> None:
        count = self.random.choice([3, 8, _MOST])
        first = self.random.randrange(_MOST)
        ids = [f"bulk-{(first + number) % _MOST}" for number in range(count)]
        run_at = client.process.clock.wall_time() + 2.0 if self.random.random() < 0.4 else None
        with contextlib.suppress(NoTypeTimeout):
            await client.add_many(type, ids, if_exists="resubmit", run_at=run_at)

    async def _take(self, client: Client, type: JobType) -> None:
        found: list[RunningJob] = []
        limit, timeout = self.random.choice([3, _MOST, 1000]), self.random.choice([0, 2.5])
        # One accept takes as many as fit into a transaction.
        for _ in range(self.random.choice([1, 8])):
            found += await client.accept(type, limit, timeout=timeout)
            timeout = 0
        fate = self.random.random()
        if fate < 0.4:
            client.run.world.note(f"drops {len(found)} jobs of {type!r}", client.process)
            return
        if fate < 0.7:
            await self._together(client.update(job) for job in found)
        results = [self.run.sizes.pad(number) if fate < 0.9 else None for number in range(len(found))]
        await self._together(client.finish(job, result=result) for job, result in zip(found, results, strict=True))

    async def _together(self, calls: Iterable[Coroutine[Any, Any, object]]) -> None:
        """Make calls at the same time; each may fail in any way that is promised."""
        for result in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(result, Exception) and not isinstance(result, JobsError):
                raise result
