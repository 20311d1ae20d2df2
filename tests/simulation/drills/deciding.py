"""Transactions that decide by what they have read, while somebody else changes it: they decide anew, and only then."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Final

from jobs_service import Job, JobId, JobsError, JobType, NewJob, RunningJob
from jobs_service.store.base import KeySelector, Transaction
from tests.simulation.drills.drill import LONG, Drill, all_ended
from tests.simulation.drills.mixing import of

_LATER: Final = 300.0
_PATIENCE: Final = 2.0
"""Seconds that a transaction waits for others: less than it may take."""

_KEYS: Final = frozenset({"key", "no key", "keys", "selected", "sum"})
"""Reads of an application's own rows."""

_OF_KEYS: Final = frozenset({"set", "new key", "first key", "last key", "no key", "sum"})
"""Changes of these."""

_UNTRUE: Final[dict[str, list[str]]] = {
    "add": ["get absent", "list", "list all", "count", "nothing"],
    "schedule": ["get absent", "list", "list all", "count"],
    "remove": ["get", "list", "list all", "count"],
    "change": ["get", "list", "list all"],
    "again": ["get", "list", "list all", "count"],
    "take": ["list", "list all", "count", "active"],
    "end": ["active", "list"],
    "beat": ["active"],
    "pause": ["paused", "nothing"],
    "resume": ["paused", "nothing"],
    "timeout": ["timeout"],
    "clear": ["timeout", "types"],
    "new type": ["types"],
    "set": ["key", "keys"],
    "new key": ["no key", "keys", "selected"],
    "first key": ["keys"],
    "last key": ["keys", "selected"],
    "no key": ["keys", "selected"],
    "sum": ["sum"],
}
"""What each change makes untrue."""

_OF_ALL: Final = frozenset({"types", "list all"})
"""Reads of more than the drill's own."""

Read = Callable[[Any], Awaitable[Any]]
Change = Callable[[], Awaitable[Any]]


class _Place:
    """A type, and rows of an application, by which transactions decide.

    Args:
        drill: that it is part of.
        number: no other place of the drill has it.

    Attributes:
        type: of the jobs.
        head: what the keys of the rows begin with.
        running: jobs that run.
        decided: how often somebody has decided there.
    """

    def __init__(self, drill: Drill, number: int) -> None:
        self.type: JobType = (drill.type, number)
        self.head = f"decided {drill.type} {number}/".encode()
        self.running: list[RunningJob] = []
        self.decided = 0
        self._drill = drill
        self._random = drill.random

    async def prepare(self) -> None:
        """Have some jobs in every state, and some rows."""
        drill, type = self._drill, self.type
        await drill.make_type(type=type)
        await drill.client.add_many(type, ["r1", "r2", "w1", "w2", "f1"])
        await drill.client.add(type, "later", run_at=drill.client.process.clock.wall_time() + _LATER)
        await drill.client.resubmit(type, "f1", priority=-1)
        for job in await drill.client.accept(type, 1, timeout=0):
            await drill.client.finish(job)
        self.running = await drill.client.accept(type, 2, timeout=0)

        async def write(transaction: Transaction) -> None:
            for number in (1, 3, 5):
                transaction.set(self.head + b"%d" % number, b"\x01")

        await drill.jobs.store.transact(write)

    def reads(self) -> dict[str, Read]:
        """Return ways to read."""
        type, now = self.type, self._drill.client.process.clock.wall_time()
        some: JobId = self._random.choice(["w1", "r1", "f1", "later"])
        state = self._random.choice(["pending", "running", "finished", "ready", "scheduled", "failed", None])
        page = self._random.choice([1, 2, 1000])
        limit, due_by = self._random.choice([None, None, 1, 5]), self._random.choice([None, now, now + 2 * _LATER])
        head = self.head
        rows = self._random.choice([(head, head + b"9"), (head + b"2", head + b"6")])
        many, reverse = self._random.choice([0, 1, 2]), self._random.random() < 0.5
        return {
            "get": lambda tx: of(tx.get(type, some)),
            "get absent": lambda tx: of(tx.get(type, "new")),
            "list": lambda tx: of(tx.list(type, state=state, page_size=page)),
            "list all": lambda tx: of(tx.list(page_size=page)),
            "count": lambda tx: of(tx.pending_count(type, due_by=due_by, limit=limit)),
            "active": lambda tx: of(tx.active_ids(type)),
            "paused": lambda tx: of(tx.paused(type)),
            "types": lambda tx: of(tx.types()),
            "timeout": lambda tx: of(tx.get_type_timeout(type)),
            "nothing": lambda tx: of(tx.accept(type, max_priority=-5)),
            "sum": self._sum,
            "key": lambda tx: of(tx.kv.get(head + b"1")),
            "no key": lambda tx: of(tx.kv.get(head + b"2")),
            "keys": lambda tx: of(tx.kv.get_range(*rows, limit=many, reverse=reverse)),
            "selected": lambda tx: of(
                tx.kv.get_range(KeySelector.first_greater_than(head + b"1"), head + b"9", limit=many)
            ),
        }

    async def _sum(self, tx: Any) -> Any:
        """Read a counter to which the transaction itself has added."""
        tx.kv.add(self.head + b"sum", b"\x00")
        return await tx.kv.get(self.head + b"sum")

    def changes(self) -> dict[str, Change]:
        """Return ways to change what somebody may have read."""
        client, type, head = self._drill.client, self.type, self.head
        later = client.process.clock.wall_time() + _LATER

        async def key(number: int, value: bytes | None) -> None:
            async def write(transaction: Transaction) -> None:
                if value is None:
                    transaction.clear(head + b"%d" % number)
                else:
                    transaction.set(head + b"%d" % number, value)

            await client.jobs.store.transact(write)

        async def add(tx: Any) -> None:
            tx.kv.add(head + b"sum", b"\x01")

        return {
            "add": lambda: client.add(type, "new", if_exists="resubmit", priority=self._random.choice([-9, 0])),
            "schedule": lambda: client.add(type, "new", if_exists="resubmit", run_at=later),
            "remove": lambda: client.remove(type, self._random.choice(["w1", "later"]), force=True),
            "change": lambda: client.resubmit(type, self._random.choice(["w1", "later"])),
            "again": lambda: client.resubmit(type, "f1"),
            "take": lambda: client.accept(type, 1, timeout=0),
            "end": lambda: client.finish(self.running[0]),
            "beat": lambda: client.update(self.running[-1]),
            "pause": lambda: client.jobs.pause(type),
            "resume": lambda: client.jobs.resume(type),
            "timeout": lambda: client.jobs.set_type_timeout(type, LONG * 2),
            "clear": lambda: client.jobs.clear_type_timeout(type),
            "new type": lambda: client.jobs.set_type_timeout((self._drill.type, "new", *_as_tuple(type)), LONG),
            "set": lambda: key(1, b"\x02"),
            "new key": lambda: key(2, b"\x02"),
            "first key": lambda: key(0, b"\x02"),
            "last key": lambda: key(5, b"\x02"),
            "no key": lambda: key(3, None),
            "sum": lambda: client.jobs.transact(add),
        }


async def decide_by_what_is_so(drill: Drill) -> None:
    """Read, have somebody change something, and write: what was read is so at the commit, in the end as well."""
    if drill.run.machine is not None:  # there, nobody else writes while a transaction runs
        return
    for number in range(2):
        place = _Place(drill, number)
        await place.prepare()
        for _ in range(drill.random.randint(3, 6)):
            await _decide(drill, place)


async def _decide(drill: Drill, place: _Place) -> None:
    reads, changes = place.reads(), place.changes()
    some = drill.random.choice([*changes])
    # Mostly something that the change makes untrue, and nothing else.
    names = [drill.random.choice(_UNTRUE[some] if drill.random.random() < 0.8 else [*reads])]
    names += drill.random.sample([*reads], drill.random.choice([0, 0, 0, 1]))
    place.decided += 1
    told: list[list[Any]] = []
    has_read, has_changed, began = asyncio.Event(), asyncio.Event(), drill.time()
    in_block = drill.random.random() < 0.3 and not {*names} & _KEYS
    mark = b"mark %d of " % place.decided + place.head

    async def look(tx: Any) -> None:
        told.append(await _all(drill, reads, names, tx))

    async def wait() -> None:
        has_read.set()
        await asyncio.wait_for(has_changed.wait(), _PATIENCE)

    async def function(tx: Any) -> None:
        await look(tx)
        await wait()
        tx.kv.set(mark, b"%d" % len(told))

    async def plainly(transaction: Transaction) -> None:
        with drill.jobs.within(transaction) as tx:
            await look(tx)
        await wait()
        transaction.set(mark, b"%d" % len(told))

    work = drill.jobs.store.transact(plainly) if in_block else drill.jobs.transact(function)
    task = asyncio.create_task(work, name=f"{drill.type} decides")
    # Who lists the jobs of all types reads page by page, and begins again with each change that another drill makes.
    moment = drill.moment * (20 if "list all" in names else 1)
    try:
        await asyncio.wait_for(has_read.wait(), moment)
        with contextlib.suppress(JobsError):  # as it was done before
            await changes[some]()
        has_changed.set()
        late = await all_ended([task], moment)
    finally:
        await all_ended([task], 0)
    if late:
        drill.complain(f"who has read {names}, while {some!r} was done, has not ended")
        return
    task.result()
    in_the_end = await drill.jobs.transact(lambda tx: _all(drill, reads, names, tx))
    if told[-1] != in_the_end and "nothing" not in names:  # who finds a job to take has it: see the history
        drill.complain(f"who reads {names}, while {some!r} is done, decides by {told[-1]}; it is {in_the_end}")
    # What concerns all types is changed by others as well, and a fault may have a commit fail for no reason.
    if drill.run.quiet.retried_at < began and not {*names} & _OF_ALL:
        most = 1 if _is_apart(names, some) else 2
        if len(told) > most:
            drill.complain(f"who reads {names}, while {some!r} is done once, has done so {len(told)} times: {told}")


def _is_apart(names: list[str], change: str) -> bool:
    """Whether a change concerns nothing of what was read."""
    if change in _OF_KEYS:
        return not {*names} & _KEYS
    if {*names} <= _KEYS | ({"timeout"} if change not in ("timeout", "clear") else set()):
        return True
    return {*names} <= {"get absent"} and change not in ("add", "schedule", "take")  # it may be there by now, and taken


async def _all(drill: Drill, reads: dict[str, Read], names: list[str], tx: Any) -> list[Any]:
    return [await _told(drill, reads[name], tx, is_of_all=name in _OF_ALL) for name in names]


async def _told(drill: Drill, read: Read, tx: Any, *, is_of_all: bool) -> Any:
    """Return what a read tells of the drill, as plain values."""
    try:
        found = await read(tx)
    except JobsError as error:
        return type(error).__name__
    if isinstance(found, list):
        plain = [_shown(each) if isinstance(each, Job) else each for each in found]
        return [each for each in plain if not is_of_all or repr(drill.type) in repr(each)]
    return _shown(found) if isinstance(found, Job) else found


def _shown(job: Job) -> tuple[Any, ...]:
    return job.type, job.id, job.state, job.data, job.priority, job.run_at, job.outcome, len(job.history)


def _as_tuple(type: JobType) -> tuple[Any, ...]:
    return type if isinstance(type, tuple) else (type,)


async def count_beside_others(drill: Drill) -> None:
    """Add to a counter, or look without a conflict, while others do as well: nobody has to do it again."""
    if drill.run.machine is not None:
        return
    key = f"counted {drill.type}".encode()
    count = drill.random.randint(2, 6)
    runs, began = [0] * count, drill.time()
    reads = drill.random.random() < 0.5
    await drill.make_type()
    await drill.jobs.add_many(drill.type, [NewJob("a"), NewJob("b")])
    begun = asyncio.Event()

    async def add(tx: Any, number: int) -> None:
        runs[number] += 1
        if reads:
            await tx.kv.snapshot.get(key)
        tx.kv.add(key, (number + 1).to_bytes(8, "little"))
        if sum(runs) >= count:
            begun.set()
        await asyncio.wait_for(begun.wait(), _PATIENCE)

    tasks = [
        asyncio.create_task(drill.jobs.transact(lambda tx, number=number: add(tx, number)))  # type: ignore[misc]
        for number in range(count)
    ]
    late = await all_ended(tasks, drill.moment + _PATIENCE)
    raw = await drill.jobs.transact(lambda tx: tx.kv.get(key))
    wanted = sum(range(1, count + 1))
    is_once = runs == [1] * count or drill.run.quiet.retried_at >= began
    if late or raw is None or int.from_bytes(raw, "little") != wanted or not is_once:
        drill.complain(f"{count} have added to a counter, in {runs} runs, and it is {raw!r}, not {wanted}")
