"""Operators: they look at the processes that run handlers, and have them be quiet for a while, or stop."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

from jobs_service import ProcessGone, ProcessInfo, ProcessState
from jobs_service.testing import Process
from tests.simulation.client import Client
from tests.simulation.workloads.base import Workload, patiently

_SOON: Final = 5.0
"""Seconds within which a process does what it is asked where nothing fails."""
_LIVING: Final = (ProcessState.RUNNING, ProcessState.QUIET)


class Operators(Workload):
    """Ask processes to be quiet and to go on, and seldom to stop: each does what it was asked itself, and soon."""

    name = "operators"

    def __init__(self, run: Any) -> None:
        super().__init__(run)
        self._known: set[str] = set()

    def register(self, process: Process, jobs: Any) -> None:
        self._known.add(process.sources.worker)

    async def step(self, client: Client) -> None:
        found = await client.jobs.processes()
        for each in found:
            if each.worker not in self._known or each.slots < each.taken:
                self.run.complain(f"processes: {each} is none")
        living = [each for each in found if each.state in _LIVING]
        if not living:
            return
        one = self.random.choice(living)
        if self.random.random() < 0.25:
            await self._have(client, one, "stop", ProcessState.STOPPING)
            return
        await self._have(client, one, "quiet", ProcessState.QUIET)
        await patiently(lambda: self._resume(client, one))

    async def settle(self, client: Client) -> None:
        """Have all go on, when no request is under way any more."""
        cluster = self.run.world.cluster
        await asyncio.sleep(_SOON + max(0.0, cluster.quiet_at - self.run.world.loop.time()))

        async def resume_all() -> None:
            for each in await client.jobs.processes():
                await self._resume(client, each)

        await patiently(resume_all)

    async def _have(self, client: Client, one: ProcessInfo, action: str, state: ProcessState) -> None:
        """Ask something of a process; it is done, unless something fails or somebody asks something else."""
        ask = {"quiet": client.jobs.quiet_process, "stop": client.jobs.stop_process}[action]
        self.run.quiet.disturb("quiet")
        told = self.run.quiet.hushed if action == "quiet" else self.run.quiet.stopping
        told.add(one.worker)
        with contextlib.suppress(ProcessGone):
            await ask(one.id)
            await asyncio.sleep(self.random.choice([0.1, _SOON]))
            self.run.quiet.disturb("quiet")
            again = await self._now(client, one)
            if again is None or again.request is None or self.run.world.choices.faults:
                return
            asked, now = again.request, client.process.clock.wall_time()
            if (
                asked.action == action
                and now - asked.at > _SOON - 1
                # By a clock that is ahead it seems to be silent, whatever else it says of itself.
                and again.state not in (state, ProcessState.STOPPING, ProcessState.SILENT)
            ):
                self.run.complain(f"processes: {again} was asked to {action} and does not")
            if again.state is ProcessState.QUIET and now - asked.at > _SOON - 1:
                await asyncio.sleep(_SOON)
                later = await self._now(client, one)
                if later is not None and later.request == again.request and later.taken > again.taken:
                    self.run.complain(f"processes: {later} is quiet, and takes jobs; it had {again.taken}")

    async def _now(self, client: Client, one: ProcessInfo) -> ProcessInfo | None:
        return next((each for each in await client.jobs.processes() if each.id == one.id), None)

    async def _resume(self, client: Client, one: ProcessInfo) -> None:
        with contextlib.suppress(ProcessGone):
            await client.jobs.resume_process(one.id)
        self.run.quiet.hushed.discard(one.worker)
        self.run.quiet.disturb("quiet")
