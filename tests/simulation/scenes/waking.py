"""Scenes of what comes by itself: types that wake up, jobs that come due, and those whose time is over."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import ClassVar, Final

from jobs_service import StoreUnavailable
from tests.simulation.client import Client
from tests.simulation.scenes.losing import Losses
from tests.simulation.scenes.stage import Scene, children_of

_LONG: Final = 600.0
_CLOCK_CHECK: Final = 5.0
"""Seconds after which whoever waits for a time looks at the clock again."""
_PROMPT: Final = 0.1


class Wakes(Losses):
    """Lose jobs of a type that was asleep, while the cluster loses watches; others see to it as soon as ever."""

    name: ClassVar[str] = "wakes"

    async def play(self) -> None:
        with self.weather(watch_lost=self.random.choice([0.5, 0.9])):
            await self.within(self._live, type_idle_after=0.5)

    async def _live(self, client: Client) -> None:
        timeout = 1.0
        await client.jobs.set_type_timeout(self.type, timeout)
        for number in range(4):
            await asyncio.sleep(self.random.uniform(4.0, 8.0))
            if repr(self.type) in {child["name"] for child in children_of(client.jobs.supervision(), "monitors")}:
                self.complain("a type is watched over, although it has had no jobs for a while")
            id = f"j{number}"
            await self.take(client, id)
            await self.lost([id], timeout)
            await client.remove(self.type, id, force=True)


class Alarms(Scene):
    """Schedule a job of a type that falls asleep until then: it is ready just when its time has come."""

    name: ClassVar[str] = "alarms"

    async def play(self) -> None:
        await self.within(self._live, type_idle_after=0.5)

    async def _live(self, client: Client) -> None:
        clock, latency = client.process.clock, self.run.world.cluster.latency
        await client.jobs.set_type_timeout(self.type, _LONG)
        for number in range(3):
            run_at = clock.wall_time() + self.random.uniform(3.0, 12.0)
            await client.add(self.type, f"j{number}", run_at=run_at)
            await asyncio.sleep(run_at - clock.wall_time())
            await self.until(
                lambda id=f"j{number}": self.state(id) != "scheduled",  # type: ignore[misc]
                _PROMPT + 12 * latency,
                "a scheduled job was ready, after its time had come",
            )
            await asyncio.sleep(self.random.choice([0.0, 2.0]))
        await self.clean(client)


class Jumps(Scene):
    """Schedule a job for much later, and set the clock forward: it is ready soon, whether its type is awake or not."""

    name: ClassVar[str] = "jumps"

    async def play(self) -> None:
        # Nothing else has it look at its clock meanwhile.
        await self.within(self._live, type_idle_after=self.random.choice([0.5, 10.0]), expiry_check_period=_LONG)

    async def _live(self, client: Client) -> None:
        await client.jobs.set_type_timeout(self.type, _LONG)
        if self.random.random() < 0.7:
            await self.take(client, "busy")
        for number in range(2):
            await self._jump(client, f"j{number}")
        self.run.move_clock(client.process, 0.0)
        await self.clean(client)

    async def _jump(self, client: Client, id: str) -> None:
        random = self.random
        later = random.uniform(100.0, 300.0)
        await client.add(self.type, id, run_at=client.process.clock.wall_time() + later)
        await asyncio.sleep(random.uniform(16.0, 60.0))
        self.run.move_clock(client.process, client.process.clock.ahead + later)
        await self.until(
            lambda: self.state(id) != "scheduled",
            _CLOCK_CHECK + 1.0 + 15 * self.run.world.cluster.latency,
            "a job was ready whose time a clock that was set forward has brought",
        )


class Collisions(Scene):
    """Have jobs come due, or be lost, one after the other, where others are often at the same work."""

    name: ClassVar[str] = "collisions"

    async def play(self) -> None:
        with self.weather(conflict=0.6):
            await self.within(self._live, pending_batch=1, activity_batch=1, activity_batch_increment=0)

    async def _live(self, client: Client) -> None:
        count, latency = 20, self.run.world.cluster.latency
        timeout = self.random.choice([2.0, _LONG])
        await _surely(lambda: client.jobs.set_type_timeout(self.type, timeout))
        # Of so many attempts far more than so many succeed; a quarter of a second is the longest pause before one.
        bound = 5 * count * (0.13 + 6 * latency)
        ids = [f"j{number}" for number in range(count)]
        if timeout < _LONG:
            await _surely(lambda: client.add_many(self.type, ids))
            for _ in ids:
                await _surely(lambda: client.accept(self.type, timeout=0))
            await asyncio.sleep(1.5 * timeout + 1.0)
            left = "running"
        else:
            now, left = client.process.clock.wall_time(), "scheduled"
            await _surely(lambda: self.take(client, "busy"))
            for number, id in enumerate(ids):
                at = now + 4.0 + 0.2 * number
                await _surely(lambda id=id, at=at: client.add(self.type, id, run_at=at))  # type: ignore[misc]
            await asyncio.sleep(now + 4.0 + 0.2 * count - client.process.clock.wall_time())
        await self.until(lambda: not [id for id in ids if self.state(id) == left], bound, f"no job was {left} any more")
        await self.clean(client)


class Expiries(Scene):
    """Finish jobs that are kept for a while, and let nothing else happen: they are removed within a period."""

    name: ClassVar[str] = "expiries"

    async def play(self) -> None:
        self._period = self.random.choice([1.0, 3.0])
        await self.within(
            self._live,
            type_idle_after=self.random.choice([0.5, 10.0]),
            expiry_check_period=self._period,
            pending_batch=self.random.choice([1, 100]),
        )

    async def _live(self, client: Client) -> None:
        random = self.random
        await client.jobs.set_type_timeout(self.type, random.choice([100.0, _LONG]))
        keep = random.uniform(1.0, 12.0)
        await client.jobs.set_retention(self.type, keep=keep)
        if random.random() < 0.6:
            await self.take(client, "busy")
        for _ in range(2):
            ids = [f"j{number}" for number in range(random.choice([1, 4]))]
            for id in ids:
                job = await self.take(client, id)
                assert job is not None
                await client.finish(job)
            await asyncio.sleep(keep)
            await self.until(
                lambda ids=ids: not [id for id in ids if self.state(id) is not None],  # type: ignore[misc]
                self._period + len(ids) * self.moment,
                "what has expired was removed",
            )
        await self.clean(client)


async def _surely(call: Callable[[], Awaitable[object]]) -> None:
    """Repeat a call that meets so many conflicts that its time runs out, as one in some thousands does."""
    while True:
        with contextlib.suppress(StoreUnavailable):
            await call()
            return
