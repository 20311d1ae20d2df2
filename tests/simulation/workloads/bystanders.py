"""Those who look at jobs, wait for them, and change types."""

from __future__ import annotations

import contextlib
from typing import ClassVar

from jobs_service import Job, JobNotFound, JobsError, JobState
from tests.simulation.calls import STOP_AND_REMOVE
from tests.simulation.client import Client
from tests.simulation.workloads.base import Workload

_TIMEOUTS = (2.0, 5.0, 10.0, 20.0)
_LATE = 0.1


class TypeKeepers(Workload):
    """Change and clear the activity timeouts of types."""

    name = "type keepers"

    async def step(self, client: Client) -> None:
        type = self.some_type()
        if self.random.random() < 0.3:
            await client.jobs.clear_type_timeout(type)
        else:
            await client.jobs.set_type_timeout(type, self.random.choice(_TIMEOUTS))


class Lookers(Workload):
    """Get and list jobs: what they see was so while they looked."""

    name = "lookers"
    weight: ClassVar[int] = 2

    async def step(self, client: Client) -> None:
        type, id = self.some_type(), self.some_id()
        began = client.version
        if self.random.random() < 0.7:
            try:
                seen = [await client.jobs.get(type, id)]
            except JobNotFound:
                seen = []
                self._check(client, began, type, id, None)
        else:
            page = self.random.choice([2, 1000])
            seen = [job async for job in client.jobs.list(type, page_size=page)]
        for job in seen:
            if job.state is JobState.UNREADABLE:
                continue
            self._check(client, began, job.type, job.id, job)

    def _check(self, client: Client, began: int, type: object, id: object, job: Job | None) -> None:
        wanted = None if job is None else (job.state, job.data, job.outcome)
        states = self.run.history.states(type, id)  # type: ignore[arg-type]
        before = [each for each in states if each[0] <= began]
        during = [each for each in states if began < each[0]]
        possible = [each[2:5] for each in [*before[-1:], *during]]
        gone = [each for each in possible if each[0] == "removed"] or not before
        if not (gone if wanted is None else wanted in possible):
            self.run.complain(f"look: {client.process} saw {wanted} of {type!r}/{id!r}, which was {possible} meanwhile")


class Waiters(Workload):
    """Wait for a state, or stop and remove a job: both end in time, whatever the weather."""

    name = "waiters"

    async def step(self, client: Client) -> None:
        type, id = self.some_type(), self.some_id()
        seconds = self.random.choice([0.3, 1.0, 4.0])
        time = self.run.world.loop.time
        began, pauses = time(), client.process.pauses
        stop = self.random.random() < 0.4
        removal = client.begin(STOP_AND_REMOVE, type, id) if stop else None
        with contextlib.suppress(TimeoutError, JobNotFound):
            try:
                if removal is not None:
                    await client.jobs.stop_and_remove(type, id, timeout=seconds)
                else:
                    with contextlib.suppress(JobsError):
                        await client.jobs.wait(type, id, "finished", timeout=seconds)
            finally:
                took = time() - began
                if took > seconds + _LATE and client.process.pauses == pauses and client.process.alive:
                    self.run.complain(f"late: {'stop_and_remove' if stop else 'wait'}({seconds}) took {took:.3f} s")
