"""Jobs that come due or expire in pages, some of which the store refuses: each is dealt with once, and in time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from jobs_service import JobId, JobNotFound, JobsService, JobState, NewJob, Outcome, RunningJob, StoreError
from jobs_service.errors import StoreFull, StoreUnavailable, TransactionConflict, TransactionTooLarge
from jobs_service.layer.key_parts import unpack_id
from jobs_service.store.memory import MemoryTransaction
from tests.simulation.drills.drill import LONG, Drill
from tests.simulation.drills.ground import Ground, written
from tests.simulation.rarities import few_at_once_are_drawn

_PASSING: Final = (TransactionConflict, StoreUnavailable, StoreFull)
_LARGEST: Final = 10
"""A page has so many times the jobs that the setting says, at most."""
_PERIOD: Final = 3.0
_KEPT: Final = (None, 0.0, 1.0, 1.0, 4.0)


async def expire_in_pages(drill: Drill) -> None:
    """Finish jobs in all ways while it changes how long they are kept: they go page by page, of which some fail."""
    expiry = _Expiry(drill)
    async with expiry.ground.service() as jobs:
        await expiry.begin(jobs)
        await expiry.see()


async def come_due_in_pages(drill: Drill) -> None:
    """Add jobs for later: they are made ready page by page, of which some fail, and are started in their order."""
    coming = _Coming(drill)
    async with coming.ground.service() as jobs:
        await coming.begin(jobs)
        await coming.see()


class _Pages:
    """What is done page by page.

    Args:
        drill: that it is part of.
    """

    def __init__(self, drill: Drill) -> None:
        random = drill.random
        batch = random.choice([1, 1, 2])
        self.ground = Ground(drill, pending_batch=batch, expiry_check_period=_PERIOD, type_idle_after=LONG)
        self.random = random
        self.most = _LARGEST * batch
        self.count = random.choice([1, 2, self.most - 1, self.most, self.most + 1, self.most + 2])
        self.due: dict[JobId, float] = {}
        self.grace = 0.3
        self.pages: list[list[JobId]] = []
        self.has_acted, self.is_whole = False, True
        self.acted_on: JobId | None = None

    def watch(self, jobs: JobsService) -> None:
        """Look at all pages that are about to be committed, and have some be refused."""
        ground, random = self.ground, self.random
        most, left = random.choice([None, None, 1, 3]), random.choice([0, 0, 1, 2, 3])
        error: Callable[[str], StoreError] = random.choice(_PASSING)
        self.grace += 0.3 * left
        data = jobs._context.keyspace.of(ground.type).data
        # What was committed, as far as it is known to be.
        done: set[JobId] = set()

        def refuse(transaction: MemoryTransaction) -> None:
            nonlocal left
            ids = [unpack_id(key[len(data) :]) for key in written(transaction, data)]
            if not ids or self.is_busy:
                return
            now = ground.wall_time()
            if early := [id for id in ids if self.due.get(id, now + 1) > now and id != self.acted_on]:
                ground.complain(f"{early} are dealt with at {now}, and {self.due} is when they are due")
            rest = [id for id, at in self.due.items() if at <= now and id not in done]
            is_exact = self.is_whole and not self.has_acted and not few_at_once_are_drawn()
            if is_exact and len(ids) != min(self.most, len(rest)):
                ground.complain(f"a page of {len(ids)} jobs, and {len(rest)} are due; {self.most} are the most")
            if len(ids) > self.most:
                ground.complain(f"a page of {len(ids)} jobs; {self.most} are the most")
            if most is not None and len(ids) > most:
                self.is_whole = False  # it is halved, and grows again
                raise TransactionTooLarge("it is a drill")
            if left:
                left -= 1
                raise error("it is a drill")
            last = max(self.due.get(id, 0.0) for id in ids)
            if not self.has_acted and any(self.due[id] < last for id in rest if id not in ids):
                ground.complain(f"{ids} are dealt with before others of {rest} that were due before")
            done.update(ids)
            self.pages.append(ids)

        self.is_busy = False
        ground.doors.refuse = refuse

    async def hold(self, act: Callable[[JobId], Any]) -> None:
        """Hold the first page before its commit, and do something meanwhile to one of the jobs."""
        ground, doors = self.ground, self.ground.doors
        if not self.due:
            return
        self.has_acted = True
        doors.shut = "commit"
        until = max(min(self.due.values()) - ground.wall_time(), 0.0) + 2 * _PERIOD + self.grace
        for _ in range(round(until / 0.05)):
            if doors.waiting:
                break
            await asyncio.sleep(0.05)
        if not doors.waiting:
            ground.complain(f"nobody does anything, and {self.due} is when jobs are due; now is {ground.wall_time()}")
        doors.shut, self.is_busy = None, True  # what waits goes on doing so
        self.acted_on = self.random.choice([*self.due])
        await act(self.acted_on)
        self.is_busy = False
        doors.open()


class _Expiry(_Pages):
    """Finished jobs that are not kept for ever."""

    def __init__(self, drill: Drill) -> None:
        super().__init__(drill)
        self._kept: set[JobId] = set()
        self._gone: set[JobId] = set()
        self._expired = 0

    async def begin(self, jobs: JobsService) -> None:
        """Finish the jobs."""
        self._jobs, ground, random = jobs, self.ground, self.random
        await jobs.set_type_timeout(ground.type, random.choice([2.0, LONG]))
        await jobs.add_many(ground.type, [NewJob(str(number)) for number in range(self.count)])
        changes = random.choice([1, 1, 2])
        runs = await jobs.accept_many(ground.type, self.count, timeout=0)
        part = -(-len(runs) // changes)
        self.is_busy = True
        for first in range(0, len(runs), part):
            keep, keep_failed = random.choice(_KEPT), random.choice(_KEPT)
            await jobs.set_retention(ground.type, keep=keep, keep_failed=keep_failed)
            for run in runs[first : first + part]:
                await self._finish(run, keep, keep_failed)
        if random.random() < 0.5:  # of those that finish later
            await jobs.set_retention(ground.type, keep=random.choice(_KEPT), keep_failed=random.choice(_KEPT))
        self.watch(jobs)
        if random.random() < 0.5:
            await self.hold(random.choice([self._resubmit, self._remove, self._nothing]))

    async def _finish(self, run: RunningJob, keep: float | None, keep_failed: float | None) -> None:
        outcome = self.random.choice([Outcome.SUCCEEDED, Outcome.FAILED, Outcome.CANCELED])
        if outcome is Outcome.CANCELED:
            await self._jobs.remove(self.ground.type, run.id)
        await run.finish(outcome=Outcome.FAILED if outcome is Outcome.FAILED else Outcome.SUCCEEDED)
        seconds = keep_failed if outcome is Outcome.FAILED else keep
        if seconds is None:
            self._kept.add(run.id)
        elif seconds == 0:
            self._gone.add(run.id)
        else:
            self.due[run.id] = self.ground.wall_time() + seconds

    async def _resubmit(self, id: JobId) -> None:
        await self._jobs.add(self.ground.type, id, if_exists="resubmit")
        del self.due[id]
        self._kept.add(id)

    async def _remove(self, id: JobId) -> None:
        await self._jobs.remove(self.ground.type, id)
        del self.due[id]

    async def _nothing(self, id: JobId) -> None:
        """Let it expire."""

    async def see(self) -> None:
        """See what is there until all have gone that had to go."""
        ground, jobs = self.ground, self._jobs
        counted = len(self.due) + len(self._gone)
        last = max(self.due.values(), default=ground.wall_time())
        while True:
            there = {job.id async for job in jobs.list(ground.type)}
            now = ground.wall_time()
            if missing := self._kept - there | {id for id, at in self.due.items() if at > now} - there:
                ground.complain(f"{sorted(missing, key=str)} have gone, and were to be kept at {now}: {self.due}")
            if late := [id for id in there if now > self.due.get(id, now) + 2 * _PERIOD + self.grace]:
                ground.complain(f"{late} were to be gone: {self.due}; now is {now}, and pages were {self.pages}")
            if now > last + 2 * _PERIOD + self.grace:
                break
            await asyncio.sleep(1.0)
        if there != self._kept:
            ground.complain(f"{there} are there, and {self._kept} were to be kept")
        for id in [*self._gone, *self.due][:3]:
            try:
                await jobs.get(ground.type, id)
            except JobNotFound:
                continue
            ground.complain(f"{id!r} has expired, and can be read")
        told = (await jobs.counts(ground.type))[ground.type]
        if told.totals.expired != counted or told.jobs != len(there):
            ground.complain(f"{counted} jobs have expired, {len(there)} are there; told is {told}")


class _Coming(_Pages):
    """Jobs for later."""

    async def begin(self, jobs: JobsService) -> None:
        """Add the jobs."""
        self._jobs, ground, random = jobs, self.ground, self.random
        self._priorities: dict[JobId, int] = {}
        self._started: dict[JobId, float] = {}
        self.is_busy = True
        await jobs.set_type_timeout(ground.type, random.choice([60.0, LONG]))
        times = [ground.wall_time() + seconds for seconds in random.choice([[1.0], [1.0, 2.5], [0.5, 0.5 + 1e-6, 3.0]])]
        for number in range(self.count):
            id, at = str(number), random.choice(times)
            self._priorities[id] = random.choice([0, 0, 1])
            await jobs.add(ground.type, id, priority=self._priorities[id], run_at=at)
            self.due[id] = at
        self.watch(jobs)
        if random.random() < 0.5:
            await self.hold(random.choice([self._later, self._remove, self._take, self._nothing]))

    async def _later(self, id: JobId) -> None:
        at = self.ground.wall_time() + 2.0
        await self._jobs.resubmit(self.ground.type, id, run_at=at)
        self.due[id] = at

    async def _remove(self, id: JobId) -> None:
        await self._jobs.remove(self.ground.type, id)
        del self.due[id]

    async def _take(self, id: JobId) -> None:
        """Take a job in between, which makes due ones ready as well."""
        run = await self._jobs.accept(self.ground.type, timeout=0)
        if run is None:
            self.ground.complain(f"{self.due} is when jobs are due, and there is none at {self.ground.wall_time()}")
        else:
            self.acted_on = run.id
            self._note(run, self.ground.wall_time())

    async def _nothing(self, id: JobId) -> None:
        """Let it come."""

    def _note(self, run: RunningJob, now: float) -> None:
        at = self.due.pop(run.id)
        self._started[run.id] = now - at
        if at > now:
            self.ground.complain(f"{run.id!r} was started at {now}, before {at}")

    async def see(self) -> None:
        """Look until all are ready, and take them."""
        ground, jobs = self.ground, self._jobs
        last = max(self.due.values(), default=ground.wall_time())
        while True:
            told = (await jobs.counts(ground.type))[ground.type]
            now = ground.wall_time()
            later = sum(at > now for at in self.due.values())
            late = sum(now <= at + self.grace for at in self.due.values())
            if not later <= told.scheduled <= late or told.scheduled + told.ready != len(self.due):
                ground.complain(
                    f"{told.scheduled} are scheduled, {told.ready} ready at {now}: {self.due}; {self.pages}"
                )
            if now > last + self.grace:
                break
            await asyncio.sleep(0.25)
        self.is_busy = True
        runs = await jobs.accept_many(ground.type, self.count + 1, timeout=0)
        order = [self._priorities[run.id] for run in runs]
        times = [self.due[run.id] for run in runs]
        if {run.id for run in runs} != {*self.due} or order != sorted(order):
            ground.complain(f"{[run.id for run in runs]} were taken, with priorities {order}; {self.due} are there")
        if not self.has_acted and [*zip(order, times, strict=True)] != sorted(zip(order, times, strict=True)):
            ground.complain(f"jobs with {order} as priorities, that were due at {times}, were taken in this order")
        for run in runs:
            self._note(run, ground.wall_time())
        told = (await jobs.counts(ground.type))[ground.type]
        waited, count = sum(self._started.values()), len(self._started)
        if told.totals.started != count or told.waited.count != count or abs(told.waited.sum - waited) > 2e-3 * count:
            ground.complain(f"{count} were started that had waited for {waited} s together; told is {told}")
        for run in runs[:2]:
            if (await jobs.get(ground.type, run.id)).state is not JobState.RUNNING:
                ground.complain(f"{run.id!r} was taken, and does not run")
