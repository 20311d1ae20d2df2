"""Scenes of jobs whose workers fall silent: they are pending again in time, and never too early."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, ClassVar, Final
from unittest.mock import patch

from jobs_service import JobsError, RunningJob, StoreError
from jobs_service.actors import type_server
from jobs_service.store.base import Transaction
from tests.simulation.client import Client
from tests.simulation.rows import section
from tests.simulation.scenes.stage import Scene

_LONG: Final = 600.0
_LARGEST: Final = 20_000
"""Bytes of a transaction that some large jobs fill."""


class Losses(Scene):
    """Lose jobs of one type again and again, some at a time, while its timeout changes, or it falls asleep between."""

    name: ClassVar[str] = "losses"

    async def play(self) -> None:
        random = self.random
        settings: dict[str, Any] = {
            "activity_batch": random.choice([1, 3, 1000]),
            "activity_batch_increment": random.choice([0, 1, 100]),
            "activity_samples": random.choice([4, 8]),
            "type_idle_after": random.choice([0.5, 10.0]),
        }
        with self.weather(**random.choice([{}, {"watch_lost": random.choice([0.2, 0.9])}])):
            await self.within(self._live, **settings)

    async def _live(self, client: Client) -> None:
        random = self.random
        timeout = random.choice([1.0, 2.0, 4.0, 60.0])
        await client.jobs.set_type_timeout(self.type, timeout)
        for _ in range(4):
            await asyncio.sleep(random.choice([0.0, 0.0, timeout / 2 if timeout < _LONG / 60 else 1.0, 8.0]))
            if random.random() < 0.4:
                timeout = random.choice([1.0, 2.0])
                await client.jobs.set_type_timeout(self.type, timeout)
            ids = [f"j{number}" for number in range(random.choice([1, 1, 3]))]
            await client.add_many(self.type, ids, if_exists="resubmit")
            found = await client.accept(self.type, len(ids), timeout=0)
            for _ in range(random.choice([0, 0, 1, 3])):
                await asyncio.sleep(random.uniform(0.1, 0.7) * min(timeout, 2.0))
                for job in found:
                    await job.update()
            if timeout < 60.0:
                await self.lost(ids, timeout)
            await self.clean(client)

    async def lost(self, ids: list[str], timeout: float) -> None:
        """Wait until jobs that nobody works on any more are pending again."""
        bound = 1.5 * timeout + 1.0 + 0.25 + (1 + len(ids)) * 15 * self.run.world.cluster.latency
        await self.until(
            lambda: not [id for id in ids if self.state(id) == "running"],
            bound,
            f"jobs were lost, whose timeout is {timeout} s",
        )


class Patience(Scene):
    """Make a type's timeout longer while its jobs are being taken for lost, in another process; or hold up everybody.

    The history knows how long each job was silent that is taken for lost.
    """

    name: ClassVar[str] = "patience"

    async def play(self) -> None:
        self._over = asyncio.Event()
        settings: dict[str, Any] = {"activity_batch": 1, "activity_batch_increment": 0}
        other = self.begin(self._watch, **settings)
        await self.within(self._lengthen, **settings)
        await self.within(self._hold_up, **settings)
        self._over.set()
        await self.end(other)

    async def _watch(self, client: Client) -> None:
        await self._over.wait()

    async def _lengthen(self, client: Client) -> None:
        random, ids = self.random, [f"j{number}" for number in range(12)]
        for _ in range(2):
            await client.jobs.set_type_timeout(self.type, 2.0)
            await asyncio.sleep(1.0)
            await client.add_many(self.type, ids, if_exists="resubmit")
            for _ in ids:
                await client.accept(self.type, timeout=0)
            await self.until(
                lambda: len([id for id in ids if self.state(id) == "running"]) < len(ids), 6.0, "the first job was lost"
            )
            await asyncio.sleep(random.uniform(0.0, 8 * self.run.world.cluster.latency))
            await client.jobs.set_type_timeout(self.type, random.choice([6.0, 30.0]))
            await asyncio.sleep(3.0)
            await self.clean(client)

    async def _hold_up(self, client: Client) -> None:
        """Show that a job is alive, rarely enough, while the cluster is away for longer than a read takes."""
        random, timeout = self.random, 4.0
        await client.jobs.set_type_timeout(self.type, timeout)
        for number in range(4):
            job = await self.take(client, f"j{number}")
            assert job is not None
            self.run.world.loop.call_later(random.uniform(0.0, timeout / 2), self._go_away, random.uniform(3.5, 9.0))
            with contextlib.suppress(JobsError):
                for _ in range(3):
                    await asyncio.sleep(0.85 * timeout)
                    await self._beat(job)
            await asyncio.sleep(1.0)
            with contextlib.suppress(JobsError):
                await client.finish(job)
        await self.clean(client)

    def _go_away(self, seconds: float) -> None:
        self.run.quiet.disturb("away")
        self.run.world.cluster.go_away(seconds)

    async def _beat(self, job: RunningJob) -> None:
        while True:
            with contextlib.suppress(StoreError):
                await job.update()
                return
            await asyncio.sleep(0.02)


class Heaps(Losses):
    """Lose so many large jobs at once that a transaction holds a few of them."""

    name: ClassVar[str] = "heaps"

    async def play(self) -> None:
        await self.within(self._live, activity_batch=self.random.choice([5, 1000]))

    async def _live(self, client: Client) -> None:
        limits = client.jobs.store.limits
        transaction = min(limits.transaction, _LARGEST)
        size, timeout = min(limits.value - limits.value // 32 - 700, transaction // 8), 2.0
        await client.jobs.set_type_timeout(self.type, timeout)
        ids = [f"j{number}" for number in range(12)]
        for id in ids:
            job = await self.take(client, id)
            assert job is not None
            await job.update("x" * size)
        await self.lost(ids, timeout)
        await self.clean(client)


class Restores(Losses):
    """Open a service on a store whose jobs run, and which does not say which types are awake: one restored."""

    name: ClassVar[str] = "restores"

    async def play(self) -> None:
        self._timeout = 2.0
        self._types = [(self.type, number) for number in range(self.random.choice([3, 8]))]
        await self.within(self._prepare, supervise=False)
        self.run.quiet.slow_down(0.0)
        with patch.object(type_server, "_SCANNED_TOGETHER", self.random.choice([2, 3, 100])):
            await self.within(self._watch, type_check_period=1.0)

    async def _prepare(self, client: Client) -> None:
        for type in self._types:
            await client.jobs.set_type_timeout(type, self._timeout)
            await self.take(client, "j", type)

        async def forget(transaction: Transaction) -> None:
            for family in ("AWAKE", "ASLEEP", "ALARM"):
                # The counter stays, which is at AWAKE itself.
                transaction.clear_range(section(family) + b"\x01", section(family) + b"\xff")

        self.run.key_check.is_held = True
        await client.jobs.store.transact(forget)

    async def _watch(self, client: Client) -> None:
        bound = 1.5 * self._timeout + 4.0 + 60 * self.run.world.cluster.latency
        await self.until(
            lambda: not [type for type in self._types if self.state("j", type) == "running"],
            bound,
            "jobs of a restored store were lost",
        )
        self.run.key_check.is_held = False
        await self.clean(client, self._types)
