"""Records that cannot be read for a while: of jobs that were added as all others are, and come back to work in the end.

As when a newer version has written them, and the older one comes across them first. See `vandals` for records that are
damaged for good.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, ClassVar, Final

from jobs_service import Job, JobsError, JobState, JobType, NewJob, RecordDamaged
from jobs_service.store.base import Transaction
from tests.simulation.client import Client
from tests.simulation.damage import DAMAGED
from tests.simulation.rows import data_key
from tests.simulation.sizes import pages_are_small
from tests.simulation.workloads.base import patiently
from tests.simulation.workloads.vandals import Vandals

_TIMEOUT: Final = 600.0
_PATIENCE: Final = 6.0
"""Seconds within which a job that can be read again is there for workers, where nothing takes time."""


class Menders(Vandals):
    """Have records be unreadable, look what all are told of them, and mend them: their jobs run then."""

    name = "menders"
    weight: ClassVar[int] = 8
    always: ClassVar[bool] = True

    async def start(self, client: Client) -> None:
        pass

    async def step(self, client: Client) -> None:
        type: JobType = ("mended", self._count)
        self._count += 1
        jobs = client.jobs
        runs = self.random.random() < 0.3  # what runs is noticed when it is lost
        await jobs.set_type_timeout(type, 1.0 if runs else _TIMEOUT)
        ids = [f"{DAMAGED}{number}" for number in range(self.random.choice([1, 3, 5]))]
        broken = self.random.sample(ids, self.random.randint(1, len(ids)))
        run_at = self.random.choice([None, client.process.clock.wall_time() + 0.5]) if not runs else None
        await jobs.add_many(type, [NewJob(id, {"number": id}, run_at=run_at) for id in ids])
        if runs:
            await client.accept(type, 10, timeout=0)
        raws = {id: await self._exchange(client, type, id, None) for id in broken}
        began = self.run.world.loop.time()
        try:
            found = await self._take_all(client, type, 6.0 if runs else 3.0)
            sound = {*ids} - {*broken}
            if not self._was_quick(began):
                return
            if {job.id for job in found} != sound:
                self.run.complain(f"mended: {client.process} got {found} of {type!r}, not {sound}")
            await self._is_told(client, type, broken)
        finally:
            for id, raw in raws.items():
                await self._exchange(client, type, id, raw)
        await self._mended(client, type, broken)

    async def _exchange(self, client: Client, type: JobType, id: str, raw: bytes | None) -> bytes:
        """Write a record, or one that cannot be read; return the one that was there."""
        damaged = self.random.choice([b"\x09", b"\xff"])

        async def exchange(transaction: Transaction) -> bytes:
            key = data_key(type, id)
            before = await transaction.get(key)
            assert before is not None
            transaction.set(key, damaged + before[1:] if raw is None else raw)
            return before

        while True:
            with contextlib.suppress(JobsError):
                return await client.jobs.store.transact(exchange)
            await asyncio.sleep(0.5)

    async def _take_all(self, client: Client, type: JobType, seconds: float) -> list[Job]:
        """Take all jobs that can be read, and finish them."""
        found: list[Job] = []
        until = self.run.world.loop.time() + seconds
        while (left := until - self.run.world.loop.time()) > 0:
            spread: Any = self.random.choice([1, 1, 3, "adaptive"])
            for job in await client.accept(type, 3, spread=spread, timeout=left):
                found.append(job)
                await job.finish()
        return found

    async def _is_told(self, client: Client, type: JobType, broken: list[str]) -> None:
        """Somebody has come across these jobs: lists, counts and those who ask for them say what they are."""
        listed = [job.id async for job in client.jobs.list(type) if job.state is JobState.UNREADABLE]
        counted = (await client.jobs.counts(type))[type].unreadable
        # Where pages hold a few keys, no more than a few of them are looked for.
        least = min(2, len(broken)) if pages_are_small() else len(broken)
        if sorted(map(str, listed)) != sorted(broken) or not least <= counted <= len(broken):
            self.run.complain(
                f"mended: {client.process} was told that {listed} of {type!r} ({counted}) are unreadable, not {broken}"
            )
        with contextlib.suppress(RecordDamaged):
            await client.jobs.get(type, broken[0])
            self.run.complain(f"mended: {client.process} has read {broken[0]!r} of {type!r}")

    async def _mended(self, client: Client, type: JobType, broken: list[str]) -> None:
        """A service that begins when these jobs can be read has them put back to work, and nothing of it is left."""
        began = self.run.world.loop.time()
        async with client.process.service():
            found = await self._take_all(client, type, _PATIENCE)
        if not self._was_quick(began):
            await patiently(lambda: self._remove_all(client, type, broken))
            return
        if sorted(str(job.id) for job in found) != sorted(broken):
            self.run.complain(f"mended: {client.process} got {found} of {type!r}, of which {broken} can be read again")
        counted = (await client.jobs.counts(type))[type]
        if counted.unreadable or counted.jobs != counted.succeeded:
            self.run.complain(f"mended: {client.process} has counted {counted} of {type!r}, whose jobs have all ended")

    async def _remove_all(self, client: Client, type: JobType, ids: list[str]) -> None:
        for id in ids:
            with contextlib.suppress(RecordDamaged):
                await client.jobs.remove(type, id, force=True)

    def _was_quick(self, began: float) -> bool:
        return self.run.quiet.quick_since() <= max(0.0, began - 1.0)
