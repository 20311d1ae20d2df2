"""One simulated run: processes that do everything at once in a storm, a calm in which all jobs end, and the checks."""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from jobs_service import JobsError, JobsService, JobType, Settings, SupervisorFailed
from jobs_service.store.base import Limits, Transaction
from jobs_service.store.commit_marks import LIFETIME
from jobs_service.testing import Choices, Deadlock, Livelock, Plan, Process, SimulatedTransaction, World
from jobs_service.testing.loop import OWNER
from jobs_service.testing.world import without_garbage_collection
from tests.simulation.calls import Calls
from tests.simulation.checks import Bounds, KeyCheck, held_after
from tests.simulation.client import EFFECTS, MIXED, Client
from tests.simulation.history import History
from tests.simulation.journal import recording
from tests.simulation.machine import KEY, LONGEST_PERIOD, Machine
from tests.simulation.sizes import draw_sizes, few_made_up, few_subscribed, small_pages, soon_unread
from tests.simulation.weather import (
    CATCHES_UP,
    CATCHES_UP_SOON,
    HARMLESS,
    LASTS,
    RARELY,
    SURELY_LASTS,
    UNNOTICED,
    draw_weather,
    nemesis,
    unsure,
)
from tests.simulation.workloads import (
    ALL,
    OF_COPIES,
    OF_DAMAGE,
    OF_LARGE,
    OF_LEAVING,
    OF_LISTED,
    OF_RUNNERS,
    OF_SMALL_STORES,
    OF_SOME,
)
from tests.simulation.workloads.composers import Plain
from tests.simulation.workloads.operators import Operators
from tests.simulation.workloads.runners import Handlers
from tests.simulation.workloads.subscribers import Subscribers
from tests.simulation.workloads.tickers import Tickers
from tests.simulation.workloads.vandals import Vandals

_MOST_STEPS: Final = 200_000
_LONGEST_STORM: Final = 90.0
_LONG_STORM: Final = 20_000.0
_LONG_CALM: Final = 8_000.0
"""Seconds of the storm, and of the calm, in a long run, in which little happens, but clocks are off by an hour."""

_LONG: Final = 0.025
"""The share of runs that are long."""

_EMBEDDED: Final = 0.12
"""The share of runs, of those that are neither long nor have long keys, whose store is an embedded one."""

_LONGEST_REST: Final = 3.0
"""Seconds after which a process that has ended is started again."""
_NOTICED: Final = LONGEST_PERIOD + 1.0
"""Seconds after which a process that has died is noticed by those who look."""
_BURIED: Final = 2 * LONGEST_PERIOD + _LONGEST_REST + 3.0
"""Seconds of calm after which nothing is left of processes that died before."""

_LONGER: Final = 2
_TIRED: Final = 20_000
"""Callbacks after which a storm ends."""
_LONG_PACES: Final = (0.01, 0.002)
_OFF: Final = 20.0
_FAR_OFF: Final = 1800.0
"""Seconds by which a process's clock is wrong when it starts; in a long run."""
_LONGEST_CALM: Final = 240.0
_LEAVING: Final = 0.25
"""The share of types whose jobs leave with their end, until somebody has them kept."""
_MOST_VIOLATIONS: Final = 20
_SHORT: Final = 3.0
_MOMENT: Final = 0.5
_WARNINGS: Final = 30
_KEPT_EVENTS: Final = 400
_NO_WEATHER: Final = (
    "child_crashed",
    "child_start_failed",
    "end_not_written",
    "linked_task_failed",
    "service_failed",
    "supervisor_gave_up",
    "terminate_failed",
)
"""Errors that no service logs, whatever the weather, unless its actors are made to crash."""

_WITH_DAMAGE: Final = 0.15
"""The share of runs in which some records cannot be read."""

_WITH_COPIES: Final = 0.1
"""The share of runs in which all jobs are copied now and then."""

_WITH_SOME: Final = 0.3
"""The share of runs in which those take part who are not in all."""

_MOST_PERIOD: Final = 60.0
_ODD: Final = 0.3
"""The share of these runs with some odd ids, or with services that rarely look at the types by themselves."""

_WITH_RUNNERS: Final = 0.3
"""The share of runs in which handlers run jobs."""

_WITH_PROCESSES: Final = 0.15
"""The share of runs in which the processes with handlers are listed in the store."""

_HEARTBEAT: Final = 2.0
"""Seconds between two heartbeats of these."""

_WITH_ALL: Final = 0.3
"""The share of runs in which every workload takes its steps."""

_SWARMS: Final = (0.15, 0.3, 0.6)
"""In the other runs, the share of the workloads that do."""


@dataclass
class Report:
    """What came of a run.

    Attributes:
        plan: what was run.
        violations: what was wrong, a line each that begins with its kind and a colon.
        events: the last events, oldest first.
        operations, faults, deviations: those that were carried out, hit, and deviated; as in Plan.
        cells: how often each cell of the operations table was visited: (operation, what the job was before).
        seconds: virtual time that passed.
        digest: of the whole trace; equal for equal runs.
    """

    plan: Plan
    violations: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    operations: list[int] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    deviations: list[int] = field(default_factory=list)
    cells: Counter[tuple[str, str]] = field(default_factory=Counter)
    seconds: float = 0.0
    digest: str = ""


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
    # Collected at the end, when all of the run is garbage: then it takes one look at it.
    with without_garbage_collection():
        return (kind or Run)(plan, profile, workloads, log_level, rates).report()


class Lane:
    """One of the things that a process does at the same time.

    Attributes:
        process: where.
        step: the workload's step that is under way.
    """

    def __init__(self, process: Process) -> None:
        self.process = process
        self.step: asyncio.Task[None] | None = None


class Run:
    """One run, and what its workloads and checks share.

    Attributes:
        world: the simulated one.
        sizes: how large things are.
        types, ids: of the jobs; few, so that users get in each other's way.
        timeouts: what the types' activity timeouts are about, seconds.
        processes: those that were started last, one per name.
        services: the open service of each process.
        machine: on which the embedded stores are; None where the cluster is simulated.
        leaving: since when processes end, on the loop's clock, seconds.
        started: since when processes run handlers.
        moved_clocks: when processes' clocks have jumped last.
        effects: the locks whose finish was to have an effect.
        effects_committed: those whose finish was committed with it.
        latest_clock, earliest_clock: how far ahead, in seconds, any process's wall clock has been: most, and least.
        violations: what was wrong so far.
        lasting: how many steps are under way for whose end the storm waits.
        long: whether hours pass, in which little happens.
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
        self._later = later = Choices(plan).stream("later setup")
        weather = draw_weather(random, later, profile)
        if profile is None:
            weather = unsure(Choices(plan).stream("unsure"), weather)
        self.long = long = Choices(plan).stream("length").random() < _LONG
        self.sizes = draw_sizes(Choices(plan).stream("sizes"))
        limits = random.choice([Limits(), Limits(), Limits(transaction=random.choice([8_000, 20_000]))])
        limits = self.sizes.limits or limits
        self.world = World(
            plan,
            rates={**weather.rates, **(rates or {})},
            disorder=weather.disorder,
            latency=weather.latency,
            limits=limits,
            most_steps=_MOST_STEPS * (_LONGER if long else 1),
            log_level=log_level,
            kept_events=None if log_level < _WARNINGS else _KEPT_EVENTS,
        )
        # Marks are old so soon that some are removed, and yet younger than they ever were when somebody looks for them.
        self.world.cluster.mark_lifetime = later.choice([8, 40, LIFETIME])
        self.world.note(f"{weather}, {limits}, marks live for {self.world.cluster.mark_lifetime} versions")
        self.machine = self._draw_machine(Choices(plan).stream("store"), limits) if workloads is None else None
        self.random = random
        types: list[JobType] = random.choice([["t"], ["t"], ["t", ("u", 1)]])
        self.types = [self.sizes.type(type) for type in types]
        self.ids = [f"j{number}" for number in range(random.choice([1, 4, 12]) * (3 if self.sizes.large else 1))]
        self.timeouts = dict.fromkeys(self.types, random.choice([4.0, 10.0, 20.0]))
        self.budget = random.choice([8, 20, 50]) * (2 if self.sizes.large else 1)
        self.pace = random.choice([1.0, 4.0, 12.0])
        if self.long:
            self.pace = later.choice(_LONG_PACES)
            self.timeouts = {type: RARELY * seconds for type, seconds in self.timeouts.items()}
        self._leaving = _draw_leaving(Choices(plan).stream("leaving"), self.types)
        self.processes: list[Process] = []
        self.services: dict[Process, JobsService] = {}
        self.lanes: list[Lane] = []
        self.leaving: dict[Process, float] = {}
        self.started: dict[Process, float] = {}
        self.moved_clocks: dict[Process, float] = {}
        self.effects: set[bytes] = set()
        self.effects_committed: set[bytes] = set()
        self.latest_clock = 0.0
        self.earliest_clock = 0.0
        self.violations: list[str] = []
        self.calls = Calls()
        self.history = History(self.world.loop.time, self.machine)
        self.key_check = KeyCheck(self)
        self.bounds = Bounds(self)
        self.world.cluster.observers.append(self)
        self.world.cluster.on_too_large = self._too_large
        self.world.choices.on_fault = self.disturb
        self._some = Choices(plan).stream("with some")
        some = self._some.random() < _WITH_SOME
        if some and self._some.random() < _ODD:
            self.ids += [f"j\x00{number}" for number in range(3)]
        more = self.world.choices.stream("with runners").random() < _WITH_RUNNERS
        damaged = self.world.choices.stream("with damage").random() < _WITH_DAMAGE
        copied = self.world.choices.stream("with copies").random() < _WITH_COPIES and not long
        is_listed = self.world.choices.stream("with processes").random() < _WITH_PROCESSES
        is_listed = is_listed or (workloads is not None and Operators.name in workloads)
        self._heartbeat = _HEARTBEAT if is_listed else 0.0
        kinds = (
            *ALL,
            *(OF_LARGE if self.sizes.large or workloads is not None else ()),
            # Hours of handlers take a minute; those that come by themselves have hours to wait for.
            *(OF_RUNNERS if (more and not long) or workloads is not None else (Tickers,) if more else ()),
            *(OF_LISTED if is_listed and ((more and not long) or workloads is not None) else ()),
            *(OF_DAMAGE if damaged or workloads is not None else ()),
            *(OF_COPIES if copied or workloads is not None else ()),
            *(OF_SMALL_STORES if self.machine is not None and self.machine.map_size is not None else ()),
            *(OF_SOME if some or workloads is not None else ()),
            *(OF_LEAVING if self._leaving or workloads is not None else ()),
        )
        if self.machine is not None:
            kinds = tuple(kind for kind in kinds if kind is not Plain)  # only a cluster's transactions are shared
        self.workloads = [kind(self) for kind in kinds if workloads is None or kind.name in workloads]
        self._weights = self._draw_weights(Choices(plan).stream("swarm"), workloads)
        self._rarely = some and self._some.random() < _ODD
        processes = random.choice([1, 1, 1, 2, 3, 4])
        if self.machine is not None:
            processes = max(processes, self.machine.draw_processes())
        self._settings = [self._draw_settings() for _ in range(processes)]
        self._calm = asyncio.Event()
        self._calm_since = 0.0
        self._opened: dict[Process, float] = {}
        self._killed_at = self._held_up_until = 0.0
        self.lasting = 0
        self._slow_until = 0.0
        self._unsteady_until = 0.0
        self._over = False
        self._storm_over = asyncio.Event()

    def report(self) -> Report:
        """Run it, and return what came of it."""
        world = self.world
        try:
            names = ("pages", "made up", "few", "unread")
            pages, made_up, few, unread = map(world.choices.stream, names)
            with (
                recording(),
                small_pages(pages),
                few_made_up(made_up),
                few_subscribed(few),
                soon_unread(unread),
                ExitStack() as stack,
            ):
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
        if self.history.complaints:
            for complaint in self.history.complaints:
                self.complain(f"history: {complaint}")
            self.history.complaints.clear()
        for key in transaction.written:
            if key.startswith(EFFECTS):
                self.effects_committed.add(key[len(EFFECTS) :])

    def _too_large(self, transaction: SimulatedTransaction) -> None:
        """Complain about a transaction that the service has made too large: each of its batches has a bound."""
        if not MIXED.get():
            what = sorted({entry.name for entry in transaction.journal})
            self.complain(f"too large: a transaction of {transaction.process} with {what}")

    def is_quick(self) -> bool:
        """Whether nothing has happened so far that takes time."""
        return not self._slow_until

    def quick_since(self) -> float:
        """Return since when nothing has happened that takes time, on the loop's clock, seconds.

        In the future while something has, or while those whom it has delayed may not have caught up.
        """
        return max(self._slow_until, self.world.cluster.quiet_at + CATCHES_UP if self._slow_until else 0.0)

    def disturb(self, kind: str) -> None:
        """Note that something of this kind happens, a fault or what is like one, and takes its time."""
        if kind not in HARMLESS:
            now = self.world.loop.time()
            if kind in ("kill", "heir"):
                self._killed_at = now
            else:
                self._held_up_until = max(self._held_up_until, now + LASTS.get(kind, 0.0))
            self._slow_until = max(self._slow_until, self.world.loop.time() + LASTS.get(kind, 0.0) + CATCHES_UP)

        if kind not in UNNOTICED:
            lasts = SURELY_LASTS.get(kind, 0.0)
            self._unsteady_until = max(self._unsteady_until, self.world.loop.time() + lasts + CATCHES_UP_SOON)

    def hold_up(self, seconds: float) -> None:
        """Note that something takes so long."""
        self._unsteady_until = max(self._unsteady_until, self.world.loop.time() + seconds + CATCHES_UP_SOON)

    def steady_since(self) -> float:
        """Return since when nothing takes time for processes that go on, on the loop's clock, seconds.

        In the future while something does; see `quick_since`. What ends a process holds up no other one.
        """
        quiet_at = self.world.cluster.quiet_at
        return max(self._unsteady_until, quiet_at + CATCHES_UP_SOON if quiet_at else 0.0)

    def process_here(self) -> Process | None:
        """Return the process that the present code belongs to."""
        owner = OWNER.get()
        return owner if isinstance(owner, Process) else None

    @property
    def longest_period(self) -> float:
        """The longest time after which a process looks at the types by itself, seconds."""
        return max(settings.type_check_period for settings in self._settings)

    @property
    def has_crashed(self) -> bool:
        """Whether an actor has died by a fault."""
        return any(fault.startswith("crash:") for fault in self.world.choices.faults)

    @property
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

    def calm_for(self) -> float:
        """Return how long the storm has been over, seconds."""
        return self.world.loop.time() - self._calm_since if self.is_calm else 0.0

    def move_clock(self, process: Process, ahead: float) -> None:
        """Have a process's wall clock jump.

        Args:
            process: whose.
            ahead: seconds by which it is ahead of the world's from then on.
        """
        process.clock.ahead = ahead
        self.moved_clocks[process] = self.world.loop.time()
        self._know_clock(ahead)

    def begin(self, name: str, program: Callable[[Process], Awaitable[Any]], **options: Any) -> Process:
        """Start a process on the run's store; as World.start."""
        process = self.world.start(name, program, **options)
        if self.machine is not None:
            self.machine.connect(process)
        return process

    def _draw_machine(self, random: Random, limits: Limits) -> Machine | None:
        """Draw whether the store is an embedded one."""
        if random.random() >= _EMBEDDED or self.long or (self.sizes.limits is not None and limits.key > KEY):
            return None
        machine = Machine(self.world, limits)
        machine.on_death = lambda instance: self.world.loop.call_later(_NOTICED, self._check_burial, instance)
        self.world.choices.rates |= machine.draw_rates()
        return machine

    def _know_clock(self, ahead: float) -> None:
        self.latest_clock = max(self.latest_clock, ahead)
        self.earliest_clock = min(self.earliest_clock, ahead)

    def _draw_weights(self, random: Random, wanted: Sequence[str] | None) -> list[float]:
        """Draw how often each workload takes a step: in most runs only some of them do, and meet each other often.

        Groce et al., Swarm Testing, ISSTA 2012: what is left out can no longer hide what the rest would show.
        """
        usual = [float(each.weight) for each in self.workloads]
        if wanted is not None or random.random() < _WITH_ALL:
            return usual
        kept = random.choice(_SWARMS)
        drawn = [random.choice([1.0, 3.0]) if random.random() < kept else 0.0 for _ in usual]
        factors = [1.0 if each.always else factor for each, factor in zip(self.workloads, drawn, strict=True)]
        weights = [weight * factor for weight, factor in zip(usual, factors, strict=True)]
        return weights if sum(weights) else usual

    def _draw_settings(self) -> Settings:
        choose = self.random.choice
        changed = {
            "notify_holdoff": choose([0.0, 0.05]),
            "type_check_period": choose([5.0, 15.0]) if not self.long else 15.0,
            "type_check_max_jitter": 1.0,
            "expiry_check_period": 3.0,
            "type_idle_after": choose([0.5, 2.0, 10.0]),
            "activity_samples": choose([4, 4, 8]),
            "activity_batch": choose([1, 3, 1000]),
            # Many jobs that change together are told of one by one only where that takes no time to speak of.
            "notifier_batch": choose([1, 3, 1000] if not self.sizes.large else [10, 50, 1000]),
            "pending_batch": choose([1, 3, 100]),
            "add_batch": self._later.choice([1, 3, 1000, 1000]),
            "transaction_timeout": choose([3.0, 10.0]),
            "process_heartbeat": self._heartbeat,
        }
        if self.machine is not None:
            changed |= self.machine.draw_settings()
        if self._rarely:
            changed |= {"type_check_period": _MOST_PERIOD, "retry_backoff_max": 0.2}
        return Settings.model_construct(None, **changed)

    # The course of a run

    async def _main(self) -> None:
        await self.begin("founder", self._found, settings=self._settings[0]).ended()
        await self.begin("starter", self._start, settings=self._settings[0]).ended()
        homes = [
            asyncio.create_task(self._keep_alive(f"p{number}", settings), name=f"home {number}")
            for number, settings in enumerate(self._settings)
        ]
        enemy = asyncio.create_task(nemesis(self), name="nemesis")
        try:
            async with asyncio.timeout(_LONG_STORM if self.long else _LONGEST_STORM):
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
        self.key_check.check()
        self._check_end()
        await self._check_store()

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

    async def _keep_alive(self, name: str, settings: Settings) -> None:
        """Start a process again whenever it has ended."""
        world = self.world
        random = world.choices.stream(f"home {name}")
        while not self._over:
            off = _FAR_OFF if self.long else _OFF
            ahead, supervise = random.choice([0.0, 0.0, -off, off]), random.random() < 0.8
            pause = random.uniform(0, _LONGEST_REST)
            self._know_clock(ahead)
            supervise = supervise or name == "p0"

            async def program(process: Process, supervise: bool = supervise) -> None:
                await self._live(process, supervise)

            process = self.begin(name, program, settings=settings, ahead=ahead)
            self.processes = [each for each in self.processes if each.name != name] + [process]
            await process.ended()
            for workload in self.workloads:
                for complaint in workload.after_end(process):
                    self.complain(complaint)
            self.services.pop(process, None)
            self.lanes = [lane for lane in self.lanes if lane.process is not process]
            if process.failure is not None and not isinstance(process.failure, JobsError):
                self.complain(f"process: {process} failed with {process.failure!r}")
            if not self._over:
                await asyncio.sleep(pause)

    async def _live(self, process: Process, supervise: bool) -> None:
        """What a process does: several things at the same time, until it is stopped."""
        try:
            jobs = process.service(supervise=supervise)
            for workload in self.workloads:
                workload.register(process, jobs)
            async with jobs:
                self.services[process] = jobs
                self._opened[process] = self.world.loop.time()
                client = Client(self, process, jobs)
                async with asyncio.TaskGroup() as group:
                    for number in range(3):
                        group.create_task(self._lane(client, number, supervise))
                    group.create_task(self._settle(client))
                    group.create_task(self._note_end(process))
                    if jobs.handlers:
                        group.create_task(self._run_handlers(process, jobs))
        except* SupervisorFailed as failed:
            self.world.note(f"the tree gave up: {failed.exceptions[0]}", process)
        finally:
            task = asyncio.current_task()
            if isinstance(sys.exception(), asyncio.CancelledError) and task is not None and not task.cancelling():
                self.complain(f"canceled: {process} was canceled, but nobody has asked it to stop")
            for held in held_after(self.services[process]) if process in self.services else ():
                self.complain(f"held: {process} was left, but holds {held}")

    async def _run_handlers(self, process: Process, jobs: JobsService) -> None:
        """Run handlers until the process ends; it ends when an operator has asked it to stop, as a program would."""
        await jobs.run(max_jobs=self._max_jobs(), started=lambda: self._have_started(process, jobs))
        process.request_stop()

    async def _note_end(self, process: Process) -> None:
        """Note when a process begins to end."""
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            if process.alive:
                self.leaving[process] = now = self.world.loop.time()
                self.disturb("stop")
                graces = [each.longest_grace for each in self.workloads if isinstance(each, Handlers)]
                self._slow_until = max(self._slow_until, now + 3 * max(graces, default=0.0) + CATCHES_UP)

    def _have_started(self, process: Process, jobs: JobsService) -> None:
        """All handlers of a process have started: their types are there."""
        self.started[process] = self.world.loop.time()
        for type in jobs.handlers:
            if type not in self.history.model.timeouts:
                self.complain(f"started: {process} runs handlers, but {type!r} is not there")

    def _max_jobs(self) -> int | None:
        return next((each.max_jobs for each in self.workloads if isinstance(each, Handlers)), None)

    async def _lane(self, client: Client, number: int, supervise: bool) -> None:
        random = self.world.choices.stream(f"lane {client.process} {number}")
        lane = Lane(client.process)
        self.lanes.append(lane)
        while True:
            await asyncio.sleep(random.expovariate(self.pace))
            if self._calm.is_set():
                return
            workload = random.choices(self.workloads, self._weights)[0]
            if isinstance(workload, Subscribers) and not supervise:
                continue
            self.budget -= 1
            if self.budget <= 0 or self.world.loop.steps > _TIRED:
                self._storm_over.set()
            if self.budget < 0 or not self.world.choices.operation():
                continue
            lane.step = asyncio.create_task(workload.step(client), name=f"{client.process} lane {number}")
            try:
                await asyncio.wait([lane.step])
            except asyncio.CancelledError:
                lane.step.cancel()
                await asyncio.wait([lane.step])
                self._look_at(lane.step)
                raise
            self._look_at(lane.step)
            lane.step = None

    def _look_at(self, step: asyncio.Task[None]) -> None:
        error = None if step.cancelled() else step.exception()
        if error is None or isinstance(error, JobsError | TimeoutError):
            return
        where = "".join(traceback.format_tb(error.__traceback__)[-2:])
        self.complain(f"exception: {error!r} in {where}")

    async def _settle(self, client: Client) -> None:
        await self._calm.wait()
        async with asyncio.TaskGroup() as group:
            for workload in self.workloads:
                group.create_task(workload.settle(client))

    async def _settle_all(self) -> None:
        """Let no more faults hit, and wait until every job has ended."""
        world = self.world
        self._calm.set()
        self._calm_since = world.loop.time()
        world.note("calm")
        world.choices.calm()
        world.cluster.come_back()
        for process in self.processes:
            process.go_on()
        # Of types that were cleared no lost job is noticed; what was under way may clear one still.
        await asyncio.sleep(_SHORT + max(0.0, world.cluster.quiet_at - world.loop.time()))
        self.bounds.calm(world.loop.time())
        world.loop.call_later(_BURIED, self._check_burials)
        await self.begin("founder", self._found).ended()
        try:
            longest = _LONG_CALM if self.long else _LONGEST_CALM
            async with asyncio.timeout(longest):
                while self._open():  # noqa: ASYNC110 - it has no event
                    await asyncio.sleep(0.5)
        except TimeoutError:
            for left in self._open():
                self.complain(f"stuck: {left} after {longest:.0f} s of calm")

    def _open(self) -> list[str]:
        """Return what must still end."""
        return [
            *self._open_jobs(),
            *self._open_subscriptions(),
            *(left for each in self.workloads for left in each.open()),
            *self.history.unread(),
        ]

    def _open_jobs(self) -> list[str]:
        return [f"{key} is {job.state}" for key, job in self.history.model.jobs.items() if job.state != "finished"]

    def _open_subscriptions(self) -> list[str]:
        subscribers = [each for each in self.workloads if isinstance(each, Subscribers)]
        processes = [str(process) for process in self.processes]
        return [f"{heard}" for each in subscribers for process in processes for heard in each.waiting(process)]

    # What must be so in the end

    def _check_end(self) -> None:
        left = self.world.left_behind()
        if left:
            self.complain(f"left behind: the tasks {left}")
        if not self.world.cluster.idle:
            self.complain("left behind: a watch, a transaction or a past state at the cluster")
        for text in self.world.unhandled:
            self.complain(f"unhandled: {text}")
        if not self.has_crashed:
            for error in self.world.errors:
                # Ends that the store has not taken within the grace of a service are left to the next worker.
                is_left = error.endswith("is not open')") or " reason=the runner has ended " in error
                if error.startswith(_NO_WEATHER) and not is_left:
                    self.complain(f"logged: {error}")
        for complaint in self.calls.complaints(quick=self.is_quick()):
            self.complain(complaint)
        for workload in self.workloads:
            for complaint in workload.check():
                self.complain(complaint)

    def _check_burial(self, instance: bytes) -> None:
        """Nobody was held up when a process has died, nor since: who looks for such has found it, and those before."""
        machine = self.machine
        assert machine is not None
        since = max(self._killed_at, self._held_up_until)
        if since <= machine.died[instance] and self._has_looked(_NOTICED):
            for each, died in machine.died.items():
                if died <= machine.died[instance]:
                    self._check_taken(each)

    def _check_burials(self) -> None:
        """In the calm nothing is left of those that have died before."""
        if self.machine is None or self._over or not self._has_looked(_BURIED - _LONGEST_REST):
            return
        for instance in self.machine.died:
            self._check_taken(instance)
        for instance in self.machine.unburied():
            self.complain(f"unburied: there is still a file of {instance.hex()}, which died before the calm")

    def _has_looked(self, seconds: float) -> bool:
        """Whether somebody has looked for dead processes for so long."""
        since = self.world.loop.time() - seconds
        return any(
            process.running and jobs._tree.root is not None and process.settings.process_check_period
            for process, jobs in self.services.items()
            if self._opened[process] < since
        )

    def _check_taken(self, instance: bytes) -> None:
        for key, job in self.history.model.jobs.items():
            if job.lock is not None and job.lock.startswith(instance):
                self.complain(f"unburied: {key} is still run by {instance.hex()}, which is dead")

    async def _check_store(self) -> None:
        async def look(process: Process) -> None:
            async with process.service(supervise=False) as jobs:

                async def everything(transaction: Transaction) -> list[tuple[bytes, bytes]]:
                    return await transaction.get_range(b"", b"\xff")

                stored = dict(await jobs.store.read(everything))
                self.history.finish(stored)
                versions = self.world.cluster.versions
                if self.machine is not None and any(versions.get(key) != value for key, value in stored.items()):
                    self.complain("torn: the store does not hold what was committed")

        inspector = self.begin("inspector", look)
        await inspector.ended()
        if inspector.failure is not None:
            self.complain(f"exception: the inspector failed: {inspector.failure!r}")
        for complaint in self.history.complaints:
            self.complain(f"history: {complaint}")


def _draw_leaving(random: Random, types: Sequence[JobType]) -> dict[JobType, dict[str, float | None]]:
    """Draw the types whose jobs are not kept, and how long they are kept."""
    drawn = {type: {"keep": 0.0, "keep_failed": random.choice([0.0, None])} for type in types}
    return {type: kept for type, kept in drawn.items() if random.random() < _LEAVING}
