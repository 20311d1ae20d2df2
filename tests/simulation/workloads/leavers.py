"""Processes that are asked to stop while their handlers run jobs."""

from __future__ import annotations

from tests.simulation.client import Client
from tests.simulation.workloads.base import Workload


class Leavers(Workload):
    """Ask their own process to stop, as a SIGTERM does: it hands its jobs over at once."""

    name = "leavers"

    async def step(self, client: Client) -> None:
        self.run.quiet.disturb("stop")
        client.process.request_stop()
