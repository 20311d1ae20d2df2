"""Jobs that come by themselves: exactly those come that should, when they should, whatever was in their way."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Final

from jobs_service import JobsService, RunningJob
from jobs_service.runner import schedule
from tests.simulation.drills.drill import Drill
from tests.simulation.drills.handling import log_of, opened, running

_EARLY: Final = 1e-3
_SLOWEST: Final = 2.3
_MACHINE: Final = 1.6
"""Seconds within which everything is over on a machine, however slow a cluster would be."""

_MANY: Final = 5
"""Missed ticks that are made up for at most where that many are missed."""


async def come_by_themselves(drill: Drill) -> None:
    """Have jobs come by themselves, and have something be in their way in one way after the other."""
    ticking = _Ticking(drill)
    if ticking.moment > _SLOWEST:
        return  # nothing would be over before the next tick
    for _ in range(2):
        await ticking.run_for_a_while()
        await ticking.be_away()


class _Ticking:
    def __init__(self, drill: Drill) -> None:
        choose = drill.random.choice
        self._drill = drill
        self._missed: str = choose(["once", "all", "skip"])
        self._overlap: bool = choose([True, False, False])
        self._step: float = choose([10.0, 12.0])
        self._services = 0
        self._last: float | None = None
        self._wanted: dict[float, tuple[float, float]] = {}
        self._removed: set[float] = set()
        self._hold: asyncio.Event | None = None
        self._fails = False
        self._log = log_of(drill)
        self.moment = drill.moment if drill.run.machine is None else _MACHINE
        self._ways: list[Callable[[], Awaitable[None]]] = [
            self._go_on,
            self._hold_one,
            self._hold_one,
            self._fail_one,
            self._pause,
            self._clear,
        ]
        drill.random.shuffle(self._ways)

    @property
    def _now(self) -> float:
        return self._drill.client.process.clock.wall_time()

    def _register(self, service: JobsService) -> None:
        options: dict[str, Any] = {"missed": self._missed, "overlap": self._overlap, "type": self._drill.type}
        options |= {"backoff": 1.25 * self._step, "jitter": 0.0, "timeout": 60.0, "grace": 0.5}
        if self._drill.random.random() < 0.5:
            make = service.every(self._step, **options)
        else:
            make = service.cron(f"*/{self._step:.0f} * * * * *", timezone="Asia/Kathmandu", **options)

        @make
        async def tick(job: RunningJob) -> None:
            if self._fails:
                self._fails = False
                raise ValueError("once")
            if self._hold is not None:
                await self._hold.wait()

    # What must come

    def _due(self, until: float) -> list[float]:
        assert self._last is not None
        number, found = int(self._last // self._step), []
        while (tick := number * self._step) <= until:
            found += [tick] if tick > self._last else []
            number += 1
        return found

    def _come(self, at: float, *, late: float = 0.0) -> None:
        """Nothing is in the way at a time: those ticks get jobs by then that should.

        Args:
            at: since when.
            late: seconds after which their jobs are there at the latest, beside the usual.
        """
        due = self._due(at)
        if self._missed == "all":
            due = due[-schedule.MOST_MADE_UP :]
        elif not due or (self._missed == "skip" and at - due[-1] > schedule.PUNCTUAL):
            due = []
        else:
            due = due[-1:]
        for tick in due:
            self._wanted[tick] = (at, at + len(due) * self.moment + late)
        self._last = max([self._last or 0.0, *due])

    async def _pass(self, periods: int) -> list[float]:
        """Let so many ticks come while nothing is said of them, and return them; it is between two then."""
        begin = int(self._now // self._step) * self._step
        end = begin + (periods + 0.5) * self._step
        await asyncio.sleep(max(0.0, end - self._now))
        return [begin + (number + 1) * self._step for number in range(periods)]

    # Phases

    async def run_for_a_while(self) -> None:
        """Run the handler in one service or in two, and bring something about that is in the way of ticks."""
        drill, random = self._drill, self._drill.random
        await self._pass(1)
        services = [drill.client.process.service(supervise=False) for _ in range(random.choice([1, 1, 2]))]
        self._services = len(services)
        for each in services:
            self._register(each)
        began = self._now
        async with contextlib.AsyncExitStack() as stack:
            for each in services:
                await stack.enter_async_context(opened(drill, each))
                await stack.enter_async_context(running(drill, each, 1.0))
            if self._last is None:
                self._last = self._now
            else:
                self._come(began, late=self._now - began)
            await asyncio.sleep(self.moment)
            self._check("began")
            noted = (await drill.jobs.last_ticks()).get(drill.type)
            if noted is None or abs(noted - self._last) > self.moment or (self._wanted and noted != self._last):
                drill.complain(f"the last tick is said to be {noted}, not {self._last}")
            for way in [self._ways.pop(), self._ways.pop()]:
                await way()
                await asyncio.sleep(self.moment)
                self._check(way.__name__)
            self._hold = None

    async def be_away(self) -> None:
        """Run no handler for some periods; then ticks may have another period."""
        random = self._drill.random
        many = self._missed == "all" and schedule.MOST_MADE_UP <= _MANY
        await self._pass(schedule.MOST_MADE_UP + 2 if many else random.randint(0, 2))
        self._check("away")
        if random.random() < 0.3:
            self._step = random.choice([10.0, 12.0, 20.0])

    async def _go_on(self) -> None:
        for tick in await self._pass(self._drill.random.randint(1, 2)):
            self._come(tick)

    async def _hold_one(self) -> None:
        """The next tick's job does not end: the others wait for it, unless they may overlap, also for its removal."""
        drill = self._drill
        self._hold = asyncio.Event()
        first, *others = await self._pass(drill.random.randint(1, 3))
        self._come(first)
        for each in others if self._overlap else []:
            self._come(each)
        how, id = drill.random.choice(["ends", "ends", "removed", "forced"]), _id_of(first)
        released, self._hold = self._hold, None
        ended = self._now
        if how in ("removed", "forced"):
            await drill.client.remove(drill.type, id, force=how == "forced")
            if how == "forced":
                self._removed.add(first)
                ended = self._now
        released.set() if how == "ends" else await asyncio.sleep(0.3 + self.moment / 4)
        released.set()
        if not self._overlap:
            self._come(ended, late=0.5)

    async def _fail_one(self) -> None:
        """The next tick's job fails, and waits for another attempt: the tick after it takes its place.

        Where each tick is to have its job, it is in the way until that attempt has ended.
        """
        self._fails = True
        first, second = await self._pass(2)
        self._come(first)
        if self._overlap or self._missed != "all":
            self._come(second)
        else:
            self._come(first + 1.25 * self._step, late=0.5)

    async def _pause(self) -> None:
        """While the type is paused nothing comes; then the ticks of that time are missed ones."""
        drill = self._drill
        await drill.jobs.pause(drill.type)
        await self._pass(drill.random.randint(0, 3))
        self._check("paused")
        resumed = self._now
        await drill.jobs.resume(drill.type)
        self._come(resumed, late=self._now - resumed)

    async def _clear(self) -> None:
        """A type that somebody has removed takes no jobs; it goes on with the next tick when it is there again."""
        drill = self._drill
        if drill.running():
            return
        before = len(self._log.of(drill.type, "tick_refused"))
        await drill.jobs.clear_type_timeout(drill.type)
        refused = await self._pass(drill.random.randint(1, 2))
        said = len(self._log.of(drill.type, "tick_refused")) - before
        if not len(refused) <= said <= self._services * len(refused):
            drill.complain(f"{refused} were refused, and that was said {said} times")
        await drill.make_type()
        for tick in await self._pass(1):
            self._come(tick)

    # What has come

    def _check(self, what: str) -> None:
        """Exactly those jobs are there that should, since when they should."""
        drill = self._drill
        jobs = drill.all()
        wanted = {_id_of(tick): times for tick, times in self._wanted.items() if tick not in self._removed}
        if jobs.keys() != wanted.keys():
            more, less = sorted(map(str, jobs.keys() - wanted.keys())), sorted(wanted.keys() - jobs.keys())
            drill.complain(
                f"every {self._step} s, {self._missed}, overlap {self._overlap}, {what}: {more} have come, and {less} "
                f"have not, at {_id_of(self._now)}"
            )
            self._wanted = {datetime.fromisoformat(str(id)).timestamp(): (0.0, self._now) for id in jobs}
            return
        for id, job in jobs.items():
            earliest, latest = wanted[str(id)]
            added = next((at for kind, at, _ in job.notes.history if kind == "added"), None)
            if added is not None and not earliest - _EARLY <= added <= latest:
                drill.complain(f"{id!r} was added at {added}, not between {earliest} and {latest} ({what})")


def _id_of(tick: float) -> str:
    return datetime.fromtimestamp(tick, UTC).isoformat().replace("+00:00", "Z")
