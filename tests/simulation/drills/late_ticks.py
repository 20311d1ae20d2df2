"""Ticks that nobody was there for, or for which clocks were not right: each missed one is dealt with as it should."""

from __future__ import annotations

import asyncio
import contextlib
import math
from datetime import UTC, datetime
from typing import Any, Final

from jobs_service import JobsService, JobState
from jobs_service.runner import schedule
from jobs_service.sources import MOST_AHEAD, Sources
from jobs_service.store.memory import MemoryStore
from tests.simulation.drills.drill import Drill
from tests.simulation.drills.handling import log_of, opened, running

_PERIODS: Final = (10.0, 300.0, 3600.0, 3600.0)
_LONG: Final = 120.0
"""Seconds between two ticks from which on clocks may jump: no other tick comes before that is noticed."""
_NOTICED: Final = 31.0
"""Seconds within which a ticker sees that its clock has jumped."""
_LASTS: Final = 2.5
_EACH: Final = 0.2
"""Seconds that each of several ticks takes that come one after the other."""
_TAKES: Final = 0.05
_TOGETHER: Final = 3
_APART: Final = 0.4
"""Seconds by which the clocks of two processes differ."""
_PROMPT: Final = 0.3


class _Clock:
    """A wall clock that somebody sets.

    Args:
        drill: whose time goes on.
        ahead: seconds by which it differs from what it is set to.
    """

    def __init__(self, drill: Drill, ahead: float) -> None:
        self._drill = drill
        self._ahead = ahead
        self._base = self._since = 0.0

    def set(self, wall: float) -> None:
        """Have it say this now."""
        self._base, self._since = wall, self._drill.time()

    def __call__(self) -> float:
        return self._base + self._ahead + (self._drill.time() - self._since)


class _Hasty(Sources):
    """Draws no pauses: what meets another transaction is tried again at the very same moment."""

    def uniform(self, low: float, high: float) -> float:
        """Return the lower one of two."""
        return low


async def tick_late(drill: Drill) -> None:
    """Run periodic handlers now and then, at certain moments before and after ticks, by clocks that are set."""
    late = _LateTicks(drill)
    await late.play()


class _LateTicks:
    def __init__(self, drill: Drill) -> None:
        choose = drill.random.choice
        self._drill = drill
        self._clocks = [_Clock(drill, ahead) for ahead in choose([(0.0,), (0.0,), (0.0, _APART), (0.0, -_APART)])]
        self._settings = drill.client.process.settings
        seed = f"{drill.run.world.choices.plan.seed}/{drill.type}"
        self._sources: list[Sources] = [
            _Hasty(f"{seed}/{number}", wall_time=clock, worker=f"worker {number}")
            for number, clock in enumerate(self._clocks)
        ]
        self._store = MemoryStore(settings=self._settings, sources=self._sources[0])
        self._period: float = choose(_PERIODS)
        self._missed: str = choose([*schedule.Missed])
        self._overlap: bool = choose([True, False])
        self._last: float | None = None
        # Seconds by which that may differ: where it is no tick, it is when somebody has looked.
        self._unsure = 0.0
        self._known: set[float] = set()
        self._punctual: set[float] = set()
        # All periods tick then; of two who look at the very moment of a tick, it is not known who looks first.
        self._set(1_700_000_000 // 3600 * 3600.0 + choose([0.0 if len(self._clocks) == 1 else 1.0, 1.0, -1.0, 705.0]))
        self._dropped = 0
        self._busy = self._busiest = 0
        self._log = log_of(drill)

    @property
    def _wall(self) -> float:
        return self._clocks[0]()

    def _set(self, wall: float) -> None:
        for clock in self._clocks:
            clock.set(wall)

    def _service(self, sources: Sources) -> JobsService:
        service = JobsService(self._store, settings=self._settings, supervise=False, sources=sources)
        options: dict[str, Any] = {"missed": self._missed, "overlap": self._overlap, "type": self._drill.type}
        options |= {"keep": None, "slots": 100, "timeout": 600.0}
        if self._period % 60 == 0 and 3600 % self._period == 0 and self._drill.random.random() < 0.5:
            minutes = "0" if self._period == 3600 else f"*/{self._period / 60:.0f}"
            make = service.cron(f"{minutes} * * * *", **options)
        else:
            make = service.every(self._period, **options)

        @make
        async def tick() -> None:
            self._busy += 1
            self._busiest = max(self._busiest, self._busy)
            await asyncio.sleep(_TAKES)
            self._busy -= 1

        return service

    async def play(self) -> None:
        random = self._drill.random
        jumps = random.random() < 0.5
        for number in range(random.randint(4, 6)):
            if number:
                self._go_away()
            await self._run(jumps=jumps and number == 1)
            if random.random() < 0.3:
                self._period = random.choice(_PERIODS)
            if random.random() < 0.2:
                self._missed, self._overlap = random.choice([*schedule.Missed]), random.choice([True, False])

    # Which ticks get jobs

    def _due(self, after: float, until: float) -> list[float]:
        """Return the ticks later than one time, up to another."""
        first, last = int(after // self._period) + 1, int(until // self._period)
        return [number * self._period for number in range(first, last + 1)]

    def _comes(self, now: float) -> None:
        """A process that is there looks for ticks at a time."""
        if self._last is not None and self._last > now + MOST_AHEAD:
            self._last = None  # so far ahead it is forgotten
        if self._last is None:
            # What is remembered first is no tick, unless there is one at this very moment.
            self._last = now
            found = [now] if now % self._period == 0 else []
            self._unsure = _APART + 0.01
        else:
            due = self._due(self._last, now)
            found = due[-1:]
            if self._missed == "all":
                found = due[-schedule.MOST_MADE_UP :]
                self._dropped += len(found) != len(due)
            elif due and self._missed == "skip" and now - due[-1] > schedule.PUNCTUAL:
                found = []
        if found:
            self._unsure = 0.0
        self._known |= {*found}
        self._last = max([self._last, *found])

    def _longer(self, many: int) -> float:
        """Return seconds until so many ticks have come one after the other; then it is as long after a tick."""
        seconds = _EACH * (many - 1) if many > 1 and not self._overlap else 0.0
        return seconds if self._period >= _LONG else math.ceil(seconds / self._period) * self._period

    def _pass(self, begin: float, end: float, *, is_punctual: bool) -> None:
        """It is there from one time to another."""
        for tick in self._due(begin, end):
            if is_punctual and self._last is not None and tick > self._last and tick not in self._known:
                self._punctual.add(tick)
            self._comes(tick)

    def _go_away(self) -> None:
        """Nobody is there until some time before, at or after a tick."""
        random = self._drill.random
        assert self._last is not None
        number = self._last // self._period
        many = schedule.MOST_MADE_UP
        if many > 10 and random.random() < 0.8:
            many = 3
        ticks = random.choice([1, 1, 2, many - 1, many, many + 1, many + 2])
        late = random.choice([-1.0, 0.0, 1.0, schedule.PUNCTUAL - 1.0, schedule.PUNCTUAL + 1.0])
        if random.random() < 0.1:  # a clock that is set back
            ticks = -1
        if self._period < _LONG:
            late = random.choice([-1.0, 0.0, 1.0])
        if len(self._clocks) > 1 and late == 0.0:
            late = 1.0
        wall = (number + ticks) * self._period + late
        if len(self._clocks) > 1 and abs(self._last - wall - MOST_AHEAD) <= _APART + 0.01:
            wall += 2 * _APART  # for one clock the last tick would be too far ahead, for the other not
        self._set(wall)

    # What happens

    async def _run(self, *, jumps: bool) -> None:
        drill = self._drill
        async with contextlib.AsyncExitStack() as stack:
            services = [self._service(sources) for sources in self._sources]
            for service in services:
                await stack.enter_async_context(opened(drill, service))
            began, self._busiest = self._wall, 0
            for service in services:
                await stack.enter_async_context(running(drill, service, 20.0))
            before = len(self._known)
            self._comes(began)
            many = len(self._known) - before
            await asyncio.sleep(_LASTS + self._longer(many))
            # Those that may overlap come together, as many as one transaction adds.
            if (self._busiest > 1 and not self._overlap) or (self._overlap and self._busiest < min(many, _TOGETHER)):
                drill.complain(f"{many} ticks were made up for, overlap {self._overlap}, and {self._busiest} at a time")
            self._pass(began, self._wall, is_punctual=many <= 1)
            await self._check(services[0], "run")
            if jumps and self._period >= _LONG:
                await self._jump(services[0])

    async def _jump(self, service: JobsService) -> None:
        """Set the clock while the ticker waits."""
        number = self._wall // self._period + self._drill.random.choice([-2, -1, 1, 1, 2])
        self._set(number * self._period + 10.0)
        await asyncio.sleep(_NOTICED)
        # When exactly it has looked makes no difference, but where that is all that is remembered.
        self._comes(self._wall - 1.0)
        if self._unsure:
            self._unsure = _NOTICED
        await self._check(service, "jumped")

    async def _check(self, service: JobsService, what: str) -> None:
        drill = self._drill
        jobs = {str(job.id): job async for job in service.list(drill.type)}
        wanted = {_id_of(tick) for tick in self._known}
        if jobs.keys() != wanted:
            more, less = sorted(jobs.keys() - wanted), sorted(wanted - jobs.keys())
            drill.complain(
                f"every {self._period} s, {self._missed}, overlap {self._overlap}, {what}, at {_id_of(self._wall)}: "
                f"{more[:5]} have come, and {less[:5]} have not"
            )
            self._known = {datetime.fromisoformat(id).timestamp() for id in jobs}
        for id, job in jobs.items():
            if job.state is not JobState.FINISHED or job.attempts != 1:
                drill.complain(f"{id!r} is {job!r}, after {job.attempts} attempts")
        for tick in self._punctual & self._known:
            added = jobs[_id_of(tick)].history[-1].at
            if not tick <= added <= tick + _PROMPT:
                drill.complain(f"{_id_of(tick)!r} has come {added - tick:.3f} s late")
        noted = (await service.last_ticks()).get(drill.type)
        # What was noted first may be what one clock says, or the other.
        if noted is None or self._last is None or abs(noted - self._last) > self._unsure:
            drill.complain(f"the last tick is said to be {noted}, not {self._last}")
        self._last = noted
        dropped = len(self._log.of(drill.type, "ticks_dropped"))
        if dropped != self._dropped:
            drill.complain(f"{self._dropped} times too many were missed, and that was said {dropped} times")


def _id_of(tick: float) -> str:
    return datetime.fromtimestamp(tick, UTC).isoformat().replace("+00:00", "Z")
