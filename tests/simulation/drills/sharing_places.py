"""Continuous jobs that have all slots, or all places of a cap: in one round as many give way as others can use."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Final

from jobs_service import JobsService, JobType, RunningJob
from jobs_service.settings import HandlerSettings
from tests.simulation.drills.drill import Drill
from tests.simulation.drills.handling import log_of, opened, running

_INTERVAL: Final = 20.0
"""Seconds; all is as it should be well before they are over."""
_SLOWEST: Final = 2.5
_LATER: Final = 500.0
_GRACE: Final = 1.0


@dataclass
class _Place:
    """One job.

    Attributes:
        id, priority: of it.
        ends: whether it ends by itself, as far as is known.
        began: when its handler began, each time; on the loop's clock, seconds.
        asked: when it was asked to give up its slot; None while it was not.
        runs: whether it does.
        end: set when it may end.
    """

    id: str
    priority: int
    ends: bool = False
    began: list[float] = field(default_factory=list)
    asked: float | None = None
    runs: bool = False
    end: asyncio.Event = field(default_factory=asyncio.Event, repr=False)

    @property
    def is_unknown(self) -> bool:
        """Whether nobody can say that it ends by itself."""
        return self.ends and not self.id.endswith("0")


async def share_places(drill: Drill) -> None:
    """Have continuous jobs take all slots, or all places of a cap, and others wait; look who gives way, and when."""
    if drill.moment > _SLOWEST:
        return  # nothing would be as it should when the first interval is over
    places = _Places(drill)
    service = drill.client.process.service(supervise=False)
    places.register(service)
    async with opened(drill, service):
        before = drill.time()
        async with running(drill, service, 2 * _GRACE, max_jobs=None if places.is_alone else places.cap):
            await places.play(service, before)
    await drill.jobs.resume(places.other)


class _Places:
    def __init__(self, drill: Drill) -> None:
        choose = drill.random.choice
        self._drill = drill
        self.type: JobType = drill.type
        self.other: JobType = f"{drill.type} other"
        self.cap: int = choose([1, 2, 3])
        # Whether there are as many slots as that, and only one type has jobs; else there is a cap over two types.
        self.is_alone = drill.random.random() < 0.4
        self._churns: dict[JobType, int] = {self.type: choose([0, 1, 2, 20]), self.other: choose([0, 0, 1])}
        # Of several types the shortest interval counts, and the largest churn.
        self._quick: JobType = self.type if self.is_alone else choose([self.type, self.other])
        self._changes: str = choose(["", "configure", "reload"])
        self._slots: int = choose([1, 2])
        self._first = [_Place(f"first {number}", 0, choose([False, False, False, True])) for number in range(self.cap)]
        priorities = [choose([0, 0, 1, -1]) for _ in range(choose([0, 1, 2]))]
        self._same = [_Place(f"same {number}", priority) for number, priority in enumerate(priorities)]
        self._others = [_Place(f"other {number}", choose([0, 5])) for number in range(choose([0, 1, 2, 3]))]
        if self.is_alone:
            self._others.clear()
        self._most_history: int = choose([1, 3, 20])
        self._log = log_of(drill)
        self._state: str = choose(["due", "due", "due", "paused", "later"])

    def _of(self, job: RunningJob) -> _Place:
        return next(each for each in [*self._first, *self._same, *self._others] if each.id == job.id)

    def register(self, service: JobsService) -> None:
        """Make functions the handlers of both types."""
        for type in (self.type, self.other):
            options: dict[str, Any] = {"timeout": 60.0, "grace": _GRACE, "fifo": True}
            options["continuous"] = self._is_continuous if type == self.type else False
            options["slots"] = self._slots if type == self.other else self.cap + (0 if self.is_alone else 2)
            if not self._changes:
                options |= self._options(type)

            @service.handler(type, **options)
            async def hold(job: RunningJob) -> None:
                await self._hold(self._of(job), job)

    def _options(self, type: JobType) -> dict[str, Any]:
        interval = _INTERVAL if type == self._quick else 70.0
        return {"interval": interval, "max_churn": self._churns[type], "max_history": self._most_history}

    def _is_continuous(self, job: RunningJob) -> bool:
        """Whoever does not know takes it for one that ends by itself."""
        place = self._of(job)
        if place.is_unknown:
            raise LookupError("not known")
        return not place.ends

    async def _hold(self, place: _Place, job: RunningJob) -> None:
        if job.attempts != 1:
            self._drill.complain(f"{place} runs as number {job.attempts}, and none of its runs has failed")
        place.began.append(self._drill.time())
        place.runs = True
        try:
            await place.end.wait()
        except asyncio.CancelledError:
            place.asked = self._drill.time()
            raise
        finally:
            place.runs = False

    async def play(self, service: JobsService, before: float) -> None:
        """Have some run and others wait, wait for a round, and have all end.

        Args:
            service: whose handlers they are.
            before: when it was not yet running them, on the loop's clock, seconds.
        """
        drill, began = self._drill, self._drill.time()
        if self._state == "paused":
            await drill.jobs.pause(self.other)
        for each in self._first:
            await drill.jobs.enqueue(self.type, id=each.id)
            await drill.settle()
        for each in self._same:
            await drill.jobs.enqueue(self.type, id=each.id, priority=each.priority)
        for each in self._others:
            later: dict[str, Any] = {"delay": _LATER} if self._state == "later" else {}
            await drill.jobs.enqueue(self.other, id=each.id, priority=each.priority, **later)
        await drill.settle()
        if [each for each in self._first if not each.runs or each.asked] or self._running() != self.cap:
            drill.complain(f"{self._first} were to run, {self._same} and {self._others} to wait")
        self._change(service)
        slack = 0.05 + 20 * drill.latency
        await asyncio.sleep(max(0.0, began + _INTERVAL + slack - drill.time()))
        self._check_round(before + _INTERVAL, drill.time())
        await drill.settle()
        self._check_places()
        await self._end()

    def _change(self, service: JobsService) -> None:
        """Say some time after the last round when the next one is to be."""
        if self._changes == "configure":
            for type in (self.type, self.other):
                service.configure(type, **self._options(type))
        elif self._changes == "reload":
            handlers = {str(type): HandlerSettings(**self._options(type)) for type in (self.type, self.other)}
            service.reload(service.settings.model_copy(update={"handlers": handlers}))

    def _running(self) -> int:
        return sum(each.runs for each in [*self._first, *self._same, *self._others])

    @property
    def _due(self) -> int:
        """How many jobs of the other type could run."""
        return min(len(self._others), self._slots) if self._state == "due" else 0

    def _check_round(self, earliest: float, latest: float) -> None:
        """As many give way as there are others who come before them, and no more than may; the longest ones."""
        before = sum(each.priority <= 0 for each in self._same)
        churn = self._churns[self.type] if self.is_alone else max(self._churns.values())
        may = [each for each in self._first if not each.ends]
        wanted = min(len(may), before + self._due, churn)
        asked = [each for each in self._first if each.asked is not None]
        if asked != may[:wanted] or not all(earliest <= (each.asked or 0.0) <= latest for each in asked):
            self._drill.complain(
                f"{wanted} of {self._first} were to give way from {earliest:.3f} to {latest:.3f}: {self._same} wait, "
                f"and {self._others} ({self._state}), of which {self._slots} may run; churn {self._churns}"
            )

    def _check_places(self) -> None:
        """Who waited has the places that have become free: of both types, if both wait."""
        freed = sum(each.asked is not None for each in self._first)
        others = sum(each.runs for each in self._others)
        same = [each for each in self._same if each.priority <= 0]
        if self._running() != self.cap or (freed and self._due and not others) or others > self._slots:
            self._drill.complain(f"{freed} places have become free, and now {self._others}, {self._same} have them")
        if any(len(each.began) > 1 for each in self._first) and not all(each.runs for each in same):
            self._drill.complain(f"{self._first} have got a place again, and {self._same} waited before them")

    async def _end(self) -> None:
        drill = self._drill
        for each in [*self._first, *self._same, *self._others]:
            each.end.set()
        if self._state == "paused":
            await drill.jobs.resume(self.other)
        await drill.settle()
        await drill.settle()
        left = [*drill.running(self.type), *drill.running(self.other), *drill.pending(self.type)]
        if left or (self._state != "later" and drill.pending(self.other)):
            drill.complain(f"all may run and end, and {left} have not, nor {drill.pending(self.other)}")
        for each in self._first:
            job = drill.job(each.id)
            # It was added, and has begun and ended, and was stopped and has begun once more for each time.
            wanted = min(self._most_history, 1 + 2 * len(each.began))
            if job is None or len(job.notes.history) != wanted:
                drill.complain(f"{each} is to keep {wanted} events of its history, and is {job}")
        unknown = {str(fields["id"]) for _, fields in self._log.of(self.type, "continuous_failed")}
        if unknown != {each.id for each in self._first if each.is_unknown}:
            drill.complain(f"{unknown} are said to have failed to tell whether they are continuous: {self._first}")
