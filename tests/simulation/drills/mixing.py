"""Transactions of many operations in any order, some of which are refused: each sees those before it, exactly."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Final

from jobs_service import JobError, JobEvent, JobId, JobsError, JobState, JobType, NewJob, Outcome, RunningJob
from jobs_service.errors import StoreError, TransactionTooLarge
from jobs_service.model.enqueueing import Enqueueable
from jobs_service.store.base import Transaction
from jobs_service.testing import SimulatedTransaction
from tests.simulation.calls import STOP_AND_REMOVE
from tests.simulation.client import MIXED
from tests.simulation.drills.drill import LONG, Drill, all_ended

_IDS: Final[tuple[JobId, ...]] = ("a", "b", "c", b"d", "e")
_LATER: Final = 300.0
_STATES: Final = (
    *JobState.__members__.values(),
    "ready",
    "scheduled",
    "retrying",
    "failed",
    "succeeded",
    "canceled",
    None,
)
_LISTED: Final = [state for state in _STATES if state not in (JobState.REMOVED, JobState.UNREADABLE)]
_TIGHT: Final = 30_000
"""Bytes of a transaction that may have no room for all that is done in one."""


class Kind(Enqueueable[Any, Any]):
    """A handler that only enqueues."""

    takes_args = takes_keywords = True

    def __init__(self, type: JobType) -> None:
        self.type = type
        self.name = f"kind {type!r}"

    @property
    def timeout(self) -> float | None:
        return LONG

    def data(self, args: Any) -> Any:
        return args


class Unwanted(Exception):
    """Ends a block or a transaction, as its user wants."""


async def of(answer: Any) -> Any:
    """Return what an operation gives, of a block or of a transaction function."""
    return await answer if inspect.isawaitable(answer) else answer


class Mixer:
    """Does random operations on jobs of a few types, and reads.

    Args:
        drill: that it is part of.
        types: of the jobs.

    Attributes:
        held: jobs that were accepted, some of which are over by now.
    """

    def __init__(self, drill: Drill, types: list[JobType]) -> None:
        self.held: list[RunningJob] = []
        self._drill = drill
        self._random = drill.random
        self._types = types
        self._kind = Kind(types[-1])

    def _type(self) -> JobType:
        return self._random.choice(self._types)

    def _id(self) -> JobId:
        return self._random.choice(_IDS)

    def _now(self) -> float:
        return self._drill.client.process.clock.wall_time()

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if self._random.random() < 0.5:
            options["priority"] = self._random.choice([-1, 0, 1, "p"])
        if self._random.random() < 0.5:
            options["run_at"] = self._random.choice([None, self._now() - 5.0, self._now() + _LATER])
        return options

    def _data(self) -> Any:
        return self._random.choice([None, {"of": self._random.randrange(9)}, "text"])

    def some(self) -> list[Callable[[Any], Awaitable[object]]]:
        """Return a few kinds of operation: where these are all that is done, they meet each other."""
        by_creators: list[Callable[[Any], Awaitable[object]]] = [
            self._add,
            self._add,
            self._add_many,
            self._enqueue,
            self._resubmit,
            self._remove,
        ]
        by_all = [*by_creators, self._accept, self._end, self._end, self._keep, self._pause, self._type_goes]
        pairs: list[list[Callable[[Any], Awaitable[object]]]] = [
            [self._accept, self._end, self._keep],
            [self._add, self._enqueue, self._type_goes],
        ]
        return self._random.choice([*pairs, self._random.sample(by_all, self._random.choice([2, 3, 5, len(by_all)]))])

    async def do(self, tx: Any, what: Callable[[Any], Awaitable[object]]) -> None:
        """Do one operation; what refuses it is no reason to give up."""
        try:
            await what(tx)
        except JobsError as error:
            if isinstance(error, StoreError):
                raise

    async def look(self, tx: Any) -> None:
        """Read in a few ways: the history knows what each of them must give."""
        for _ in range(self._random.choice([0, 1, 3])):
            await self.look_once(tx, self._random.randrange(7))

    async def look_once(self, tx: Any, how: int) -> Any:
        """Read in one way, and return what was told."""
        type, random = self._type(), self._random
        with contextlib.suppress(JobsError):
            if how == 0:
                return await of(tx.get(type, self._id()))
            if how == 1:
                wanted = random.choice([None, type])
                return await of(tx.list(wanted, state=random.choice(_LISTED), page_size=random.choice([1, 2, 1000])))
            if how == 2:
                due_by = random.choice([None, self._now() - 1.0, self._now() + 1.0, self._now() + 2 * _LATER])
                return await of(tx.pending_count(type, due_by=due_by, limit=random.choice([None, None, 1, 2, 4])))
            if how == 3:
                return await of(tx.active_ids(type))
            if how == 4:
                return await of(tx.paused(type))
            if how == 5:
                return await of(tx.types())
            return await of(tx.get_type_timeout(type))
        return None

    async def _add(self, tx: Any) -> None:
        rule = self._random.choice(["error", "resubmit", "ignore"])
        await of(tx.add(self._type(), self._id(), self._data(), if_exists=rule, **self._options()))

    async def _add_many(self, tx: Any) -> None:
        ids = self._random.sample(_IDS, self._random.randint(1, 4))
        jobs = [NewJob(id, self._data(), **self._options()) for id in ids]
        rule = self._random.choice(["error", "error", "resubmit", "ignore"])
        if self._random.random() < 0.2:
            jobs.append(NewJob("large", self._large()))
        await of(tx.add_many(self._type(), jobs, if_exists=rule))

    def _large(self) -> str:
        """Return data for which no record has room."""
        return "x" * (self._drill.run.world.cluster.limits.value + 1)

    async def _enqueue(self, tx: Any) -> None:
        how: dict[str, Any] = self._random.choice([{}, {"priority": 1}, {"delay": _LATER}, {"max_attempts": 3}])
        if self._random.random() < 0.5:
            name: dict[str, Any] = self._random.choice([{"id": self._id()}, {"unique": True}, {"unique": "k"}, {}])
            await of(tx.enqueue(self._kind, {"of": self._random.randrange(3)}, **how, **name))
            return
        jobs: list[Any] = [{"of": number} for number in range(self._random.randint(1, 3))]
        if self._random.random() < 0.5:
            jobs.append(self._large())
        await of(tx.enqueue_many(self._kind, jobs, unique=self._random.random() < 0.7, **how))

    async def _resubmit(self, tx: Any) -> None:
        data = {"data": self._data()} if self._random.random() < 0.5 else {}
        await of(tx.resubmit(self._type(), self._id(), **data, **self._options()))

    async def _remove(self, tx: Any) -> None:
        await of(tx.remove(self._type(), self._id(), force=self._random.random() < 0.3))

    async def _accept(self, tx: Any) -> None:
        terms: dict[str, Any] = {
            "max_priority": self._random.choice([None, None, 0]),
            "due_by": self._random.choice([None, None, self._now() + 2 * _LATER]),
            "spread": self._random.choice([1, 1, 1, 2, "adaptive"]),
        }
        if self._random.random() < 0.5:
            job = await of(tx.accept(self._type(), **terms))
            self.held += [] if job is None else [job]
        else:
            self.held += await of(tx.accept_many(self._type(), self._random.randint(1, 3), **terms))

    async def _end(self, tx: Any) -> None:
        """Do something as a worker, who may have ended the job, or lost it to somebody who has removed it."""
        if not self.held:
            return
        job = self._random.choice(self.held[-3:])
        how = self._random.randrange(6)
        if how == 0:
            self.held.append(await of(tx.update(job, self._data())))
        elif how == 1:
            self.held.append(await of(tx.resubmit(job, data=self._data(), **self._options())))
        elif how == 2:
            await of(tx.release(job))
        else:
            error = self._random.choice([None, JobError("Mixed", "as it should")])
            outcome = Outcome.SUCCEEDED if error is None else Outcome.FAILED
            await of(tx.finish(job, self._data(), outcome=outcome, result={"of": how}, error=error))
            if self._random.random() < 0.8:
                self.held = [each for each in self.held if each.lock != job.lock]

    async def _keep(self, tx: Any) -> None:
        kept = [self._random.choice([None, 0.0, LONG]) for _ in range(2)]
        await of(tx.set_retention(self._type(), keep=kept[0], keep_failed=kept[1]))

    async def _pause(self, tx: Any) -> None:
        await of(self._random.choice([tx.pause, tx.resume, tx.resume])(self._type()))

    async def _type_goes(self, tx: Any) -> None:
        if self._random.random() < 0.5:
            await of(tx.clear_type_timeout(self._type()))
        else:
            await of(tx.set_type_timeout(self._type(), self._random.choice([LONG, 2 * LONG])))

    async def mix(self, tx: Any) -> None:
        """Do some operations, and read before and after each."""
        await self.look(tx)
        some = self.some()
        for _ in range(self._random.randint(3, 12)):
            await self.do(tx, self._random.choice(some))
            await self.look(tx)


async def mix_operations(drill: Drill) -> None:
    """Mix operations in several transactions, one after the other: who follows jobs is told how they are in the end."""
    random = drill.random
    types: list[JobType] = [drill.type, (drill.type, 1)]
    for type in [*types[: random.choice([1, 2, 2])], (drill.type, 2)]:
        await drill.make_type(type=type)
    await drill.client.add_many(drill.type, random.sample(_IDS, random.randint(0, len(_IDS))))
    mixer = Mixer(drill, types)
    for type in types:
        for id in _IDS:
            drill.client.begin(STOP_AND_REMOVE, type, id)
    followed = random.sample([(type, id) for type in types for id in _IDS], random.choice([0, 3, 6]))
    told: dict[Any, list[JobEvent]] = {key: [] for key in followed}
    tasks = {}
    try:
        for number in range(random.randint(2, 4)):
            await _mix_once(drill, mixer)
            if not number and drill.is_watched_over:
                there = [key for key in followed if drill.job(key[1], key[0]) is not None]
                tasks = {key: asyncio.create_task(_follow(drill, key, told[key])) for key in there}
                await drill.settle()
        await drill.settle()
        for key, task in tasks.items():
            _compare(drill, key, told[key], task)
    finally:
        await all_ended(tasks.values(), 0)
    drill.run.key_check.check()
    await _leave_nothing(drill, mixer, types)


async def _mix_once(drill: Drill, mixer: Mixer) -> None:
    """Mix operations in one transaction, with or without blocks; some are given up in the end."""
    random = drill.random
    is_tight = drill.run.world.cluster.limits.transaction < _TIGHT
    gives_up = random.random() < 0.15
    before, held = drill.all() | drill.all((drill.type, 1)), [*mixer.held]

    async def plainly(transaction: Transaction) -> None:
        assert isinstance(transaction, SimulatedTransaction)
        noted = len(transaction.journal)
        try:
            with drill.jobs.within(transaction) as tx:
                await mixer.mix(tx)
                if gives_up:
                    raise Unwanted
            with drill.jobs.within(transaction) as tx:  # what the one before has changed cannot be read here
                for number in range(random.randint(0, 2)):
                    tx.add(
                        (drill.type, 2),
                        f"of the block {number}",
                        if_exists="ignore",
                        run_at=drill.random.choice([None, 0.0]),
                    )
        except (Unwanted, TransactionTooLarge):
            del transaction.journal[noted:]
            mixer.held = held

    async def together(tx: Any) -> None:
        mixer.held = [*held]
        await mixer.mix(tx)
        if gives_up:
            raise Unwanted

    mixed = MIXED.set(is_tight)
    try:
        if drill.run.machine is None and random.random() < 0.4:
            await drill.jobs.store.transact(plainly)
        else:
            await drill.jobs.transact(together)
    except Unwanted:
        mixer.held = held
    except TransactionTooLarge:
        if not is_tight:
            raise
        mixer.held = held
    finally:
        MIXED.reset(mixed)
    if gives_up and before != drill.all() | drill.all((drill.type, 1)):
        drill.complain("a transaction that was given up has changed jobs")


async def _follow(drill: Drill, key: Any, told: list[JobEvent]) -> None:
    async with drill.jobs.subscribe(*key) as events:
        async for event in events:
            told.append(event)


def _compare(drill: Drill, key: Any, told: list[JobEvent], task: asyncio.Task[None]) -> None:
    """Compare the last that was told of a job with what it is."""
    job = drill.job(key[1], key[0])
    if task.done() and task.exception() is not None:
        drill.complain(f"who follows {key} was told {task.exception()!r}")
    elif not told:
        drill.complain(f"who follows {key} was told nothing")
    elif job is None:
        if told[-1].state not in (JobState.REMOVED, JobState.FINISHED):
            drill.complain(f"{key} is gone, and who follows it was told {told[-1]}")
    else:
        state = "pending" if job.pending else job.state
        if not task.done() and told[-1].state != state:
            drill.complain(f"{key} is {job}, and who follows it was told {told[-1]} at last")


async def _leave_nothing(drill: Drill, mixer: Mixer, types: list[JobType]) -> None:
    """Take all that can be taken, in order, and end all: what the transactions have left is as it must be."""
    latest = {job.lock: job for job in mixer.held}
    for job in latest.values():
        there = drill.job(job.id, job.type)
        if there is not None and there.lock == job.lock:
            await drill.client.finish(job)
    for type in types:
        await drill.make_type(type=type)
        await drill.jobs.resume(type)
        taken: list[RunningJob] = []
        while found := await drill.client.accept(type, 100, timeout=0):
            taken += found
        for job in taken:
            await drill.client.finish(job)
