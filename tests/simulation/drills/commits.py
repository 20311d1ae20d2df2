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
    JobTransaction,
    NewJob,
    NoTypeTimeout,
    Removal,
    RunningJob,
    StoreError,
    WorkerConflict,
    batching,
)
from jobs_service.batching import _ALONE
from jobs_service.errors import InvalidJob, RecordDamaged, StoreUnavailable
from jobs_service.layer import creation
from jobs_service.layer.keyspace import pack_id
from jobs_service.store.base import Limits, Transaction
from tests.simulation.drills.drill import LONG, Drill, all_ended
from tests.simulation.drills.ground import TOO_MUCH, Ground, away, conflict
from tests.simulation.rarities import few_at_once_are_drawn, pages_are_small

_POISON: Final = "poison"
"""The job whose record cannot be written, where there is one."""


_NOTHING: Final = type(None)

_WAYS: Final = (
    *("add", "add", "add again", "ignore", "no type", "large", "invalid", "resubmit", "resubmit none", "remove"),
    *("remove none", "cancel", "force", "finish", "update", "release", "late", "get", "damaged"),
)
"""What is asked for."""

_HEAVY: Final = 96_000
"""Bytes of a job of which about twenty are more than shares a transaction."""

_TIGHT: Final = Limits(transaction=30_000)
"""Of a store in which a few jobs of the following size fill a transaction."""

_PADDING: Final = 1_500


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
    """

    what: str
    id: JobId
    ask: Callable[[], Awaitable[Any]]
    error: type[Exception] | None
    state: JobState | None
    before: JobState | None
    answer: Any = None
    counts: bool = True


async def share_commits(drill: Drill) -> None:
    """Have many ask for something at once, each for a job of its own; the store takes it, or some, or nothing of it."""
    random = drill.random
    is_tight = random.random() < 0.25
    ground = Ground(drill, limits=_TIGHT if is_tight else None, overlaps=random.random() < 0.5)
    async with ground.service(supervise=False) as jobs:
        asking = _Asking(ground, jobs, "x" * _PADDING if is_tight else None)
        await jobs.set_type_timeout(ground.type, LONG)
        for _ in range(random.randint(1, 3)):
            await asking.ask()
        await random.choice([asking.withdraw, asking.end_many, asking.end_many])()
        if random.random() < 0.1 and not is_tight:
            await asking.ask_for_much()


class _Asking:
    """Those who ask for something.

    Args:
        ground: where.
        jobs: whom they ask.
        data: of the jobs.
    """

    def __init__(self, ground: Ground, jobs: JobsService, data: str | None) -> None:
        self._ground = ground
        self._data = data
        self._jobs = jobs
        self._round = 0
        self._first = 0

    async def ask(self) -> None:
        """Ask for many things at once, and compare what each is told, and what is there."""
        ground, random = self._ground, self._ground.random
        self._round += 1
        most = batching._MOST_OPERATIONS
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
                if each.counts:
                    each.error, each.state = StoreUnavailable, each.before
        elif how == "conflict":
            ground.refuse_next(random.choice([1, 3]), conflict)
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
        is_whole = how == "all" and shared == len(asked) and self._is_exact() and self._data is None
        if is_whole and done != math.ceil(shared / most):
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
            if task.cancelled() or error.__class__ is not (each.error or type(None)):
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
        is_of_job = isinstance(error, RecordDamaged) or not isinstance(error, StoreError | NoTypeTimeout)
        if is_of_job and isinstance(error, JobsError) and error.id != asked.id:
            self._ground.complain(f"{asked.what} of {asked.id!r} ({how}) was told {error!r}, of {error.id!r}")

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
        jobs, kind, random = self._jobs, self._ground.type, self._ground.random
        what = random.choice(_WAYS)
        pending, running, finished = JobState.PENDING, JobState.RUNNING, JobState.FINISHED
        if what in ("add", "large", "invalid", "no type"):
            data = {"large": "x" * 100_001, "invalid": float("nan")}.get(what, self._data)
            wanted = {"large": JobTooLarge, "invalid": InvalidJob, "no type": NoTypeTimeout}.get(what)
            ask = _asks(jobs.add, ("none", kind) if what == "no type" else kind, id, data)
            state = pending if wanted is None else None
            return _Asked(what, id, ask, wanted, state, None, counts=what != "invalid")
        if what in ("resubmit none", "remove none"):
            call: Callable[..., Awaitable[Any]] = jobs.resubmit if what == "resubmit none" else jobs.remove
            return _Asked(what, id, _asks(call, kind, id), JobNotFound, None, None)
        await jobs.add(kind, id, self._data)
        if what in ("add again", "ignore", "resubmit", "remove", "get"):
            rule: Any = "ignore" if what == "ignore" else "error"
            ways: dict[str, Callable[[], Awaitable[Any]]] = {
                "add again": lambda: jobs.add(kind, id),
                "ignore": lambda: jobs.add(kind, id, {"other": 1}, if_exists=rule),
                "resubmit": lambda: jobs.resubmit(kind, id, priority=5),
                "remove": lambda: jobs.remove(kind, id),
                "get": lambda: jobs.get(kind, id),
            }
            if what == "remove":
                return _Asked(what, id, ways[what], None, None, pending, Removal.REMOVED)
            error = JobExists if what == "add again" else None
            return _Asked(what, id, ways[what], error, pending, pending, counts=what != "get")
        if what == "damaged":
            await self._damage(id)
            unreadable = JobState.UNREADABLE
            return _Asked(what, id, _asks(jobs.resubmit, kind, id), RecordDamaged, unreadable, unreadable)
        job = await self._take(id)
        if what == "late":
            await job.release()
            calls: list[Callable[[], Awaitable[Any]]] = [job.finish, job.update, job.release, job.resubmit]
            return _Asked(what, id, random.choice(calls), WorkerConflict, pending, pending)
        if what in ("cancel", "force"):
            after, answer = (running, Removal.CANCELED) if what == "cancel" else (None, Removal.REMOVED)
            return _Asked(what, id, _asks(jobs.remove, kind, id, force=what == "force"), None, after, running, answer)
        states: dict[str, tuple[Any, JobState]]
        states = {"finish": (job.finish, finished), "update": (job.update, running), "release": (job.release, pending)}
        call, after = states[what]
        return _Asked(what, id, call, None, after, running)

    async def _damage(self, id: JobId) -> None:
        """Have the record of a job be one that cannot be read."""
        key = self._jobs._context.keyspace.of(self._ground.type).data + pack_id(id)

        async def write(transaction: Transaction) -> None:
            transaction.set(key, b"\xffdamaged")

        await self._ground.store.transact(write)

    async def _take(self, id: JobId) -> RunningJob:
        """Have one job run."""
        kind, self._first = self._ground.type, self._first - 1
        priority = self._first

        async def take(tx: JobTransaction) -> RunningJob | None:
            await tx.resubmit(kind, id, priority=priority)
            return await tx.accept(kind, max_priority=priority)

        job = await self._jobs.transact(take)
        assert job is not None
        return job

    async def end_many(self) -> None:
        """Have one caller ask for something of many jobs, as those do who end runs: it is told of each, once."""
        ground, random, kind = self._ground, self._ground.random, self._ground.type
        ids = [f"many {number}" for number in range(random.choice([1, 2, 3, 8, 31, 32, 33]))]
        missing = {*random.sample(ids, random.choice([0, 1, len(ids) // 2]))}
        poison = random.choice([None, None, *ids])
        for id in ids:
            if id not in missing:
                await self._jobs.add(kind, id, self._data)
        how = random.choice(
            ["all", "all", "few", "poison", "away", "conflict", "late" if self._data is None else "all"]
        )
        error = random.choice(TOO_MUCH)
        if how == "few":
            ground.refuse_more_than(random.choice([1, 2, 3]), self._jobs, error)
        elif how == "poison" and poison is not None and poison not in missing:
            ground.refuse_those_of(poison, self._jobs, error)
        elif how == "away":
            ground.refuse_next(10**6, away)
        elif how == "conflict":
            ground.refuse_next(2, conflict)
        elif how == "late":
            ground.doors.shut = "answer"
        before = ground.store.metrics()["transactions"]
        answers: list[Sequence[Exception | None]] = []
        place = self._jobs._access.place
        calls = [(creation.remove, place(kind, id), (False,)) for id in ids]
        self._jobs._operations.operate_all(calls, answers.append, size=100)
        if how == "late":
            await asyncio.sleep(ground.settings.transaction_timeout + 0.1)
            ground.doors.open()
        other = asyncio.ensure_future(self._jobs._operations.operate(creation.remove, place(kind, "nobody"), False))
        await all_ended([other], ground.drill.moment)
        for _ in range(3):
            await asyncio.sleep(0.01)
        ground.doors.refuse = None
        done, alone = ground.store.metrics()["transactions"] - before, ground.store.overlaps and len(ids) >= _ALONE
        if how == "all" and self._is_exact() and self._data is None and done != 1 + alone:
            ground.complain(f"{len(ids)} jobs were to be removed at once beside another; that took {done} transactions")
        told = [[each.__class__ for each in answer] for answer in answers]
        wanted: list[Any] = [JobNotFound if id in missing else _NOTHING for id in ids]
        if how == "away":
            wanted = [StoreUnavailable] * len(ids)
        elif how == "poison" and poison is not None and poison not in missing:
            wanted[ids.index(poison)] = error().__class__
        if told != [wanted]:
            ground.complain(f"{len(ids)} jobs were to be removed at once ({how}): told was {told}, not {[wanted]}")
        there = {job.id async for job in self._jobs.list(kind)}
        for id, one in zip(ids, wanted, strict=True):
            if (id in there) != (id not in missing and one is not _NOTHING):
                ground.complain(f"{id!r} was to be removed ({how}), which was told {one}; there is {there}")

    async def withdraw(self) -> None:
        """Have some of those who have asked go, at one moment or another: what was not begun is not done."""
        ground, random, kind = self._ground, self._ground.random, self._ground.type
        ids = [f"w {number}" for number in range(random.randint(2, 6))]
        await self._jobs.add_many(kind, [NewJob(id) for id in ids])
        moment = random.choice(["at once", "begin", "commit", "answer", "conflict"])
        if moment == "conflict":
            ground.refuse_next(1, conflict)
        ground.doors.shut = "begin" if moment in ("at once", "conflict") else moment
        place = self._jobs._access.place
        asked = {id: self._jobs._operations.operate(creation.remove, place(kind, id), False) for id in ids}
        gone = {*random.sample(ids, random.choice([1, len(ids) - 1, len(ids)]))}
        if moment != "at once":
            await asyncio.sleep(0.01)
        for id in gone:
            asked[id].cancel()
        await asyncio.sleep(0.01)
        ground.doors.open()
        left = [asyncio.ensure_future(asked[id]) for id in ids if id not in gone]
        late = await all_ended(left, 1.0)
        await asyncio.sleep(0.1)
        ground.doors.refuse = None
        if late or any(each.result() is not Removal.REMOVED for each in left):
            ground.complain(f"{len(gone)} of {len(ids)} who have asked went ({moment}), and the others are told {left}")
        there = {job.id async for job in self._jobs.list(kind) if job.id in asked}
        wanted = gone if moment in ("at once", "begin", "conflict") else set()
        if there != wanted:
            ground.complain(f"{gone} of {ids} were not asked for any more ({moment}), and {there} are there")

    async def ask_for_much(self) -> None:
        """Ask for as much as fits into a transaction, and for more."""
        ground, kind, disorder = self._ground, self._ground.type, self._ground.drill.run.world.choices.disorder
        heavy = ground.random.random() < 0.5
        fits = 2_000_000 // _HEAVY if heavy else batching._MOST_OPERATIONS
        count, data = fits + ground.random.choice([0, 1]), "x" * _HEAVY if heavy else None
        before = ground.store.metrics()["transactions"]
        adding = [asyncio.create_task(self._jobs.add(kind, f"much {number}", data)) for number in range(count)]
        if await all_ended(adding, 1.0) or any(each.exception() for each in adding):
            ground.complain(f"{count} were to add jobs at once ({heavy=}), and were told {adding}")
        done = ground.store.metrics()["transactions"] - before
        if disorder == 0 and not few_at_once_are_drawn() and not pages_are_small() and done != 1 + (count > fits):
            ground.complain(f"{count} have added jobs at once ({heavy=}), and that took {done} transactions")


async def _awaited(ask: Callable[[], Awaitable[Any]]) -> Any:
    return await ask()


def _asks(call: Callable[..., Awaitable[Any]], *args: Any, **options: Any) -> Callable[[], Awaitable[Any]]:
    return lambda: call(*args, **options)
