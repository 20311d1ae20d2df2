"""Those who have jobs leave with their end, or not, from one moment to the next, while others wait for them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import ClassVar, Final

from jobs_service import JobId, JobsError, JobTransaction, JobType, RunningJob
from jobs_service.errors import StoreError
from tests.simulation.calls import STOP_AND_REMOVE
from tests.simulation.client import Client
from tests.simulation.workloads.planners import together
from tests.simulation.workloads.subscribers import Subscribers

_TYPE: Final[JobType] = "forgotten"
_TIMEOUT: Final = 10.0
_LATER: Final = 2.0


class Forgetters(Subscribers):
    """Wait for jobs of a type that is theirs, and end them: most leave with that, and some come again at once."""

    name = "forgetters"
    weight: ClassVar[int] = 3

    async def start(self, client: Client) -> None:
        with contextlib.suppress(JobsError):
            await client.jobs.set_type_timeout(_TYPE, _TIMEOUT * (60 if self.run.long else 1))

    async def step(self, client: Client) -> None:
        self.look()
        ids: list[JobId] = self.random.sample(["a", "b", "c", "d"], self.random.randint(1, 2))
        for id in ids:
            await client.add(_TYPE, id, if_exists="resubmit")

        async def end_all() -> None:
            await asyncio.sleep(self.random.choice([0.0, 0.2, 0.2, 3.0, 20.0]))
            if self.random.random() < 0.6:
                keep = self.random.choice([None, 0.0, 0.0])
                await client.jobs.set_retention(_TYPE, keep=keep, keep_failed=keep)
            for job in await client.accept(_TYPE, 2, timeout=0):
                await asyncio.sleep(self.random.choice([0.0, 0.1, 1.0]))
                await self._end(client, job)
            await asyncio.sleep(_LATER)
            self.look()

        listeners = [self.follow(client, _TYPE, id) for id in ids for _ in range(self.random.randint(0, 2))]
        await together([end_all(), *listeners])

    async def settle(self, client: Client) -> None:
        while True:
            try:
                for job in await client.accept(_TYPE, timeout=None):
                    await client.finish(job)
            except StoreError as error:
                self.run.world.note(f"{error!r}", client.process)
                await asyncio.sleep(0.5)

    async def _end(self, client: Client, job: RunningJob) -> None:
        how = self.random.choice(["alone", "alone", "again", "again and removed"])
        if how == "alone":
            await client.finish(job)
            return

        async def end(tx: JobTransaction) -> None:
            await tx.finish(job)
            await tx.add(_TYPE, job.id, if_exists="resubmit")
            if how == "again and removed":
                await tx.remove(_TYPE, job.id)

        call = client.begin("finish", job.type, job.id)
        call.locks = (job.lock,)
        removal = [client.begin(STOP_AND_REMOVE, job.type, job.id)] if how == "again and removed" else []
        try:
            await client.transact([call, *removal], end)
        finally:
            # Nothing that was written bears its number.
            call.outcome = "unnamed"
