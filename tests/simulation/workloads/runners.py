"""Handlers that the runner calls in every process: they end well or badly, hang, will not end, or take turns.

Their types are theirs alone, so that everything that happens to these jobs is known.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from jobs_service import (
    Discard,
    JobExists,
    JobNotFound,
    JobsService,
    JobState,
    JobTransaction,
    JobType,
    Removal,
    Retry,
    RunningJob,
    Snooze,
)
from jobs_service.testing import EPOCH, Process, SimulatedTransaction
from tests.simulation.client import EFFECTS, Client
from tests.simulation.entry import Entry
from tests.simulation.model_job import READY, RUNNING, SCHEDULED, ModelJob
from tests.simulation.weather import HARMLESS, RARELY
from tests.simulation.workloads.base import Workload, patiently
from tests.simulation.workloads.handled import OWN, Accepted, Held, wrong_crash, wrong_finish, wrong_stop
from tests.simulation.workloads.tickers import MINUTELY, TICKING

ONE_SHOT: Final[JobType] = "handled"
CONTINUOUS: Final[JobType] = ("continuous", 1)

_NOTICED: Final = 0.2
"""Seconds within which a handler is told that its job was canceled."""

_REQUESTS: Final = 6
_SHORT: Final = 3.0
_EXPIRED: Final = 5.0
"""Seconds after which a finished job that has expired is gone: monitors look every three."""
_MOMENT: Final = 0.05
_SLACK: Final = 1.0
"""Seconds within which what a handler's end asks for is written, and what is due is begun."""
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
_RARE: Final = 0.88
"""Of the steps those above it do what is done rarely."""
_MOVES: Final = frozenset({"accept", "finish", "crash", "stop"})
_YOUNG: Final = "young "
_KEPT: Final = 7 * 86_400.0
_INTERVAL: Final = 60.0
_CHURN: Final = 20
"""What handlers have that say nothing of these."""
_QUICK: Final = HARMLESS | {"stop", "kill", "clock"}
"""The faults that do not keep a process from handing its jobs over."""


_SECRET: Final = ("nowhere.secret",)
_UNKNOWN: Final = ("commit", "slow_commit", "slow_answer")
"""What the faults begin with after which a caller does not know whether its commit has happened."""


@dataclass(frozen=True)
class Order:
    """What the handlers' jobs carry.

    Attributes:
        call: the number of the call that enqueued it.
        step: how far its handler has come.
        pad: makes it as large as the run wants.
    """

    call: int
    step: int = 0
    pad: str = ""


class Handlers(Workload):
    """Enqueue, cancel and resubmit jobs that handlers run, and watch over the handlers. An observer of the cluster."""

    name = "handlers"
    weight: ClassVar[int] = 24

    def __init__(self, run: Any) -> None:
        super().__init__(run)
        choose = self.random.choice
        self.max_jobs = choose([None, None, 2])
        common = {
            "timeout": choose([3.0, 6.0, 15.0]) * (RARELY if run.long else 1),
            "grace": choose([0.5, 2.0, 8.0]),
            "max_history": choose([2, 20]),
            "health_threshold": choose([1.0, 120.0]),
            "backoff": choose([0.5, 2.0]),
            "jitter": choose([0.0, 0.0, 0.5]),
        }
        slots = [1, 2, 3] if not run.sizes.large else [3, 12]
        self.options: dict[JobType, dict[str, Any]] = {
            ONE_SHOT: {
                **common,
                "slots": choose(slots),
                "max_attempts": choose([1, 2, 3, None]),
                "time_limit": choose([None, None, 4.0]),
                "continuous": choose([False, _is_third]),
                "fifo": choose([False, True]),
                "keep": choose([None, 0.0, 3.0]),
                "keep_failed": choose([None, None, 3.0]),
            },
            CONTINUOUS: {
                **common,
                "slots": choose([1, 2] if not run.sizes.large else [2, 16]),
                "max_attempts": None,
                "interval": choose([1.0, 3.0]) * (RARELY if run.long else 1),
                "max_churn": choose([1, 20]),
                "continuous": choose([True, lambda job: True]),
            },
        }
        self._active: dict[Process, list[Held]] = {}
        self._held: dict[bytes, Held] = {}
        self._accepted: dict[bytes, Accepted] = {}
        self._locks: dict[tuple[JobType, Any], bytes] = {}
        # When a run was over in the store, and when it was seen alive last.
        self._ended: dict[bytes, float] = {}
        self._alive: dict[bytes, float] = {}
        self._unwritten: dict[bytes, Held] = {}
        # When a process has accepted or ended a job last.
        self._moved: dict[Process, float] = {}
        self._begun: dict[Any, asyncio.Event] = {}
        self._timeouts_changed: dict[JobType, float] = {}
        self._slots: dict[tuple[Process, JobType], int] = {}
        self._slots_changed: dict[tuple[Process, JobType], float] = {}
        self._turns: dict[tuple[Process, JobType], list[float]] = {}
        self._retentions = {
            type: {(options.get("keep", _KEPT), options.get("keep_failed"))} for type, options in self.options.items()
        }
        # Locks of jobs that were lost, or removed by force: they are nobody's, or another's.
        self._gone: set[bytes] = set()
        run.world.on_log = self._logged
        if self.options[ONE_SHOT]["fifo"]:
            run.history.in_order.add(ONE_SHOT)
        self._taken: dict[bytes, float] = {}
        self._paused_at = 0.0
        self._resumed_at = 0.0
        run.world.cluster.observers.append(self)

    @property
    def longest_grace(self) -> float:
        """Seconds that any handler has to end in."""
        longest: float = max(options["grace"] for options in self.options.values())
        return longest

    # What processes do

    def register(self, process: Process, jobs: JobsService) -> None:
        """Make functions the handlers of a service that is about to be opened."""

        @jobs.handler(ONE_SHOT, **self.options[ONE_SHOT])
        async def one_shot(job: RunningJob, args: Order) -> Any:
            fate = self.random.choices([*_FATES], [*_FATES.values()])[0]
            fate = "return" if self.run.is_calm else "hang" if str(job.id).startswith(_YOUNG) else fate
            return await self._handle(process, job, fate)

        @jobs.handler(CONTINUOUS, **self.options[CONTINUOUS])
        async def continuous(job: RunningJob, args: Order) -> Any:
            return await self._handle(process, job, "for ever")

    async def step(self, client: Client) -> None:
        self._check_turns()
        self._watch()
        what = self.random.random()
        if what < (0.2 if self.run.sizes.large and not self.run.lasting else 0.03):
            await self._queue_up(client)
            return
        if what > _RARE:
            await self.random.choice([self._configure, self._change_timeout, self._count, self._cancel_young])(client)
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
                await client.enqueue(handler, self._order, unique=key, **options)
            elif what < 0.65:
                await client.jobs.add(type, self.some_id(), {"no": "order"}, if_exists="resubmit")
            elif what < 0.72:
                id = self._some_target(type)
                await client.remove(type, id, force=True)
                await client.enqueue(handler, self._order, id=id)
            elif what < 0.82:
                await client.remove(type, self._some_target(type), force=self.random.random() < 0.2)
            else:
                await client.resubmit(type, self._some_target(type))

    async def _queue_up(self, client: Client) -> None:
        """Have more continuous jobs than all slots, and look whether they take turns."""
        options = self.options[CONTINUOUS]
        for _ in range(options["slots"] * len(self._active) + 2):
            await client.enqueue(client.jobs.handlers[CONTINUOUS], self._order)
        self.run.lasting += 1
        try:
            await asyncio.sleep(2 * options["interval"] + options["grace"] + 2.0)
            self._check_turns()
        finally:
            self.run.lasting -= 1

    async def _configure(self, client: Client) -> None:
        """Give a handler of this process other slots while it runs."""
        type, now = self.random.choice([ONE_SHOT, CONTINUOUS]), self.run.world.loop.time()
        before = self._slots_of(client.process, type)
        slots = self.random.choice([1, 2, before, self.options[type]["slots"] + 1])
        client.jobs.configure(type, slots=slots)
        self._slots[client.process, type] = slots
        if slots < before:
            self._slots_changed[client.process, type] = now

    async def _change_timeout(self, client: Client) -> None:
        """Have hearts beat in another rhythm."""
        factor = RARELY if self.run.long else 1
        seconds = factor * self.random.choice([3.0, 6.0, 15.0])
        await client.jobs.set_type_timeout(self.random.choice([ONE_SHOT, CONTINUOUS]), seconds)

    async def _count(self, client: Client) -> None:
        """While nothing changes, what is told of a type fits what its jobs are."""
        type, began, clock = self.random.choice([ONE_SHOT, CONTINUOUS]), client.version, client.process.clock
        earliest = clock.wall_time()
        summaries = self.random.choice([0, 3])
        told = (await client.jobs.stats(type, jobs=summaries)).get(type, {})
        latest = clock.wall_time()
        if client.version != began or latest < earliest:
            return
        jobs = [job for (each, _), job in self.run.history.model.jobs.items() if each == type]
        if any(job.run_at is not None and earliest <= job.run_at <= latest for job in jobs):
            return
        wanted = dict.fromkeys(("pending", "scheduled", "running", "crashed", "finished"), 0)
        for job in jobs:
            # What is kept is where jobs are: with summaries all are read, and are what this process's clock says.
            wanted[_state_of(job, latest if summaries else None)] += 1
        if any(told.get(state, 0) != count for state, count in wanted.items()):
            self.run.complain(f"stats: {client.process} was told {told} of {type!r}, not {wanted}")

    async def _cancel_young(self, client: Client) -> None:
        """Cancel a job that has just begun."""
        id = f"{_YOUNG}{len(self._begun)}"
        begun = self._begun[id] = asyncio.Event()
        await client.enqueue(client.jobs.handlers[ONE_SHOT], self._order, id=id)
        async with asyncio.timeout(2.0):
            await begun.wait()
        await asyncio.sleep(self.random.uniform(0.0, 3 * _MOMENT))
        with contextlib.suppress(JobNotFound):
            await client.remove(ONE_SHOT, id)

    def allow_retention(self, type: JobType, keep: float | None, keep_failed: float | None) -> None:
        """Know that somebody says so how long jobs are kept."""
        if type in self._retentions:
            self._retentions[type].add((keep, keep_failed))

    def _slots_of(self, process: Process, type: JobType) -> int:
        slots: int = self._slots.get((process, type), self.options[type]["slots"])
        return slots

    def _order(self, call: int) -> Order:
        return Order(call, pad="" if self.run.is_calm else self.run.sizes.pad(call))

    def _some_target(self, type: JobType) -> Any:
        """Return the id of a job that is likely to run."""
        running = [held.job.id for active in self._active.values() for held in active if held.job.type == type]
        return self.random.choice(running) if running and self.random.random() < 0.8 else self.some_id()

    # Handlers

    async def _handle(self, process: Process, job: RunningJob, fate: str) -> Any:
        time = self.run.world.loop.time
        held = Held(process, job, self._accepted[job.lock], fate, time(), process.pauses)
        held.continuous = job.type == CONTINUOUS or (
            self.options[ONE_SHOT]["continuous"] is _is_third and _is_third(job)
        )
        self._held[job.lock] = held
        active = self._active.setdefault(process, [])
        active.append(held)
        self._check_start(held, active)
        if job.id in self._begun:
            self._begun[job.id].set()
        try:
            held.returned = await self._act(held)
            return held.returned
        except BaseException as error:
            # Whoever asks says why; one that cancels itself does not.
            if isinstance(error, asyncio.CancelledError) and (fate != "cancel itself" or error.args):
                self._ask(held, error)
            held.failed, held.error = process.clock.wall_time(), error
            raise
        finally:
            active.remove(held)
            held.over = self._moved[process] = time()
            if process.alive:
                self._check_cancellation(held)
                self._check_over(held)

    def _ask(self, held: Held, cancellation: asyncio.CancelledError) -> None:
        """A handler was asked to end."""
        if held.asked is not None or not held.process.alive:
            return
        held.asked = self.run.world.loop.time()
        held.why = str(cancellation.args[0]) if cancellation.args else ""
        if held.was_paused:
            return
        match held.why:
            case "stopped":
                # When it is known whether its process ends, and who else was asked at the same moment.
                self.run.world.loop.call_later(
                    _MOMENT, self._check_stopped, held, context=self.run.world.cluster.context
                )
            case "overtime":
                limit = held.accepted.time_limit(self.options[held.job.type])
                if limit is None or held.asked - held.accepted.at < limit - _MOMENT:
                    self._wrong(held.accepted, "overtime: the handler of {} was told too early that its time is over")
            case "canceled" | "taken":
                if held.job.lock not in self._taken and (held.has_ended_job or held.fate not in OWN):
                    self._wrong(held.accepted, f"interrupted: the handler of {{}} was told that its job was {held.why}")

    async def _act(self, held: Held) -> Any:
        job, random = held.job, self.random
        timeout = self.options[job.type]["timeout"]
        match held.fate:
            case "for ever":
                return await self._go_on(held)
            case "finish":
                return await self._finish_with_effect(held)
            case "stubborn":
                await self._ignore_cancellation(held)
            case "hang" | "nothing" if held.fate == "hang" or random.random() < 0.3:
                await self.run.calm_begins()
            case "long":
                await asyncio.sleep(random.uniform(1.0, 1.5) * timeout)
            case "update":
                await asyncio.sleep(random.uniform(0.0, 1.0))
                await job.progress(1, 2, "half")
                await job.update(_step(job))
            case "again":
                await job.resubmit(run_at=held.process.clock.wall_time() + random.choice([-1.0, 1.0]))
            case "release":
                released = await job.release()
                held.has_ended_job = True
                await asyncio.sleep(random.choice([0.0, timeout]))
                return released
            case _:
                await asyncio.sleep(random.choice([0.0, 0.0, 0.3, 2.0]))
        if random.random() < 0.2 and held.fate in ("hang", "stubborn", "long", "update"):
            raise ValueError("at last")
        return self._end(held)

    def _end(self, held: Held) -> Any:
        """Return or raise what the fate wants."""
        random = self.random
        match held.fate:
            case "raise":
                raise ValueError("for no reason")
            case "retry":
                raise Retry(after=random.choice([None, 0.0, 1.5]))
            case "snooze":
                raise Snooze(random.choice([0.0, 0.5, 2.0]))
            case "discard":
                raise Discard("of no use")
            case "base":
                raise random.choice([SystemExit, KeyboardInterrupt])("from inside of a handler")
            case "cancel itself":
                raise asyncio.CancelledError
            case "object":
                return object()
            case "nothing":
                return None
        return {"began": held.began, "pad": self.run.sizes.pad(int(held.began * 1000))}

    async def _go_on(self, held: Held) -> Any:
        """Run until the calm, or until somebody else is to have the slot; say so in the end."""
        random = self.random
        try:
            if random.random() < 0.3:
                await asyncio.sleep(random.uniform(0.0, 2.0))
                await held.job.progress(1)
                if random.random() < 0.3:
                    raise ValueError("for no reason")
            await self.run.calm_begins()
            self._check_turns()
        except asyncio.CancelledError as cancellation:
            self._ask(held, cancellation)
            if random.random() < 0.5:
                await held.job.update(_step(held.job))
            raise
        return None

    async def _ignore_cancellation(self, held: Held) -> None:
        """Go on for a while when it is asked to end, or in the calm."""
        loop, grace = self.run.world.loop, self.options[held.job.type]["grace"]
        try:
            await self.run.calm_begins()
        except asyncio.CancelledError as cancellation:
            self._ask(held, cancellation)
        until = loop.time() + self.random.uniform(0.0, 3.0 * grace)
        while loop.time() < until:
            try:
                await asyncio.sleep(until - loop.time())
            except asyncio.CancelledError as cancellation:
                self._ask(held, cancellation)
        if self.random.random() < 0.5:
            await held.job.update(_step(held.job))

    async def _finish_with_effect(self, held: Held) -> Any:
        lock = held.job.lock

        def finish(tx: JobTransaction) -> Any:
            tx.kv.add(EFFECTS + lock, b"\x01")
            return {"with": "an effect"}

        await asyncio.sleep(self.random.choice([0.0, 0.0, 1.0]))
        self.run.effects.add(lock)
        await held.job.finish_with(finish)
        held.has_ended_job = True
        if self.random.random() < 0.5:
            await asyncio.sleep(self.random.choice([0.3, 1.0, self.options[held.job.type]["timeout"]]))
        if self.random.random() < 0.3:
            raise ValueError("when all is over")
        return "this is not the result"

    # Checks while it runs

    def _wrong(self, accepted: Accepted, what: str) -> None:
        """Complain about something that names a job."""
        self.run.complain(what.format(f"{accepted.type!r}/{accepted.id!r} of {accepted.process}"))

    def _check_start(self, held: Held, active: list[Held]) -> None:
        job, run, accepted = held.job, self.run, held.accepted
        most = accepted.most_attempts(self.options[job.type])
        if most is not None and job.attempts > most:
            self._wrong(accepted, f"attempts: {{}} runs as number {job.attempts}, {most} at most")
        given = (job.attempts, job.max_attempts, job.time_limit)
        if given != (accepted.job.notes.attempts, *accepted.limits):
            self._wrong(accepted, f"given: the handler of {{}} was told {given}, not what was accepted")
        leaving = run.leaving.get(held.process)
        if leaving is not None and held.began > leaving and not held.process.pauses:
            self._wrong(accepted, f"drained: {{}} was begun {held.began - leaving:.3f} s after its process was to stop")
        if run.has_crashed:
            return  # A lane that was restarted knows nothing of handlers that do not end.
        slots = self._slots_of(held.process, job.type)
        busy = sum(each.job.type == job.type for each in active)
        if busy > slots and self._slots_changed.get((held.process, job.type), -1.0) < held.began - _MOMENT:
            run.complain(f"slots: {held.process} runs {busy} jobs of {job.type!r}, {slots} at most")
        if self.max_jobs is not None and len(active) > self.max_jobs:
            run.complain(f"slots: {held.process} runs {len(active)} jobs, {self.max_jobs} at most")

    def _check_stopped(self, held: Held) -> None:
        """A handler is asked to give its job back when its process ends, when its slot is gone, and in turn."""
        assert held.asked is not None
        run, process, options = self.run, held.process, self.options[held.job.type]
        leaving = run.leaving.get(process)
        is_excess = (process, held.job.type) in self._slots_changed
        if leaving is not None:
            if not held.continuous and not is_excess and held.asked < leaving + options["grace"] - _MOMENT:
                self._wrong(
                    held.accepted,
                    f"drained: {{}} was canceled {held.asked - leaving:.3f} s after its process was to stop; "
                    f"its grace is {options['grace']} s",
                )
        elif is_excess:
            self._check_order(held)
        elif not held.continuous:
            self._wrong(held.accepted, "turns: {} would have ended by itself, and had to give up its slot")
        elif self.max_jobs is None and not run.has_crashed:
            self._check_turn(held)
            self._check_order(held)

    def _check_turn(self, held: Held) -> None:
        """Continuous jobs give way to others that wait, so many at most in each interval."""
        assert held.asked is not None
        run, options, steady = self.run, self.options[held.job.type], self.run.quiet.steady_since()
        turns = self._turns.setdefault((held.process, held.job.type), [])
        turns.append(held.asked)
        # Each round asks the store who waits, before anybody is asked to give way.
        longest = 2 * _REQUESTS * run.world.cluster.latency + _MOMENT
        window = held.asked - options.get("interval", _INTERVAL) + longest
        if len([each for each in turns if each > window]) > options.get("max_churn", _CHURN) and steady < window:
            self._wrong(held.accepted, f"turns: {{}} is one too many of {turns} that had to give up their slots")
        if steady < held.asked - _SLACK and not any(self._waiters(held)):
            self._wrong(held.accepted, "turns: {} had to give up its slot, but nobody waits who comes before it")

    def _waiters(self, held: Held) -> Iterator[Any]:
        """Yield the ids of jobs that waited a moment ago, and that do not come after a job that runs."""
        history, since = self.run.history, self.run.world.loop.time() - _SLACK
        for type, id in history.known():
            if type == held.job.type:
                states = history.states(type, id)
                first = next((number for number, state in enumerate(states) if state.time >= since), len(states))
                job = history.model.jobs.get((type, id))
                waited = any(state.state is JobState.PENDING for state in states[max(first - 1, 0) :])
                if waited and (job is None or job.priority <= held.accepted.job.priority):
                    yield id

    def _check_order(self, held: Held) -> None:
        """Who was asked to give up its slot runs longest, and jobs that end by themselves are asked last."""
        assert held.asked is not None
        for each in self._active.get(held.process, ()):
            same = each.job.type == held.job.type and (each.asked is None or each.asked > held.asked)
            if not same or each.began > held.asked - _MOMENT or each.was_paused or held.was_paused:
                continue
            if each.continuous and not held.continuous:
                self._wrong(held.accepted, f"turns: {{}} was stopped, but {each.job.id!r} never ends by itself")
            older = each.accepted.at < held.accepted.at - _MOMENT
            equal = each.accepted.job.priority == held.accepted.job.priority and each.continuous == held.continuous
            if older and equal:
                self._wrong(held.accepted, f"turns: {{}} was stopped, but {each.job.id!r} runs for longer")

    def _check_over(self, held: Held) -> None:
        """A handler was told in time that its time was over, and was not waited for longer than its grace."""
        assert held.over is not None
        run, lock, options = self.run, held.job.lock, self.options[held.job.type]
        self._check_alive(lock)
        if lock not in self._ended:
            self._unwritten[lock] = held
        if held.was_paused:
            return
        until = held.over if held.asked is None else held.asked
        limit = held.accepted.time_limit(options)
        if limit is not None and until - held.began > limit + 2 * _MOMENT:
            self._wrong(held.accepted, f"overtime: {{}} ran for {until - held.began:.3f} s, its limit is {limit} s")
        leaving = run.leaving.get(held.process)
        if leaving is not None:
            grace = 0.0 if held.continuous else options["grace"]
            if until > max(leaving, held.began) + grace + 2 * _MOMENT:
                self._wrong(held.accepted, f"drained: {{}} went on for {until - leaving:.3f} s, its grace is {grace} s")
        if held.asked is None or run.quiet.steady_since() > held.asked:
            return
        given_up = held.asked + options["grace"] + _SLACK + _REQUESTS * run.world.cluster.latency
        if held.over > given_up and self._ended.get(lock, held.over) > given_up:
            self._wrong(held.accepted, f"grace: {{}} was not given up {options['grace']} s after it was to end")

    def _check_alive(self, lock: bytes) -> None:
        """A job was seen alive three times in each timeout; those that have just begun may wait for half of it."""
        accepted, run = self._accepted[lock], self.run
        now, timeout = run.world.loop.time(), run.history.model.timeouts.get(accepted.type)
        since = max(self._alive[lock], self._timeouts_changed.get(accepted.type, 0.0))
        if timeout is None or lock in self._ended or not accepted.process.alive or run.quiet.steady_since() > since:
            return
        if now - since > timeout / 2 + _SLACK / 2 + 2 * _REQUESTS * run.world.cluster.latency:
            self._wrong(accepted, f"heartbeat: {{}} was silent for {now - since:.3f} s, its timeout is {timeout} s")

    def _watch(self) -> None:
        """Look whether the ends of handlers are written, and whether what is due runs where there is room."""
        run = self.run
        now, steady = run.world.loop.time(), run.quiet.steady_since()
        patience = 2 * _SLACK + 2 * _REQUESTS * run.world.cluster.latency
        for lock, held in [*self._unwritten.items()]:
            assert held.over is not None
            if lock in self._ended or not held.process.alive or held.was_paused:
                del self._unwritten[lock]
            elif now - max(held.over, steady) > patience:
                del self._unwritten[lock]
                self._wrong(held.accepted, f"unwritten: the handler of {{}} ended {now - held.over:.3f} s ago")
        if now - steady > patience and not run.is_over:
            self._check_slots(now, patience)
            self._check_idle(now - patience)

    def _check_slots(self, now: float, patience: float) -> None:
        """Where there are fewer slots than there were, what is too much was asked to end."""
        for (process, type), changed in [*self._slots_changed.items()]:
            if not process.alive or process in self.run.leaving or process.pauses:
                continue
            if changed < now - patience and self.run.quiet.steady_since() < changed:
                running = [each for each in self._active.get(process, ()) if each.job.type == type]
                count = sum(each.asked is None and not each.has_ended_job for each in running)
                if count > self._slots_of(process, type):
                    self.run.complain(f"slots: {process} goes on with {count} jobs of {type!r}")

    def _check_idle(self, since: float) -> None:
        """Jobs that are due do not wait where there is room for them."""
        run, jobs = self.run, self.run.history.model.jobs
        waiting: list[tuple[JobType, Any, float]] = []
        for (type, id), job in jobs.items():
            if type in self.options and job.state is READY and run.history.states(type, id)[-1].time < since:
                waiting.append((type, id, 0.0 if job.run_at is None else job.run_at))
        if not waiting or self._resumed_at > since:
            return
        for process, started in run.started.items():
            moved = max(started, self._moved.get(process, 0.0))
            if moved > since or process in run.leaving or not process.alive or not process.running:
                continue
            worker = str(process).replace(".", "/")
            locks = {
                (key[0], job.lock)
                for key, job in jobs.items()
                if job.state is RUNNING and worker in (event[2] for event in job.notes.history[:1])
            }
            locks |= {(held.job.type, held.job.lock) for held in self._active.get(process, ())}
            if self.max_jobs is not None and len(locks) >= self.max_jobs:
                continue
            wall = process.clock.wall_time() - _SLACK
            for type, id, run_at in waiting:
                if run_at < wall and sum(each == type for each, _ in locks) < self._slots_of(process, type):
                    run.complain(f"idle: {type!r}/{id!r} waits, and {process} has room for it")
                    return

    def _check_cancellation(self, held: Held) -> None:
        """A handler was told soon that its job was canceled, or another's; it holds while nothing takes time."""
        taken = self._taken.get(held.job.lock)
        if taken is None or not held.process.alive or self.run.quiet.quick_since() > max(taken, held.began):
            return
        told = (self.run.world.loop.time() if held.asked is None else held.asked) - max(taken, held.began)
        if told > _NOTICED + _REQUESTS * self.run.world.cluster.latency:
            self.run.complain(
                f"told late: the handler of {held.job.type!r}/{held.job.id!r} ({held.fate}) went on for {told:.3f} s "
                "after its job was canceled or taken away"
            )

    def _check_turns(self) -> None:
        """Where jobs have waited for two intervals, somebody has given up a slot for them meanwhile."""
        run, options = self.run, self.options[CONTINUOUS]
        long_ago = run.world.loop.time() - 2 * options["interval"] - options["grace"] - 1.0
        if run.quiet.quick_since() > long_ago or self.max_jobs is not None or self._paused_at > long_ago:
            return
        for process, active in self._active.items():
            handlers = [held for held in active if held.job.type == CONTINUOUS]
            if not process.alive:  # what was killed is over, also where its code has not noticed it
                continue
            if len(handlers) < self._slots_of(process, CONTINUOUS) or any(held.began > long_ago for held in handlers):
                continue
            for id in self._waiting(long_ago, EPOCH + long_ago + process.clock.ahead, handlers):
                run.complain(f"turns: {id!r} waits, and no continuous job of {process} has given up its slot")
                return

    def _waiting(self, since: float, due_by: float, handlers: list[Held]) -> Iterator[Any]:
        """Yield the continuous jobs that have been waiting since then, and come before those that run."""
        first = min(held.job._record.priority for held in handlers)
        for (type, id), job in self.run.history.model.jobs.items():
            if type == CONTINUOUS and job.state is READY and job.priority <= first:
                due = job.run_at is None or job.run_at < due_by
                if due and self.run.history.states(type, id)[-1].time < since:
                    yield id

    def _after_pause(self, entry: Entry, transaction: SimulatedTransaction) -> None:
        self._paused_at = self._resumed_at = float("inf")

    def _after_resume(self, entry: Entry, transaction: SimulatedTransaction) -> None:
        self._paused_at = self.run.world.loop.time()
        paused = [changes[-1][1] for type, changes in self.run.history.pauses.items() if type in self.options]
        self._resumed_at = float("inf") if any(paused) else self._paused_at

    def ended(self, transaction: SimulatedTransaction) -> None:
        """See Observer."""
        if transaction.commit_version is None:
            return
        for entry in transaction.journal:
            if entry.name in _MOVES and entry.result and transaction.process is not None:
                self._moved[transaction.process] = self.run.world.loop.time()
            if entry.type in self.options and not isinstance(entry.result, type):
                check = getattr(self, f"_after_{entry.name.replace(' ', '_')}", None)
                if check is not None:
                    check(entry, transaction)

    def _after_accept(self, entry: Entry, transaction: SimulatedTransaction) -> None:
        process, now = transaction.process, self.run.world.loop.time()
        assert process is not None
        for id, record in entry.result:
            job = self.run.history.model.jobs[entry.type, id]
            self._accepted[record.lock] = Accepted(process, entry.type, id, record.lock, job, now, entry.now)
            self._locks[entry.type, id] = record.lock
            self._alive[record.lock] = now
        if entry.arguments[0].worker != f"{process.name}/{process.incarnation}":
            self.run.complain(f"worker: {process} accepts jobs as {entry.arguments[0].worker!r}")

    def _after_beat(self, entry: Entry, transaction: SimulatedTransaction) -> None:
        self._seen_alive(entry.arguments[0])

    def _after_update(self, entry: Entry, transaction: SimulatedTransaction) -> None:
        self._seen_alive(entry.arguments[0])

    def _seen_alive(self, lock: bytes) -> None:
        if lock in self._accepted:
            self._check_alive(lock)
            self._alive[lock] = self.run.world.loop.time()

    def _after_set_timeout(self, entry: Entry, transaction: SimulatedTransaction) -> None:
        self._timeouts_changed[entry.type] = self.run.world.loop.time()

    def _after_set_retention(self, entry: Entry, transaction: SimulatedTransaction) -> None:
        kept = tuple(entry.arguments[0])
        if kept not in self._retentions[entry.type]:
            self.run.complain(
                f"retention: {entry.type!r} keeps its jobs for {kept}, not {self._retentions[entry.type]}"
            )

    def _after_remove(self, entry: Entry, transaction: SimulatedTransaction) -> None:
        self._take_away(entry.type, entry.id)
        if entry.result is Removal.REMOVED:
            self._over(entry)

    def _after_lost(self, entry: Entry, transaction: SimulatedTransaction) -> None:
        self._watch()
        for id, _ in entry.result:
            lock = self._locks.get((entry.type, id), b"")
            held = self._held.get(lock)
            runs = held is not None and held in self._active.get(held.process, ())
            if runs and held is not None and self._was_quick(entry.type) and lock not in self._taken:
                self.run.complain(f"not kept alive: {entry.type!r}/{id!r} runs in {held.process}, and was lost")
            if lock in self._accepted:
                self._check_alive(lock)
                self._gone.add(lock)
                self._ended[lock] = self.run.world.loop.time()
            self._take_away(entry.type, id)

    def _was_quick(self, type: JobType) -> bool:
        """Whether nothing took time since the last sign of life of a job that is lost now."""
        timeout: float = max(self.options[type]["timeout"], self.run.history.model.timeouts.get(type, 0.0))
        silent = 1.5 * timeout + _SHORT
        return self.run.quiet.quick_since() <= max(0.0, self.run.world.loop.time() - silent)

    def _take_away(self, type: JobType, id: Any) -> None:
        lock = self._locks.get((type, id))
        if lock is not None:
            self._taken.setdefault(lock, self.run.world.loop.time())

    def _logged(self, event: str, fields: Mapping[str, Any]) -> None:
        """What the log says of a job is so."""
        process = self.run.process_here()
        if event == "job_taken_over" and process is not None and fields["type"] in self.options:
            key = (fields["type"], fields["id"])
            own = [each for each in self._accepted.values() if (each.type, each.id) == key and each.process is process]
            # Whose commit has an unknown outcome may meet what it has done itself.
            unknown = any(fault.startswith(_UNKNOWN) for fault in self.run.world.choices.faults)
            if own and not unknown and not any(each.lock in self._gone for each in own):
                self._wrong(own[-1], "logged: that another has taken {} over, but nobody has")

    def _over(self, entry: Entry) -> None:
        """The job is nobody's any more."""
        lock = self._locks.pop((entry.type, entry.id), None)
        if lock is not None and entry.name == "remove":
            self._gone.add(lock)
        if lock is not None:
            self._ended[lock] = self.run.world.loop.time()

    def _known(self, entry: Entry) -> tuple[Accepted | None, Held | None]:
        """Return what is known of a run that ends; it may end while its handler goes on only after its grace."""
        lock = entry.arguments[0]
        accepted, held = self._accepted.get(lock), self._held.get(lock)
        if accepted is not None and held is not None:
            self._check_alive(lock)
            grace = self.options[entry.type]["grace"]
            now = self.run.world.loop.time()
            goes_on = held.over is None and held.fate not in OWN and not held.was_paused
            if goes_on and (held.asked is None or now < held.asked + grace - _MOMENT):
                self._wrong(accepted, f"grace: {{}} was ended at {now:.3f}, but its handler goes on: {held.asked}")
        self._over(entry)
        return accepted, held

    def _after_stop(self, entry: Entry, transaction: SimulatedTransaction) -> None:
        accepted, held = self._known(entry)
        if accepted is not None:
            self._complain(accepted, wrong_stop(accepted, held, entry.arguments[1]))

    def _after_finish(self, entry: Entry, transaction: SimulatedTransaction) -> None:
        accepted, held = self._known(entry)
        lock, _, outcome, said = entry.arguments
        if EFFECTS + lock not in transaction.written and self._with_effect(lock):
            self.run.complain(f"effects: {entry.type!r}/{entry.id!r} was finished without its effect")
        if accepted is not None:
            options, canceled = self.options[entry.type], lock in self._taken
            self._complain(accepted, wrong_finish(accepted, held, options, outcome, said, canceled))

    def _with_effect(self, lock: bytes) -> bool:
        held = self._held.get(lock)
        return held is not None and held.fate == "finish" and held.error is None and held.asked is None

    def _after_crash(self, entry: Entry, transaction: SimulatedTransaction) -> None:
        accepted, held = self._known(entry)
        _, said, run_at = entry.arguments
        if accepted is not None:
            self._complain(accepted, wrong_crash(accepted, held, self.options[entry.type], said, run_at))

    def _complain(self, accepted: Accepted, complaints: Iterator[str]) -> None:
        for complaint in complaints:
            self._wrong(accepted, complaint)

    # Checks at the end

    def after_end(self, process: Process) -> Iterator[str]:
        """Yield what a process that was left well has kept: its jobs must be ended, or wait for others."""
        # Who cannot reach the store within its grace goes without.
        if not process.running or not all(fault.partition(":")[0] in _QUICK for fault in self.run.world.choices.faults):
            return
        for key, lock in self._locks.items():
            job = self.run.history.model.jobs.get(key)
            known = lock in self._held or self.run.quiet.is_quick()
            if known and self._accepted[lock].process is process and job is not None and job.lock == lock:
                yield f"kept: {process} has ended, and {key[0]!r}/{key[1]!r} is still its own"

    def open(self) -> Iterator[str]:
        """Yield what must still happen before the run can end: deaf handlers end, jobs that have expired go."""
        self._watch()
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


class Pausers(Workload):
    """Pause and resume the handlers' types: nobody accepts meanwhile, and all are accepted afterwards."""

    name = "pausers"

    async def step(self, client: Client) -> None:
        type = self.random.choice([ONE_SHOT, CONTINUOUS, TICKING, MINUTELY])
        if self.random.random() < 0.5:
            await client.jobs.resume(type)
            return
        if type in client.jobs.handlers and type not in (TICKING, MINUTELY):
            # Who accepts it may do so in the very moment in which the type is paused.
            await client.enqueue(client.jobs.handlers[type], Order)
            await asyncio.sleep(self.random.uniform(0.0, 2 * self.run.world.cluster.latency))
        await client.jobs.pause(type)

    async def settle(self, client: Client) -> None:
        """Have all go on, when no pause is under way any more."""
        cluster = self.run.world.cluster
        await asyncio.sleep(_SHORT + max(0.0, cluster.quiet_at - self.run.world.loop.time()))
        for type in (ONE_SHOT, CONTINUOUS, TICKING, MINUTELY):
            await patiently(lambda type=type: client.jobs.resume(type))  # type: ignore[misc]


class Retainers(Workload):
    """Change how long finished jobs are kept, and say what of them is secret: the same each time."""

    name = "retainers"

    async def step(self, client: Client) -> None:
        type = self.random.choice([ONE_SHOT, *self.run.types])
        keep, keep_failed = (self.random.choice([None, 0.0, 2.0, 10.0]) for _ in range(2))
        for each in self.run.workloads:
            if isinstance(each, Handlers):
                each.allow_retention(type, keep, keep_failed)
        await client.jobs.set_retention(type, keep=keep, keep_failed=keep_failed)
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


def _is_third(job: RunningJob) -> bool:
    """Whether a job may be asked to give up its slot, where only some may."""
    return bool(job.data.get("call", 1) % 3 == 0)


def _state_of(job: ModelJob, now: float | None) -> str:
    """Return what the numbers of a type count a job as, by a clock, or by where it is in the queue."""
    if not job.pending:
        return job.state
    if job.notes.history and job.notes.history[0][0] == "crashed":
        return "crashed"
    is_scheduled = job.state == SCHEDULED if now is None else job.run_at is not None and job.run_at > now
    return "scheduled" if is_scheduled else "pending"


def _step(job: RunningJob) -> dict[str, Any]:
    """Return data of a job that has come further; they do not begin as those of a call."""
    return {"step": 1, "call": job.data.get("call", 0), "pad": job.data.get("pad", "")}
