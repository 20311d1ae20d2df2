"""Those who enqueue, cancel and resubmit jobs that handlers run in every process, and change what handlers have."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any, ClassVar, Final

from jobs_service import JobExists, JobNotFound, JobsService, JobType, RunningJob, TypeCounts
from jobs_service.testing import Process
from tests.simulation.client import Client
from tests.simulation.weather import HARMLESS, RARELY
from tests.simulation.workloads.base import Workload, patiently
from tests.simulation.workloads.handled import MOMENT
from tests.simulation.workloads.runner_checks import RunnerChecks
from tests.simulation.workloads.runner_entries import RunnerEntries
from tests.simulation.workloads.runner_fates import RunnerFates
from tests.simulation.workloads.runner_state import CONTINUOUS, ONE_SHOT, Asked, Order, RunnerState

_EXPIRED: Final = 5.0
"""Seconds after which a finished job that has expired is gone: monitors look every three."""
_FATES: Final = {
    "return": 2,
    "nothing": 2,
    "finish": 3,
    "raise": 5,
    "hang": 3,
    "stubborn": 3,
    "long": 2,
    "update": 2,
    "retry": 1,
    "snooze": 2,
    "discard": 1,
    "object": 1,
    "base": 1,
    "cancel itself": 1,
    "again": 1,
    "release": 1,
}
_SECRET: Final = ("nowhere.secret",)
_SHORT: Final = 3.0
_RARE: Final = 0.88
"""Of the steps those above it do what is done rarely."""
YOUNG: Final = "young "
"""What the ids of jobs begin with whose handlers do not end by themselves."""

_QUICK: Final = HARMLESS | {"stop", "kill", "clock"}
"""The faults that do not keep a process from handing its jobs over."""


class Handlers(Workload):
    """Enqueue, cancel and resubmit jobs that handlers run, and watch over the handlers.

    Attributes:
        known: what is known so far of handlers and jobs.
        checks: what must be so of them.
    """

    name = "handlers"
    weight: ClassVar[int] = 24

    def __init__(self, run: Any) -> None:
        super().__init__(run)
        self.known = known = RunnerState(run, self.random)
        self.checks = RunnerChecks(known)
        self._weights = _some_fates(run.world.choices.stream("fates")) if run.focus.of_handlers else _FATES
        self._fates = RunnerFates(known, self.checks, self.random)
        entries = RunnerEntries(known, self.checks)
        run.crashes.listeners.append(entries.logged)
        if known.options[ONE_SHOT]["fifo"]:
            run.history.in_order.add(ONE_SHOT)
        run.world.cluster.observers.append(entries)

    @property
    def max_jobs(self) -> int | None:
        """How many jobs a process runs at most; None for as many as there are slots."""
        return self.known.max_jobs

    @property
    def longest_grace(self) -> float:
        """Seconds that any handler has to end in."""
        longest: float = max(options["grace"] for options in self.known.options.values())
        return longest

    def register(self, process: Process, jobs: JobsService) -> None:
        """Make functions the handlers of a service that is about to be opened."""

        @jobs.handler(ONE_SHOT, **self.known.options[ONE_SHOT])
        async def one_shot(job: RunningJob, args: Order) -> Any:
            fate = self.random.choices([*self._weights], [*self._weights.values()])[0]
            fate = "return" if self.run.is_calm else "hang" if str(job.id).startswith(YOUNG) else fate
            fate = "together" if job.id in self.known.together else fate
            return await self._fates.handle(process, job, fate)

        @jobs.handler(CONTINUOUS, **self.known.options[CONTINUOUS])
        async def continuous(job: RunningJob, args: Order) -> Any:
            return await self._fates.handle(process, job, "for ever")

    async def step(self, client: Client) -> None:
        self.checks.check_turns()
        self.checks.watch()
        what = self.random.random()
        if what < (0.2 if self.run.sizes.large and not self.run.lasting else 0.03):
            await self._queue_up(client)
            return
        if what > _RARE:
            await self.random.choice([self._configure, self._change_timeout, self.count, self._cancel_young])(client)
            return
        type = self.random.choice([ONE_SHOT, ONE_SHOT, CONTINUOUS])
        handler = client.jobs.handlers[type]
        with contextlib.suppress(JobExists, JobNotFound):
            if what < 0.6:
                key = self.random.choice([None, "a", "b"]) if not self.run.sizes.large else None
                options = self.some_options(client)
                if key is None:
                    options["id"] = self.some_id()
                if type == ONE_SHOT:
                    options["max_attempts"] = self.random.choice([None, None, 1, 2, 4])
                    options["time_limit"] = self.random.choice([None, None, None, 1.0, 8.0])
                await client.enqueue(handler, self.order, unique=key, **options)
            elif what < 0.65:
                await client.jobs.add(type, self.some_id(), {"no": "order"}, if_exists="resubmit")
            elif what < 0.72:
                id = self._some_target(type)
                await client.remove(type, id, force=True)
                await client.enqueue(handler, self.order, id=id)
            elif what < 0.82:
                await client.remove(type, self._some_target(type), force=self.random.random() < 0.2)
            else:
                await client.resubmit(type, self._some_target(type))

    async def _queue_up(self, client: Client) -> None:
        """Have more continuous jobs than all slots, and look whether they take turns."""
        options = self.known.options[CONTINUOUS]
        for _ in range(options["slots"] * len(self.known.active) + 2):
            await client.enqueue(client.jobs.handlers[CONTINUOUS], self.order)
        self.run.lasting += 1
        try:
            await asyncio.sleep(2 * options["interval"] + options["grace"] + 2.0)
            self.checks.check_turns()
        finally:
            self.run.lasting -= 1

    async def _configure(self, client: Client) -> None:
        """Give a handler of this process other slots while it runs."""
        type = self.random.choice([ONE_SHOT, CONTINUOUS])
        before = self.known.slots_of(client.process, type)
        self.give_slots(client, type, self.random.choice([1, 2, before, self.known.options[type]["slots"] + 1]))

    def give_slots(self, client: Client, type: JobType, slots: int) -> None:
        """Give a handler of this process so many slots."""
        before, now = self.known.slots_of(client.process, type), self.run.world.loop.time()
        client.jobs.configure(type, slots=slots)
        self.known.slots[client.process, type] = slots
        if slots < before:
            self.known.slots_changed[client.process, type] = now
        elif slots > before:
            self.known.moved[client.process] = now

    async def _change_timeout(self, client: Client) -> None:
        """Have hearts beat in another rhythm."""
        factor = RARELY if self.run.long else 1
        seconds = factor * self.random.choice([3.0, 6.0, 15.0])
        await self.set_timeout(client, self.random.choice([ONE_SHOT, CONTINUOUS]), seconds)

    async def set_timeout(self, client: Client, type: JobType, seconds: float) -> None:
        """Change the timeout of a type."""
        asked = Asked(type, seconds)
        self.known.asked.append(asked)
        await client.jobs.set_type_timeout(type, seconds)
        asked.until = self.run.world.loop.time()

    async def count(self, client: Client) -> None:
        """While nothing changes, what is told of a type fits what its jobs are."""
        type, began = self.random.choice([ONE_SHOT, CONTINUOUS]), client.version
        told = (await client.jobs.counts(type)).get(type, TypeCounts())
        if client.version != began:
            return
        wanted = Counter(job.state for (each, _), job in self.run.history.model.jobs.items() if each == type)
        found = told.pending, told.running, told.succeeded + told.failed + told.canceled
        if found != (wanted["ready"] + wanted["scheduled"], wanted["running"], wanted["finished"]):
            self.run.complain(f"counts: {client.process} was told {told} of {type!r}, not {wanted}")

    async def _cancel_young(self, client: Client) -> None:
        """Cancel a job that has just begun."""
        id = f"{YOUNG}{len(self.known.begun)}"
        begun = self.known.begun[id] = asyncio.Event()
        await client.enqueue(client.jobs.handlers[ONE_SHOT], self.order, id=id)
        async with asyncio.timeout(2.0):
            await begun.wait()
        await asyncio.sleep(self.random.uniform(0.0, 3 * MOMENT))
        with contextlib.suppress(JobNotFound):
            await client.remove(ONE_SHOT, id)

    def allow_retention(self, type: JobType, keep: float | None, keep_failed: float | None) -> Asked:
        """Know that somebody says so how long jobs are kept; return the call, whose end is to be noted."""
        asked = Asked(type, (keep, keep_failed))
        if type in self.known.retentions:
            self.known.retentions[type].add((keep, keep_failed))
            self.known.asked.append(asked)
        return asked

    def order(self, call: int) -> Order:
        """Return what the job of a call carries."""
        return Order(call, pad="" if self.run.is_calm else self.run.sizes.pad(call))

    def _some_target(self, type: JobType) -> Any:
        """Return the id of a job that is likely to run."""
        running = [held.job.id for active in self.known.active.values() for held in active if held.job.type == type]
        return self.random.choice(running) if running and self.random.random() < 0.8 else self.some_id()

    def after_end(self, process: Process) -> Iterator[str]:
        """Yield what a process that was left well has kept: its jobs must be ended, or wait for others."""
        # Who cannot reach the store within its grace goes without.
        before = self.run.left_quickly.get(process)
        faults = self.run.world.choices.faults[before or 0 :]
        if not process.running or not all(fault.partition(":")[0] in _QUICK for fault in faults):
            return
        for key, lock in self.known.locks.items():
            job = self.run.history.model.jobs.get(key)
            is_known = before is not None or lock in self.known.held or self.run.quiet.is_quick()
            if is_known and self.known.accepted[lock].process is process and job is not None and job.lock == lock:
                yield f"kept: {process} has ended, and {key[0]!r}/{key[1]!r} is still its own"

    def open(self) -> Iterator[str]:
        """Yield what must still happen before the run can end: deaf handlers end, jobs that have expired go."""
        self.checks.watch()
        # Also those that a service has left behind, after their grace.
        yield from (f"{name} goes on" for name in self.run.world.left_behind() if name.endswith("one_shot"))
        supervised = [
            process for process, jobs in self.run.services.items() if jobs._lifecycle.supervised and process.alive
        ]
        if not supervised:
            return
        now = min(process.clock.wall_time() for process in supervised)
        for (type, id), job in self.run.history.model.jobs.items():
            if job.notes.expires is None or job.notes.expires >= now - _EXPIRED:
                continue
            # One that ended by a clock that is behind may have expired already by those of the monitors.
            if self.run.history.states(type, id)[-1].time < self.run.world.loop.time() - _EXPIRED:
                yield f"{type!r}/{id!r} expired {now - job.notes.expires:.1f} s ago"


def _some_fates(random: Random) -> dict[str, int]:
    """Draw what handlers do in a run that is about them: some of it only, and this often."""
    return dict.fromkeys(random.sample([*_FATES], random.randint(3, 6)), 1)


class Pausers(Workload):
    """Pause and resume the handlers' types: nobody accepts meanwhile, and all are accepted afterwards."""

    name = "pausers"

    async def step(self, client: Client) -> None:
        type = self.random.choice([ONE_SHOT, CONTINUOUS])
        if self.random.random() < 0.5:
            await client.jobs.resume(type)
            return
        if type in client.jobs.handlers:
            # Who accepts it may do so in the very moment in which the type is paused.
            await client.enqueue(client.jobs.handlers[type], Order)
            await asyncio.sleep(self.random.uniform(0.0, 2 * self.run.world.cluster.latency))
        await client.jobs.pause(type)

    async def settle(self, client: Client) -> None:
        """Have all go on, when no pause is under way any more."""
        cluster = self.run.world.cluster
        await asyncio.sleep(_SHORT + max(0.0, cluster.quiet_at - self.run.world.loop.time()))
        for type in (ONE_SHOT, CONTINUOUS):
            await patiently(lambda type=type: client.jobs.resume(type))  # type: ignore[misc]


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


class Leavers(Workload):
    """Ask their own process to stop, as a SIGTERM does: it hands its jobs over at once."""

    name = "leavers"

    async def step(self, client: Client) -> None:
        self.run.quiet.disturb("stop")
        client.process.request_stop()
