"""The queue's keys: a job is found again behind any priority, and every way of looking at a queue agrees."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs_service.layer import queue
from jobs_service.layer import reads as queue_counts
from jobs_service.layer.keyspace import pack_id, pack_priority, pack_seconds
from jobs_service.layer.queue import AcceptTerms, More
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.store.base import Snapshot, Transaction
from tests.layer.support import Layer, add, layer
from tests.layer.tuples import NAMES
from tests.virtual_time import EPOCH, in_virtual_time, run_virtual

ALL = AcceptTerms(1000, None, None, 1, 100)


async def accepted(found: Layer, terms: AcceptTerms = ALL) -> list[Any]:
    """Accept jobs and return their ids in order."""

    async def work(unit: UnitOfWork) -> list[Any]:
        taken, _ = await queue.accept(unit, found.keys, terms)
        return [entry.id for entry in taken]

    return await found.transact(work)


def test_of_jobs_due_at_the_same_time_the_id_decides_whoever_has_made_them_pending() -> None:
    async def taken() -> list[Any]:
        async with layer() as found:
            await found.add("b", run_at=EPOCH + 10)

            async def work(unit: UnitOfWork) -> list[Any]:
                for id in ("c", "a"):
                    await add(unit, found.place(id), run_at=EPOCH + 10)
                taken, _ = await queue.accept(unit, found.keys, AcceptTerms(3, None, EPOCH + 100, 1, 100))
                return [entry.id for entry in taken]

            return await found.transact(work)

    assert run_virtual(taken()) == ["a", "b", "c"]


@settings(max_examples=60)
@given(
    st.lists(st.tuples(NAMES, st.sampled_from([None, EPOCH - 5, EPOCH + 5, EPOCH + 50])), max_size=8),
    NAMES,
    st.sampled_from([None, EPOCH - 10, EPOCH, EPOCH + 10, EPOCH + 100]),
)
def test_max_priority_and_due_by_draw_the_same_line_for_jobs_stored_and_jobs_of_this_transaction(
    jobs: list[tuple[Any, float | None]], most: Any, due_by: float | None
) -> None:
    terms = AcceptTerms(1000, pack_priority(most), due_by, 1, 100)
    limit = EPOCH if due_by is None else due_by

    def wanted() -> set[str]:
        return {
            str(number)
            for number, (priority, run_at) in enumerate(jobs)
            if pack_priority(priority) <= pack_priority(most) and (run_at is None or run_at <= limit)
        }

    async def stored() -> list[Any]:
        async with layer() as found:
            for number, (priority, run_at) in enumerate(jobs):
                await found.add(str(number), priority=priority, run_at=run_at)
            taken = await accepted(found, terms)
            await found.assert_sound()
            return taken

    async def here() -> list[Any]:
        async with layer() as found:

            async def work(unit: UnitOfWork) -> list[Any]:
                for number, (priority, run_at) in enumerate(jobs):
                    await add(unit, found.place(str(number)), priority=priority, run_at=run_at)
                taken, _ = await queue.accept(unit, found.keys, terms)
                return [entry.id for entry in taken]

            taken = await found.transact(work)
            await found.assert_sound()
            return taken

    in_store, in_transaction = run_virtual(stored()), run_virtual(here())
    assert set(in_store) == set(in_transaction) == wanted()
    ranks = [pack_priority(jobs[int(id)][0]) for id in in_store]
    assert ranks == sorted(ranks)


@settings(max_examples=40)
@given(
    st.lists(st.sampled_from([None, EPOCH - 5, EPOCH + 5, EPOCH + 5, EPOCH + 50]), max_size=12),
    st.sampled_from([None, EPOCH - 5, EPOCH, EPOCH + 5, EPOCH + 100]),
    st.integers(1, 5),
)
def test_counting_page_by_page_counts_every_pending_job_once(
    run_ats: list[float | None], due_by: float | None, page: int
) -> None:
    async def scenario() -> int:
        async with layer() as found:
            for number, run_at in enumerate(run_ats):
                await found.add(str(number), run_at=run_at)
            counted = 0
            after: bytes | None = None
            for _ in range(100):
                more, after = await found.store.read(
                    partial(queue_counts.count, keys=found.keys, due_by=due_by, limit=page, after=after)
                )
                counted += more
                if after is None:
                    return counted
            raise AssertionError("counting does not end")

    wanted = [run_at for run_at in run_ats if due_by is None or run_at is None or run_at <= due_by]
    assert run_virtual(scenario()) == len(wanted)


@in_virtual_time
async def test_more_due_jobs_than_one_look_makes_ready_are_said_to_be_more() -> None:
    async with layer() as found:
        for number in range(5):
            await found.add(str(number), run_at=EPOCH + 1)
        found.sources.wall_time = lambda: EPOCH + 2

        async def look(unit: UnitOfWork) -> tuple[int, More]:
            taken, more = await queue.accept(unit, found.keys, AcceptTerms(10, None, None, 1, 2))
            return len(taken), more

        assert [await found.transact(look) for _ in range(4)] == [
            (2, More.DUE),
            (2, More.DUE),
            (1, More.DUE),
            (0, More.NO),
        ]


class _Counting(Snapshot):
    """A snapshot that knows how many rows were read, and how many at once."""

    def __init__(self, reads: Snapshot) -> None:
        self._reads = reads
        self.rows: list[int] = []

    async def get(self, key: bytes) -> bytes | None:
        return await self._reads.get(key)

    async def get_many(self, keys: Any) -> list[bytes | None]:
        return await self._reads.get_many(keys)

    async def get_range(self, begin: Any, end: Any, *, limit: int = 0, reverse: bool = False) -> Any:
        found = await self._reads.get_range(begin, end, limit=limit, reverse=reverse)
        self.rows.append(len(found))
        return found


@pytest.mark.parametrize("limit", [1, 30_000])
@in_virtual_time
async def test_counting_what_is_due_reads_a_bounded_number_of_jobs_whose_priority_is_not_wanted(limit: int) -> None:
    async with layer() as found:
        scheduled = found.keys.scheduled + pack_seconds(EPOCH)

        async def fill(transaction: Transaction) -> None:
            for number in range(40_000):
                transaction.set(scheduled + pack_id(number.to_bytes(4)), pack_priority(int(number < 25_000)))

        await found.store.transact(fill)

        async def counting(priority: int) -> tuple[int, list[int]]:
            async def count(transaction: Transaction) -> tuple[int, list[int]]:
                reads = _Counting(transaction)
                counted = await queue_counts.count_due(reads, found.keys, EPOCH, limit, pack_priority(priority))
                return counted, reads.rows

            return await found.store.read(count)

        counted, rows = await counting(0)
        assert counted == 0, "what is behind so many others is made ready before it is counted"
        assert sum(rows) <= 20_000
        assert max(rows) <= 2000
        counted, rows = await counting(1)
        assert counted == limit
        assert sum(rows) <= limit + 2000
        assert max(rows) <= 2000
