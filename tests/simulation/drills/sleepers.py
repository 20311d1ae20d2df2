"""Many types that fall asleep and wake up again, on a store of their own: who is watched over, and when, is exact."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from typing import Any, Final

from jobs_service import JobId, JobNotFound, JobsService, JobTransaction, JobType, RunningJob
from jobs_service.layer.key_parts import unpack_seconds
from jobs_service.layer.keyspace import ALARM, TypeKeys
from jobs_service.store.base import Transaction
from jobs_service.store.memory import MemoryTransaction
from tests.simulation.drills.drill import LONG, Drill
from tests.simulation.drills.ground import SOON, Ground

_MANY: Final = 105
"""Types that are more than are looked at together."""

_AHEAD: Final = 1.0
"""Seconds before its time that a type is woken."""

_EXPIRY_PERIOD: Final = 3.0
_NEVER: Final = math.inf
_KINDS: Final = ("ready", "later", "later too", "kept", "runs", "done")


@dataclass
class _Type:
    """A type, and what its jobs wait for.

    Attributes:
        keys: of the type.
        scheduled: when jobs come due that wait for their time, by id, on the wall clock.
        expiring: when finished ones are to go.
        running: those that run.
        busy_from, busy_until: when something has happened to it since it was seen asleep, first and last.
    """

    keys: TypeKeys
    scheduled: dict[JobId, float] = field(default_factory=dict)
    expiring: dict[JobId, float] = field(default_factory=dict)
    running: list[RunningJob] = field(default_factory=list)
    busy_from: float | None = None
    busy_until: float = 0.0

    def note(self, begin: float, end: float) -> None:
        """Note that something has happened to it."""
        self.busy_from = begin if self.busy_from is None else min(begin, self.busy_from)
        self.busy_until = max(self.busy_until, end)

    def may_be_awake(self, now: float, idle: float) -> bool:
        """Whether it may not have fallen asleep yet: who finds that it is not idle looks again twice as long later."""
        if self.busy_from is None:
            return False
        return now < self.busy_from + 2 * (self.busy_until - self.busy_from) + 2 * idle + SOON

    @property
    def next(self) -> float:
        """When it must be watched over next."""
        return min([*self.scheduled.values(), *self.expiring.values()], default=_NEVER)


async def sleep_and_wake(drill: Drill) -> None:
    """Have types of all kinds fall asleep, wake up in time, and be used at the very moment in which they do."""
    random = drill.random
    idle = random.choice([0.5, 2.0])
    ground = Ground(
        drill,
        type_idle_after=idle,
        type_check_period=5_000.0,
        expiry_check_period=_EXPIRY_PERIOD,
        pending_batch=random.choice([1, 2, 100]),
    )
    async with ground.service() as jobs, ground.service(supervise=random.random() < 0.5) as others:
        sleepers = _Sleepers(ground, jobs, others, idle)
        await sleepers.make(random.choice([1, 2, 5, 12, *([_MANY] if random.random() < 0.3 else [])]))
        if random.random() < 0.6:
            sleepers.disturb()
        await asyncio.sleep(2 * idle + SOON)
        await sleepers.look("after a while")
        for _ in range(random.randint(1, 2)):
            await sleepers.go_on()


class _Sleepers:
    """The types.

    Args:
        ground: where.
        jobs, others: two services.
        idle: seconds after which a type is taken for idle.
    """

    def __init__(self, ground: Ground, jobs: JobsService, others: JobsService, idle: float) -> None:
        self._ground = ground
        self._random = ground.random
        self._jobs = jobs
        self._others = others
        self._idle = idle
        self._types: list[_Type] = []
        self._added = 0

    async def make(self, count: int) -> None:
        """Make types with jobs of all kinds."""
        for first in range(0, count, 50):
            names: list[JobType] = [(self._ground.type, number) for number in range(first, min(first + 50, count))]
            self._types += await self._others.transact(lambda tx: self._make(tx, names))  # noqa: B023

    async def _make(self, tx: JobTransaction, names: list[JobType]) -> list[_Type]:
        random, now, made = self._random, self._ground.wall_time(), []
        for name in names:
            each = _Type(self._others._context.keyspace.of(name))
            each.note(now, now)
            made.append(each)
            await tx.set_type_timeout(name, LONG)
            for kind in random.sample(_KINDS, random.choice([0, 1, 1, 2])):
                if kind.startswith("later"):
                    each.scheduled[kind] = now + random.choice([0.3, 4.0, 9.0, 15.0, 16.0])
                    await tx.add(name, kind, run_at=each.scheduled[kind])
                    continue
                await tx.add(name, kind, priority=0 if kind == "ready" else -1)
                if kind == "ready":
                    continue
                job = await tx.accept(name)
                assert job is not None
                if kind == "runs":
                    each.running.append(job)
                    continue
                keep = random.choice([9.0, 15.0]) if kind == "kept" else None
                await tx.set_retention(name, keep=keep)
                await tx.finish(job)
                if keep is not None:
                    each.expiring[kind] = now + keep
        return made

    def disturb(self) -> None:
        """Have a job be there at the very moment in which a type falls asleep: just before that is committed."""
        random = self._random
        victim, after = random.choice(self._types), random.choice([0.5, 3.0])
        is_taken = random.random() < 0.4
        is_done = False
        self._added += 1
        id = f"just now {self._added}"

        def refuse(transaction: MemoryTransaction) -> None:
            nonlocal is_done
            clears = any(key == victim.keys.awake and operation == 1 for operation, key, *_ in transaction.log)
            if is_done or not clears:
                return
            is_done, job, now = True, None, self._ground.wall_time()
            victim.note(now, now)
            application = self._ground.store.begin()
            due = self._ground.wall_time() + after
            with self._others.within(application) as tx:
                tx.add(victim.keys.type, id, run_at=None if is_taken else due, priority=-5)
                if is_taken:
                    job = tx.accept(victim.keys.type)
            application.commit()
            if job is not None:
                victim.running.append(job)
            else:
                victim.scheduled[id] = due

        self._ground.doors.refuse = refuse

    async def go_on(self) -> None:
        """Use some types, wait until some more have woken up, and look."""
        random, ground = self._random, self._ground
        if random.random() < 0.3:
            self.disturb()
        for each in random.sample(self._types, min(3, len(self._types))):
            await self._use(each)
        wall = ground.wall_time()
        wanted = [each.next for each in self._types if wall < each.next < _NEVER]
        until = min(random.sample(wanted, min(len(wanted), 2)), default=wall)
        await asyncio.sleep(max(0.0, until - wall) + random.choice([SOON, SOON, 2 * self._idle + _EXPIRY_PERIOD]))
        await self._check_times()
        await asyncio.sleep(2 * self._idle + _EXPIRY_PERIOD + _AHEAD + SOON)
        await self.look("once more")

    async def _use(self, each: _Type) -> None:
        """Have a job of a type come for later, or end, or run."""
        random, kind, service = self._random, each.keys.type, self._random.choice([self._jobs, self._others])
        self._added += 1
        now = self._ground.wall_time()
        each.note(now, now)
        way = random.choice(["later", "soon", "end", "remove"])
        if way in ("later", "soon"):
            due = self._ground.wall_time() + (0.5 if way == "soon" else 12.0)
            await service.add(kind, f"new {self._added}", run_at=due)
            each.scheduled[f"new {self._added}"] = due
        elif way == "end" and each.running:
            job = each.running.pop()
            await service.transact(lambda tx: _end(tx, job))
        elif way == "remove" and each.scheduled:
            id = random.choice([*each.scheduled])
            due = each.scheduled.pop(id)
            if due > now:
                await service.remove(kind, id)
                each.note(due - _AHEAD, due)

    # What must be so

    async def _check_times(self) -> None:
        """What has come due is ready, and what was kept for long enough is gone."""
        now = self._ground.wall_time()
        for each in self._types:
            for id, due in [*each.scheduled.items()]:
                if due < now - SOON / 2:
                    del each.scheduled[id]
                    each.note(due - _AHEAD, due)
                    job = await self._jobs.get(each.keys.type, id)
                    if (await self._counts(each)).scheduled > len(each.scheduled):
                        self._ground.complain(f"{id!r} of {each.keys.name} was due {now - due:.3f} s ago, and is {job}")
            for id, until in [*each.expiring.items()]:
                if until < now - _EXPIRY_PERIOD - SOON:
                    del each.expiring[id]
                    each.note(until - _AHEAD, until + _EXPIRY_PERIOD)
                    try:
                        job = await self._jobs.get(each.keys.type, id)
                        self._ground.complain(f"{job} was to be kept until {until}, and now it is {now}")
                    except JobNotFound:
                        pass

    async def _counts(self, each: _Type) -> Any:
        return (await self._jobs.counts(each.keys.type))[each.keys.type]

    async def look(self, when: str) -> None:
        """Watched over are types with jobs that run, or come due in a moment; the others are known by their time."""
        await self._check_times()
        ground, now, keyspace = self._ground, self._ground.wall_time(), self._jobs._context.keyspace
        section = keyspace.sections[ALARM]

        async def read(transaction: Transaction) -> tuple[list[bytes | None], list[bytes | None], list[bytes]]:
            awake = await transaction.get_many([each.keys.awake for each in self._types])
            asleep = await transaction.get_many([each.keys.asleep for each in self._types])
            alarms = await transaction.get_range(section + b"\x00", section + b"\xff")
            return [*awake], [*asleep], [key for key, _ in alarms]

        awake, asleep, alarms = await ground.store.read(read)
        wanted_alarms = []
        for each, is_awake, until in zip(self._types, awake, asleep, strict=True):
            if until is not None:
                wanted_alarms.append(section + until + each.keys.packed)
            # Near the time at which it wakes up, or when what expires is looked for, both may be so.
            if each.may_be_awake(now, self._idle):
                continue
            if not each.running and each.next < now + 3 * self._idle + _EXPIRY_PERIOD + 2 * _AHEAD + SOON:
                continue
            if (is_awake is not None) != bool(each.running):
                ground.complain(f"{when}: {each}, and it is awake: {is_awake is not None}")
            each.busy_from = each.busy_from if each.running else None
            known = None if until is None else unpack_seconds(until)
            if not each.running and (known or _NEVER) != each.next and not self._slept_since(each, known):
                ground.complain(f"{when}: {each} sleeps until {known}, not {each.next}")
        if sorted(wanted_alarms) != alarms:
            ground.complain(f"{when}: there are {len(alarms)} alarms, and {len(wanted_alarms)} types are asleep")
        names = {each.keys.name for each, is_awake in zip(self._types, awake, strict=True) if is_awake is not None}
        for service in (self._jobs, self._others):
            if parts := service.supervision():
                watched = {each["name"] for each in parts["children"][1]["children"]}
                if watched != names:
                    ground.complain(f"{when}: awake are {len(names)} types, watched {len(watched)}: {watched ^ names}")

    def _slept_since(self, each: _Type, known: float | None) -> bool:
        """Whether a type goes on sleeping until a time that was its next one, of a job that has gone since."""
        return known is not None and self._ground.wall_time() < known < each.next


async def _end(tx: JobTransaction, job: RunningJob) -> None:
    await tx.set_retention(job.type, keep=None)
    await tx.finish(job)
