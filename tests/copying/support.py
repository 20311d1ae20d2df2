"""Stores with jobs in every state, what of a store a copy must have too, and copies that are stopped on their way."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import fdb.tuple
import pytest

from jobs_service import JobError, JobsService, NewJob, Outcome, RunningJob
from jobs_service.copying import Batch, Copied, CopyStep, copy_jobs
from jobs_service.errors import StoreError, TransactionTooOld
from jobs_service.layer import running_jobs
from jobs_service.layer.keyspace import (
    ACTIVITY_TIMEOUT,
    COPYING,
    DATA,
    DECLARED,
    EXPIRING,
    FAILED,
    PAUSED,
    PERIODIC,
    READY,
    REDACTION,
    RETENTION,
    RETRYING,
    SCHEDULED,
    SCHEDULES,
    Keyspace,
    place_of,
)
from jobs_service.layer.unit_of_work import UnitOfWork, run
from jobs_service.model import Priority
from jobs_service.sources import Sources
from jobs_service.store import Store, Transaction
from jobs_service.store.memory import Faults, MemoryStore, MemoryTransaction
from tests.checker import assert_sound, unpacked
from tests.service.support import FAR_AWAY, LONG_AGO
from tests.stores import plain_settings

T = TypeVar("T")

TYPE = ("mail", 7, b"\x00\xff")
"""A type that is no plain word."""
SMALL = Batch(jobs=3, bytes=2_000)
"""Batches so small that a few jobs take many."""

_VERBATIM = (
    SCHEDULED, EXPIRING, ACTIVITY_TIMEOUT, PAUSED, RETENTION, PERIODIC, COPYING, DECLARED, REDACTION, RETRYING
)  # fmt: skip

Portrait = dict[str, Any]


def memory() -> MemoryStore:
    """Return a memory store, not yet open."""
    return MemoryStore(settings=plain_settings(), sources=Sources(0))


@asynccontextmanager
async def opened(*stores: Store) -> AsyncIterator[None]:
    """Have stores open for the block's time."""
    for store in stores:
        await store.open()
    try:
        yield
    finally:
        for store in stores:
            await store.close()


async def clear(store: Store) -> None:
    """Remove what other tests have left in a store that is shared."""
    prefix = await store.prefix()

    async def work(tr: Transaction) -> None:
        tr.clear_range(prefix, prefix + b"\xff")

    await store.transact(work)


async def copied(source: Store, target: Store, **options: Any) -> Copied:
    """Copy, and check that the source is as it was and the target sound."""
    before = await everything(source)
    try:
        return await copy_jobs(source, target, sources=Sources(1), **options)
    finally:
        assert await everything(source) == before
        await assert_sound(target)


async def with_jobs(store: Store, body: Callable[[JobsService], Awaitable[T]]) -> T:
    """Do something with an open store through the public interface."""
    async with JobsService(store, supervise=False) as jobs:
        return await body(jobs)


async def everything(store: Store) -> dict[bytes, bytes]:
    """Return all keys of the jobs, without the prefix, and their values; not what a store keeps for itself."""
    prefix = await store.prefix()
    rows = await store.read(lambda tr: tr.get_range(prefix, prefix + b"\xfe"))
    return {key[len(prefix) :]: value for key, value in rows}


async def portrait(store: Store) -> Portrait:
    """Return everything that a copy has as well: all but versionstamps, for which the order of queues stands."""
    found: Portrait = {"queue": [], "jobs": {}, "failed": set(), "verbatim": {}}
    for key, value in (await everything(store)).items():
        section, *fields = unpacked(key)
        if section == READY:
            type, priority, _, id = fields
            found["queue"].append((type, priority, id, value))
        elif section == DATA:
            found["jobs"][key] = value[:2] + value[14:]
        elif section == FAILED:
            found["failed"].add((fields[0], value))
        elif section in _VERBATIM or (section == SCHEDULES and fields):
            found["verbatim"][key] = value
    return found


async def populate(store: Store) -> None:
    """Put jobs of several types in every state but running into an open store, with all that a job can have."""
    await with_jobs(store, _populate)
    # By a clock that is behind: by that of the machine a busy one would be too late to schedule it.
    behind = Sources(4, wall_time=lambda: LONG_AGO)
    async with JobsService(store, sources=behind, supervise=False) as jobs:
        await jobs.add("email", "due, but nobody has looked", run_at=LONG_AGO + 1)
    keyspace = Keyspace(await store.prefix(), store.limits.key)

    async def crash(unit: UnitOfWork) -> None:
        place = place_of(keyspace.of("email"), "crashes")
        lock = (await unit.load(place)).record
        assert lock is not None
        assert lock.lock is not None
        told = running_jobs.RunReport(error=b'["ValueError","no address","line 1"]', reason="no address")
        await running_jobs.crash(unit, place, lock.lock, told, LONG_AGO)

    async def ticked(tr: Transaction) -> None:
        tr.set(keyspace.sections[PERIODIC] + keyspace.of("email").packed, fdb.tuple.pack((LONG_AGO,)))

    await store.transact(lambda tr: run(tr, keyspace, Sources(3), crash))
    await store.transact(ticked)


async def _populate(jobs: JobsService) -> None:
    for type, seconds in (("email", 60), (TYPE, 2.5), ("paused", 10), ("nothing yet", 1), ("cleared", 5), (b"b", 9)):
        await jobs.set_type_timeout(type, seconds)
    await jobs.set_retention("email", keep=1e6, keep_failed=None)
    await _ended(jobs)
    await jobs.set_retention("email", keep=5e8, keep_failed=1e6)
    await jobs.set_redaction("email", ["card"])
    await _ended(jobs, "again ")
    await _waiting(jobs)
    for type in (TYPE, "paused", "cleared", b"b"):
        await jobs.add(type, b"\x00bytes\xff", {"type": str(type)})
        await jobs.add(type, "later", run_at=FAR_AWAY)
    await jobs.pause("paused")
    await jobs.pause("not there")
    await jobs.schedules.set("leap days", TYPE, {"kind": b"\xff".hex()}, cron="0 0 29 2 *", missed="all", overlap=True)
    await jobs.schedules.pause((await jobs.schedules.set("never", TYPE, every=1e9)).name)
    await jobs.clear_type_timeout("cleared")


async def _ended(jobs: JobsService, name: str = "") -> None:
    """Have jobs end in all ways."""
    job = await running(jobs, f"{name}succeeded")
    await job.progress(1, 2, "half")
    await job.finish({"sent": True}, result=[1, "é"])
    job = await running(jobs, f"{name}failed")
    await job.finish(outcome=Outcome.FAILED, error=JobError("E", "why", "where"))
    job = await running(jobs, f"{name}canceled")
    await jobs.remove("email", f"{name}canceled")
    await job.finish()


async def _waiting(jobs: JobsService) -> None:
    """Have jobs wait whose order is not that of their ids, nor that in which they were added."""
    await jobs.add_many("email", [NewJob(f"many {9 - n}", n, n % 3 - 1) for n in range(10)])
    priorities: tuple[Priority, ...] = (5, -5, "a", (1, "x"), b"\x01", 0, 2**70)
    for n, priority in enumerate(priorities):
        await jobs.add("email", f"{n} of priority {priority!r}", {"n": n}, priority=priority)
    await jobs.add("email", "long ago", run_at=LONG_AGO, priority=5)
    await jobs.add("email", "large", "x" * 90_000, priority=7)
    await jobs.resubmit("email", "many 3", priority=5)
    await jobs.resubmit("email", "many 4", priority=-1)
    await running(jobs, "crashes")  # by whoever has populated the store
    flagged = await running(jobs, "runs again", 0)
    await flagged.resubmit(priority=9, run_at=FAR_AWAY)
    released = await running(jobs, "released", 0)
    await flagged.release()
    await released.release()


async def running(jobs: JobsService, id: str, data: Any = None, type: Any = "email") -> RunningJob:
    """Return a new job of this id that runs."""
    await jobs.add(type, id, data, priority=b"")
    job = await jobs.accept(type, timeout=0)
    assert job is not None
    assert job.id == id
    return job


async def accepted(store: Store, type: Any) -> list[Any]:
    """Return the ids of a type's jobs in the order in which workers get them."""

    async def drain(jobs: JobsService) -> list[Any]:
        ids: list[Any] = []
        while taken := await jobs.accept_many(type, 100, timeout=0):
            ids += [job.id for job in taken]
        return ids

    return await with_jobs(store, drain)


class Stopped(Exception):
    """The copy was stopped by the test."""


async def half_copied(source: Store, target: Store, batches: int = 8) -> None:
    """Copy some of the jobs only."""
    left = batches

    def progress(step: CopyStep, done: int, total: int | None) -> None:
        nonlocal left
        left -= step is CopyStep.COPYING
        if not left:
            raise Stopped

    with pytest.raises(Stopped):
        await copied(source, target, batch=SMALL, progress=progress)


class DiesAfter(Faults):
    """Fails for good once so many transactions have committed: the last one has happened, and nobody knows.

    Args:
        commits: how many.
    """

    def __init__(self, commits: int) -> None:
        self.left = commits

    async def before_commit(self, transaction: MemoryTransaction) -> None:
        if self.left <= 0:
            raise StoreError("the process is dead")

    async def after_commit(self, transaction: MemoryTransaction) -> None:
        self.left -= 1
        if not self.left:
            raise StoreError("the process is dead")


class Meanwhile(Faults):
    """Does something else before the so-many-th call of the store.

    Args:
        number: of the call, from 1; 0 for never.
        act: does it.

    Attributes:
        calls: how many there were.
    """

    def __init__(self, number: int, act: Callable[[], Awaitable[object]]) -> None:
        self.calls = 0
        self._number = number
        self._act = act

    async def before_begin(self) -> None:
        self.calls += 1
        if self.calls == self._number:
            await self._act()


class Sizes(Faults):
    """Notes how large transactions are, and refuses those that write too much.

    Args:
        most: writes of a transaction that is not too old.
    """

    def __init__(self, most: int | None = None) -> None:
        self.bytes: list[int] = []
        self.refused = 0
        self._most = most

    async def before_commit(self, transaction: MemoryTransaction) -> None:
        if self._most is not None and len(transaction.log) > self._most:
            self.refused += 1
            raise TransactionTooOld("transaction_too_old (1007): this one writes too much")
        self.bytes.append(transaction.size)


@asynccontextmanager
async def two_stores() -> AsyncIterator[tuple[MemoryStore, MemoryStore]]:
    """Two open stores with names of their own, the first one with jobs."""
    source, target = memory(), memory()
    source.address, target.address = "lmdb:from", "lmdb:to"
    async with opened(source, target):
        await populate(source)
        yield source, target
