"""Those who work ahead: they take what is due later, count it, and go on with jobs that were canceled meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from jobs_service import JobCanceled, JobsError, JobType
from jobs_service.testing import Process
from tests.simulation.client import Client
from tests.simulation.weather import CATCHES_UP
from tests.simulation.workloads.base import Workload

if TYPE_CHECKING:
    from tests.simulation.run import Run

_AHEAD = 60.0
_NOTICED = 8.0
"""Seconds after which a service has noticed that its clock has jumped: it looks every five."""


class Planners(Workload):
    """Schedule a few jobs of any priority for about the same time, and take those that are due by then."""

    name = "planners"
    weight: ClassVar[int] = 3

    async def step(self, client: Client) -> None:
        type = self.some_type()
        now = client.process.clock.wall_time()
        times = [now + self.random.choice([1.0, 2.0, 4.0, 6.0]) for _ in range(3)]
        count = self.random.randint(2, 5)
        adds = [self._add(client, type, self.random.choice([None, *times])) for _ in range(count)]
        if self.random.random() < 0.5:
            await together(add() for add in adds)
            adds = []
        if self.random.random() < 0.5:
            await self._count(client, type)
        limit, due_by = self.random.choice([1, 2, 3, 8]), self.random.choice([None, *times])
        terms = {
            "due_by": due_by,
            "spread": self.random.choice([1, 1, 1, 2]),
            "max_priority": self.random.choice([None, None, 0, 1]),
        }
        taken: list[Any] = []

        async def take() -> None:
            await asyncio.sleep(self.random.choice([0.0, 2 * self.run.world.cluster.latency]))
            taken.extend(await client.accept(type, limit, **terms))

        await together([take(), *(add() for add in adds)])
        await together(client.finish(job) if number % 3 else client.release(job) for number, job in enumerate(taken))

    def _add(self, client: Client, type: JobType, run_at: float | None) -> Callable[[], Awaitable[object]]:
        priority = self.random.choice([-1, 0, 1, 2])
        return partial(client.add, type, self.some_id(), if_exists="resubmit", run_at=run_at, priority=priority)

    async def _count(self, client: Client, type: JobType) -> None:
        """While nothing changes, exactly those jobs are counted that are due, also at that very time."""
        jobs = self.run.history.model.jobs
        times = [job.run_at for (of, _), job in jobs.items() if of == type and job.pending and job.run_at is not None]
        due_by = self.random.choice([None, *times])
        began = client.version
        counted = await client.jobs.pending_count(type, due_by=due_by)
        if client.version != began or self.run.is_damaged:
            return
        due = [
            id
            for (of, id), job in jobs.items()
            if of == type and job.pending and (due_by is None or job.run_at is None or job.run_at <= due_by)
        ]
        if counted != len(due):
            self.run.complain(f"count: {client.process} counted {counted} of {type!r} due by {due_by}, not {due}")


class Quitters(Workload):
    """Take a job whose removal is asked for at about the same time, and go on with it all the same."""

    name = "quitters"

    async def step(self, client: Client) -> None:
        for job in await client.accept(self.some_type(), timeout=0):
            try:
                await client.remove(job.type, job.id)
                for _ in range(self.random.choice([1, 2])):
                    if self.random.random() < 0.5:
                        await client.again(job, **self.some_options(client))
                    else:
                        await client.update(job)
            except JobCanceled:
                pass
            if self.random.random() < 0.3:
                await client.release(job)
            else:
                await client.finish(job)


class Travelers(Workload):
    """Schedule a job for later, and find their clock set to a time after that: it is due then, as every clock says."""

    name = "travelers"

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._away = set[Process]()

    async def step(self, client: Client) -> None:
        run, type, id = self.run, self.some_type(), self.some_id()
        process = client.process
        # Of two at the same time, one would take the other's time for the right one, and leave the clock there.
        if process in self._away or client.jobs._tree.root is None or type not in run.history.model.timeouts:
            return
        self._away.add(process)
        try:
            await self._travel(client, type, id)
        finally:
            self._away.discard(process)

    async def _travel(self, client: Client, type: JobType, id: Any) -> None:
        run, process = self.run, client.process
        run_at = process.clock.wall_time() + 0.5 * _AHEAD
        await client.add(type, id, if_exists="resubmit", run_at=run_at)
        await asyncio.sleep(self.random.uniform(1.5, 3.0))
        before, time = process.clock.ahead, run.world.loop.time
        # Whoever compares times is to know of the jump.
        quick = run.quiet.quick_since() <= time()
        run.quiet.disturb("clock")
        run.move_clock(process, before + _AHEAD)
        caught_up = time() + CATCHES_UP
        try:
            await asyncio.sleep(_NOTICED)
            if quick and run.quiet.quick_since() <= caught_up:
                self._look(process, type, id, run_at, time() - _NOTICED)
        finally:
            run.quiet.disturb("clock")
            run.move_clock(process, before)

    def _look(self, process: Process, type: JobType, id: Any, run_at: float, since: float) -> None:
        run = self.run
        job = run.history.model.jobs.get((type, id))
        if job is None or job.state != "scheduled" or job.run_at != run_at or process.clock.wall_time() < run_at:
            return
        changed = max(version for version, _ in run.history.timeouts[type])
        written = run.history.states(type, id)[-1]
        if written.time < since and changed < written.version and type in run.history.model.timeouts:
            run.complain(f"overdue: the clock of {process} has jumped past the time of {type!r}/{id!r}, which waits")


async def together(calls: Any) -> None:
    """Make calls at the same time; each may fail in any way that is promised."""
    for result in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(result, Exception) and not isinstance(result, JobsError):
            raise result
