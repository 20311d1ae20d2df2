"""A process that runs handlers, as all others see it: each field of what is listed of it."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from jobs_service import JobsService, JobType, ProcessGone, ProcessInfo, ProcessState, RunningJob, __version__
from jobs_service.names import shown
from tests.simulation.drills.drill import Drill, all_ended

_HELD_OFF: Final = 1.0
"""Seconds after which the row of a process is written again when something has changed, and a little."""

_VARIES: Final = 1.1
"""By how much longer than its period a pause between two heartbeats may be."""


async def list_a_process(drill: Drill) -> None:
    """Run handlers in a process, ask it to be quiet and to go on, and look at what is told of it meanwhile."""
    random = drill.random
    period = random.choice([2.0, 60.0])
    settings = drill.client.process.settings.model_copy(update={"process_heartbeat": period})
    service = drill.client.process.service(settings=settings)
    listed = _Listed(drill, service, period)
    started = asyncio.Event()
    async with service:
        began = listed.clock()
        running = asyncio.create_task(service.run(started=started.set), name=f"{drill.type} runs")
        try:
            await started.wait()
            listed.started = began, listed.clock()
            await drill.settle()
            await listed.look(ProcessState.RUNNING, is_fresh=False)
            await listed.have_jobs()
            await listed.ask(quiet=True)
            listed.go.set()
            await listed.pass_a_heartbeat()
            await listed.ask(quiet=False)
        finally:
            listed.go.set()
            await all_ended([running], 0)
        await drill.settle()
        await listed.is_gone()


class _Listed:
    """What must be told of the process.

    Attributes:
        go: set when its jobs may end.
        started: when it has begun at the earliest, and at the latest, by its clock, seconds since the epoch.
    """

    def __init__(self, drill: Drill, service: JobsService, period: float) -> None:
        self.go = asyncio.Event()
        self.started = (0.0, 0.0)
        self.clock = drill.client.process.clock.wall_time
        self._drill, self._service, self._period = drill, service, period
        self._slots: dict[JobType, int] = {}
        self._busy: dict[JobType, int] = {}
        self._id = ""
        self._asked: tuple[str, str, float, float] | None = None
        types: list[JobType] = [drill.type, (drill.type, 1), f"{drill.type} b"]
        for type in drill.random.sample(types, drill.random.randint(1, 3)):
            self._slots[type] = drill.random.randint(1, 3)
            self._busy[type] = 0
            service.handler(type, slots=self._slots[type], timeout=60.0)(self._run)

    async def _run(self, job: RunningJob, *, call: int = 0) -> None:
        self._busy[job.type] += 1
        try:
            await self.go.wait()
        finally:
            self._busy[job.type] -= 1

    async def have_jobs(self) -> None:
        """Have some jobs run, which take long."""
        for type, slots in self._slots.items():
            count = self._drill.random.randint(0, slots + 1)
            if count:
                await self._drill.client.add_many(type, [str(number) for number in range(count)])
        await self._drill.settle()

    async def _mine(self) -> list[ProcessInfo]:
        found = await self._drill.random.choice([self._drill.jobs, self._service]).processes()
        if found != sorted(found, key=lambda each: (each.host, each.started, each.id)):
            self._drill.complain(f"processes are listed in the order of {found}")
        return [each for each in found if {handler.type for handler in each.handlers} == self._slots.keys()]

    async def look(self, state: ProcessState, *, is_fresh: bool) -> None:
        """Look at what is listed.

        Args:
            state: that it must be in.
            is_fresh: whether it was heard of since its jobs run.
        """
        found = await self._mine()
        if len(found) != 1:
            self._drill.complain(f"a process is listed as {found}")
            return
        self._compare(found[0], state, is_fresh=is_fresh)

    def _compare(self, info: ProcessInfo, state: ProcessState, *, is_fresh: bool) -> None:
        self._id = self._id or info.id
        host, pid = self._service._context.sources.place
        now, drill = self.clock(), self._drill
        latest = self._period * _VARIES + drill.moment + _HELD_OFF
        told: dict[str, Any] = {
            "what it is": (info.id, info.host, info.pid, info.version, info.role, info.unnamed),
            "worker": info.worker,
            "state": info.state,
            "slots": info.slots,
            "handlers": [(each.type, each.slots) for each in info.handlers],
        }
        wanted: dict[str, Any] = {
            "what it is": (self._id, host, pid, __version__, "runner", 0),
            "worker": self._service._context.sources.worker,
            "state": state,
            "slots": sum(self._slots.values()),
            "handlers": sorted(self._slots.items(), key=lambda pair: shown(pair[0])),
        }
        if is_fresh:
            told["taken"] = (info.taken, {each.type: each.taken for each in info.handlers})
            wanted["taken"] = (sum(self._busy.values()), self._busy)
        for what, value in told.items():
            if value != wanted[what]:
                drill.complain(f"{what} of a process is {value}, not {wanted[what]}")
        if not self.started[0] <= info.started <= self.started[1]:
            drill.complain(f"{info} has begun between {self.started}")
        if not info.started <= info.heard <= now or info.heard < now - latest:
            drill.complain(f"{info} was to be heard of every {self._period} s, and it is {now}")
        self._compare_request(info)

    def _compare_request(self, info: ProcessInfo) -> None:
        asked, request = self._asked, info.request
        if (request is None) != (asked is None):
            self._drill.complain(f"{info} was asked {asked}")
        elif request is not None and asked is not None:
            action, who, begin, end = asked
            if (request.action, request.who) != (action, who) or not begin <= request.at <= end:
                self._drill.complain(f"{info} was asked {asked}, not {request}")

    async def ask(self, *, quiet: bool) -> None:
        """Ask it something: the answer is what it was before, and it does that soon."""
        own = self._drill.client.process.clock.ahead
        # By a clock that is ahead it seems to be silent.
        others = [jobs for each, jobs in self._drill.run.services.items() if each.clock.ahead <= own]
        jobs = self._drill.random.choice([*others, self._service])
        sources = jobs._context.sources
        began = sources.wall_time()
        answer = await (jobs.quiet_process if quiet else jobs.resume_process)(self._id)
        self._compare(answer, ProcessState.RUNNING if quiet else ProcessState.QUIET, is_fresh=False)
        self._asked = ("quiet" if quiet else "resume", sources.worker, began, sources.wall_time())
        await asyncio.sleep(self._drill.moment + _HELD_OFF)
        await self.look(ProcessState.QUIET if quiet else ProcessState.RUNNING, is_fresh=quiet)

    async def pass_a_heartbeat(self) -> None:
        """Wait until it must have been heard of again."""
        await asyncio.sleep(self._period * _VARIES + self._drill.moment + _HELD_OFF)
        await self.look(ProcessState.QUIET, is_fresh=True)

    async def is_gone(self) -> None:
        """It is listed no more, and nobody can ask it anything."""
        if found := await self._mine():
            self._drill.complain(f"{found} has ended, and is listed")
        for ask in (self._drill.jobs.quiet_process, self._drill.jobs.stop_process, self._drill.jobs.resume_process):
            try:
                answer = await ask(self._id)
            except ProcessGone:
                continue
            self._drill.complain(f"a process has ended, and was asked something: {answer}")
