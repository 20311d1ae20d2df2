"""Those who add, resubmit and remove jobs."""

from __future__ import annotations

import contextlib
from typing import ClassVar

from jobs_service import JobExists, JobNotFound, NoTypeTimeout
from tests.simulation.client import Client
from tests.simulation.workloads.base import Workload


class Creators(Workload):
    """Add jobs one by one, by every rule for those that exist."""

    name = "creators"
    weight: ClassVar[int] = 4

    async def step(self, client: Client) -> None:
        rule = self.random.choice(["error", "error", "resubmit", "ignore"])
        type, id, options = self.some_type(), self.some_id(), self.some_options(client)
        with contextlib.suppress(JobExists, NoTypeTimeout):
            await client.add(type, id, if_exists=rule, **options)


class Batches(Workload):
    """Add several jobs at once, some of them twice."""

    name = "batches"

    async def step(self, client: Client) -> None:
        rule = self.random.choice(["error", "resubmit", "ignore"])
        type, ids = self.some_type(), [self.some_id() for _ in range(self.random.randint(1, 5))]
        with contextlib.suppress(JobExists, NoTypeTimeout):
            await client.add_many(type, ids if rule == "resubmit" else [*dict.fromkeys(ids)], if_exists=rule)


class Cancelers(Workload):
    """Remove jobs, running ones too."""

    name = "cancelers"

    async def step(self, client: Client) -> None:
        type, id, force = self.some_type(), self.some_id(), self.random.random() < 0.2
        with contextlib.suppress(JobNotFound):
            await client.remove(type, id, force=force)


class Resubmitters(Workload):
    """Have jobs run again."""

    name = "resubmitters"
    weight: ClassVar[int] = 2

    async def step(self, client: Client) -> None:
        type, id, options = self.some_type(), self.some_id(), self.some_options(client)
        with contextlib.suppress(JobNotFound):
            await client.resubmit(type, id, **options)
