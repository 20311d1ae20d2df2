"""Workers who wait in line: whoever goes, at whatever moment, those who stay get what comes, in their order."""

from __future__ import annotations

import asyncio
from typing import Any

from jobs_service import JobTransaction, RunningJob
from tests.simulation.drills.drill import Drill


async def wait_in_line(drill: Drill) -> None:
    """Have workers wait, add jobs, and have some of the workers go: nobody waits beside a job, and no job is locked
    for somebody who has gone."""
    await drill.make_type()
    line = _Line(drill)
    try:
        for _ in range(drill.random.randint(2, 4)):
            await line.grow()
            if line.is_orderly:
                await line.serve_in_order()
            ways = [line.come, line.come_together, line.come_together, line.go, line.go, line.come_and_go, line.race]
            ways += [line.come_later, line.go_from_a_transaction]
            await drill.random.choice(ways)()
            await drill.settle()
            line.check()
    finally:
        line.close()
        await asyncio.gather(*line.tasks, return_exceptions=True)
    await drill.settle()
    line.check()


class _Line:
    """Workers of one process who wait for the same jobs."""

    def __init__(self, drill: Drill) -> None:
        self._drill = drill
        random = drill.random
        self._terms: dict[str, Any] = {
            "spread": random.choice([1, 1, 3, "adaptive"]),
            "max_priority": random.choice([None, None, 5]),
        }
        world = drill.run.world
        # Where the schedule deviates, those who were woken together may ask in any order.
        self.is_orderly = world.choices.disorder == 0 and drill.run.machine is None and random.random() < 0.5
        self.tasks: list[asyncio.Task[None]] = []
        self._served: list[int] = []
        self._held: set[bytes] = set()
        self._added = 0
        # How many others go when one is served, and the number of those that are served before.
        self._greedy = self._greedy_from = 0

    @property
    def _waiting(self) -> list[asyncio.Task[None]]:
        return [each for each in self.tasks if not each.done()]

    async def grow(self) -> None:
        """Have some more workers come."""
        pause = self._drill.moment if self.is_orderly else self._drill.some_time()
        for _ in range(self._drill.random.randint(2, 5)):
            number = len(self.tasks)
            self.tasks.append(asyncio.create_task(self._work(number), name=f"{self._drill.type} worker {number}"))
            await asyncio.sleep(pause)

    async def serve_in_order(self) -> None:
        """Add jobs one by one: they go to those who have waited for longest."""
        drill = self._drill
        for _ in range(drill.random.randint(0, len(self._waiting))):
            # Whoever has ended took a job; the others stand in the order in which they came.
            first = next(number for number, each in enumerate(self.tasks) if not each.done())
            await self.come()
            await drill.settle()
            if self._served[-1:] != [first]:
                drill.complain(f"worker {first} was the first in line, and not served: {self._served}")

    async def come(self) -> None:
        """Add a job."""
        self._added += 1
        await self._drill.add(str(self._added))

    async def come_later(self) -> None:
        """Add a job that is due in a moment."""
        self._added += 1
        due = self._drill.client.process.clock.wall_time() + 0.8
        await self._drill.add(str(self._added), run_at=due)
        await self._drill.settle()

    async def go_from_a_transaction(self) -> None:
        """Have somebody go who takes a job in a transaction of the service."""
        drill = self._drill
        self.close()
        await drill.settle()
        await self.come()
        call = drill.client.begin("accept", drill.type, None)

        async def take(tx: JobTransaction) -> RunningJob | None:
            return await tx.accept(drill.type)

        taking = asyncio.create_task(drill.client.transact([call], take), name=f"{drill.type} takes")
        await asyncio.sleep(drill.some_time())
        await drill.pass_turns()
        taking.cancel()
        await asyncio.wait([taking])
        job = None if taking.cancelled() else taking.result()
        if job is not None:
            call.locks = (job.lock,)
            await drill.client.finish(job)

    async def come_together(self) -> None:
        """Add several jobs at once; whoever gets one has others go at that very moment."""
        random = self._drill.random
        self._greedy, self._greedy_from = (
            random.choice([1, 2, 2, 5]),
            len(self._served) + random.choice([1, 1, 1, 2, 3]),
        )
        ids = [str(number) for number in range(self._added + 1, self._added + 1 + random.randint(1, 4))]
        self._added += len(ids)
        await self._drill.client.add_many(self._drill.type, ids)
        await self._drill.settle()
        self._greedy = 0
        if self._waiting:
            await self.come()

    async def go(self) -> None:
        """Have some workers go, often the first in line, and add a job then."""
        self._cancel(self._drill.random.choice([1, 1, 2]))
        await self._drill.random.choice([self._drill.pass_turns, self._drill.settle])()
        await self.come()

    async def come_and_go(self) -> None:
        """Have some workers go at about the moment in which a job comes."""
        drill, added = self._drill, asyncio.create_task(self.come(), name=f"{self._drill.type} adds")
        try:
            await asyncio.sleep(drill.some_time())
            await drill.pass_turns()
            self._cancel(drill.random.randint(1, 3))
        finally:
            await added
        await drill.settle()
        await self.come()

    async def race(self) -> None:
        """Have several look for jobs at the same moment, of whom the others go when one has got a job."""
        random = self._drill.random
        self.close()
        await self._drill.settle()
        await self.come()
        await self.come()
        self._greedy, self._greedy_from = 5, len(self._served) + random.choice([1, 1, 2])
        timeout = random.choice([0, 0, None])
        for _ in range(random.randint(2, 4)):
            number = len(self.tasks)
            self.tasks.append(
                asyncio.create_task(self._work(number, timeout), name=f"{self._drill.type} racer {number}")
            )
        await self._drill.settle()
        self._greedy = 0
        self.close()
        await self._drill.settle()

    def close(self) -> None:
        """Have all workers go."""
        for each in self.tasks:
            each.cancel()

    def check(self) -> None:
        """Nobody waits beside a job, and each job that runs has a worker."""
        drill = self._drill
        pending, waiting = drill.pending(), [each.get_name() for each in self._waiting]
        if pending and waiting:
            drill.complain(f"{waiting} wait for jobs, and {pending} for workers")
        held_by_nobody = [id for id, job in drill.all().items() if job.lock is not None and job.lock not in self._held]
        if held_by_nobody:
            drill.complain(f"{held_by_nobody} are locked for workers who have gone")

    def _cancel(self, count: int) -> None:
        waiting = self._waiting
        chosen = waiting[:count] if self._drill.random.random() < 0.75 else waiting[-count:]
        for each in chosen:
            each.cancel()

    async def _work(self, number: int, timeout: float | None = None) -> None:
        drill = self._drill
        found = await drill.client.accept(drill.type, timeout=timeout, **self._terms)
        self._held |= {job.lock for job in found}
        self._served.append(number)
        if self._greedy and len(self._served) >= self._greedy_from:
            # In the same turn of the loop as the answer.
            here = asyncio.current_task()
            for each in [each for each in self._waiting if each is not here][: self._greedy]:
                each.cancel()
        for job in found:
            await drill.client.finish(job)
