"""Continuous jobs that take turns: those that have run longest give way, as many as others wait, every interval."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from jobs_service import JobsService, JobType, RunningJob
from tests.simulation.drills.drill import Drill
from tests.simulation.drills.handling import opened, running
from tests.simulation.model_job import READY

_GRACE: Final = 5.0
"""Seconds: longer than any of the handlers takes to end."""
_ROUNDS: Final = 4
_SAME: Final = 0.02
"""Seconds within which those are asked who are asked together."""


@dataclass
class _Turn:
    """One continuous job, or one that is not.

    Attributes:
        type, id, continuous, priority: of it.
        began: since when it runs; None while it waits.
        ran: for how long it has run before.
        asked: when it was asked last to give up its slot.
        leaves: whether it was asked, and has not ended.
        step: how many turns it has had, as it has written it.
    """

    type: JobType
    id: str
    continuous: bool
    priority: int
    began: float | None = None
    ran: float = 0.0
    asked: float | None = None
    leaves: bool = False
    step: int = 0
    end: asyncio.Event = field(default_factory=asyncio.Event, repr=False)


async def take_turns(drill: Drill) -> None:
    """Have more continuous jobs than slots, of one type or of two below a cap, and look who gives way when."""
    turns = _Turns(drill)
    service = drill.client.process.service(supervise=False)
    turns.register(service)
    async with opened(drill, service), running(drill, service, 2 * _GRACE, max_jobs=turns.cap):
        await turns.play(service)


class _Turns:
    def __init__(self, drill: Drill) -> None:
        random = drill.random
        self._drill = drill
        self._interval: float = random.choice([1.0, 2.0])
        self._churn: int = random.choice([1, 2, 20])
        self._slow = random.random() < 0.4
        self._slots = random.randint(1, 3)
        types = random.choice([1, 1, 2])
        self._types: list[JobType] = [(drill.type, letter) for letter in "ab"[:types]]
        self.cap = self._slots if types == 2 else None
        self._changed = 0.0
        self._rounds: list[float] = []
        self._turns: dict[tuple[JobType, str], _Turn] = {}
        # Some end by themselves in the end, and some may come after all others.
        self._others = others = random.choice(["same", "same", "plain", "later"])
        for number in range(self._slots + random.randint(1, 4)):
            type = random.choice(self._types)
            is_other = others != "same" and number >= self._slots
            turn = _Turn(type, str(number), not (is_other and others == "plain"), int(is_other and others == "later"))
            self._turns[type, turn.id] = turn

    def register(self, service: JobsService) -> None:
        """Make functions the handlers of the types."""
        for number, type in enumerate(self._types):
            options: dict[str, Any] = {"slots": self._slots if self.cap is None else self._slots + 1, "grace": _GRACE}
            # Of several types the shortest interval counts, and the largest churn.
            options["interval"] = self._interval if number == 0 else 50.0
            options["max_churn"] = self._churn if number == 0 else self._drill.random.randint(0, 1)

            @service.handler(type, timeout=60.0, fifo=True, continuous=self._is_continuous, **options)
            async def follow(job: RunningJob, args: dict[str, Any]) -> None:
                await self._follow(self._turns[job.type, str(job.id)], job, args)

    def _is_continuous(self, job: RunningJob) -> bool:
        return self._turns[job.type, str(job.id)].continuous

    async def _follow(self, turn: _Turn, job: RunningJob, args: dict[str, Any]) -> None:
        drill = self._drill
        if (job.attempts, args.get("step", 0)) != (1, turn.step):
            drill.complain(f"{turn} runs as number {job.attempts}, with {args}")
        turn.began = drill.time()
        turn.end.clear()
        try:
            await turn.end.wait()
        except asyncio.CancelledError:
            turn.asked, turn.leaves = drill.time(), True
            self._check_asked(turn)
            await asyncio.sleep(1.3 * self._interval if self._slow else 0.0)
            turn.step += 1
            await job.update({"step": turn.step, "call": 0})
            raise
        finally:
            turn.ran += drill.time() - turn.began
            turn.began, turn.leaves = None, False

    def _check_asked(self, turn: _Turn) -> None:
        """Who is asked runs longest, and others wait for whom nobody makes room yet, at the time of a round."""
        drill, now = self._drill, self._drill.time()
        if drill.run.is_over or drill.run.leaving.get(drill.client.process) is not None or self._rounds[-1:] == [-1.0]:
            return
        if not turn.continuous:
            drill.complain(f"{turn} ends by itself, and is asked to give up its slot")
        leaving = [each for each in self._turns.values() if each.leaves]
        # Who waited when the store was asked may have begun meanwhile.
        just = now - 8 * drill.latency - _SAME
        waited = [each for each in self._turns.values() if self._waits(each) or (each.began or 0.0) > just]
        waiting = [each for each in waited if any(_comes_before(each, other) for other in leaving)]
        if len(leaving) > len(waiting):
            drill.complain(f"{leaving} leave, and only {waiting} wait")
        for each in self._turns.values():
            same = each.continuous and each.began is not None and not each.leaves and each.priority == turn.priority
            longer = same and each.began is not None and turn.began is not None and each.began < turn.began - _SAME
            if longer and (each.type == turn.type or self._others == "same"):
                drill.run.world.loop.call_later(_SAME, self._check_older, turn, each, each.began)
        last = self._rounds[-1] if self._rounds else None
        if last is None or now > last + _SAME:
            bound = self._interval - 8 * drill.latency - 0.1
            if last is not None and last > self._changed and now - last < bound:
                drill.complain(
                    f"{turn} is asked {now - last:.3f} s after others were; the interval is {self._interval}"
                )
            self._rounds.append(now)

    def _check_older(self, turn: _Turn, older: _Turn, began: float) -> None:
        """Who runs for longer was asked at the same moment, or has ended."""
        if older.began == began and not older.leaves:
            self._drill.complain(f"{turn} was asked to give up its slot, and {older} runs for longer")

    def _waits(self, turn: _Turn) -> bool:
        job = self._drill.job(turn.id, turn.type)
        return turn.began is None and job is not None and job.state is READY

    async def play(self, service: JobsService) -> None:
        """Add the jobs, and look at some rounds, between which the interval may change."""
        drill, random = self._drill, self._drill.random
        for turn in self._turns.values():
            handler = service.handlers[turn.type]
            await drill.client.enqueue(handler, lambda call: {"call": call}, id=turn.id, priority=turn.priority)
        await drill.settle()
        for _ in range(random.choice([1, 1, 2])):
            await self._watch()
            if random.random() < 0.6:
                self._interval, self._churn = random.choice([0.7, 1.5, 3.0]), random.choice([1, 2])
                service.configure(self._types[0], interval=self._interval, max_churn=self._churn)
                self._changed = drill.time()
        await self._end()

    async def _watch(self) -> None:
        """In each interval as many are asked as may, where others wait."""
        drill = self._drill
        grace = 1.3 * self._interval if self._slow else 0.0
        period = self._interval + grace + 12 * drill.latency + 0.4
        for _ in range(_ROUNDS):
            began = drill.time()
            waiting = [turn for turn in self._turns.values() if self._waits(turn)]
            runs = [
                turn for turn in self._turns.values() if turn.continuous and turn.began is not None and not turn.leaves
            ]
            gives = [turn for turn in runs if any(_comes_before(each, turn) for each in waiting)]
            await asyncio.sleep(period)
            asked = [turn for turn in self._turns.values() if turn.asked is not None and turn.asked >= began - _SAME]
            still = [turn for turn in waiting if self._waits(turn) and turn.asked is None]
            if self._slow or not gives or (self._others != "same" and not still):
                continue  # who waited may have got a slot for good
            wanted = min(len(gives), self._churn, max(self._count_before(turn, waiting) for turn in gives))
            if len(asked) < (wanted if self._others == "same" else 1):
                drill.complain(f"{waiting} wait, {gives} run, and only {asked} were asked to give way in {period} s")
        self._check_shares()

    def _check_shares(self) -> None:
        """All have had about as much: where all are continuous, none has had many turns more than another."""
        if self._slow or self._others != "same" or self.cap is not None:
            return
        counts = Counter({key: turn.step + (turn.began is not None) for key, turn in self._turns.items()})
        if max(counts.values()) > min(counts.values()) + 4:
            self._drill.complain(f"turns are not shared: {counts}")

    def _count_before(self, turn: _Turn, waiting: list[_Turn]) -> int:
        return sum(_comes_before(each, turn) for each in waiting)

    async def _end(self) -> None:
        """Have all of them end."""
        drill = self._drill
        self._rounds.append(-1.0)
        for turn in self._turns.values():
            turn.end.set()
        for turn in self._turns.values():
            await drill.client.remove(turn.type, turn.id)
        await drill.settle()
        await asyncio.sleep(1.3 * self._interval if self._slow else 0.0)


def _comes_before(waiting: _Turn, turn: _Turn) -> bool:
    """Whether who waits could get the slot of one who runs: types share what there is, whatever their priorities."""
    return waiting.type != turn.type or waiting.priority <= turn.priority
