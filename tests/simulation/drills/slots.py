"""Slots and a cap over all of them: they are used as far as there are jobs, in order, whatever changes meanwhile."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Final

from jobs_service import JobsService, JobType, ProcessState, RunningJob
from tests.simulation.drills.drill import Drill
from tests.simulation.drills.handling import check_uses, count, notice, opened, running
from tests.simulation.model_job import READY

_GRACE: Final = 1.0
_PERIOD: Final = 2.0
"""Seconds between two heartbeats of the process, each of which tells what it does."""

_HELD_OFF: Final = 1.0
_STEPS: Final = (5, 9)
_MOST_SLOTS: Final = 4


@dataclass
class _Hold:
    """A job that is held until somebody lets it end.

    Attributes:
        type, id, continuous: of it.
        order: where it is in its queue: priority, and a number that grows.
        added: since when it is there, on the loop's clock, seconds.
        is_back: whether it was given back, which takes a moment.
        began: since when it runs; None while it waits.
        end: set when it may end.
        asked: whether it was asked to give up its slot.
        over: whether it has ended, or was removed.
    """

    type: JobType
    id: str
    continuous: bool
    order: tuple[int, int]
    added: float
    is_back: bool = False
    began: float | None = None
    end: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    asked: bool = False
    over: bool = False


async def share_slots(drill: Drill) -> None:
    """Add and end jobs, change slots, pause types and be quiet: as many run as may, those that come first."""
    settings = drill.client.process.settings.model_copy(update={"process_heartbeat": _PERIOD})
    service = drill.client.process.service(settings=settings, supervise=False)
    slots = _Slots(drill, service)
    async with opened(drill, service):
        for _ in range(drill.random.choice([1, 2, 2])):
            await slots.play(drill.random.choice([None, 1, 2, 3]))


class _Slots:
    def __init__(self, drill: Drill, service: JobsService) -> None:
        self._drill = drill
        self._random = drill.random
        self._service = service
        self._slots: dict[JobType, int] = {}
        self._in_order: set[JobType] = set()
        self._paused: set[JobType] = set()
        self._quiet = False
        self._cap: int | None = None
        self._holds: dict[tuple[JobType, str], _Hold] = {}
        self._numbers = 0
        self._waited: dict[JobType, float] = {}
        self._begun: list[tuple[float, JobType]] = []
        for letter in "ab":
            self._register((drill.type, letter))

    def _register(self, type: JobType) -> None:
        self._slots[type] = slots = self._random.randint(1, _MOST_SLOTS)

        # Somebody who adds and removes jobs just then may make it leave the exact order, if it may.
        if fifo := self._random.random() < 0.6:
            self._in_order.add(type)
        options: dict[str, Any] = {
            "fifo": fifo,
            "timeout": 60.0,
            "continuous": lambda job: str(job.id).endswith("c"),
            "interval": 600.0,
        }

        @self._service.handler(type, slots=slots, grace=_GRACE, **options)
        async def hold(job: RunningJob) -> None:
            await self._hold(self._holds[type, str(job.id)], job)

    async def _hold(self, hold: _Hold, job: RunningJob) -> None:
        drill, now = self._drill, self._drill.time()
        if hold.began is not None or hold.over:
            drill.complain(f"{hold} runs twice")
        if job.attempts != 1:
            drill.complain(f"{hold} runs as number {job.attempts}, and none of its runs has failed")
        self._check_order(hold, now)
        hold.began, hold.asked = now, False
        if len(self._running(hold.type)) > self._slots[hold.type]:
            drill.complain(f"{hold.type!r} has {self._slots[hold.type]} slots, and {self._running(hold.type)} run")
        if self._cap is not None and len(self._running()) > self._cap:
            drill.complain(f"{self._running()} run, {self._cap} may")
        try:
            await hold.end.wait()
            hold.over = True
        except asyncio.CancelledError:
            hold.asked = True
            await asyncio.sleep(self._random.choice([0.0, 0.4]))
            raise
        finally:
            hold.began = None
            if not hold.over:  # it goes to the end of its queue
                self._numbers += 1
                hold.order, hold.added, hold.is_back = (hold.order[0], self._numbers), drill.time(), True

    def _check_order(self, hold: _Hold, now: float) -> None:
        """Nobody of its type waits who comes before it."""
        self._begun.append((now, hold.type))
        before = [
            each
            for each in self._holds.values()
            if each.type == hold.type and each.began is None and not each.over and self._comes_before(each, hold)
            if each.added < now - (1 + each.is_back) * self._drill.moment and self._is_ready(each)
        ]
        if before and hold.type in self._in_order:
            self._drill.complain(f"{hold} runs before {before}")

    def _comes_before(self, one: _Hold, other: _Hold) -> bool:
        if one.order[0] == other.order[0] and (one.is_back or other.is_back):
            return one.added < other.added - self._drill.moment  # which of two came back first cannot be told
        return one.order < other.order

    def _is_ready(self, hold: _Hold) -> bool:
        job = self._drill.job(hold.id, hold.type)
        return job is not None and job.state is READY

    def _running(self, type: JobType | None = None) -> list[_Hold]:
        return [hold for hold in self._holds.values() if hold.began is not None and type in (None, hold.type)]

    def _count(self, type: JobType) -> int:
        return len(self._running(type))

    async def play(self, cap: int | None) -> None:
        """Run the handlers once."""
        drill, random = self._drill, self._random
        self._cap, self._quiet = cap, False
        self._begun.clear()
        self._waited.clear()
        async with running(drill, self._service, 2 * _GRACE, max_jobs=cap):
            steps = [self._add, self._add, self._end, self._end, self._configure, self._pause, self._ask, self._remove]
            await self._add()
            await drill.settle()
            if cap is not None and random.random() < 0.7:
                await self._crowd()
            for _ in range(random.randint(*_STEPS)):
                await random.choice(steps)()
                await drill.settle()
                await self._check()
            await self._let_all_end()
        left = self._running()
        if left or drill.running((drill.type, "a")) or drill.running((drill.type, "b")):
            drill.complain(f"nobody runs handlers any more, and {left} run")

    # What is done

    async def _add(self) -> None:
        for _ in range(self._random.randint(1, 4)):
            await self._add_one(self._random.choice([*self._slots]), self._random.choice([0, 0, 1]))

    async def _add_one(self, type: JobType, priority: int) -> None:
        self._numbers += 1
        id = f"{self._numbers}{self._random.choice(['', 'c'])}"
        self._holds[type, id] = _Hold(type, id, id.endswith("c"), (priority, self._numbers), self._drill.time())
        await self._drill.client.add(type, id, priority=priority)

    async def _crowd(self) -> None:
        """Have all types wait for places of the cap, and let those that run end one after the other."""
        for type in [*self._slots] * 3:
            await self._add_one(type, 0)
        await self._drill.settle()
        await self._check()
        for _ in range(4):
            for hold in self._some_running(1):
                hold.end.set()
            await self._drill.settle()
            await self._check()

    async def _end(self) -> None:
        for hold in self._some_running(2):
            hold.end.set()

    async def _remove(self) -> None:
        for hold in self._some_running(1):
            hold.over = True
            await self._drill.client.remove(hold.type, hold.id)
            await asyncio.sleep(notice(self._drill) + 0.1)
            if not hold.asked:
                self._drill.complain(f"{hold} was removed, and its handler was not told")

    def _some_running(self, most: int) -> list[_Hold]:
        there = [hold for hold in self._running() if not hold.end.is_set()]
        return self._random.sample(there, min(len(there), self._random.randint(1, most)))

    async def _configure(self) -> None:
        """Change the slots of a type: of what is too much, continuous jobs are asked first, and the oldest of them."""
        type, slots = self._random.choice([*self._slots]), self._random.randint(0, _MOST_SLOTS)
        there = self._running(type)
        self._slots[type] = slots
        self._service.configure(type, slots=slots)
        if len(there) >= slots:
            # It hands on the place for which it waited: it may come while those are asked to end that are too many.
            self._waited.pop(type, None)
        await asyncio.sleep(0.1)
        asked = [hold for hold in there if hold.asked]
        # Who was asked keeps its slot until it has ended.
        check_uses(self._drill, self._service, {each: (self._slots[each], self._count(each)) for each in self._slots})
        if len(asked) != max(0, len(there) - slots):
            self._drill.complain(f"{type!r} has {slots} slots, {there} ran, and {asked} were asked to end")
        for each in asked:
            for other in there:
                began = (each.began or 0.0, other.began or 0.0)
                if (
                    not other.asked
                    and (not other.continuous, began[1]) < (not each.continuous, began[0])
                    and all(began)
                ):
                    self._drill.complain(f"{each} was asked to give up its slot, and not {other}")

    async def _pause(self) -> None:
        type = self._random.choice([*self._slots])
        if type in self._paused:
            await self._drill.jobs.resume(type)
            self._paused.discard(type)
        else:
            await self._drill.jobs.pause(type)
            self._paused.add(type)

    async def _ask(self) -> None:
        """Ask the process to be quiet, or to go on."""
        found = [each for each in await self._drill.jobs.processes() if self._is_it(each)]
        if len(found) != 1:
            self._drill.complain(f"a process runs handlers, and is listed as {found}")
            return
        self._quiet = not self._quiet
        await (self._drill.jobs.quiet_process if self._quiet else self._drill.jobs.resume_process)(found[0].id)
        await self._drill.settle()

    def _is_it(self, process: Any) -> bool:
        return any(each.type in self._slots for each in process.handlers)

    async def _let_all_end(self) -> None:
        """Have everything run that is there, and end."""
        drill = self._drill
        if self._quiet:
            await self._ask()
        for type in sorted(self._paused, key=repr):
            await drill.jobs.resume(type)
        self._paused.clear()
        for type, slots in self._slots.items():
            if not slots:
                self._slots[type] = 1
                self._service.configure(type, slots=1)
        for hold in self._holds.values():
            hold.end.set()
        await drill.settle()
        await drill.settle()
        left = [hold for hold in self._holds.values() if not hold.over]
        if left:
            drill.complain(f"all may run and end, and {left} have not")
        for type in self._slots:
            if drill.pending(type) or drill.running(type):
                drill.complain(f"all jobs have ended, and {drill.pending(type)} wait, {drill.running(type)} run")
        self._holds.clear()
        check_uses(drill, self._service, {type: (slots, 0) for type, slots in self._slots.items()})

    # What must be so

    async def _check(self) -> None:
        """As many run as may, and who looks is told so."""
        if self._cap is not None:
            self._check_shares()
        drill, running = self._drill, self._running()
        has_room = not self._quiet and (self._cap is None or len(running) < self._cap)
        for type, slots in self._slots.items():
            waiting = [hold for hold in self._holds.values() if hold.type == type and self._is_ready(hold)]
            if waiting and has_room and type not in self._paused and len(self._running(type)) < slots:
                drill.complain(f"{waiting} wait, {running} run; {self._slots}, {self._cap} at most")
            is_in_line = waiting and type not in self._paused and not self._quiet and len(self._running(type)) < slots
            if is_in_line:
                self._waited.setdefault(type, drill.time())
            else:
                self._waited.pop(type, None)
        check_uses(drill, self._service, {type: (slots, self._count(type)) for type, slots in self._slots.items()})
        if self._random.random() < 0.3:
            await self._check_row()
        if self._random.random() < 0.3:
            await count(drill, self._random.choice([*self._slots]))

    def _check_shares(self) -> None:
        """No type gets a place of the cap twice in a row while another one waits for it."""
        last: set[JobType] = set()
        since = 0.0
        # Those who get places at the same moment begin apart by as much as the store takes for each.
        moments: list[tuple[float, set[JobType]]] = []
        for at, type in self._begun:
            if not moments or at - moments[-1][0] > self._drill.moment / 2:
                moments.append((at, set()))
            moments[-1][1].add(type)
        for at, types in moments:
            for other in self._slots.keys() - types - last:
                if types == last and self._waited.get(other, at) < since - self._drill.moment:
                    self._drill.complain(f"{types} has got places at {since:.1f} and {at:.1f}, and {other!r} waits")
            last, since = types, at
        self._begun = [(at, type) for at, type in self._begun if at >= since]

    async def _check_row(self) -> None:
        """What others are told of the process is so, as of its last heartbeat."""
        await asyncio.sleep(_PERIOD + _HELD_OFF)
        wanted = {type: (slots, len(self._running(type))) for type, slots in self._slots.items()}
        state = ProcessState.QUIET if self._quiet else ProcessState.RUNNING
        for each in await self._drill.jobs.processes():
            if self._is_it(each):
                found = {handler.type: (handler.slots, handler.taken) for handler in each.handlers}
                sums = (sum(slots for slots, _ in wanted.values()), sum(taken for _, taken in wanted.values()))
                if each.state is not state or (each.slots, each.taken) != sums or found != wanted:
                    self._drill.complain(f"{each} is listed; it is {state}, {wanted}")
