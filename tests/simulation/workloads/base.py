"""What every workload is: something that processes do again and again, and what must be so in the end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from jobs_service import JobId, JobsError, JobsService, JobType, StoreError
from jobs_service.testing import Process
from tests.simulation.client import Client

if TYPE_CHECKING:
    from tests.simulation.run import Run


class Workload:
    """One kind of user.

    Args:
        run: the run that it is part of.

    Attributes:
        name: for people and the command line.
        weight: how often its steps are taken, beside those of others.
        always: whether it takes steps in every run that has it.
        random: its own draws.
    """

    name: ClassVar[str]
    weight: ClassVar[int] = 1
    always: ClassVar[bool] = False

    def __init__(self, run: Run) -> None:
        self.run = run
        self.random = run.world.choices.stream(f"workload {self.name}")

    async def start(self, client: Client) -> None:
        """Prepare, before any step, in a process of its own that is not killed."""

    def equip(self, process: Process) -> None:
        """Have a process that is about to begin find its surroundings as they are in runs with this workload."""

    def register(self, process: Process, jobs: JobsService) -> None:
        """Make functions handlers of a service that is about to be opened."""

    async def step(self, client: Client) -> None:
        """Do something once, in one process. What the service may raise at any time passes through."""
        raise NotImplementedError

    async def settle(self, client: Client) -> None:
        """Help to bring all jobs to their end when the storm is over, in every process; may go on for ever."""

    def after_end(self, process: Process) -> Iterator[str]:
        """Yield what is wrong when a process has ended."""
        yield from ()

    def open(self) -> Iterator[str]:
        """Yield what must still happen before the run can end."""
        yield from ()

    def check(self) -> Iterator[str]:
        """Yield what is wrong in the end."""
        yield from ()

    # What several of them need

    async def make_types(self, client: Client, types: Iterable[JobType], timeout: float, **retention: Any) -> None:
        """Give types of their own an activity timeout, in seconds, and a retention if any; where the store takes it."""
        for type in types:
            with contextlib.suppress(JobsError):
                await client.jobs.set_type_timeout(type, timeout)
                if retention:
                    await client.jobs.set_retention(type, **retention)

    # Draws that most of them need

    def some_type(self) -> JobType:
        """Return one of the run's types."""
        return self.random.choice(self.run.types)

    def some_id(self) -> JobId:
        """Return one of the run's few ids, so that users get in each other's way."""
        return self.random.choice(self.run.ids)

    def some_options(self, client: Client) -> dict[str, Any]:
        """Return priority and run_at of a job, or nothing."""
        options: dict[str, Any] = {}
        if self.random.random() < 0.4:
            options["priority"] = self.random.choice([-1, 0, 1, "p", (1, "q"), *self.run.sizes.priorities])
        if self.random.random() < 0.3:
            options["run_at"] = client.process.clock.wall_time() + self.random.choice([-5.0, 0.5, 3.0, 10.0])
        return options


async def patiently(call: Callable[[], Awaitable[object]]) -> None:
    """Call something until the store takes it."""
    while True:
        with contextlib.suppress(StoreError):
            await call()
            return
        await asyncio.sleep(0.5)
