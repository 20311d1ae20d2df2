"""Jobs whose workers fall silent, on a store that refuses pages of them: each is lost once, in time, in its order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from jobs_service import JobId, JobsService, JobState, Outcome, RunningJob, StoreError, WorkerConflict
from jobs_service.errors import StoreFull, StoreUnavailable, TransactionConflict, TransactionTooLarge
from jobs_service.model import HistoryKind
from jobs_service.store.memory import MemoryTransaction
from tests.simulation.drills.drill import LONG, Drill
from tests.simulation.drills.ground import Ground, written
from tests.simulation.weather import tree_tasks

_PASSING: Final = (TransactionConflict, StoreUnavailable, StoreFull)
_ACTS: Final = ("alive", "finish", "cancel", "longer", "shorter", "clear", "crash", "nothing")
_FACTOR: Final = 0.5
_LOOKS: Final = 10
"""How often one looks in a timeout."""


async def take_back_in_pages(drill: Drill) -> None:
    """Have jobs fall silent; the store refuses pages of them, and somebody does something before one is committed."""
    random = drill.random
    count = random.choice([1, 2, 3, 7])
    batch, increment = random.choice([1, 2, count, count + 1]), random.choice([0, 0, 1, 100])
    ground = Ground(drill, activity_batch=batch, activity_batch_increment=increment, activity_batch_factor=_FACTOR)
    async with ground.service() as jobs:
        silence = _Silence(ground, jobs, batch, increment)
        await silence.begin(count)
        await silence.refuse()
        if random.random() < 0.7:
            await silence.act(random.choice(_ACTS))
        await silence.see()
        await silence.end()


class _Silence:
    """Jobs of which nothing is heard any more.

    Args:
        ground: where.
        jobs: the service that watches over them.
        batch, increment: as in its settings.
    """

    def __init__(self, ground: Ground, jobs: JobsService, batch: int, increment: int) -> None:
        self._ground, self._jobs = ground, jobs
        self._batch, self._most, self._increment = batch, float(batch), increment
        self._is_silent = False
        self._seconds = ground.random.choice([1.0, 2.0])
        self._running: dict[JobId, RunningJob] = {}
        # When each was heard of last, in this order; since when the timeout is what it is; and how late one may be.
        self._heard: dict[JobId, float] = {}
        self._changed = 0.0
        self._grace = 0.3
        self._canceled: set[JobId] = set()
        self._pages: list[int] = []

    async def begin(self, count: int) -> None:
        """Have the jobs run, taken at once or one by one."""
        ground, jobs = self._ground, self._jobs
        self._grace += 0.05 * count
        await jobs.set_type_timeout(ground.type, self._seconds)
        for number in range(count):
            await jobs.add(ground.type, str(number))
        together = ground.random.choice([1, count])
        while len(self._running) < count:
            for job in await jobs.accept_many(ground.type, together, timeout=0):
                self._running[job.id] = job
                self._heard[job.id] = ground.time()
            await asyncio.sleep(ground.random.choice([0.0, 0.0, 0.01]))

    async def refuse(self) -> None:
        """Have the store refuse some of what is about to be committed."""
        ground, random = self._ground, self._ground.random
        most, left = random.choice([None, 1, 2]), random.choice([0, 0, 1, 2, 3])
        error: Callable[[str], StoreError] = random.choice(_PASSING)
        self._grace += 0.3 * left
        data = self._jobs._context.keyspace.of(ground.type).data

        def refuse(transaction: MemoryTransaction) -> None:
            nonlocal left
            size = len(written(transaction, data))
            if not size or not self._is_silent:
                return
            if size > int(self._most):
                ground.complain(f"a page of {size} jobs; {self._most} are the most, after {self._pages}")
            if most is not None and size > most:
                self._most = max(1.0, int(self._most) * _FACTOR)
                raise TransactionTooLarge("it is a drill")
            if left:
                left -= 1
                raise error("it is a drill")
            if size == int(self._most):
                self._most += self._increment
            self._pages.append(size)

        self._is_silent = True
        ground.doors.refuse = refuse

    async def act(self, what: str) -> None:
        """Hold the first page before its commit, and do something meanwhile."""
        ground, jobs, random = self._ground, self._jobs, self._ground.random
        doors = ground.doors
        doors.shut = "commit"
        first = min(self._heard.values())
        for _ in range(round((1.5 * self._seconds + self._grace) / 0.01)):
            if doors.waiting:
                break
            await asyncio.sleep(0.01)
        if not doors.waiting:
            ground.complain(f"nobody takes back jobs of which one was heard last at {first}")
        if doors.waiting and ground.time() < first + self._seconds:
            ground.complain(f"a job that was heard of at {first} is taken back at {ground.time()}")
        doors.shut = None  # what waits goes on doing so
        self._is_silent = False
        id = random.choice([*self._heard])
        if what in ("alive", "finish", "cancel"):
            await self._use(what, id)
        elif what == "crash":
            ground.drill.run.crashes.crashed(ground.drill.client.process)
            for actor, task in tree_tasks(jobs):
                if actor is not None and actor.name.startswith("activity monitor"):
                    task.cancel()
            self._changed, self._most = ground.time(), float(self._batch)
        elif what == "clear":
            await jobs.clear_type_timeout(ground.type)
            self._open()
            await asyncio.sleep(1.6 * self._seconds)
            await self._are_running("the type is not there")
            await self._set(self._seconds)
        elif what != "nothing":
            await self._set(self._seconds * (2 if what == "longer" else 0.75))
        self._open()

    def _open(self) -> None:
        self._is_silent = True
        self._ground.doors.open()

    async def _set(self, seconds: float) -> None:
        await self._jobs.set_type_timeout(self._ground.type, seconds)
        self._seconds, self._changed = seconds, self._ground.time()

    async def _use(self, what: str, id: JobId) -> None:
        job = self._running[id]
        if what == "alive":
            self._running[id] = await job.update()
            del self._heard[id]
            self._heard[id] = self._ground.time()
        elif what == "finish":
            await job.finish()
            del self._heard[id], self._running[id]
        else:
            await self._jobs.remove(self._ground.type, id)
            self._canceled.add(id)

    async def _are_running(self, why: str) -> None:
        there = {job.id: job.state async for job in self._jobs.list(self._ground.type)}
        if wrong := [id for id in self._heard if there.get(id) is not JobState.RUNNING]:
            self._ground.complain(f"{wrong} are not running, and {why}")

    async def see(self) -> None:
        """Look again and again: nobody is lost before its time, and all are afterwards."""
        ground, left = self._ground, {*self._heard}
        while left:
            await asyncio.sleep(self._seconds / _LOOKS)
            there = {job.id: job.state async for job in self._jobs.list(ground.type)}
            now = ground.time()
            for id in sorted(left, key=str):
                # Who was heard of when the timeout changed is silent for no longer than since then.
                since = self._heard[id]
                runs = there.get(id) is JobState.RUNNING
                if not runs and now < since + self._seconds:
                    ground.complain(f"{id!r} was heard of at {since}, and is {there.get(id)} at {now}")
                late = now > max(since, self._changed) + 1.5 * self._seconds + self._grace
                if runs and late:
                    ground.complain(f"{id!r} was heard of at {since}, and is not lost at {now}; {self._pages}")
                if not runs or late:
                    left.discard(id)

    async def end(self) -> None:
        """Each was lost once, is in the queue in the order in which they fell silent, and nobody's any more."""
        ground, jobs = self._ground, self._jobs
        ground.doors.refuse = None
        await jobs.set_type_timeout(ground.type, LONG)
        for id in self._heard:
            job = await jobs.get(ground.type, id)
            lost = sum(each.kind is HistoryKind.LOST for each in job.history)
            wanted = Outcome.CANCELED if id in self._canceled else None
            if lost != 1 or job.outcome is not wanted:
                ground.complain(f"{id!r} was lost {lost} times, and has ended as {job.outcome}, not {wanted}")
            try:
                await self._running[id].finish()
            except WorkerConflict:
                pass
            else:
                ground.complain(f"{id!r} was lost, and its old worker has finished it")
        totals = (await jobs.counts(ground.type))[ground.type].totals
        if (totals.lost, totals.canceled) != (len(self._heard), len(self._canceled & {*self._heard})):
            ground.complain(f"{[*self._heard]} were lost, {self._canceled} of them canceled; told is {totals}")
        found = [job.id for job in await jobs.accept_many(ground.type, len(self._heard) + 1, timeout=0)]
        if found != (wanted_order := [id for id in self._heard if id not in self._canceled]):
            ground.complain(f"{wanted_order} fell silent in this order; the queue is {found}")
