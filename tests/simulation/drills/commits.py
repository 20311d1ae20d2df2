"""What many callers ask for at once, on a store that refuses some of it: each is told what became of its own part."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from jobs_service import (
    JobExists,
    JobId,
    JobNotFound,
    JobsError,
    JobsService,
    JobState,
    JobTooLarge,
    NoTypeTimeout,
    Removal,
    RunningJob,
    StoreError,
    WorkerConflict,
)
from jobs_service.batching import group_commit
from jobs_service.errors import InvalidJob, StoreUnavailable, TransactionConflict
from jobs_service.layer import creation
from tests.simulation.drills.drill import LONG, Drill, all_ended
from tests.simulation.drills.ground import TOO_MUCH, Ground, away
from tests.simulation.rarities import few_at_once_are_drawn

_POISON: Final = "poison"
"""The job whose record cannot be written, where there is one."""


_ASKED: Final = (
    *("add", "add", "add again", "ignore", "no type", "large", "invalid", "resubmit", "resubmit none", "remove"),
    *("remove none", "cancel", "force", "finish", "update", "release", "late", "get"),
)
"""What may be asked for."""

_NOTHING: Final = type(None)


@dataclass
class _Asked:
    """Something that was asked for.

    Attributes:
        what: it is, for people.
        id: of the job that it is about, and nothing else.
        ask: asks for it.
        error: that it must end with; None if it must be done.
        state: of its job afterwards, None if there is none; `before` if it is not done.
        answer: what it must be answered, None if any job will do.
        counts: whether it is one of those that share transactions.
        may_be_away: whether it may be told instead that the store does not answer.
    """

    what: str
    id: JobId
    ask: Callable[[], Awaitable[Any]]
    error: type[Exception] | None
    state: JobState | None
    before: JobState | None
    answer: Any = None
    counts: bool = True
    may_be_away: bool = False


async def share_commits(drill: Drill) -> None:
    """Have many ask for something at once, each for a job of its own; the store takes it, or some, or nothing of it."""
    ground = Ground(drill)
    async with ground.service(supervise=False) as jobs:
        asking = _Asking(ground, jobs)
        await jobs.set_type_timeout(ground.type, LONG)
        for _ in range(drill.random.randint(1, 3)):
            await asking.ask()
        await asking.end_many()


class _Asking:
    """Those who ask for something.

    Args:
        ground: where.
        jobs: whom they ask.
    """

    def __init__(self, ground: Ground, jobs: JobsService) -> None:
        self._ground = ground
        self._jobs = jobs
        self._round = 0
        self._urgent = 0

    async def ask(self) -> None:
        """Ask for many things at once, and compare what each is told, and what is there."""
        ground, random = self._ground, self._ground.random
        self._round += 1
        most = group_commit._MOST_OPERATIONS
        count = random.choice([1, 2, 7, 20, *([most, most + 1] if most < 20 else [])])
        asked = [await self._one(f"{self._round}/{number}") for number in range(count)]
        how = random.choice(["all", "all", "few", "poison", "poison", "away", "conflict", "gone"])
        poison = None
        if how == "few":
            ground.refuse_more_than(random.choice([1, 2, 3]), self._jobs, random.choice(TOO_MUCH))
        elif how == "poison":
            poison = random.choice(TOO_MUCH)
            ground.refuse_those_of(_POISON, self._jobs, poison)
            id, place = _POISON, random.randrange(len(asked) + 1)
            ask = _asks(self._jobs.add, ground.type, id)
            asked.insert(place, _Asked("add", id, ask, poison().__class__, None, None))
        elif how == "away":
            ground.refuse_next(10**6, away)
            for each in asked:
                # What writes nothing has an answer nevertheless, unless it shares a transaction with what does.
                each.may_be_away = each.error is not None or each.what in ("ignore", "get")
                if not each.may_be_away:
                    each.error, each.state = StoreUnavailable, each.before
        elif how == "conflict":
            ground.refuse_next(random.choice([1, 3]), _conflict)
        before = ground.store.metrics()["transactions"]
        tasks = [asyncio.create_task(_awaited(each.ask), name=each.what) for each in asked]
        gone: list[asyncio.Task[Any]] = []
        if how == "gone":
            gone = random.sample(tasks, random.choice([1, len(tasks)]))
            for task in gone:  # before any of them could begin
                task.cancel()
            asked = [each for each, task in zip(asked, tasks, strict=True) if task not in gone]
            tasks = [task for task in tasks if task not in gone]
        late = await all_ended(tasks, ground.drill.moment)
        ground.doors.refuse = None
        if late:
            ground.complain(f"{[each.get_name() for each in late]} of {len(tasks)} ({how}) were not answered")
            return
        done = ground.store.metrics()["transactions"] - before
        self._compare(how, asked, tasks)
        shared = sum(each.counts for each in asked)
        if how == "all" and shared == len(asked) and self._is_exact() and done > math.ceil(shared / most):
            ground.complain(f"{shared} asked in one turn for something, and that took {done} transactions")
        await self._look(how, asked)

    def _is_exact(self) -> bool:
        """Whether all that is asked for in one turn is known to be so."""
        is_usual = not few_at_once_are_drawn()
        return self._ground.drill.run.world.choices.disorder == 0 and is_usual

    def _compare(self, how: str, asked: list[_Asked], tasks: list[asyncio.Task[Any]]) -> None:
        told: list[BaseException] = []
        for each, task in zip(asked, tasks, strict=True):
            error = None if task.cancelled() else task.exception()
            if each.may_be_away and isinstance(error, StoreUnavailable):
                told.append(error)
            elif task.cancelled() or error.__class__ is not (each.error or type(None)):
                answer = "that it was canceled" if task.cancelled() else repr(error or task.result())
                self._ground.complain(f"{each.what} of {each.id!r} ({how}) was told {answer}, not {each.error}")
            elif error is not None:
                told.append(error)
                self._check_error(how, each, error)
            elif each.answer is not None and task.result() != each.answer:
                self._ground.complain(f"{each.what} of {each.id!r} was told {task.result()!r}, not {each.answer!r}")
            elif each.answer is None and (task.result().id, task.result().state) != (each.id, each.state):
                self._ground.complain(f"{each.what} of {each.id!r} was told {task.result()!r}, not {each.state}")
        if len({id(error) for error in told}) < len(told):
            self._ground.complain(f"{how}: several were told one and the same error of {told}")

    def _check_error(self, how: str, asked: _Asked, error: BaseException) -> None:
        """An error of one job says which; what it has been through is what its caller sees, not others."""
        is_of_job = isinstance(error, JobsError) and not isinstance(error, StoreError | NoTypeTimeout)
        if is_of_job and error.id != asked.id:  # type: ignore[attr-defined]
            self._ground.complain(f"{asked.what} of {asked.id!r} ({how}) was told {error!r}, of {error.id!r}")  # type: ignore[attr-defined]

    async def _look(self, how: str, asked: list[_Asked]) -> None:
        """What was done is there, and what was refused is not."""
        there = {job.id: job.state async for job in self._jobs.list(self._ground.type)}
        for each in asked:
            wanted = each.state if each.error is None else each.before
            if there.get(each.id) is not wanted:
                was = f"({how}, {each.error}) it is {there.get(each.id)}, not {wanted}"
                self._ground.complain(f"{each.what} was asked for {each.id!r}: {was}")

    async def _one(self, id: JobId) -> _Asked:
        """Return something to ask for, about a job of its own."""
        jobs, type, random = self._jobs, self._ground.type, self._ground.random
        what = random.choice(_ASKED)
        pending, running, finished = JobState.PENDING, JobState.RUNNING, JobState.FINISHED
        if what in ("add", "large", "invalid", "no type"):
            data = {"large": "x" * 100_001, "invalid": float("nan")}.get(what)
            wanted = {"large": JobTooLarge, "invalid": InvalidJob, "no type": NoTypeTimeout}.get(what)
            ask = _asks(jobs.add, ("none", type) if what == "no type" else type, id, data)
            state = pending if wanted is None else None
            return _Asked(what, id, ask, wanted, state, None, counts=what not in ("large", "invalid"))
        if what in ("resubmit none", "remove none"):
            ask = _asks(jobs.resubmit if what == "resubmit none" else jobs.remove, type, id)
            return _Asked(what, id, ask, JobNotFound, None, None)
        await jobs.add(type, id)
        if what in ("add again", "ignore", "resubmit", "remove", "get"):
            ways: dict[str, Callable[[], Awaitable[Any]]] = {
                "add again": lambda: jobs.add(type, id),
                "ignore": lambda: jobs.add(type, id, {"other": 1}, if_exists="ignore"),
                "resubmit": lambda: jobs.resubmit(type, id, priority=5),
                "remove": lambda: jobs.remove(type, id),
                "get": lambda: jobs.get(type, id),
            }
            if what == "remove":
                return _Asked(what, id, ways[what], None, None, pending, Removal.REMOVED)
            error = JobExists if what == "add again" else None
            return _Asked(what, id, ways[what], error, pending, pending, counts=what != "get")
        job = await self._take(id)
        if what == "late":
            await job.release()
            calls: list[Callable[[], Awaitable[Any]]] = [job.finish, job.update, job.release, job.resubmit]
            return _Asked(what, id, random.choice(calls), WorkerConflict, pending, pending)
        if what in ("cancel", "force"):
            after, answer = (running, Removal.CANCELED) if what == "cancel" else (None, Removal.REMOVED)
            return _Asked(what, id, _asks(jobs.remove, type, id, force=what == "force"), None, after, running, answer)
        ends: dict[str, tuple[Callable[[], Awaitable[Any]], JobState]] = {
            "finish": (job.finish, finished),
            "update": (job.update, running),
            "release": (job.release, pending),
        }
        return _Asked(what, id, ends[what][0], None, ends[what][1], running)

    async def _take(self, id: JobId) -> RunningJob:
        """Have one job run."""
        type = self._ground.type
        self._urgent -= 1  # those that were given back have the ones before

        async def take(tx: Any) -> RunningJob:
            await tx.resubmit(type, id, priority=self._urgent)
            return await tx.accept(type, max_priority=self._urgent)  # type: ignore[no-any-return]

        return await self._jobs.transact(take)

    async def end_many(self) -> None:
        """Have one caller ask for something of many jobs, as those do who end runs: it is told of each, once."""
        ground, random, type = self._ground, self._ground.random, self._ground.type
        ids = [f"many {number}" for number in range(random.choice([1, 2, 3, 8, 31, 32, 33]))]
        missing = {*random.sample(ids, random.choice([0, 1, len(ids) // 2]))}
        poison = random.choice([None, None, *ids])
        for id in ids:
            if id not in missing:
                await self._jobs.add(type, id)
        how = random.choice(["all", "few", "poison", "away", "conflict"])
        error = random.choice(TOO_MUCH)
        if how == "few":
            ground.refuse_more_than(random.choice([1, 2, 3]), self._jobs, error)
        elif how == "poison" and poison is not None and poison not in missing:
            ground.refuse_those_of(poison, self._jobs, error)
        elif how == "away":
            ground.refuse_next(10**6, away)
        elif how == "conflict":
            ground.refuse_next(2, _conflict)
        answers: list[Sequence[Exception | None]] = []
        place = self._jobs._access.place
        calls = [(creation.remove, place(type, id), (False,)) for id in ids]
        self._jobs._operations.operate_all(calls, answers.append, size=100)
        other = asyncio.create_task(_awaited(lambda: self._jobs.remove(type, "nobody")), name="beside")
        await all_ended([other], ground.drill.moment)
        for _ in range(3):
            await asyncio.sleep(0.01)
        ground.doors.refuse = None
        told = [[each.__class__ for each in answer] for answer in answers]
        wanted: list[Any] = [JobNotFound if id in missing else _NOTHING for id in ids]
        if how == "away" and len(missing) < len(ids):
            wanted = [StoreUnavailable] * len(ids)
        elif how == "poison" and poison is not None and poison not in missing:
            wanted[ids.index(poison)] = error().__class__
        if told != [wanted]:
            ground.complain(f"{len(ids)} jobs were to be removed at once ({how}): told was {told}, not {[wanted]}")
        there = {job.id async for job in self._jobs.list(type)}
        for id, kind in zip(ids, wanted, strict=True):
            if id not in missing and (id in there) != (kind not in (_NOTHING, JobNotFound)):
                ground.complain(f"{id!r} was to be removed ({how}), which was told {kind}; there is {there}")


async def _awaited(ask: Callable[[], Awaitable[Any]]) -> Any:
    return await ask()


def _asks(call: Callable[..., Awaitable[Any]], *args: Any, **options: Any) -> Callable[[], Awaitable[Any]]:
    return lambda: call(*args, **options)


def _conflict() -> StoreError:
    return TransactionConflict("it is a drill")
