"""A process of a simulated run from start to start: what it does in the storm and in the calm, and how it ends."""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from jobs_service import JobsError, JobsService, Settings, StoreError, SupervisorFailed
from jobs_service.testing import Process
from tests.simulation.checks import held_after
from tests.simulation.client import Client
from tests.simulation.refusals import unfounded_end
from tests.simulation.workloads.runners import Handlers
from tests.simulation.workloads.subscribers import Subscribers

if TYPE_CHECKING:
    from tests.simulation.run import Run

LONGEST_REST: Final = 3.0
"""Seconds after which a process that has ended is started again."""


class Lane:
    """One of the things that a process does at the same time.

    Attributes:
        process: where.
        step: the workload's step that is under way.
    """

    def __init__(self, process: Process) -> None:
        self.process = process
        self.step: asyncio.Task[None] | None = None


class Home:
    """Starts a process of one name again and again.

    Args:
        run: that it is part of.
        name: of the process.
        settings: of its service.
    """

    def __init__(self, run: Run, name: str, settings: Settings) -> None:
        self._run = run
        self._name = name
        self._settings = settings

    async def keep_alive(self) -> None:
        """Start a process again whenever it has ended."""
        run, name = self._run, self._name
        random = run.world.choices.stream(f"home {name}")
        while not run.is_over:
            off = run.length.clocks_off
            ahead, supervise = random.choice([0.0, 0.0, -off, off]), random.random() < 0.8
            pause = random.uniform(0, LONGEST_REST)
            run.know_clock(ahead)
            supervise = supervise or name == "p0"

            async def program(process: Process, supervise: bool = supervise) -> None:
                await self._live(process, supervise)

            process = run.begin(name, program, settings=self._settings, ahead=ahead)
            run.processes = [each for each in run.processes if each.name != name] + [process]
            await process.ended()
            for workload in run.workloads:
                for complaint in workload.after_end(process):
                    run.complain(complaint)
            run.services.pop(process, None)
            run.lanes = [lane for lane in run.lanes if lane.process is not process]
            if process.failure is not None and not isinstance(process.failure, JobsError):
                run.complain(f"process: {process} failed with {process.failure!r}")
            if not run.is_over:
                await asyncio.sleep(pause)

    async def _live(self, process: Process, supervise: bool) -> None:
        """What a process does: several things at the same time, until it is stopped."""
        run = self._run
        try:
            jobs = process.service(supervise=supervise)
            for workload in run.workloads:
                workload.register(process, jobs)
            async with jobs:
                run.services[process] = jobs
                run.opened[process] = run.world.loop.time()
                client = Client(run, process, jobs)
                async with asyncio.TaskGroup() as group:
                    for number in range(3):
                        group.create_task(self._lane(client, number, supervise))
                    group.create_task(self._settle(client))
                    group.create_task(self._note_end(process))
                    if jobs.handlers:
                        group.create_task(self._run_handlers(process, jobs))
        except* SupervisorFailed as failed:
            run.world.note(f"the tree gave up: {failed.exceptions[0]}", process)
        finally:
            task = asyncio.current_task()
            if isinstance(sys.exception(), asyncio.CancelledError) and task is not None and not task.cancelling():
                run.complain(f"canceled: {process} was canceled, but nobody has asked it to stop")
            for held in held_after(run.services[process]) if process in run.services else ():
                run.complain(f"held: {process} was left, but holds {held}")

    async def _run_handlers(self, process: Process, jobs: JobsService) -> None:
        """Run handlers until the process ends; it ends when an operator has asked it to stop, as a program would."""
        await jobs.run(max_jobs=self._max_jobs(), started=lambda: self._have_started(process, jobs))
        process.request_stop()

    async def _note_end(self, process: Process) -> None:
        """Note when a process begins to end."""
        run = self._run
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            if process.alive:
                now = run.leaving[process] = run.world.loop.time()
                if run.quiet.quick_since() <= now:
                    run.left_quickly[process] = len(run.world.choices.faults)
                run.quiet.disturb("stop")
                graces = [each.longest_grace for each in run.workloads if isinstance(each, Handlers)]
                run.quiet.slow_down(3 * max(graces, default=0.0))

    def _have_started(self, process: Process, jobs: JobsService) -> None:
        """All handlers of a process have started: their types are there."""
        run = self._run
        run.started[process] = run.world.loop.time()
        for type in jobs.handlers:
            if type not in run.history.model.timeouts:
                run.complain(f"started: {process} runs handlers, but {type!r} is not there")

    def _max_jobs(self) -> int | None:
        return next((each.max_jobs for each in self._run.workloads if isinstance(each, Handlers)), None)

    async def _lane(self, client: Client, number: int, supervise: bool) -> None:
        run = self._run
        random = run.world.choices.stream(f"lane {client.process} {number}")
        lane = Lane(client.process)
        run.lanes.append(lane)
        while True:
            await asyncio.sleep(random.expovariate(run.pace))
            if run.is_calm:
                return
            workload = random.choices(run.workloads, run.weights)[0]
            if isinstance(workload, Subscribers) and not supervise:
                continue
            run.budget -= 1
            if run.budget <= 0 or run.world.loop.steps > run.length.tired:
                run.end_storm()
            if run.budget < 0:
                # Nobody takes a step any more; some of those that were begun may still last.
                return
            if not run.world.choices.operation():
                continue
            began = run.world.loop.time(), client.version
            lane.step = asyncio.create_task(workload.step(client), name=f"{client.process} lane {number}")
            try:
                await asyncio.wait([lane.step])
            except asyncio.CancelledError:
                lane.step.cancel()
                await asyncio.wait([lane.step])
                self._look_at(lane.step, client.process, workload.name, *began)
                raise
            self._look_at(lane.step, client.process, workload.name, *began)
            lane.step = None

    def _look_at(self, step: asyncio.Task[None], process: Process, name: str, began: float, version: int) -> None:
        error = None if step.cancelled() else step.exception()
        if error is None or isinstance(error, TimeoutError):
            return
        if isinstance(error, JobsError):
            complaint = unfounded_end(self._run, process, name, error, began, version)
            if complaint is not None:
                self._run.complain(complaint)
            return
        where = "".join(traceback.format_tb(error.__traceback__)[-2:])
        self._run.complain(f"exception: {error!r} in {where}")

    async def _settle(self, client: Client) -> None:
        run = self._run
        await run.calm_begins()
        async with asyncio.TaskGroup() as group:
            for workload in run.workloads:
                group.create_task(workload.settle(client))


async def prepared(begin: Callable[[], Process]) -> None:
    """Have a process prepare something, and another one after it as long as the store cannot be opened.

    Args:
        begin: starts such a process, and returns it.
    """
    while True:
        process = begin()
        await process.ended()
        if not isinstance(process.failure, StoreError):
            return
