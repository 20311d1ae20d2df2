"""Workers of two services who wait for jobs of two types on all kinds of terms: each gets what is for him, or rests."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import Any, Final

import fdb.tuple

from jobs_service import JobTransaction, JobType, RunningJob
from jobs_service.store.base import Watch
from jobs_service.testing import SimulatedTransaction
from tests.simulation.client import Client
from tests.simulation.drills.drill import Drill
from tests.simulation.model_job import ModelJob
from tests.simulation.rows import rows_of

_DUE: Final = (None, None, None, -5.0, 0.6, 2.5)
"""When jobs are to run: at once, or so many seconds from now."""
_REST: Final = 12.0
"""Seconds in which nothing happens."""
_LATER: Final = 60.0
"""When jobs are due meanwhile that wait for their time, seconds from its beginning."""
_FAR: Final = 3600.0
_LOOKS: Final = 2
"""How often each line looks at its queue in vain meanwhile, at most: a watch that fires for nothing, or comes late."""


class _Unwanted(Exception):
    """Ends a transaction."""


async def wait_on_all_terms(drill: Drill) -> None:
    """Have workers come, wait and go, and jobs come, move and go: nobody who may take a job waits beside it, none is
    locked for nobody, and who has nothing to take neither looks for it again and again nor leaves anything behind."""
    queues = _Queues(drill)
    for type in queues.types:
        await drill.make_type(type=type)
    visitor = drill.client.process.service(supervise=False)
    drill.run.world.cluster.observers.append(queues)
    try:
        async with visitor:
            queues.clients.append(Client(drill.run, drill.client.process, visitor))
            try:
                for _ in range(drill.random.randint(3, 7)):
                    await queues.grow()
                    await queues.disturb()
                    await queues.settle()
                await queues.rest()
                queues.close()
                await queues.settle()
            finally:
                await queues.end()
    finally:
        drill.run.world.cluster.observers.remove(queues)


class _Worker:
    """Somebody who waits.

    Args:
        client, type, limit, terms: of the accept.
        since: on the loop's clock, seconds.

    Attributes:
        task: while he waits, and a moment longer.
    """

    task: asyncio.Task[None]

    def __init__(self, client: Client, type: JobType, limit: int, terms: dict[str, Any], since: float) -> None:
        self.client = client
        self.type = type
        self.limit = limit
        self.terms = terms
        self.since = since

    @property
    def line(self) -> tuple[object, ...]:
        """What he has in common with those who stand in one line with him."""
        return (
            self.client,
            self.type,
            self.limit,
            *(self.terms[name] for name in ("max_priority", "due_by", "spread")),
        )

    def __str__(self) -> str:
        return f"a worker who wants {self.limit} of {self.type!r} on the terms {self.terms}"


class _Queues:
    """Two queues, and all who wait for something of them. An observer of the cluster.

    Args:
        drill: that they are part of.

    Attributes:
        types: of the queues.
        clients: the services of which workers come.
    """

    def __init__(self, drill: Drill) -> None:
        self._drill = drill
        self._random = drill.random
        self.types: list[JobType] = [drill.type, (drill.type, "other")]
        self.clients = [drill.client]
        self._workers: list[_Worker] = []
        self._held: dict[bytes, tuple[Client, RunningJob]] = {}
        self._ending: set[bytes] = set()
        self._added = 0
        self._looks: Counter[JobType] = Counter()
        self._watches: list[Watch] = []

    def ended(self, transaction: SimulatedTransaction) -> None:
        """See Observer: count who has looked for jobs, and found none, and what they watch since."""
        looks = [entry for entry in transaction.journal if entry.name == "accept" and not entry.result]
        self._looks.update(entry.type for entry in looks)
        if looks:
            self._watches += transaction.watches

    async def grow(self) -> None:
        """Have some more workers come, often some on the same terms."""
        random = self._random
        for _ in range(random.randint(1, 3)):
            terms = {
                "max_priority": random.choice([None, None, 0, 5]),
                "due_by": random.choice([None, None, self._wall() + _FAR]),
                "spread": random.choice([1, 1, 2, "adaptive"]),
                "timeout": random.choice([None, None, None, random.uniform(0.2, 4.0), 0]),
            }
            client, type, limit = random.choice(self.clients), random.choice(self.types), random.choice([1, 1, 2, 3])
            for _ in range(random.choice([1, 1, 3])):
                self._come(client, type, limit, terms)
                if random.random() < 0.4:
                    await asyncio.sleep(self._drill.some_time())

    def _come(self, client: Client, type: JobType, limit: int, terms: dict[str, Any]) -> None:
        worker = _Worker(client, type, limit, terms, self._drill.time())
        worker.task = asyncio.create_task(self._work(worker), name=f"{self._drill.type} works")
        self._workers.append(worker)

    async def _work(self, worker: _Worker) -> None:
        found = await worker.client.accept(worker.type, worker.limit, **worker.terms)
        ended = [job for job in found if self._random.random() < 0.3]
        for job in found:
            self._held[job.lock] = worker.client, job
        self._ending |= {job.lock for job in ended}
        for job in ended:
            await worker.client.finish(job)

    async def disturb(self) -> None:
        """Have one or two things happen, at about the same time."""
        ways = [self._add, self._add, self._add, self._move, self._go, self._go, self._release, self._give_up]
        ways += [self._stop, self._stop, self._remove, self._take_together, self._meet]
        chosen = self._random.sample(ways, self._random.choice([1, 1, 2, 3]))
        await asyncio.gather(*(way() for way in chosen))

    async def _add(self) -> None:
        random = self._random
        type, ids = random.choice(self.types), []
        for _ in range(random.choice([1, 1, 2, 4])):
            self._added += 1
            ids.append(f"{self._added}")
        if random.random() < 0.3:
            await self._client().add_many(type, ids)
            return
        for id in ids:
            await asyncio.sleep(random.choice([0.0, self._drill.some_time()]))
            await self._client().add(type, id, **self._options())

    async def _move(self) -> None:
        """Have a job that waits run at another time, or rank elsewhere."""
        waiting = [(type, id) for type in self.types for id in self._drill.pending(type)]
        if waiting:
            type, id = self._random.choice(waiting)
            await self._client().add(type, id, if_exists="resubmit", **self._options())

    async def _remove(self) -> None:
        waiting = [(type, id) for type in self.types for id in self._drill.pending(type)]
        if waiting:
            type, id = self._random.choice(waiting)
            await self._client().remove(type, id)

    async def _go(self) -> None:
        """Have some workers go."""
        waiting = [each for each in self._workers if not each.task.done()]
        await asyncio.sleep(self._drill.some_time())
        await self._drill.pass_turns()
        for each in self._random.sample(waiting, min(len(waiting), self._random.choice([1, 1, 2]))):
            each.task.cancel()

    async def _release(self) -> None:
        """Have jobs given back by their workers, or ended."""
        for lock, (client, job) in [*self._held.items()]:
            now = self._drill.job(job.id, job.type)
            if self._random.random() < 0.5 and lock not in self._ending and now is not None and now.lock == lock:
                await (client.release if self._random.random() < 0.7 else client.finish)(job)

    async def _give_up(self) -> None:
        """Take a job, or add one, in a transaction that comes to nothing."""
        random, type = self._random, self._random.choice(self.types)
        client, adds = self._client(), self._random.random() < 0.5

        async def take(tx: JobTransaction) -> None:
            if adds:
                await tx.add(type, "never")
            await tx.accept_many(type, random.choice([1, 3]))
            raise _Unwanted

        with contextlib.suppress(_Unwanted):
            await client.jobs.transact(take)

    async def _take_together(self) -> None:
        """Add a job and take one in one transaction, and give it back or end it in another."""
        type, client = self._random.choice(self.types), self._client()
        self._added += 1
        add = client.begin("add", type, f"{self._added}")
        accept, limit = client.begin("accept", type, None), self._random.choice([1, 3, 50])

        async def take(tx: JobTransaction) -> list[RunningJob]:
            await tx.add(type, add.id or "", {"call": add.number})
            return await tx.accept_many(type, limit)

        found = await client.transact([add, accept], take)
        accept.locks = tuple(job.lock for job in found)
        for job in found:
            self._held[job.lock] = client, job
            self._ending.add(job.lock)
            await asyncio.sleep(self._drill.some_time())
            await client.release(job)

    async def _meet(self) -> None:
        """Have several ask at the same moment for jobs of which there are some: they share them."""
        random, type, client = self._random, self._random.choice(self.types), self._client()
        ids = [f"{number}" for number in range(self._added + 1, self._added + random.randint(2, 7))]
        self._added += len(ids)
        await client.add_many(type, ids)
        terms = {"max_priority": None, "due_by": None, "spread": random.choice([1, 1, 2]), "timeout": 0}
        limit = random.choice([1, 2, 3])
        for _ in range(random.randint(2, 4)):
            self._come(client, type, limit, terms)

    async def _stop(self) -> None:
        """Stop a queue, or have it go on."""
        type = self._random.choice(self.types)
        if self._is_paused(type):
            await self._client().jobs.resume(type)
        elif self._random.random() < 0.5:
            await self._client().jobs.pause(type)

    def _is_paused(self, type: JobType) -> bool:
        past = self._drill.run.history.pauses.get(type)
        return bool(past and past[-1][1])

    async def settle(self) -> None:
        """Wait until everybody has what is for him, and look whether it is so."""
        drill = self._drill
        await drill.settle()
        self._check_watches()
        for each in self._workers:
            if each.task.done() and not each.task.cancelled() and each.task.exception() is not None:
                drill.complain(f"{each} was told {each.task.exception()!r}")
        self._workers = [each for each in self._workers if not each.task.done()]
        for type in self.types:
            for id, job in drill.all(type).items():
                if job.lock is not None and job.lock not in self._held:
                    drill.complain(f"{id!r} of {type!r} is locked for a worker who has gone")
                for worker in self._workers if job.pending and not self._is_paused(type) else ():
                    if worker.type == type and not worker.task.done() and self._is_for(job, worker):
                        drill.complain(f"{worker} waits beside {id!r}, which is {job}")

    def _is_for(self, job: ModelJob, worker: _Worker) -> bool:
        """Whether a worker waits for a job of this kind, and both have been there for a moment."""
        if worker.since > self._drill.time() - self._drill.moment:
            return False
        most = worker.terms["max_priority"]
        if most is not None and job.priority > fdb.tuple.pack((most,)):
            return False
        due_by = worker.terms["due_by"]
        return job.run_at is None or job.run_at <= (self._wall() - self._drill.moment if due_by is None else due_by)

    async def rest(self) -> None:
        """Let time pass in which nothing happens: who waits in vain does not look again and again."""
        await asyncio.sleep(max(due or 0.0 for due in _DUE) + 4.0 + self._drill.moment)
        for type in self.types:
            self._added += 1
            await self._client().add(type, f"{self._added}", run_at=self._wall() + _LATER)
        await self.settle()
        self._looks.clear()
        await asyncio.sleep(_REST)
        # A clock that jumps may make jobs ready that are not due by others, which wakes everybody.
        jumped = max(self._drill.run.moved_clocks.values(), default=0.0)
        for type in self.types:
            most = _LOOKS * len(self._lines(type))
            if self._looks[type] > most and jumped < self._drill.time() - 2 * _REST:
                self._drill.complain(
                    f"{[str(each) for each in self._waiting(type)]} wait in vain, and have looked {self._looks[type]} "
                    f"times within {_REST} s"
                )

    def _check_watches(self) -> None:
        """Of those who stand in one line one watches the queue, and nobody else does."""
        run = self._drill.run
        if run.machine is not None:
            return
        for type in self.types:
            there = run.world.cluster._watches.get(rows_of(type).watch_pending, {})
            self._watches = [each for each in self._watches if each.key != rows_of(type).watch_pending or each in there]
            found = sum(each in there for each in self._watches)
            most = len(self._lines(type))
            if found > most:
                self._drill.complain(f"there are {found} watches on the queue of {type!r} for {most} lines of workers")

    def close(self) -> None:
        """Have all workers go."""
        for each in self._workers:
            each.task.cancel()

    async def end(self) -> None:
        """Have all workers go, and wait for their ends."""
        self.close()
        await asyncio.gather(*(each.task for each in self._workers), return_exceptions=True)

    def _waiting(self, type: JobType) -> list[_Worker]:
        return [each for each in self._workers if each.type == type and not each.task.done()]

    def _lines(self, type: JobType) -> set[tuple[object, ...]]:
        return {each.line for each in self._waiting(type)}

    def _client(self) -> Client:
        return self._random.choice(self.clients)

    def _wall(self) -> float:
        return self._drill.client.process.clock.wall_time()

    def _options(self) -> dict[str, Any]:
        due = self._random.choice(_DUE)
        run_at = None if due is None else self._wall() + due
        return {"priority": self._random.choice([0, 0, 3, 5, 9]), "run_at": run_at}
