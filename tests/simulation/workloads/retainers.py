"""Types of handlers whose jobs are kept for other times, and of which other things are secret."""

from __future__ import annotations

from typing import Final

from tests.simulation.client import Client
from tests.simulation.workloads.base import Workload
from tests.simulation.workloads.runner_state import ONE_SHOT
from tests.simulation.workloads.runners import Handlers

_SECRET: Final = ("nowhere.secret",)


class Retainers(Workload):
    """Change how long finished jobs are kept, and say what of them is secret: the same each time."""

    name = "retainers"

    async def step(self, client: Client) -> None:
        type = self.random.choice([ONE_SHOT, *self.run.types])
        keep, keep_failed = (self.random.choice([None, 0.0, 2.0, 10.0]) for _ in range(2))
        handlers = [each for each in self.run.workloads if isinstance(each, Handlers)]
        calls = [each.allow_retention(type, keep, keep_failed) for each in handlers]
        await client.jobs.set_retention(type, keep=keep, keep_failed=keep_failed)
        for call in calls:
            call.until = self.run.world.loop.time()
        await client.jobs.set_redaction(type, _SECRET)
        told, all_told = await client.jobs.get_redaction(type), await client.jobs.redactions()
        if (told.paths, all_told[type].paths) != (_SECRET, _SECRET):
            self.run.complain(f"secret: {client.process} was told {told} and {all_told[type]} of {type!r}")
