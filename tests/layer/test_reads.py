"""How much an operation reads: what it takes, whatever else is there."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from jobs_service.layer import queue, reads
from jobs_service.layer.keyspace import pack_id, pack_priority, pack_seconds
from jobs_service.layer.queue import AcceptTerms
from jobs_service.layer.record import Entry
from jobs_service.layer.unit_of_work import UnitOfWork, run
from jobs_service.store.base import Snapshot, Transaction
from tests.checker import assert_sound
from tests.layer.support import Layer, Writes, add, layer
from tests.virtual_time import EPOCH, in_virtual_time


class Counted:
    """What was read.

    Attributes:
        keys, bytes: how much.
    """

    def __init__(self) -> None:
        self.keys = 0
        self.bytes = 0

    def add(self, rows: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Count rows."""
        self.keys += len(rows)
        self.bytes += sum(len(key) + len(value or b"") for key, value in rows)


class CountedReads(Snapshot):
    """Reads that are counted."""

    def __init__(self, reads: Snapshot, counted: Counted) -> None:
        self._reads = reads
        self._counted = counted

    async def get(self, key: bytes) -> bytes | None:
        value = await self._reads.get(key)
        self._counted.add([(key, value)])
        return value

    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        values = await self._reads.get_many(keys)
        self._counted.add([*zip(keys, values, strict=True)])
        return values

    async def get_range(self, begin: Any, end: Any, *, limit: int = 0, reverse: bool = False) -> Any:
        found = await self._reads.get_range(begin, end, limit=limit, reverse=reverse)
        self._counted.add(found)
        return found


class CountedTransaction(CountedReads, Writes):
    """A transaction whose reads are counted."""

    def __init__(self, transaction: Any, counted: Counted) -> None:
        Writes.__init__(self, transaction)
        CountedReads.__init__(self, transaction, counted)

    @property
    def snapshot(self) -> Any:
        return CountedReads(self.inner.snapshot, self._counted)


async def reads_of(found: Layer, work: Callable[[UnitOfWork], Awaitable[Any]]) -> tuple[Any, Counted]:
    """Run work in a transaction that commits, and return its result and what it has read."""
    transaction = found.store.begin()
    counted = Counted()
    try:
        front: Transaction = CountedTransaction(transaction, counted)
        result = await run(front, found.keyspace, found.sources, work)
        transaction.commit()
        return result, counted
    finally:
        transaction.end()


async def fill(found: Layer, count: int, *, size: int = 1, run_at: float | None = None, priority: Any = 0) -> None:
    """Add jobs with data of so many bytes, one after the other."""
    for number in range(count):
        await found.add(f"{number:05}", "x" * size, run_at=run_at, priority=priority)


async def made_ready_too_early(found: Layer, count: int, run_at: float) -> None:
    """Leave ready jobs that are not due, as a process does whose clock is ahead."""
    await fill(found, count, run_at=run_at)
    ahead = found.sources.wall_time

    def late() -> float:
        return run_at

    found.sources.wall_time = late
    try:
        while await found.transact(lambda unit: queue.make_ready(unit, found.keys, unit.now, 1000)):
            pass
    finally:
        found.sources.wall_time = ahead


def accepting(found: Layer, limit: int = 1, **terms: Any) -> Callable[[UnitOfWork], Awaitable[Any]]:
    wanted = AcceptTerms(limit, None, None, 1, 100)._replace(**terms)
    return lambda unit: queue.accept(unit, found.keys, wanted)


@in_virtual_time
async def test_an_accept_of_a_million_reads_what_one_transaction_takes() -> None:
    async with layer() as found:
        await fill(found, 130, size=90_000)
        (taken, more), counted = await reads_of(found, accepting(found, 10**6))
        assert 20 <= len(taken) < 40
        assert more
        assert counted.bytes < found.store.limits.transaction


async def schedule(unit: UnitOfWork, found: Layer, first: int) -> None:
    """Add a thousand jobs for later."""
    for number in range(first, first + 1000):
        await add(unit, found.place(f"{number:05}"), run_at=EPOCH + 100 + number, priority=-number)


@in_virtual_time
async def test_ready_jobs_that_are_not_due_do_not_cost_every_accept() -> None:
    async with layer() as found:
        await made_ready_too_early(found, 500, EPOCH + 3600)
        await found.add("behind")
        read = []
        for number in range(9):
            (taken, _), counted = await reads_of(found, accepting(found))
            read.append(counted.keys)
            assert [entry.id for entry in taken] == (["behind"] if number == 0 else [])
        # 100 of them go back each time; a few are passed over as they are.
        assert read[0] > 500
        assert read[-1] < 150
        await assert_sound(found.store, now=EPOCH + 3600)
        ready = await found.pairs(found.keys.ready, found.keys.ready + b"\xff")
        assert len(ready) <= queue._FEW_EARLY
        # All of them are there when they are due.
        found.sources.wall_time = lambda: EPOCH + 3601
        count = 0
        while (await reads_of(found, accepting(found, 50)))[0][0]:
            count += 1
        assert count == 10


@in_virtual_time
async def test_a_look_ends_after_thousands_of_ready_jobs_that_are_not_due_and_says_that_there_may_be_more() -> None:
    async with layer() as found:
        for number in range(3):
            await found.transact(functools.partial(schedule, found=found, first=1000 * number))
        found.sources.wall_time, before = lambda: EPOCH + 1e6, found.sources.wall_time
        while await found.transact(lambda unit: queue.make_ready(unit, found.keys, unit.now, 1000)):
            pass
        found.sources.wall_time = before
        await found.add("behind", priority=1)
        looks, most = 0, 0
        taken: list[Entry] = []
        while not taken:
            (taken, more), counted = await reads_of(found, accepting(found))
            assert taken or more
            most = max(most, counted.keys)
            looks += 1
        assert [entry.id for entry in taken] == ["behind"]
        assert looks > 5
        assert most < queue.MOST_EARLY + 2 * 256 + 200


@in_virtual_time
async def test_an_accept_by_a_time_that_has_passed_passes_over_a_bounded_number_of_ready_jobs() -> None:
    async with layer() as found:
        run_at = pack_seconds(EPOCH - 1)

        async def make(unit: UnitOfWork) -> None:
            for number in range(queue.MOST_TAKEN + 4000):
                id = pack_id(f"{number:05}")
                unit.transaction.set(found.keys.ready + pack_priority(0) + b"\x33" + number.to_bytes(12) + id, run_at)

        await found.add("first", priority=-1)
        await found.transact(make)
        await found.add("behind", priority=1)
        look = accepting(found, due_by=EPOCH - 2)
        (taken, more), counted = await reads_of(found, look)
        assert [entry.id for entry in taken] == ["first"]
        assert counted.keys < 10

        async def wait(unit: UnitOfWork) -> Any:
            taken, more = await look(unit)
            assert taken == []
            return more, await queue.wait_for_more(unit, found.keys, None, EPOCH - 2, is_cut=more is queue.More.BEHIND)

        (more, (watch, due_in)), counted = await reads_of(found, wait)
        assert counted.keys < queue.MOST_TAKEN + 2 * queue.PAGE + 10
        # Nothing that is added tells when those in front have left: it looks again by itself.
        assert (more, due_in) == (queue.More.BEHIND, queue._PASSED_CHECK)
        watch.cancel()


@pytest.mark.parametrize(("state", "most"), [("ready", 16), ("ready", 20), (None, 16), (None, 40)])
@in_virtual_time
async def test_a_page_reads_no_more_jobs_than_it_has_and_the_next_one(state: str | None, most: int) -> None:
    async with layer() as found:
        await fill(found, 300)
        terms = reads.terms(state, None, False, None, EPOCH)

        async def read(unit: UnitOfWork) -> Any:
            return await reads.page(unit.transaction, found.keys, terms, None, most)

        (jobs, last), counted = await reads_of(found, read)
        assert (len(jobs), last is None) == (most, False)
        assert counted.keys == (most + 1) * (1 if state is None else 2)  # of an index, with the records


@in_virtual_time
async def test_making_ready_reads_what_it_moves() -> None:
    async with layer() as found:
        await fill(found, 100, size=90_000, run_at=EPOCH + 1)
        found.sources.wall_time = lambda: EPOCH + 2
        moved, counted = await reads_of(found, lambda unit: queue.make_ready(unit, found.keys, unit.now, 1000))
        assert 20 <= moved < 40
        assert counted.bytes < 10_000_000
