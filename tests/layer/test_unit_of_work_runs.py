"""Units of work within the limits of a store, and run again."""

from __future__ import annotations

from typing import Any

import pytest

from jobs_service import JobTooLarge, Outcome, StoreError, run_data
from jobs_service.layer import creation, queue, running_jobs
from jobs_service.layer.creation import Spec
from jobs_service.layer.keyspace import AFTER, pack_id
from jobs_service.layer.queue import AcceptTerms
from jobs_service.layer.record import READY, Entry, Record
from jobs_service.layer.unit_of_work import UnitOfWork, run
from jobs_service.model import UNSET
from tests.layer.support import Layer, layer
from tests.layer.units import Work, accept, adding, lock_of
from tests.virtual_time import EPOCH, in_virtual_time

# limits


@in_virtual_time
async def test_the_longest_job_that_is_taken_can_do_everything() -> None:
    async with layer() as found:
        id = "a" * 4000
        place = found.place(id)
        priority = "p" * 5900
        biggest = 100_000 - 3_125 - 4 - 24 - 16 - 10 - 2 * 5902 - 4 - run_data.HEAD_BYTES
        await found.add(id, "x" * (biggest - 2), priority=priority)
        lock = lock_of(await found.transact(lambda unit: accept(unit, found)))
        await found.transact(lambda unit: creation.resubmit(unit, place, Spec(UNSET, UNSET, EPOCH + 5)))
        await found.transact(lambda unit: creation.remove(unit, place, False))
        await found.assert_sound()
        await found.transact(lambda unit: running_jobs.release(unit, place, lock))
        await found.assert_sound()
        with pytest.raises(JobTooLarge):
            await found.add("b" * 4000, "x" * (biggest - 1), priority=priority)


@in_virtual_time
async def test_as_many_jobs_are_taken_as_a_transaction_can_hold_and_never_none() -> None:
    async with layer() as found:
        for number in range(40):
            await found.add(f"{number:02}", "x" * 90_000)

        async def take(unit: UnitOfWork) -> int:
            taken, more = await queue.accept(unit, found.keys, AcceptTerms(1000, None, None, 1, 100))
            assert more
            return len(taken)

        assert 20 <= await found.transact(take) <= 30

        async def fit(unit: UnitOfWork) -> int:
            entry = Entry(found.keys, "a", pack_id("a"), None)
            entry.record = Record(None, READY, b"s" * 12, b"\x14", None, None, False, None, b"x" * 3_000_000)
            return len(unit.fitting([entry, entry]))

        assert await found.transact(fit) == 1


def removing(found: Layer, id: str) -> Work:
    return lambda unit: creation.remove(unit, found.place(id), True)


async def run_and_lose(found: Layer, work: Work) -> Any:
    """Run work in a transaction that never commits, and return its result."""
    transaction = found.store.begin()
    try:
        return await run(transaction, found.keyspace, found.sources, work)
    finally:
        transaction.end()


# runs


@pytest.mark.parametrize("how", ["add", "accept", "update", "finish", "release", "resubmit", "remove"])
def test_a_run_that_did_not_commit_leaves_nothing_behind_and_the_next_one_does_it_all(how: str) -> None:
    @in_virtual_time
    async def scenario() -> None:
        async with layer() as found:
            place = found.place("a")
            if how != "add":
                await found.add("a")
            lock = b""
            if how not in ("add", "accept", "remove"):
                lock = lock_of(await found.transact(lambda unit: accept(unit, found)))
            work: Work = {
                "add": adding(found, "a"),
                "accept": lambda unit: accept(unit, found),
                "update": lambda unit: running_jobs.update(unit, place, lock, b"1"),
                "finish": lambda unit: running_jobs.finish(unit, place, lock, None, Outcome.SUCCEEDED),
                "release": lambda unit: running_jobs.release(unit, place, lock),
                "resubmit": lambda unit: running_jobs.resubmit(unit, place, lock, Spec(UNSET, 3, UNSET)),
                "remove": removing(found, "a"),
            }[how]
            before = await found.pairs()
            await run_and_lose(found, work)
            assert await found.pairs() == before
            await found.transact(work)
            assert await found.pairs() != before
            await found.assert_sound()

    scenario()


@in_virtual_time
async def test_a_damaged_record_stops_the_operation_and_nothing_is_written_but_by_force() -> None:
    async with layer() as found:
        place = found.place("a")

        async def damage(transaction: Any) -> None:
            transaction.set(found.keys.data + place[2], b"\x01damaged")

        await found.store.transact(damage)
        for work in (adding(found, "a"), lambda unit: creation.remove(unit, found.place("a"), False)):
            with pytest.raises(StoreError, match="a job's record is damaged"):
                await found.transact(work)
        assert await found.pairs(found.keys.data, found.keys.data + AFTER) == [
            (found.keys.data + place[2], b"\x01damaged")
        ]
        await found.transact(removing(found, "a"))
        assert await found.pairs(found.keys.data, found.keys.data + AFTER) == []
