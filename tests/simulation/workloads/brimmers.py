"""Those whose jobs are exactly as large as a store takes: whatever becomes of such a job later must fit as well."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, ClassVar, Final

from jobs_service import Job, JobsError, JobTooLarge, JobTransaction, JobType, Outcome, RunningJob
from jobs_service.errors import JobCanceled, TransactionTooLarge, WorkerConflict
from tests.simulation.client import Client
from tests.simulation.workloads.base import Workload

_TIMEOUT: Final = 600.0
_WITH_LONG_ID: Final = 0.4
"""The share of jobs whose ids are as long as they may be, not their data."""
_NEARLY: Final = 500
"""Bytes below the largest value of the store that any job's data may have."""


class _Fits(Exception):
    """So many bytes of data were accepted; the transaction that has tried it writes nothing."""


class Brimmers(Workload):
    """Find the largest data with which a job is accepted, and do with that job all that can be done with any."""

    name = "brimmers"
    weight: ClassVar[int] = 8

    def __init__(self, run: Any) -> None:
        super().__init__(run)
        self._count = 0

    async def start(self, client: Client) -> None:
        with contextlib.suppress(JobsError):
            await client.jobs.set_type_timeout("brims", _TIMEOUT)

    async def step(self, client: Client) -> None:
        type: JobType = "brims"
        number, limits = self._count, client.jobs.store.limits
        self._count += 1
        now = client.process.clock.wall_time()
        options: dict[str, Any] = {
            "priority": self.random.choice([0, 7, "p" * 30, "q" * 90, (1, "r" * 50)]),
            "run_at": self.random.choice([None, now - 5.0]),
        }
        long_id = limits.key < limits.value and self.random.random() < _WITH_LONG_ID
        rest = self.random.choice([0, 0, 40])

        def asked(size: int, call: int) -> tuple[str, dict[str, Any]]:
            """Return id and data of a job of which the one or the other has so many bytes."""
            return (
                (f"{number}" + "i" * size, _data(call, 0)) if long_id else (f"{number}" + "i" * rest, _data(call, size))
            )

        call = client.begin("add", type, None, options)
        bounds = (1, limits.key) if long_id else (limits.value - limits.value // 32 - _NEARLY, limits.value)
        largest = await self._largest(client, type, lambda size: asked(size, call.number), options, bounds)
        id, data = asked(largest, call.number)
        call.id = id
        await client.call(call, client.jobs.add(type, id, data, **options))
        try:
            await self._live(client, type, id, now)
        except (JobTooLarge, TransactionTooLarge) as error:
            self.run.complain(f"brims: {type!r}/{id!r} was accepted with {largest} bytes, and refused later: {error!r}")
        with contextlib.suppress(JobsError):
            await client.remove(type, id, force=True)

    async def _largest(
        self,
        client: Client,
        type: JobType,
        asked: Callable[[int], tuple[str, dict[str, Any]]],
        options: dict[str, Any],
        bounds: tuple[int, int],
    ) -> int:
        """Return the most bytes with which a job is accepted, by trying."""
        least, most = bounds
        while most - least > 1:
            middle = (least + most) // 2

            async def attempt(tx: JobTransaction, size: int = middle) -> None:
                id, data = asked(size)
                await tx.add(type, id, data, **options)
                raise _Fits

            try:
                await client.jobs.transact(attempt)
            except _Fits:
                least = middle
            except JobTooLarge:
                most = middle
        return least

    async def _live(self, client: Client, type: JobType, id: str, now: float) -> None:
        """Have it run, be wanted again, be canceled, given back, and end."""
        jobs = client.jobs
        draw = self.random.random
        if draw() < 0.4:
            await client.call(client.begin("nothing", type, id), jobs.resubmit(type, id, run_at=now - 1.0))
        for _ in range(self.random.choice([1, 1, 2])):
            job = await self._accepted(client, type, id)
            if job is None:
                return
            if draw() < 0.4:
                await job.update()
            if draw() < 0.6:
                await client.call(client.begin("nothing", type, id), jobs.resubmit(type, id, run_at=now - 2.0))
            if draw() < 0.3:
                await client.call(client.begin("nothing", type, id), jobs.resubmit(type, id))
            if draw() < 0.3:
                await client.remove(type, id)
            await self._ended(client, job)

    async def _accepted(self, client: Client, type: JobType, id: str) -> RunningJob | None:
        for job in await client.accept(type, 20, timeout=0):
            if job.id == id:
                return job
        return None

    async def _ended(self, client: Client, job: RunningJob) -> Job | None:
        how = self.random.choice(["release", "finish", "failed", "resubmit"])
        call = client.begin("nothing", job.type, job.id)
        try:
            if how == "release":
                return await client.call(call, job.release())
            if how == "resubmit":
                with contextlib.suppress(JobCanceled):
                    await client.call(call, job.resubmit())
            outcome = Outcome.FAILED if how == "failed" else Outcome.SUCCEEDED
            return await client.call(call, job.finish(outcome=outcome))
        except WorkerConflict:
            return None

    async def settle(self, client: Client) -> None:
        """Leave nothing behind: nobody else ends these jobs."""
        while client.process.name == "p0":
            for type, id in [key for key, job in self.run.history.model.jobs.items() if job.state != "finished"]:
                if type == "brims":
                    with contextlib.suppress(JobsError):
                        await client.remove(type, id, force=True)
            await asyncio.sleep(1.0)


def _data(number: int, size: int) -> dict[str, Any]:
    """Return data that name a call, and take so many bytes as they are stored if that is enough for them."""
    empty = len(f'{{"call":{number},"pad":""}}')
    return {"call": number, "pad": "x" * (size - empty)}
