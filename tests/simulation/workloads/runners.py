"""Handlers that the runner calls in every process: they end well or badly, hang, will not end, or take turns.

Their types are theirs alone, so that everything that happens to these jobs is known.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Final

import fdb.tuple

from jobs_service import (
    Discard,
    HistoryEvent,
    HistoryKind,
    JobExists,
    JobNotFound,
    JobsService,
    JobTransaction,
    JobType,
    Outcome,
    Removal,
    Retry,
    RunningJob,
    Snooze,
    StoreError,
)
from jobs_service.layer.keyspace import PERIODIC, Keyspace
from jobs_service.layer.record import Record
from jobs_service.runner.schedule import MOST_MADE_UP
from jobs_service.runner.scheduling import consecutive_crashes
from jobs_service.testing import EPOCH, Process, SimulatedTransaction
from tests import reader
from tests.simulation.client import EFFECTS, Client
from tests.simulation.journal import Entry
from tests.simulation.model import READY
from tests.simulation.rows import PREFIX
from tests.simulation.weather import HARMLESS, RARELY
from tests.simulation.workloads.base import Workload

ONE_SHOT: Final[JobType] = "handled"
CONTINUOUS: Final[JobType] = ("continuous", 1)
TICKING: Final[JobType] = "ticking"
MINUTELY: Final[JobType] = "minutely"

_NOTICED: Final = 0.2
"""Seconds within which a handler is told that its job was canceled."""

_REQUESTS: Final = 6
_SHORT: Final = 3.0
_EXPIRED: Final = 5.0
"""Seconds after which a finished job that has expired is gone: monitors look every three."""
_TOLERANCE: Final = 1e-6
_ROOMY: Final = 100_000
_CLOCK_CHECK: Final = 30.0
"""Seconds after which a ticker looks at its clock again."""
_FATES: Final = {
    "return": 3,
    "finish": 3,
    "raise": 4,
    "hang": 3,
    "stubborn": 2,
    "long": 2,
    "update": 2,
    "retry": 1,
    "snooze": 1,
    "discard": 1,
    "object": 1,
    "base": 1,
    "cancel itself": 1,
    "again": 1,
    "release": 1,
}
_QUICK: Final = HARMLESS | {"stop", "kill", "clock"}
"""The faults that do not keep a process from handing its jobs over."""
_FINAL: Final = frozenset({"discard", "object"})


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


@dataclass(slots=True)
class Held:
    """One call of a handler.

    Attributes:
        process: where.
        job: as it was given to the handler.
        fate: what it does.
        began: when, on the loop's clock, seconds.
        asked: when it was first canceled; None as long as it was not.
        failed: the process's wall-clock time when it raised; None if it did not.
        error: what it raised.
    """

    process: Process
    job: RunningJob
    fate: str
    began: float
    asked: float | None = None
    failed: float | None = None
    error: BaseException | None = None


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
            "grace": choose([0.5, 2.0]),
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
                "keep": choose([None, None, 3.0]),
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
        self._holders: dict[bytes, tuple[JobType, Any, Process]] = {}
        self._locks: dict[tuple[JobType, Any], bytes] = {}
        self._taken: dict[bytes, float] = {}
        self._paused_at = 0.0
        run.world.cluster.observers.append(self)

    # What processes do

    def register(self, process: Process, jobs: JobsService) -> None:
        """Make functions the handlers of a service that is about to be opened."""

        @jobs.handler(ONE_SHOT, **self.options[ONE_SHOT])
        async def one_shot(job: RunningJob, args: Order) -> Any:
            fate = "return" if self.run.is_calm else self.random.choices([*_FATES], [*_FATES.values()])[0]
            return await self._handle(process, job, fate)

        @jobs.handler(CONTINUOUS, **self.options[CONTINUOUS])
        async def continuous(job: RunningJob, args: Order) -> Any:
            return await self._handle(process, job, "for ever")

    async def step(self, client: Client) -> None:
        self._check_turns()
        what = self.random.random()
        if what < (0.2 if self.run.sizes.large and not self.run.lasting else 0.03):
            await self._queue_up(client)
            return
        type = self.random.choice([ONE_SHOT, ONE_SHOT, CONTINUOUS])
        handler = client.jobs.handlers[type]
        with contextlib.suppress(JobExists, JobNotFound):
            if what < 0.6:
                key = self.random.choice([None, "a", "b"]) if not self.run.sizes.large else None
                options = self.some_options(client)
                if key is None:
                    options["id"] = self.some_id()
                await client.enqueue(handler, self._order, unique=key, **options)
            elif what < 0.65:
                await client.jobs.add(type, self.some_id(), {"no": "order"}, if_exists="resubmit")
            elif what < 0.72:
                id = self._some_target(type)
                await client.remove(type, id, force=True)
                await client.enqueue(handler, self._order, id=id)
            elif what < 0.9:
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

    def _order(self, call: int) -> Order:
        return Order(call, pad="" if self.run.is_calm else self.run.sizes.pad(call))

    def _some_target(self, type: JobType) -> Any:
        """Return the id of a job that is likely to run."""
        running = [held.job.id for active in self._active.values() for held in active if held.job.type == type]
        return self.random.choice(running) if running and self.random.random() < 0.8 else self.some_id()

    # Handlers

    async def _handle(self, process: Process, job: RunningJob, fate: str) -> Any:
        time = self.run.world.loop.time
        held = Held(process, job, fate, time())
        self._held[job.lock] = held
        active = self._active.setdefault(process, [])
        active.append(held)
        self._check_start(held, active)
        try:
            return await self._act(held)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and fate != "cancel itself":
                held.asked = held.asked or time()
            held.failed, held.error = process.clock.wall_time(), error
            raise
        finally:
            active.remove(held)
            self._check_cancellation(held)

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
            case "hang":
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
                return await job.release()
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
        except asyncio.CancelledError:
            held.asked = self.run.world.loop.time()
            if random.random() < 0.5:
                await held.job.update(_step(held.job))
            raise
        return None

    async def _ignore_cancellation(self, held: Held) -> None:
        loop = self.run.world.loop
        until = loop.time() + self.random.uniform(0.0, 3.0 * self.options[held.job.type]["grace"])
        while loop.time() < until:
            try:
                await asyncio.sleep(until - loop.time())
            except asyncio.CancelledError:
                held.asked = held.asked or loop.time()
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
        if self.random.random() < 0.5:
            await asyncio.sleep(self.random.uniform(0.0, 1.0))
        if self.random.random() < 0.3:
            raise ValueError("when all is over")
        return "this is not the result"

    # Checks while it runs

    def _check_start(self, held: Held, active: list[Held]) -> None:
        job, run = held.job, self.run
        options = self.options[job.type]
        most = options["max_attempts"]
        if most is not None and job.attempts > most:
            run.complain(f"attempts: {job.type!r}/{job.id!r} runs as number {job.attempts}, {most} at most")
        if run.has_crashed:
            return  # A lane that was restarted knows nothing of handlers that do not end.
        busy = sum(each.job.type == job.type for each in active)
        if busy > options["slots"]:
            run.complain(f"slots: {held.process} runs {busy} jobs of {job.type!r}, {options['slots']} at most")
        if self.max_jobs is not None and len(active) > self.max_jobs:
            run.complain(f"slots: {held.process} runs {len(active)} jobs, {self.max_jobs} at most")

    def _check_cancellation(self, held: Held) -> None:
        """A handler was told soon that its job was canceled, or another's; it holds while nothing takes time."""
        taken = self._taken.get(held.job.lock)
        if taken is None or not held.process.alive or self.run.quick_since() > max(taken, held.began):
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
        if run.quick_since() > long_ago or self.max_jobs is not None or self._paused_at > long_ago:
            return
        for process, active in self._active.items():
            handlers = [held for held in active if held.job.type == CONTINUOUS]
            if len(handlers) < options["slots"] or any(held.began > long_ago for held in handlers):
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
        self._paused_at = float("inf")

    def _after_resume(self, entry: Entry, transaction: SimulatedTransaction) -> None:
        self._paused_at = self.run.world.loop.time()

    def ended(self, transaction: SimulatedTransaction) -> None:
        """See Observer."""
        if transaction.commit_version is None:
            return
        for entry in transaction.journal:
            if entry.type in self.options and not isinstance(entry.result, type):
                check = getattr(self, f"_after_{entry.name.replace(' ', '_')}", None)
                if check is not None:
                    check(entry, transaction)

    def _after_accept(self, entry: Entry, transaction: SimulatedTransaction) -> None:
        process = transaction.process
        assert process is not None
        for id, record in entry.result:
            self._holders[record.lock] = (entry.type, id, process)
            self._locks[entry.type, id] = record.lock
        if entry.arguments[0].worker != f"{process.name}/{process.incarnation}":
            self.run.complain(f"worker: {process} accepts jobs as {entry.arguments[0].worker!r}")

    def _after_remove(self, entry: Entry, transaction: SimulatedTransaction) -> None:
        self._take_away(entry.type, entry.id)
        if entry.result is Removal.REMOVED:
            self._locks.pop((entry.type, entry.id), None)

    def _after_lost(self, entry: Entry, transaction: SimulatedTransaction) -> None:
        for id, _ in entry.result:
            lock = self._locks.get((entry.type, id), b"")
            held = self._held.get(lock)
            runs = held is not None and held in self._active.get(held.process, ())
            if runs and held is not None and self._was_quick(entry.type) and lock not in self._taken:
                self.run.complain(f"not kept alive: {entry.type!r}/{id!r} runs in {held.process}, and was lost")
            self._take_away(entry.type, id)

    def _was_quick(self, type: JobType) -> bool:
        """Whether nothing took time since the last sign of life of a job that is lost now."""
        timeout: float = max(self.options[type]["timeout"], self.run.history.model.timeouts.get(type, 0.0))
        silent = 1.5 * timeout + _SHORT
        return self.run.quick_since() <= max(0.0, self.run.world.loop.time() - silent)

    def _take_away(self, type: JobType, id: Any) -> None:
        lock = self._locks.get((type, id))
        if lock is not None:
            self._taken.setdefault(lock, self.run.world.loop.time())

    def _after_stop(self, entry: Entry, transaction: SimulatedTransaction) -> None:
        self._locks.pop((entry.type, entry.id), None)
        lock, run_at, _ = entry.arguments
        held = self._held.get(lock)
        if held is None or held.failed is None or not isinstance(held.error, Snooze) or run_at is None:
            return
        wanted = held.failed + held.error.seconds
        if abs(run_at - wanted) > _TOLERANCE:
            self.run.complain(
                f"snooze: {entry.type!r}/{entry.id!r} was put off at {held.failed} until {run_at}, not {wanted}"
            )

    def _after_finish(self, entry: Entry, transaction: SimulatedTransaction) -> None:
        self._locks.pop((entry.type, entry.id), None)
        lock, _, outcome, said = entry.arguments
        if EFFECTS + lock not in transaction.written and self._with_effect(lock):
            self.run.complain(f"effects: {entry.type!r}/{entry.id!r} was finished without its effect")
        held = self._held.get(lock)
        if outcome is not Outcome.FAILED or (held is not None and held.fate in _FINAL):
            return
        if held is None and isinstance(entry.result, Record):
            return  # No handler was called: it has no such arguments, or was lost too often.
        if self.run.sizes.large and b"JobTooLarge" in (said.error or b""):
            return  # Its result did not fit.
        most = self.options[entry.type]["max_attempts"]
        attempts = 0 if held is None else held.job.attempts
        if most is None or attempts < most:
            self.run.complain(f"attempts: {entry.type!r}/{entry.id!r} has failed for good after {attempts} of {most}")

    def _with_effect(self, lock: bytes) -> bool:
        held = self._held.get(lock)
        return held is not None and held.fate == "finish" and held.error is None and held.asked is None

    def _after_crash(self, entry: Entry, transaction: SimulatedTransaction) -> None:
        self._locks.pop((entry.type, entry.id), None)
        lock, said, run_at = entry.arguments
        options, held = self.options[entry.type], self._held.get(lock)
        name = f"{entry.type!r}/{entry.id!r}"
        if held is not None and held.asked is not None and b"TimeoutError" in (said.error or b""):
            return  # It has swallowed the cancellation of its time limit, which counts all the same.
        if held is None or held.failed is None:
            self.run.complain(f"crash: {name} has crashed, but its handler has not: {said}")
            return
        if isinstance(held.error, Discard):
            self.run.complain(f"attempts: {name} was discarded, and is to be tried again")
        most = options["max_attempts"]
        if most is not None and held.job.attempts >= most:
            self.run.complain(f"attempts: {name} is to be tried again after {held.job.attempts} of {most}")
        earliest, latest = _retries(held, options)
        if not earliest - _TOLERANCE <= run_at <= latest + _TOLERANCE:
            self.run.complain(
                f"backoff: {name} failed at {held.failed} and is tried again at {run_at}, not in {earliest}..{latest}"
            )

    # Checks at the end

    def after_end(self, process: Process) -> Iterator[str]:
        """Yield what a process that was left well has kept: its jobs must be ended, or wait for others."""
        # Who cannot reach the store within its grace goes without.
        if not process.running or not all(fault.partition(":")[0] in _QUICK for fault in self.run.world.choices.faults):
            return
        for key, lock in self._locks.items():
            job = self.run.history.model.jobs.get(key)
            known = lock in self._held or self.run.is_quick()
            if known and self._holders[lock][2] is process and job is not None and job.lock == lock:
                yield f"kept: {process} has ended, and {key[0]!r}/{key[1]!r} is still its own"

    def open(self) -> Iterator[str]:
        """Yield what must still happen before the run can end: deaf handlers end, jobs that have expired go."""
        # Also those that a service has left behind, after their grace.
        yield from (f"{name} goes on" for name in self.run.world.left_behind() if name.endswith("one_shot"))
        supervised = [process for process, jobs in self.run.services.items() if jobs._supervise and process.alive]
        if not supervised:
            return
        now = min(process.clock.wall_time() for process in supervised)
        for (type, id), job in self.run.history.model.jobs.items():
            if job.notes.expires is not None and job.notes.expires < now - _EXPIRED:
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
            await _patiently(lambda type=type: client.jobs.resume(type))  # type: ignore[misc]


class Retainers(Workload):
    """Change how long finished jobs are kept."""

    name = "retainers"

    async def step(self, client: Client) -> None:
        type = self.random.choice([ONE_SHOT, *self.run.types])
        keep, keep_failed = (self.random.choice([None, 0.0, 2.0, 10.0]) for _ in range(2))
        await client.jobs.set_retention(type, keep=keep, keep_failed=keep_failed)


class Leavers(Workload):
    """Ask their own process to stop, as a SIGTERM does: it hands its jobs over at once."""

    name = "leavers"

    async def step(self, client: Client) -> None:
        self.run.disturb("stop")
        client.process.request_stop()


class Tickers(Workload):
    """Jobs that come by themselves: one per tick, however many processes run, whatever their clocks say.

    An observer of the cluster.
    """

    name = "tickers"

    def __init__(self, run: Any) -> None:
        super().__init__(run)
        self.period: float = self.random.choice([3.0, 10.0]) * (RARELY if run.long else 1)
        self.missed: str = self.random.choice(["skip", "once", "all"])
        if run.long and self.missed == "all" and run.world.cluster.limits.transaction < _ROOMY:
            self.missed = "once"  # The ticks of hours are made up for at once: more than a small transaction holds.
        self.keep: float | None = self.random.choice([None, 4.0])
        self._ticks: dict[tuple[JobType, Any], float] = {}
        self._remembered: list[float] = []
        keyspace = Keyspace(PREFIX)
        self._key = keyspace.sections[PERIODIC] + keyspace.of(TICKING).packed
        run.world.cluster.observers.append(self)

    def register(self, process: Process, jobs: JobsService) -> None:
        """Make a function the handler of jobs that come by themselves."""

        # Those that are made up for one after the other may lag behind, if there are many.
        overlap = self.missed == "all" or self.keep is None

        @jobs.every(
            self.period, type=TICKING, missed=self.missed, overlap=overlap, timeout=5.0, backoff=0.5, keep=self.keep
        )
        async def tick(job: RunningJob) -> None:
            await asyncio.sleep(self.random.choice([0.0, 0.0, 1.0]))

        @jobs.cron("* * * * *", timezone="Asia/Kathmandu", type=MINUTELY, missed=self.missed, overlap=True, timeout=5.0)
        async def minute(job: RunningJob) -> None:
            pass

    async def step(self, client: Client) -> None:
        """Do nothing: what is of interest happens by itself."""

    def ended(self, transaction: SimulatedTransaction) -> None:
        """See Observer."""
        if transaction.commit_version is None:
            return
        for key, raw in transaction.written.items():
            if key == self._key and raw is not None:
                (tick,) = fdb.tuple.unpack(raw)
                if self._remembered and tick <= self._remembered[-1]:
                    self.run.complain(f"ticks: {tick} was remembered after {self._remembered[-1]}")
                self._remembered.append(tick)
        ticks = [
            entry
            for entry in transaction.journal
            if entry.name == "enqueue" and entry.type in (TICKING, MINUTELY) and not isinstance(entry.result, type)
        ]
        for entry in ticks:
            self._ticked(entry, self.period if entry.type == TICKING else 60.0)
        if any(entry.type == TICKING for entry in ticks) and self._key not in transaction.written:
            self.run.complain(f"ticks: {[entry.id for entry in ticks]} were enqueued, but not remembered")

    def _ticked(self, entry: Entry, period: float) -> None:
        run = self.run
        if (entry.type, entry.id) in self._ticks:
            run.complain(f"ticks: {entry.id!r} of {entry.type!r} was enqueued twice")
        tick = datetime.fromisoformat(str(entry.id)).timestamp()
        self._ticks[entry.type, entry.id] = tick
        if tick % period:
            run.complain(f"ticks: {entry.id!r} of {entry.type!r} is no tick of every {period} s")
        if tick > entry.now:
            run.complain(f"ticks: {entry.id!r} was enqueued {tick - entry.now} s before its time")

    def check(self) -> Iterator[str]:
        """There was one job for every tick, as far as none may be missed, and the last is not long ago."""
        if not self._remembered:
            return
        if self.missed == "all":
            wanted = self._remembered[0] - self._remembered[0] % self.period + self.period
            while wanted <= self._remembered[-1]:
                following = next(tick for tick in self._remembered if tick >= wanted)
                if following - wanted >= MOST_MADE_UP * self.period:
                    wanted += self.period
                    continue
                if wanted not in [tick for (type, _), tick in self._ticks.items() if type == TICKING]:
                    yield f"ticks: there was no job for {wanted}"
                wanted += self.period
        now = EPOCH + self.run.world.loop.time() + min(0.0, self.run.earliest_clock)
        if self.run.calm_for() > _CLOCK_CHECK and self._remembered[-1] < now - _CLOCK_CHECK - self.period:
            yield f"ticks: the last was {now - self._remembered[-1]:.1f} s ago"


def _step(job: RunningJob) -> dict[str, Any]:
    """Return data of a job that has come further; they do not begin as those of a call."""
    return {"step": 1, "call": job.data.get("call", 0), "pad": job.data.get("pad", "")}


def _retries(held: Held, options: dict[str, Any]) -> tuple[float, float]:
    """Return when a job that has failed may be tried again: the earliest and the latest time."""
    assert held.failed is not None
    if isinstance(held.error, Retry) and held.error.after is not None:
        return held.failed + held.error.after, held.failed + held.error.after
    crashed = (HistoryEvent(HistoryKind.CRASHED, held.failed), *held.job.history)
    # The first crash after a healthy run is the first of a row; how long that is, is counted beside the history.
    began = held.job.history[0].at if held.job.history else held.failed
    before = 0 if held.failed - began > options["health_threshold"] else reader.notes(held.job._record.notes).crashes
    crashes = max(consecutive_crashes(crashed, options["health_threshold"]), before + 1)
    pause = options["backoff"] * 2 ** min(crashes - 1, 10)
    return held.failed + pause, held.failed + pause * (1 + options["jitter"])


async def _patiently(call: Callable[[], Awaitable[object]]) -> None:
    while True:
        with contextlib.suppress(StoreError):
            await call()
            return
        await asyncio.sleep(0.5)
