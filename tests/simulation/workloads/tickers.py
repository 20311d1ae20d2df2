"""Jobs that come by themselves: one per tick, however many processes run, whatever their clocks say.

Which ticks there are, and which of them get a job, is worked out here from README alone.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import fdb.tuple

from jobs_service import JobsService, JobType, RunningJob
from jobs_service.runner import schedule
from jobs_service.sources import MOST_AHEAD
from jobs_service.testing import EPOCH, Process, SimulatedTransaction
from tests.simulation.client import Client
from tests.simulation.entry import Entry
from tests.simulation.model_job import FINISHED
from tests.simulation.rows import section
from tests.simulation.weather import RARELY
from tests.simulation.workloads.base import Workload, patiently

TICKING: Final[JobType] = "ticking"
MINUTELY: Final[JobType] = "minutely"

_ROOMY: Final = 100_000
_CLOCK_CHECK: Final = 30.0
"""Seconds after which a ticker looks at its clock again."""
_PUNCTUAL: Final = 60.0
"""Seconds that a tick may be late that is made up for all the same."""
_PROMPT: Final = 1.5
"""Seconds that a tick's job may be late where nothing is in its way."""
_AT_ONCE: Final = 0.3
"""The same in runs that are about ticks."""


@dataclass
class Ticks:
    """The ticks of one type.

    Attributes:
        type: of the jobs.
        first, step: of each minute, the second of the first tick, and how many seconds later others come; or None, and
            the period.
        missed, overlap: as its handler is registered.
        remembered: the ticks that were remembered, by time of commit.
        free: since when nothing was in the way of a tick, on the loop's clock, seconds.
        forgotten: up to then ticks had come by a clock that was far ahead: they come again, but not by those who know
            of them.
    """

    type: JobType
    first: int | None
    step: float
    missed: str
    overlap: bool
    remembered: list[float]
    free: float = 0.0
    forgotten: float = -math.inf

    def due(self, after: float, until: float) -> list[float]:
        """Return all ticks later than one time, up to another."""
        if self.first is None:
            number, found = int(after // self.step), []
            while (tick := number * self.step) <= until:
                found += [tick] if tick > after else []
                number += 1
            return found
        minute, found = int(after // 60) * 60, []
        while minute <= until:
            seconds = range(self.first, 60, int(self.step))
            found += [float(minute + second) for second in seconds if after < minute + second <= until]
            minute += 60
        return found

    def wanted(self, due: list[float], now: float) -> list[float]:
        """Return which of the ticks that are due get jobs."""
        if self.missed == "all":
            made_up = due[-schedule.MOST_MADE_UP :]
            return made_up if self.overlap else made_up[:1]
        if not due or (self.missed == "skip" and now - due[-1] > _PUNCTUAL):
            return []
        return due[-1:]


class Tickers(Workload):
    """Have jobs come by themselves, and pause them. An observer of the cluster."""

    name = "tickers"

    def __init__(self, run: Any) -> None:
        super().__init__(run)
        choose = self.random.choice
        self.period: float = choose([3.0, 10.0]) * (RARELY if run.long else 1)
        missed: str = choose(["skip", "once", "all"])
        self.keep: float | None = choose([None, 4.0])
        first, step = (0, 60) if run.long else choose([(0, 60), (0, 60), (1, 3), (0, 5), (2, 20)])
        if run.focus.of_handlers:
            first, step = run.world.choices.stream("ticks").choice([(0, 1), (0, 2), (1, 3), (0, 7), (0, 60)])
        self._prompt = _AT_ONCE if run.focus.of_handlers else _PROMPT
        self.expression = f"{first}-59/{step} * * * * *" if step < 60 else "* * * * *"
        self._ticks = {
            TICKING: Ticks(TICKING, None, self.period, missed, choose([True, missed == "all" and run.long]), []),
            MINUTELY: Ticks(MINUTELY, first, float(step), missed, choose([True, missed == "all" and run.long]), []),
        }
        self._enqueued: set[tuple[JobType, float]] = set()
        self._keys = {section("PERIODIC") + fdb.tuple.pack((type,)): ticks for type, ticks in self._ticks.items()}
        run.world.cluster.observers.append(self)

    def register(self, process: Process, jobs: JobsService) -> None:
        """Make a function the handler of jobs that come by themselves."""
        ticking, minutely = self._ticks[TICKING], self._ticks[MINUTELY]

        @jobs.every(
            self.period,
            type=TICKING,
            missed=ticking.missed,
            overlap=ticking.overlap,
            timeout=5.0,
            backoff=0.5,
            keep=self.keep,
        )
        async def tick(job: RunningJob) -> None:
            await self._run(self.period)

        @jobs.cron(
            self.expression,
            timezone="Asia/Kathmandu",
            type=MINUTELY,
            missed=minutely.missed,
            overlap=minutely.overlap,
            timeout=5.0,
            backoff=0.5,
        )
        async def minute(job: RunningJob) -> None:
            await self._run(minutely.step)

    async def _run(self, period: float) -> None:
        """Take longer than until the next tick, now and then, or fail."""
        if self.run.is_calm:
            return
        await asyncio.sleep(self.random.choice([0.0, 0.0, 1.0, min(1.5 * period, 20.0)]))
        if self.random.random() < 0.1:
            raise ValueError("for no reason")

    async def step(self, client: Client) -> None:
        """Keep ticks from coming for a while."""
        ticks = self._ticks[self.random.choice([TICKING, MINUTELY])]
        await client.jobs.pause(ticks.type)
        await asyncio.sleep(self.random.uniform(0.5, 5.5) * min(ticks.step, 10.0))
        await client.jobs.resume(ticks.type)

    async def settle(self, client: Client) -> None:
        """Have ticks come again, when no pause is under way any more."""
        cluster = self.run.world.cluster
        await asyncio.sleep(_PROMPT + max(0.0, cluster.quiet_at - self.run.world.loop.time()))
        for type in self._ticks:
            await patiently(lambda type=type: client.jobs.resume(type))  # type: ignore[misc]

    # What is checked at each commit

    def ended(self, transaction: SimulatedTransaction) -> None:
        """See Observer."""
        if transaction.commit_version is None:
            return
        enqueued: dict[JobType, list[Entry]] = {each: [] for each in self._ticks}
        for entry in transaction.journal:
            if entry.type not in self._ticks or isinstance(entry.result, type):
                continue
            ticks = self._ticks[entry.type]
            if entry.name == "enqueue":
                enqueued[entry.type].append(entry)
            elif entry.name == "resume" or (not ticks.overlap and entry.name in ("finish", "remove", "expire")):
                ticks.free = self.run.world.loop.time()
            elif entry.name == "crash":  # the next tick takes its place, at its own time
                ticks.free = self.run.world.loop.time() + ticks.step
        for key, ticks in self._keys.items():
            entries, raw = enqueued[ticks.type], transaction.written.get(key)
            if raw is not None and transaction.process is not None:
                self._forget(ticks, transaction.process)
            for entry in entries:
                self._check_entry(entry)
            if entries:
                self._check_ticks(ticks, entries, transaction)
            if raw is not None:
                self._remember(ticks, fdb.tuple.unpack(raw)[0], entries)
            elif entries:
                self.run.complain(f"ticks: {[each.id for each in entries]} were enqueued, but not remembered")

    def _forget(self, ticks: Ticks, process: Process) -> None:
        """Forget a last tick that lies too far ahead by the clock of who remembers another one."""
        now = EPOCH + self.run.world.loop.time() + process.clock.ahead
        if ticks.remembered and ticks.remembered[-1] > now + MOST_AHEAD:
            ticks.forgotten = max(ticks.forgotten, ticks.remembered[-1])
            ticks.remembered.clear()

    def _check_entry(self, entry: Entry) -> None:
        run, tick = self.run, _time_of(entry)
        if (entry.type, tick) in self._enqueued and tick > self._ticks[entry.type].forgotten:
            run.complain(f"ticks: {entry.id!r} of {entry.type!r} was enqueued twice")
        self._enqueued.add((entry.type, tick))
        if self._ticks[entry.type].due(tick - 0.5, tick) != [tick]:
            run.complain(f"ticks: {entry.id!r} is no tick of {entry.type!r}")
        if tick > entry.now:
            run.complain(f"ticks: {entry.id!r} was enqueued {tick - entry.now} s before its time")

    def _check_ticks(self, ticks: Ticks, entries: list[Entry], transaction: SimulatedTransaction) -> None:
        """Those ticks got jobs that should, in time, and nothing was in their way."""
        run, now, found = self.run, entries[0].now, [_time_of(entry) for entry in entries]
        last = ticks.remembered[-1] if ticks.remembered else None
        if ticks.forgotten > 0 and (last is None or last < ticks.forgotten):
            return  # a process may go on from a tick that it has seen before
        due = found if last is None else ticks.due(last, now)
        wanted = [now] if last is None else ticks.wanted(due, now)
        # What is made up for comes in parts where a transaction holds no more, and after one that was too old.
        smaller = run.world.cluster.limits.transaction < _ROOMY or self._may_have_been_too_old()
        in_parts = ticks.missed == "all" and smaller
        if found != (wanted[: len(found)] if in_parts else wanted):
            run.complain(
                f"ticks: {found} of {ticks.type!r} were enqueued after {last} at {now} by {transaction.process}, not "
                f"{wanted} ({ticks.missed})"
            )
        paused = run.history.pauses.get(ticks.type)
        if paused and paused[-1][1]:
            run.complain(f"ticks: {found} were enqueued while {ticks.type!r} is paused")
        if last is None:
            return
        if not ticks.overlap:
            before = run.history.model.jobs.get((ticks.type, _id_of(last)))
            if before is not None and before.state is not FINISHED:
                run.complain(f"ticks: {found} were enqueued while that of {last} is {before.state}")
        process = transaction.process
        if due and process is not None:
            self._check_prompt(ticks, due, process)

    def _may_have_been_too_old(self) -> bool:
        """Whether a transaction may have been refused as too old: by a fault, or since the cluster was slow."""
        faults = self.run.world.choices.faults
        return self.run.world.cluster.quiet_at > 0 or any(fault.startswith("too_old:") for fault in faults)

    def _check_prompt(self, ticks: Ticks, due: list[float], process: Process) -> None:
        """The first tick after the last one got its job at once, where that process was there."""
        run, now = self.run, self.run.world.loop.time()
        if run.machine is not None and run.machine.map_size is not None:
            return  # A full store takes no tick until something has been removed.
        began = run.started.get(process, now) + _PROMPT
        moved = run.moved_clocks.get(process, -_CLOCK_CHECK) + _CLOCK_CHECK
        there = max(began, moved, run.quiet.steady_since(), ticks.free)
        # Those that were too late when that process could have seen them are dropped.
        longest = _PUNCTUAL - 2 * _PROMPT if ticks.missed == "skip" else float("inf")
        came = {tick: tick - EPOCH - process.clock.ahead for tick in due}
        tick = next((each for each in due if came[each] > there - longest), due[-1])
        since = max(came[tick], there)
        if process.pauses == 0 and now - since > self._prompt + 20 * run.world.cluster.latency:
            run.complain(f"ticks: {tick} of {ticks.type!r} came {now - since:.3f} s late at {process}")

    def _remember(self, ticks: Ticks, tick: float, entries: list[Entry]) -> None:
        run = self.run
        if ticks.remembered and tick <= ticks.remembered[-1]:
            run.complain(f"ticks: {tick} was remembered after {ticks.remembered[-1]}")
        newest = max(map(_time_of, entries), default=None)
        if newest is not None and tick != newest:
            run.complain(f"ticks: {tick} of {ticks.type!r} was remembered when {newest} was enqueued")
        if newest is None and ticks.remembered:
            run.complain(f"ticks: {tick} of {ticks.type!r} was remembered, but has no job")
        ticks.remembered.append(tick)

    def check(self) -> Iterator[str]:
        """There was one job for every tick, as far as none may be missed, and the last is not long ago."""
        now = EPOCH + self.run.world.loop.time() + min(0.0, self.run.earliest_clock)
        may_be_full = self.run.machine is not None and self.run.machine.map_size is not None
        for ticks in self._ticks.values():
            remembered = ticks.remembered
            lags = ticks.missed == "all" and not ticks.overlap
            is_calm = self.run.calm_for() > _CLOCK_CHECK and not may_be_full
            # The next attempt of a tick's job, which is in the way of ticks, may be planned by a clock that is ahead.
            waits = 0.0 if ticks.overlap else self.run.latest_clock
            if remembered and is_calm and not lags and remembered[-1] < now - waits - _CLOCK_CHECK - ticks.step:
                yield f"ticks: the last of {ticks.type!r} was {now - remembered[-1]:.1f} s ago"


def _time_of(entry: Entry) -> float:
    return datetime.fromisoformat(str(entry.id)).timestamp()


def _id_of(tick: float) -> str:
    return datetime.fromtimestamp(tick, UTC).isoformat().replace("+00:00", "Z")
