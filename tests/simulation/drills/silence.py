"""Workers who fall silent, page by page, while the type's timeout changes: each job is lost once, within its bounds."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Any, Final

from jobs_service import JobNotFound, JobsService, JobState, NewJob, NoTypeTimeout, Outcome, RunningJob, WorkerConflict
from jobs_service.errors import TransactionTooLarge
from tests.simulation.drills.drill import LONG, Drill
from tests.simulation.drills.ground import Ground

_EARLY: Final = 1e-3
_MISSING: Final = 5.0
"""Seconds between two samples of a type that does not exist, as another service takes them."""


@dataclass
class _Held:
    """A running job.

    Attributes:
        job: as its worker has it.
        until: when its worker falls silent, on the loop's clock, seconds.
        last: when it was heard of last.
        canceled, again: whether somebody has asked for its removal, or for another run.
    """

    job: RunningJob
    until: float
    last: float
    canceled: bool = False
    again: bool = False


async def lose_in_pages(drill: Drill) -> None:
    """Have many workers fall silent at the same time or one by one, and change the timeout meanwhile."""
    random = drill.random
    batch = random.choice([1, 2, 3, 1000])
    ground = Ground(
        drill,
        activity_batch=batch,
        activity_batch_factor=random.choice([0.01, 0.5, 0.75]),
        activity_batch_increment=random.choice([0, 1, 100]),
        activity_samples=random.choice([4, 8]),
        type_idle_after=random.choice([0.5, 10.0]),
    )
    count = min(random.choice([1, batch, batch + 1, 2 * batch + 1]), random.choice([2, 7]))
    async with ground.service() as jobs, ground.service(supervise=random.random() < 0.6) as others:
        silence = _Silence(ground, jobs, others)
        await silence.begin(count)
        if random.random() < 0.3:
            ground.refuse_more_than(random.choice([1, 2]), jobs, lambda: TransactionTooLarge("it is a drill"))
        await silence.fall()
        await silence.look()


class _Silence:
    """Jobs whose workers fall silent.

    Args:
        ground: where.
        jobs, others: two services.
    """

    def __init__(self, ground: Ground, jobs: JobsService, others: JobsService) -> None:
        self._ground = ground
        self._random = ground.random
        self._jobs = jobs
        self._others = others
        self._seconds = ground.random.choice([1.0, 2.0])
        self._held: dict[str, _Held] = {}
        self._keep: float | None = ground.random.choice([None, None, 0.0])
        # When silence was measured anew: from when on, by which timeout, and how much later that may be known.
        self._measured: list[tuple[float, float | None, float]] = []

    async def begin(self, count: int) -> None:
        """Have jobs run, whose workers go on for some time."""
        ground, random, kind = self._ground, self._random, self._ground.type
        await self._jobs.set_type_timeout(kind, self._seconds)
        self._measured.append((ground.time(), self._seconds, 0.0))
        if self._keep is not None:
            await self._jobs.set_retention(kind, keep=self._keep)
        ids = [str(number) for number in range(count)]
        await self._jobs.add_many(kind, [NewJob(id, priority=random.choice([0, 4])) for id in ids])
        while len(self._held) < count:
            for job in await self._jobs.accept_many(kind, random.choice([1, count]), timeout=0):
                now = ground.time()
                self._held[str(job.id)] = _Held(job, now + random.choice([0.0, 0.0, self._seconds, 2.5]), now)
            await asyncio.sleep(random.choice([0.0, 0.05]))

    async def fall(self) -> None:
        """Have each worker show that he is alive until he falls silent; change the timeout at some time."""
        ground, random = self._ground, self._random
        change = random.choice(["", "longer", "shorter", "same", "clear", "clear for good"])
        if change:
            at = ground.time() + random.uniform(0.0, 0.9 * self._seconds)
            await self._live(at)
            await self._change(change)
        await self._live(max(each.until for each in self._held.values()) + 0.01)
        for each in self._held.values():
            if random.random() < 0.25:
                with contextlib.suppress(JobNotFound):
                    state = (await self._jobs.get(self._ground.type, each.job.id)).state
                    if state is JobState.RUNNING:
                        await self._others.remove(self._ground.type, each.job.id)
                        each.canceled = True
        seconds, since = self._now_measured()
        longest = 5.0 if seconds is None else 1.5 * seconds + 1.0
        await asyncio.sleep(max(0.0, since - ground.time()) + longest + 0.05)

    def _now_measured(self) -> tuple[float | None, float]:
        since, seconds, late = self._measured[-1]
        return seconds, since + late

    async def _live(self, until: float) -> None:
        """Have those show that they are alive who still do, until some time."""
        ground, random = self._ground, self._random
        while (now := ground.time()) < until:
            for each in self._held.values():
                if now < each.until and random.random() < 0.7:
                    await self._show(each)
            await asyncio.sleep(min(0.6 * self._seconds, until - now) + 0.001)

    async def _show(self, each: _Held) -> None:
        """Show that a job is alive; it may be lost already where its worker was silent for a while."""
        way = self._random.choice(["update", "progress", "again"])
        with contextlib.suppress(WorkerConflict):
            if way == "update":
                each.job = await each.job.update()
            elif way == "progress":
                each.job = await each.job.progress(1, 2)
            else:
                each.job = await each.job.resubmit(priority=3)
                each.again = True
            each.last = self._ground.time()

    async def _change(self, how: str) -> None:
        """Change the type's timeout."""
        ground, kind, before = self._ground, self._ground.type, self._seconds
        by = self._random.choice([self._jobs, self._others])
        # Who does not change it himself knows it with the next sample.
        late = 0.0 if by is self._jobs else before / 4 + 0.3
        if how.startswith("clear"):
            await by.clear_type_timeout(kind)
            self._measured.append((ground.time(), None, late))
            with contextlib.suppress(NoTypeTimeout):
                await self._others.add(kind, "new")
                ground.complain("a type was cleared, and a job was added to it")
            if how == "clear for good":
                return
            await self._live(ground.time() + self._random.choice([0.0, 1.5, 3 * before]))
            late = max(late, 0.0 if by is self._jobs else _MISSING)
            self._seconds = before
        elif how != "same":
            self._seconds = before * (3.0 if how == "longer" else 0.5)
        await by.set_type_timeout(kind, self._seconds)
        if how != "same":
            self._measured.append((ground.time(), self._seconds, late))

    # What became of them

    async def look(self) -> None:
        """Each was lost when it had to be, not before, and once; who had it has it no more."""
        ground, kind = self._ground, self._ground.type
        seconds, since = self._now_measured()
        for id, each in self._held.items():
            try:
                found = await self._jobs.get(kind, id)
            except JobNotFound:
                if not (each.canceled and self._keep == 0.0 and seconds is not None):
                    ground.complain(f"{id!r} is gone, of which nobody has asked that")
                continue
            lost = [event.at for event in found.history if event.kind.value == "lost"]
            if seconds is None and not lost:
                if found.state is not JobState.RUNNING:
                    ground.complain(f"{id!r} was not lost, and is {found}")
                continue
            late = max(each.last, since) + 1.5 * (seconds or LONG) + 1.0
            now = ground.time() - ground.wall_time()
            times = [at + now for at in lost]
            if len(times) != 1 or not self._earliest(each) - _EARLY <= times[0] <= late + _EARLY:
                bounds = f"from {self._earliest(each):.3f} to {late:.3f}"
                ground.complain(f"{id!r} was heard of at {each.last:.3f}, and to be lost {bounds}: it was at {times}")
            wanted = (JobState.FINISHED, Outcome.CANCELED) if each.canceled else (JobState.PENDING, None)
            priority = 3 if each.again and not each.canceled else each.job.priority
            if (found.state, found.outcome) != wanted or found.priority != priority:
                ground.complain(f"{id!r} was lost (canceled={each.canceled}), and is {found}, {found.priority!r}")
            await self._is_refused(each)
        if seconds is not None:
            await self._run_again()

    def _earliest(self, each: _Held) -> float:
        """Return when a job may be lost at the earliest: never before it was silent for the timeout there was then."""
        moments = []
        for number, (since, seconds, _) in enumerate(self._measured):
            until = self._measured[number + 1][0] if number + 1 < len(self._measured) else float("inf")
            if seconds is not None and (moment := max(each.last + seconds, since)) < until:
                moments.append(moment)
        return min(moments, default=float("inf"))

    async def _is_refused(self, each: _Held) -> None:
        job = each.job
        ways: dict[str, Any] = {"update": job.update, "finish": job.finish, "release": job.release}
        name = self._random.choice([*ways])
        with contextlib.suppress(WorkerConflict):
            await ways[name]()
            self._ground.complain(f"{name} of {job.id!r} was done by a worker who had lost it")

    async def _run_again(self) -> None:
        """Those that were lost can be accepted, those of the lowest priority first, for a second attempt."""
        left = {id for id, each in self._held.items() if not each.canceled}
        found = []
        for _ in range(len(left) + 1):
            found += await self._others.accept_many(self._ground.type, 50, timeout=0)
        priorities = [job.priority for job in found]
        if {str(job.id) for job in found} != left or priorities != sorted(priorities, key=repr):
            self._ground.complain(f"{left} were lost, and these can be accepted: {found}, {priorities}")
        for job in found:
            if job.attempts != 2:
                self._ground.complain(f"{job!r} was lost once, and this is attempt {job.attempts}")
            await job.finish()
