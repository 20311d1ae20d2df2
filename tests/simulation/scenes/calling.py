"""Scenes of calls: everybody is answered, whatever becomes of those who have called at the same time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import ClassVar, Final

from jobs_service import JobsError, NewJob
from tests.simulation.client import Client
from tests.simulation.scenes.stage import Scene, some_turns

_LONG: Final = 600.0
_ANSWERED: Final = 60.0


class Wrong(Exception):
    """What an iterable raises."""


class Givers(Scene):
    """Give jobs one by one, and fail in the middle: the caller is told, and whole batches are there."""

    name: ClassVar[str] = "givers"

    async def play(self) -> None:
        self._batch = self.random.choice([1, 2, 3])
        await self.within(self._live, supervise=False, add_batch=self._batch)

    async def _live(self, client: Client) -> None:
        await client.jobs.set_type_timeout(self.type, _LONG)
        for number in range(4):
            given = self.random.randint(0, 7)
            try:
                await client.jobs.add_many(self.type, self._give(number, given))
                self.complain(f"an iterable has failed after {given} jobs, and nobody was told")
            except Wrong:
                pass
            there = [id for id in range(given) if self.state(f"j{number}-{id}") is not None]
            # That a batch is whole is known when the next job comes.
            least = max(0, given - 1) // self._batch * self._batch
            if there != [*range(len(there))] or len(there) % self._batch or len(there) < least:
                self.complain(f"of {given} jobs that were given in batches of {self._batch}, {there} are there")
        await self.clean(client)

    def _give(self, number: int, count: int) -> Iterator[NewJob]:
        for id in range(count):
            yield NewJob(f"j{number}-{id}", {"given": id})
        raise Wrong


class Deserted(Scene):
    """Ask for jobs, several at a time, and go away before the answer: what nobody got waits for others."""

    name: ClassVar[str] = "deserted"

    async def play(self) -> None:
        await self.within(self._live, supervise=False)

    async def _live(self, client: Client) -> None:
        random, latency = self.random, self.run.world.cluster.latency
        await client.jobs.set_type_timeout(self.type, _LONG)
        for number in range(10):
            ids = [f"j{number}-{id}" for id in range(random.randint(1, 4))]
            await client.add_many(self.type, ids)
            callers = [
                asyncio.create_task(
                    client.accept(self.type, random.choice([1, 1, 3]), timeout=random.choice([0, 0, 1.0]))
                )
                for _ in range(random.randint(1, 4))
            ]
            await asyncio.sleep(random.choice([0.0, random.uniform(0.0, 5 * latency)]))
            await some_turns(random.randint(0, 30))
            for caller in callers:
                if random.random() < 0.6:
                    caller.cancel()
            got: set[str] = set()
            for found in await asyncio.gather(*callers, return_exceptions=True):
                got |= set() if isinstance(found, BaseException) else {str(job.id) for job in found}
            await self.until(
                lambda ids=ids, got=got: not [id for id in ids if id not in got and self.state(id) == "running"],  # type: ignore[misc]
                self.moment,
                "jobs that were accepted for those who had gone were given back",
            )
            await self.clean(client)


class Crowded(Scene):
    """Have many call in the same turn, while transactions are too much, too old, or run into each other."""

    name: ClassVar[str] = "crowded"

    async def play(self) -> None:
        await self.within(self._live, supervise=False)

    async def _live(self, client: Client) -> None:
        random = self.random
        await client.jobs.set_type_timeout(self.type, _LONG)
        with self.weather(too_old=random.choice([0.1, 0.4]), conflict=0.1):
            for number in range(5):
                await self._call_together(client, number)
        await self.clean(client)

    async def _call_together(self, client: Client, number: int) -> None:
        random = self.random
        ids = [f"j{number}-{id}" for id in range(random.randint(2, 9))]
        calls = [client.add(self.type, id) for id in ids]
        calls += [client.resubmit(self.type, id, priority=1) for id in ids if random.random() < 0.3]
        tasks = [asyncio.create_task(self._tolerant(call)) for call in calls]
        tasks += [asyncio.create_task(self._tolerant(client.accept(self.type, timeout=0))) for _ in range(2)]
        _, left = await asyncio.wait(tasks, timeout=_ANSWERED)
        if left:
            self.complain(f"{len(left)} of {len(tasks)} who have called together were not answered")
        for task in left:
            task.cancel()

    async def _tolerant(self, call: object) -> None:
        with contextlib.suppress(JobsError):
            await call  # type: ignore[misc]
