"""Those whose types fall asleep: their jobs come due, or expire, much later, or are gone; and transactions that dawdle.

Types of their own, so that nothing else keeps them awake. A transaction that takes its time may have read that its type
is awake before the type has fallen asleep, and commit after that: whoever watches over types must notice all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, ClassVar, Final

from jobs_service import JobsError, JobTransaction, JobType, NewJob
from tests.simulation.client import Client
from tests.simulation.workloads.base import Workload

_TIMEOUT: Final = 30.0
_IDS: Final = ("a", "b", "c", "d")
_LATER: Final = (3.0, 20.0, 100.0, 400.0)
"""Seconds after which jobs come due: some while their type is still awake, some long after."""
_KEPT: Final = (None, 2.0, 60.0, 400.0)
"""Seconds for which finished jobs are kept, by type."""
_NOTHING: Final = b"nothing"
_LONGEST: Final = 2.5
"""Seconds that a transaction dawdles at most: well within its time limit."""


class Dozers(Workload):
    """Plan jobs of types that sleep, several at a time; remove and run them, and add others just as types doze off."""

    name = "dozers"
    weight: ClassVar[int] = 8

    def __init__(self, run: Any) -> None:
        super().__init__(run)
        self._types: list[JobType] = [("dozes", number) for number in range(len(_KEPT))]

    async def start(self, client: Client) -> None:
        for type, kept in zip(self._types, _KEPT, strict=True):
            await self.make_types(client, [type], _TIMEOUT, keep=kept, keep_failed=None)

    async def step(self, client: Client) -> None:
        type = self.random.choice(self._types)
        for _ in range(self.random.randint(1, 3)):
            act = self.random.choice([self._plan, self._plan, self._run_one, self._forget, self._forget])
            await act(client, type)
            if self.random.random() < 0.5:
                await asyncio.sleep(self.random.uniform(0.3, 4.0))
        self.run.key_check.check()

    async def _plan(self, client: Client, type: JobType) -> None:
        """Plan one or several jobs, at once or in a transaction that dawdles."""
        ids = self.random.sample(_IDS, self.random.choice([1, 1, 2, 3]))
        now = client.process.clock.wall_time()
        wanted = {id: now + self.random.choice(_LATER) for id in ids}
        calls = {id: client.begin("add", type, id, {"run_at": run_at}) for id, run_at in wanted.items()}
        if self.random.random() < 0.4:
            jobs = [NewJob(id, client.data(calls[id]), run_at=run_at) for id, run_at in wanted.items()]
            await client.many([*calls.values()], client.jobs.add_many(type, jobs, if_exists="resubmit"))
            return
        pauses = self._pauses()

        async def plan(tx: JobTransaction) -> None:
            await tx.kv.get(_NOTHING)  # from here on it sees what is so now
            await asyncio.sleep(pauses.pop() if pauses else 0.0)
            for id, run_at in wanted.items():
                await tx.add(type, id, client.data(calls[id]), if_exists="resubmit", run_at=run_at)

        await client.transact(calls.values(), plan)

    async def _run_one(self, client: Client, type: JobType) -> None:
        """Run a job from its beginning to its end in one transaction: it may have to be removed one day."""
        id = self.random.choice(_IDS)
        call, pauses = client.begin("finish", type, id), self._pauses()
        added, accepted = client.begin("add", type, id), client.begin("accept", type, None)
        locks: list[bytes] = []

        async def run(tx: JobTransaction) -> None:
            locks.clear()
            await tx.add(type, id, client.data(added), if_exists="resubmit", run_at=None)
            await asyncio.sleep(pauses.pop() if pauses else 0.0)
            job = await tx.accept(type)
            if job is not None:
                locks.append(job.lock)
                await tx.finish(job, client.data(call))

        await client.transact([added, accepted, call], run)
        accepted.locks = tuple(locks)

    async def _forget(self, client: Client, type: JobType) -> None:
        """Remove all jobs that wait: their type is awake then, and has nothing to do."""
        for id in self._left(type):
            with contextlib.suppress(JobsError):
                await client.remove(type, id, force=True)

    def _pauses(self) -> list[float]:
        """Return for how long a transaction dawdles when it runs first; run again, it does not."""
        return [self.random.choice([0.0, self.random.uniform(0.2, _LONGEST), self.random.uniform(0.2, _LONGEST)])]

    def _left(self, type: JobType) -> list[Any]:
        jobs = self.run.history.model.jobs
        return [id for id in _IDS if (type, id) in jobs and jobs[type, id].state != "finished"]

    async def settle(self, client: Client) -> None:
        """Leave nothing behind: nobody else ends these jobs."""
        while client.process.name == "p0":
            for type in self._types:
                await self._forget(client, type)
            await asyncio.sleep(1.0)
