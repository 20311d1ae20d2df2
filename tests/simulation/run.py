"""One simulated run: processes that do everything at once in a storm, a calm in which all jobs end, and the checks."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from typing import Any, Final
from unittest import mock

from jobs_service import JobsError, JobsService, JobType
from jobs_service.runner import execution
from jobs_service.testing import Choices, Deadlock, Livelock, Plan, Process, SimulatedTransaction
from jobs_service.testing.loop import OWNER
from jobs_service.testing.world import without_garbage_collection
from tests.simulation.burials import Burials
from tests.simulation.calls import Calls
from tests.simulation.character import draw_character
from tests.simulation.checks import Bounds, KeyCheck
from tests.simulation.claims import unclaimed_records
from tests.simulation.client import EFFECTS, MIXED, Client
from tests.simulation.crashes import Crashes
from tests.simulation.drawing import (
    draw_heartbeat,
    draw_kinds,
    draw_leaving,
    draw_settings,
    draw_weights,
)
from tests.simulation.drilling import MOST_OF_DRILLS
from tests.simulation.endings import check_end, check_store, still_open
from tests.simulation.history import History
from tests.simulation.homes import Home, Lane, prepared
from tests.simulation.journal import recording
from tests.simulation.leftovers import Leftovers
from tests.simulation.marks import MarkCheck
from tests.simulation.quiet import Quiet
from tests.simulation.rarities import drawn_constants, rarely_set
from tests.simulation.report import Report
from tests.simulation.weather import RARELY, nemesis
from tests.simulation.workloads.vandals import Vandals

_WITH_SOME: Final = 0.3  # the share of runs in which those take part who are not in all
_ODD: Final = 0.3
"""The share of these runs with some odd ids, or with services that rarely look at the types by themselves."""

_COUNTS_OF_TYPE: Final = 1_300  # bytes of what is counted of a type
_MOST_VIOLATIONS: Final = 20
_SHORT: Final = 3.0
_MOMENT: Final = 0.5


def simulate(
    plan: Plan,
    *,
    profile: str | None = None,
    workloads: Sequence[str] | None = None,
    log_level: int = 30,
    rates: Mapping[str, float] | None = None,
    kind: type[Run] | None = None,
) -> Report:
    """Run a plan.

    Args:
        plan: the seed, and what of it is left out.
        profile: of the weather, "calm", "gusty", "breezy" or "stormy"; None to have it drawn.
        workloads: names of those to run; None for all.
        log_level: of the services' own log in the events; below that of warnings, all events are kept.
        rates: of kinds of fault, in place of those that the weather has.
        kind: of run; None for the usual one.
    """
    # Jobs whose arguments no process knows are to have failed before the run ends, and not hours later.
    few_refusals = mock.patch.object(execution, "MOST_REFUSALS", 3)
    # Collected at the end, when all of the run is garbage: then it takes one look at it.
    with without_garbage_collection(), few_refusals:
        return (kind or Run)(plan, profile, workloads, log_level, rates).report()


class Run:
    """One run, and what its workloads and checks share.

    Attributes:
        world: the simulated one.
        sizes: how large things are.
        types, ids: of the jobs; few, so that users get in each other's way.
        timeouts: what the types' activity timeouts are about, seconds.
        processes: those that were started last, one per name.
        services: the open service of each process.
        opened: when it was opened, on the loop's clock, seconds.
        lanes: the things that processes do at the same time.
        machine: on which the embedded stores are; None where the cluster is simulated.
        leaving: since when processes end, on the loop's clock, seconds.
        left_quickly: of those that ended while nothing took time, how many faults there had been.
        started: since when processes run handlers.
        quiet: since when nothing takes time.
        crashes: of which processes parts have crashed.
        moved_clocks: when processes' clocks have jumped last.
        effects: the locks whose finish was to have an effect.
        effects_committed: those whose finish was committed with it.
        latest_clock, earliest_clock: how far ahead, in seconds, any process's wall clock has been: most, and least.
        violations: what was wrong so far.
        workloads, weights: what goes on, and how often each of it takes a step.
        budget: how many steps are left.
        pace: how many steps a lane takes, in a second.
        lasting: how many steps are under way for whose end the storm waits.
        length: how long the run is.
        focus: what the run looks at only.
        long: whether hours pass, in which little happens.
        drills: how many small things are done where nothing else is; 0 in all other runs.
    """

    def __init__(
        self,
        plan: Plan,
        profile: str | None,
        workloads: Sequence[str] | None,
        log_level: int,
        rates: Mapping[str, float] | None = None,
    ) -> None:
        random = Choices(plan).stream("setup")
        later = Choices(plan).stream("later setup")
        character = draw_character(plan, random, later, profile, workloads)
        self.drills, self.focus, workloads = character[:3]
        self.length, self.sizes, self.long = character.length, character.sizes, character.length.long
        self.world = character.world(plan, later, rates or {}, log_level)
        self.machine = character.machine(self.world)
        types: list[JobType] = random.choice([["t"], ["t"], ["t", ("u", 1)]])
        self.types = [self.sizes.type(type) for type in types]
        self.ids = [f"j{number}" for number in range(random.choice([1, 4, 12]) * (3 if self.sizes.large else 1))]
        self.timeouts = dict.fromkeys(self.types, random.choice([4.0, 4.0, 10.0, 20.0]))
        budget = random.choice([6, 12, 30] if self.sizes.large else [4, 8, 20])
        self.budget = self.focus.budget or self.drills or budget
        self.pace = random.choice([1.0, 4.0, 12.0])
        if self.long:
            self.pace = later.choice(self.length.paces)
            self.timeouts = {type: RARELY * seconds for type, seconds in self.timeouts.items()}
        self._leaving = draw_leaving(Choices(plan).stream("leaving"), self.types)
        self.processes: list[Process] = []
        self.services: dict[Process, JobsService] = {}
        self.opened: dict[Process, float] = {}
        self.lanes: list[Lane] = []
        self.leaving: dict[Process, float] = {}
        self.left_quickly: dict[Process, int] = {}
        self.started: dict[Process, float] = {}
        self.moved_clocks: dict[Process, float] = {}
        self.effects: set[bytes] = set()
        self.effects_committed: set[bytes] = set()
        self.latest_clock = self.earliest_clock = 0.0
        self.violations: list[str] = []
        self.history = History(self.world.loop.time, self.machine)
        self.key_check = KeyCheck(self)
        self.bounds = Bounds(self)
        self.world.cluster.observers.append(self)
        self.world.cluster.on_too_large = self._too_large
        self.quiet = Quiet(self.world)
        self.crashes = Crashes(self.world, self.quiet, self.complain)
        self.world.choices.on_fault = self.quiet.disturb
        self.calls = Calls(self.quiet.quick_since, self.world.loop.time)
        self.burials = Burials(self)
        self.leftovers = Leftovers(self)
        if self.machine is None:
            MarkCheck(self)
        drawn = Choices(plan).stream("with some")
        has_some = drawn.random() < _WITH_SOME
        if has_some and drawn.random() < _ODD:
            self.ids += [f"j\x00{number}" for number in range(3)]
        rarely = has_some and drawn.random() < _ODD
        heartbeat = draw_heartbeat(self.world.choices, workloads)
        kinds = draw_kinds(self, workloads, is_listed=heartbeat > 0, has_some=has_some, leaves=bool(self._leaving))
        self.workloads = [kind(self) for kind in kinds]
        if self.is_damaged:
            self.history.know_of_damage()
        self.history.is_counted = not self.is_damaged
        swarm = Choices(plan).stream("swarm")
        self.weights = draw_weights(swarm, self.workloads, all_of_them=workloads is not None)
        processes = random.choice([1, 1, 1, 2, 3, 4])
        if self.machine is not None:
            processes = max(processes, self.machine.draw_processes())
        if self.drills:
            processes = min(processes, MOST_OF_DRILLS)
        processes = max(processes, self.focus.processes)
        settings = [draw_settings(self, random, later, heartbeat=heartbeat, rarely=rarely) for _ in range(processes)]
        self._settings = rarely_set(self.world.choices, settings)
        self._settings = [each.model_copy(update=dict(self.focus.settings)) for each in self._settings]
        self._calm = asyncio.Event()
        self.lasting = 0
        self._over = False
        self._storm_over = asyncio.Event()

    def report(self) -> Report:
        """Run it, and return what came of it."""
        world = self.world
        try:
            with recording(), drawn_constants(world.choices, drilled=self.drills > 0), ExitStack() as stack:
                stack.enter_context(self.focus.in_force())
                if self.machine is not None:
                    stack.enter_context(self.machine.running_world())
                world.run(lambda _: self._main())
        except (Deadlock, Livelock) as error:
            self.complain(f"{type(error).__name__.lower()}: {error}")
        except Exception as error:
            self.complain(f"exception: {error!r} in {''.join(traceback.format_tb(error.__traceback__)[-2:])}")
        choices = world.choices
        return Report(
            choices.plan,
            self.violations[:_MOST_VIOLATIONS],
            list(world.events),
            choices.operations,
            choices.faults,
            choices.deviations,
            self.history.cells,
            world.loop.time(),
            f"{world.loop.fingerprint:x}",
        )

    def complain(self, violation: str) -> None:
        """Note that something is wrong."""
        self.world.note(f"VIOLATION {violation}")
        self.violations.append(violation)

    def ended(self, transaction: SimulatedTransaction) -> None:
        """See Observer: pass on to all checks what has done something."""
        if transaction.commit_version is None and not transaction.journal:
            return
        self.history.ended(transaction)
        self.calls.ended(transaction)
        self.bounds.ended(transaction)
        self.key_check.ended(transaction)
        self.leftovers.ended(transaction)
        for complaint in unclaimed_records(transaction) if transaction.commit_version is not None else ():
            self.complain(complaint)
        if self.history.complaints:
            for complaint in self.history.complaints:
                self.complain(f"history: {complaint}")
            self.history.complaints.clear()
        for key in transaction.written:
            if key.startswith(EFFECTS):
                self.effects_committed.add(key[len(EFFECTS) :])

    def _too_large(self, transaction: SimulatedTransaction) -> None:
        """Complain about a transaction that the service has made too large: each of its batches has a bound."""
        what, types = {entry.name for entry in transaction.journal}, {entry.type for entry in transaction.journal}
        # The smallest limits have no room for the counts of the types of several callers who share a transaction.
        has_room = len(types) * _COUNTS_OF_TYPE < self.world.cluster.limits.transaction / 2
        if not MIXED.get() and (has_room or len(types) == 1):
            self.complain(f"too large: a transaction of {transaction.process} with {sorted(what)}")

    def process_here(self) -> Process | None:
        """Return the process that the present code belongs to."""
        return owner if isinstance(owner := OWNER.get(), Process) else None

    @property
    def longest_period(self) -> float:
        """The longest time after which a process looks at the types by itself, seconds."""
        return max(4 / 3 * settings.type_check_period for settings in self._settings)

    @cached_property
    def is_damaged(self) -> bool:
        """Whether some records of this run cannot be read."""
        return any(isinstance(each, Vandals) for each in self.workloads)

    @property
    def is_over(self) -> bool:
        """Whether all processes are asked to stop."""
        return self._over

    @property
    def is_calm(self) -> bool:
        """Whether the storm is over."""
        return self._calm.is_set()

    async def calm_begins(self) -> None:
        """Wait until the storm is over."""
        await self._calm.wait()

    def end_storm(self) -> None:
        """Have the calm begin, as soon as no step is under way for whose end the storm waits."""
        self._storm_over.set()

    def move_clock(self, process: Process, ahead: float) -> None:
        """Have a process's wall clock jump.

        Args:
            process: whose.
            ahead: seconds by which it is ahead of the world's from then on.
        """
        process.clock.ahead = ahead
        self.moved_clocks[process] = self.world.loop.time()
        self.know_clock(ahead)

    def begin(self, name: str, program: Callable[[Process], Awaitable[Any]], **options: Any) -> Process:
        """Start a process on the run's store; as World.start."""
        process = self.world.start(name, program, **options)
        if self.machine is not None:
            self.machine.connect(process)
        for workload in self.workloads:
            workload.equip(process)
        return process

    def know_clock(self, ahead: float) -> None:
        """Note that a process's wall clock is so many seconds ahead of the world's."""
        self.latest_clock = max(self.latest_clock, ahead)
        self.earliest_clock = min(self.earliest_clock, ahead)

    # The course of a run

    async def _main(self) -> None:
        await prepared(lambda: self.begin("founder", self._found, settings=self._settings[0]))
        await prepared(lambda: self.begin("starter", self._start, settings=self._settings[0]))
        await self._storm_and_calm()
        self.key_check.check()
        check_end(self)
        await check_store(self)

    async def _storm_and_calm(self) -> None:
        homes = [
            asyncio.create_task(Home(self, f"p{number}", settings).keep_alive(), name=f"home {number}")
            for number, settings in enumerate(self._settings)
        ]
        enemy = asyncio.create_task(nemesis(self), name="nemesis")
        try:
            async with asyncio.timeout(self.length.storm):
                await self._storm_over.wait()
                while self.lasting:  # noqa: ASYNC110 - it has no event
                    await asyncio.sleep(_MOMENT)
        except TimeoutError:
            pass
        enemy.cancel()
        await asyncio.wait([enemy])
        if not enemy.cancelled():
            enemy.result()
        await self._settle_all()
        self._over = True
        for process in self.processes:
            process.request_stop()
        await asyncio.wait(homes)
        for home in homes:
            home.result()

    async def _found(self, process: Process) -> None:
        async with process.service(supervise=False) as jobs:
            for type in self.types:
                while True:
                    try:
                        await jobs.set_type_timeout(type, self.timeouts[type])
                        if type in self._leaving and not self._calm.is_set():
                            await jobs.set_retention(type, **self._leaving[type])
                        break
                    except JobsError as error:
                        self.world.note(f"{error}", process)
                        await asyncio.sleep(0.5)

    async def _start(self, process: Process) -> None:
        async with process.service(supervise=False) as jobs:
            for workload in self.workloads:
                await workload.start(Client(self, process, jobs))

    async def _settle_all(self) -> None:
        """Let no more faults hit, and wait until every job has ended."""
        world = self.world
        self._calm.set()
        world.note("calm")
        world.choices.calm()
        world.cluster.come_back()
        for process in self.processes:
            process.go_on()
        # Of types that were cleared no lost job is noticed; what was under way may clear one still.
        await asyncio.sleep(_SHORT + max(0.0, world.cluster.quiet_at - world.loop.time()))
        self.bounds.calm(world.loop.time())
        self.burials.calm()
        await self.begin("founder", self._found).ended()
        try:
            async with asyncio.timeout(self.length.calm):
                while still_open(self):  # noqa: ASYNC110 - it has no event
                    await asyncio.sleep(self.length.rest)
        except TimeoutError:
            for left in still_open(self):
                self.complain(f"stuck: {left} after {self.length.calm:.0f} s of calm")
