"""Several who follow the same jobs, quick and slow ones, while parts crash and the service is left: each is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

from jobs_service import (
    JobEvent,
    JobNotFound,
    JobsService,
    JobState,
    JobTransaction,
    NewJob,
    Outcome,
    RunningJob,
    ServiceClosed,
)
from tests.simulation.drills.drill import LONG, Drill, all_ended
from tests.simulation.drills.ground import SOON, Ground
from tests.simulation.weather import tree_tasks

_FINAL: Final = (JobState.FINISHED, JobState.REMOVED)
_LATER: Final = 900.0
_SLOW: Final = 6.0
"""Seconds that a slow one rests before each event."""

News = tuple[Any, ...]
"""All that is told of a job."""


def _news(job: Any) -> News:
    """Return what is told of a job, by the job or by an event."""
    progress = None if job.progress is None else job.progress.done
    run_at = job.run_at if job.state is JobState.PENDING else None
    return job.state, job.data, job.outcome, progress, job.attempts, run_at


class _Follower:
    """Somebody who follows some jobs.

    Args:
        jobs: the service by which he does.
        kind: the type of the jobs.
        ids: theirs.
        rest: seconds before each event that he takes.

    Attributes:
        told: what he was told of each job, in its order.
        errors: what he was told instead.
        missing: the jobs that there were not when he began.
        is_over: whether there is nothing more.
    """

    def __init__(self, jobs: JobsService, kind: Any, ids: list[str], rest: float) -> None:
        self.ids = ids
        self.rest = rest
        self.told: dict[str, list[News]] = {id: [] for id in ids}
        self.errors: list[JobNotFound | ServiceClosed] = []
        self.missing: set[str] = set()
        self.is_over = False
        self.task = asyncio.create_task(self._follow(jobs, kind), name="follows")

    async def _follow(self, jobs: JobsService, kind: Any) -> None:
        async with jobs.subscribe_many((kind, id) for id in self.ids) as events:
            while True:
                await asyncio.sleep(self.rest)
                try:
                    event: JobEvent = await anext(events)
                except StopAsyncIteration:
                    self.is_over = True
                    return
                except (JobNotFound, ServiceClosed) as error:
                    self.errors.append(error)
                    continue
                self.told[str(event.id)].append(_news(event))


async def follow_beside_others(drill: Drill) -> None:
    """Have some follow jobs that are in all states, change these, and tell each no more and no less than there is."""
    random = drill.random
    ground = Ground(drill, notifier_batch=random.choice([1, 3, 1000]), notify_holdoff=random.choice([0.0, 0.05]))
    async with ground.service(supervise=False) as others:
        service = ground.service(max_restarts=20)
        following = _Following(ground, service, others)
        async with service:
            await following.prepare(random.choice([1, 3, 3, 9, 12]))
            await following.begin()
            for _ in range(random.randint(2, 6)):
                await random.choice([following.change, following.change, following.crash, following.join])()
            await following.catch_up()
        await following.end()


class _Following:
    """Jobs, and those who follow them.

    Args:
        ground: where.
        jobs: the service by which they are followed.
        others: by which they are changed.
    """

    def __init__(self, ground: Ground, jobs: JobsService, others: JobsService) -> None:
        self._ground = ground
        self._random = ground.random
        self._jobs = jobs
        self._others = others
        self._ids: list[str] = []
        self._running: dict[str, RunningJob] = {}
        self._followers: list[_Follower] = []
        self._gone: set[int] = set()
        self._number = 0
        # What each follower knows already, by his number and the job's id.
        self._known: dict[tuple[int, str], News] = {}

    async def prepare(self, count: int) -> None:
        """Have jobs be there in all states."""
        kind, now = self._ground.type, self._ground.wall_time()
        await self._others.set_type_timeout(kind, LONG)
        for number in range(count):
            id, state = f"{number}", self._random.choice(["ready", "later", "runs", "runs", "done", "failed", "none"])
            self._ids.append(id)
            if state != "none":
                await self._others.add(kind, id, {"n": -number}, run_at=now + _LATER if state == "later" else None)
            if state not in ("none", "ready", "later"):
                await self._take(id)
            if state in ("done", "failed"):
                outcome = Outcome.SUCCEEDED if state == "done" else Outcome.FAILED
                await self._running.pop(id).finish(outcome=outcome)

    async def _take(self, id: str) -> None:
        kind, self._number = self._ground.type, self._number + 1
        priority = -self._number

        async def take(tx: JobTransaction) -> RunningJob | None:
            await tx.resubmit(kind, id, priority=priority, run_at=None)
            return await tx.accept(kind, max_priority=priority)

        job = await self._others.transact(take)
        assert job is not None
        self._running[id] = job

    async def begin(self) -> None:
        """Have some follow jobs, and be told what there is; who follows nothing is told that it is over."""
        for _ in range(self._random.randint(1, 3)):
            await self._follow()
        async with asyncio.timeout(SOON):
            if (event := await anext(self._jobs.subscribe_many([]), None)) is not None:
                self._ground.complain(f"nothing was followed, and it was told {event}")
        await asyncio.sleep(SOON)
        await self._compare("who begins to follow jobs")

    async def _follow(self) -> None:
        there = {job.id async for job in self._others.list(self._ground.type)}
        some = self._random.sample(self._ids, self._random.randint(1, len(self._ids)))
        follower = _Follower(self._jobs, self._ground.type, some, self._random.choice([0.0, 0.0, _SLOW]))
        follower.missing = {id for id in some if id not in there}
        self._followers.append(follower)

    async def join(self) -> None:
        """Have one more begin, or one go."""
        if self._random.random() < 0.3 and len(self._followers) - len(self._gone) > 1:
            number = self._random.choice([each for each in range(len(self._followers)) if each not in self._gone])
            self._followers[number].task.cancel()
            await asyncio.wait([self._followers[number].task])
            self._gone.add(number)
        else:
            await self._follow()
        await asyncio.sleep(SOON)
        await self._compare("who follows jobs beside one who comes or goes")

    async def change(self) -> None:
        """Change some jobs, each once."""
        some = self._random.sample(self._ids, self._random.randint(1, min(4, len(self._ids))))
        for id in some:
            await self._change(id)
        await asyncio.sleep(SOON)
        await self._compare(f"who follows {some}, which have changed,")

    async def _change(self, id: str) -> None:
        kind = self._ground.type
        self._number += 1
        data = {"n": self._number}
        try:
            found = await self._others.get(kind, id)
        except JobNotFound:
            return
        if found.state is JobState.FINISHED:
            return
        job = self._running.get(id)
        ways: dict[str, Callable[[], Any]] = {
            "resubmit": lambda: self._others.resubmit(kind, id, data=data),
            "take": lambda: self._take(id),
            "remove": lambda: self._others.remove(kind, id),
            "anew": lambda: self._anew(id, data),
        }
        if job is not None:
            ways = {"progress": lambda: job.progress(self._number), "update": lambda: job.update(data)}
            ways |= {"alive": job.update, "finish": job.finish, "release": job.release}
            ways["anew"] = lambda: self._anew(id, data)
        way = self._random.choice([*ways])
        if way in ("finish", "release", "anew"):
            self._running.pop(id, None)
        await ways[way]()

    async def _anew(self, id: str, data: Any) -> None:
        """Remove a job, and add it again, in one transaction."""
        kind = self._ground.type

        async def make(tx: JobTransaction) -> None:
            await tx.remove(kind, id, force=True)
            await tx.add_many(kind, [NewJob(id, data)])

        await self._others.transact(make)

    async def crash(self) -> None:
        """Have a part of the service crash while jobs change."""
        self._ground.drill.run.crashes.crashed(self._ground.drill.client.process)
        _, task = self._random.choice([*tree_tasks(self._jobs)])
        task.cancel()
        await asyncio.sleep(self._random.choice([0.0, 0.0, 0.01]))
        await self.change()

    async def catch_up(self) -> None:
        """Slow ones are told of each job, and know in the end what it is."""
        is_slow = any(each.rest > 0 for each in self._followers)
        await asyncio.sleep((_SLOW + 1.0) * (len(self._ids) + 1) if is_slow else SOON)
        await self._compare("who has caught up", slow=True)

    async def end(self) -> None:
        """The service was left: whoever still followed jobs is told that, for each of them; the others have ended."""
        left = [each.task for number, each in enumerate(self._followers) if number not in self._gone]
        if late := await all_ended(left, (_SLOW + 1.0) * (len(self._ids) + 1)):
            self._ground.complain(f"a service was left, and {len(late)} follow jobs")
        for number, each in enumerate(self._followers):
            if number in self._gone:
                continue
            missing = [error for error in each.errors if isinstance(error, JobNotFound)]
            ended = [id for id in each.ids if self._known.get((number, id), (None,))[0] in _FINAL]
            closed, wanted = len(each.errors) - len(missing), len(each.ids) - len(ended) - len(missing)
            if closed != wanted or not each.is_over:
                self._ground.complain(
                    f"a service was left; of {each.ids} {ended} had ended and {len(missing)} were missing; it was told"
                    f" {closed} times that it is closed, {each.is_over=}"
                )

    async def _compare(self, who: str, *, slow: bool = False) -> None:
        """Each knows what there is now, and was told nothing that he knew."""
        now: dict[str, News] = {}
        for id in self._ids:
            try:
                now[id] = _news(await self._others.get(self._ground.type, id))
            except JobNotFound:
                now[id] = (JobState.REMOVED, None, None, None, 0, None)
        for number, each in enumerate(self._followers):
            if number in self._gone or (each.rest > 0 and not slow):
                continue
            for id in each.ids:
                self._compare_one(who, number, id, now[id])

    def _compare_one(self, who: str, number: int, id: str, now: News) -> None:
        each = self._followers[number]
        came, each.told[id] = [*each.told[id]], []
        if id in each.missing:
            was_told = [error for error in each.errors if isinstance(error, JobNotFound) and error.id == id]
            if came or len(was_told) != 1:
                self._ground.complain(f"{who} was told {came} and {each.errors} of {id!r}, which there is not")
            return
        known = self._known.get((number, id))
        wanted = [] if now == known or (known or (None,))[0] in _FINAL else [now]
        if each.rest > 0 and came[-1:] == wanted and all(one != other for one, other in pairwise(came)):
            wanted = came  # he has taken some before there was more news
        if came != wanted:
            self._ground.complain(f"{who} was told {came} of {id!r}, not {wanted}; it knew {known}")
        self._known[number, id] = came[-1] if came else now
