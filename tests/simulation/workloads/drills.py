"""Small things, one after the other, in runs in which nothing else happens and nothing goes wrong."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, ClassVar

from jobs_service import JobsError
from tests.simulation.client import Client
from tests.simulation.drills import DRILLS, OF_TRANSACTIONS, Drill
from tests.simulation.rest import until_at_rest
from tests.simulation.workloads.base import Workload


class Drills(Workload):
    """Do one of the small things whose outcome is known exactly: see the package `drills`."""

    name = "drills"
    always: ClassVar[bool] = True
    drills: ClassVar[Sequence[Callable[[Drill], Awaitable[None]]]] = DRILLS

    def __init__(self, run: Any) -> None:
        super().__init__(run)
        self._begun = 0
        self._left: list[Callable[[Drill], Awaitable[None]]] = []
        self._has_rested = False

    async def step(self, client: Client) -> None:
        self._begun += 1
        drill = Drill(self.run, client, self.random, self._begun)
        if not self._left:
            self._left = self.random.sample(self.drills, len(self.drills))
        what = self._left.pop()
        self.run.world.note(f"{drill.type}: {what.__name__}", client.process)
        self.run.lasting += 1
        try:
            await what(drill)
        except (JobsError, TimeoutError) as error:
            # Nothing refuses what is asked here, but for the end of the run.
            if client.process.running and not self.run.is_over:
                drill.complain(f"{what.__name__} was refused: {error!r}")
        finally:
            self.run.lasting -= 1

    async def settle(self, client: Client) -> None:
        """Leave nothing behind: nobody else ends these jobs."""
        while client.process.name == "p0":
            jobs = [] if self.run.lasting else [*self.run.history.model.jobs.items()]
            for (type, id), _ in jobs:
                if "drill" in str(type):
                    with contextlib.suppress(JobsError):
                        await client.remove(type, id, force=True)
            if not jobs and not self.run.lasting and not self._has_rested:
                await until_at_rest(self.run)
                self._has_rested = True
            await asyncio.sleep(1.0)

    def open(self) -> Iterator[str]:
        """Whoever has begun goes on to the end."""
        if self.run.lasting:
            yield f"{self.run.lasting} drills are under way"
        if not self._has_rested:
            yield "nobody has seen that all is at rest"


class Weavers(Drills):
    """Do those of them that are about transactions: many operations in one, decisions, retries, shared commits."""

    name = "weavers"
    weight: ClassVar[int] = 8
    drills: ClassVar[Sequence[Callable[[Drill], Awaitable[None]]]] = OF_TRANSACTIONS
