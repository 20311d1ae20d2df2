"""The unit of work: each touched job is written once, in the order of the operations."""

from __future__ import annotations

import contextlib

import pytest

from jobs_service import Outcome
from jobs_service.errors import JobExists, TransactionTooLarge
from jobs_service.layer import creation, running_jobs
from jobs_service.layer.creation import Spec
from jobs_service.layer.keyspace import AFTER, pack_id
from jobs_service.layer.record import Record
from jobs_service.layer.unit_of_work import UnitOfWork, run
from jobs_service.model import UNSET
from tests.layer.support import Layer, Writes, add, layer
from tests.layer.units import Work, accept, lock_of
from tests.virtual_time import EPOCH, in_virtual_time


async def writes_of(found: Layer, work: Work) -> list[tuple[str, bytes]]:
    """Run work in a transaction that commits, and return what it wrote."""
    transaction = found.store.begin()
    try:
        writes = Writes(transaction)
        await run(writes, found.keyspace, found.sources, work)
        transaction.commit()
        return writes.keys
    finally:
        transaction.end()


def of_section(found: Layer, writes: list[tuple[str, bytes]], section: bytes) -> list[str]:
    """Return how the keys of a section were written."""
    return [how for how, key in writes if key.startswith(section)]


# each job once


@in_virtual_time
async def test_a_job_that_goes_through_everything_is_written_once() -> None:
    async with layer() as found:
        place = found.place("a")

        async def work(unit: UnitOfWork) -> None:
            await add(unit, place, 1, priority=5, run_at=EPOCH + 9)
            await creation.resubmit(unit, place, Spec(2, 0, None))
            lock = lock_of(await accept(unit, found))
            await running_jobs.update(unit, place, lock, b"3")
            await running_jobs.resubmit(unit, place, lock, Spec(UNSET, 7, None))
            await running_jobs.finish(unit, place, lock, b"4", Outcome.SUCCEEDED)

        writes = await writes_of(found, work)
        assert of_section(found, writes, found.keys.data) == ["stamp value"]
        assert of_section(found, writes, found.keys.ready) == ["stamp key"]
        assert of_section(found, writes, found.keys.watch_pending) == ["add"]
        assert of_section(found, writes, found.keys.watch_activity) == ["stamp value"]
        # The entry in SCHEDULED, where the job was for a moment, is cleared and never written.
        assert of_section(found, writes, found.keys.scheduled) == ["clear"]
        assert not of_section(found, writes, found.keys.activity)
        await found.assert_sound()
        [(key, raw)] = await found.pairs(found.keys.data, found.keys.data + AFTER)
        assert (key, Record.decode(raw).json, Record.decode(raw).priority) == (
            found.keys.data + place[2],
            b"4",
            b"\x15\x07",
        )


@in_virtual_time
async def test_a_job_is_read_once_however_often_it_is_touched() -> None:
    async with layer() as found:
        await found.add("a")

        async def work(unit: UnitOfWork) -> bool:
            one = await unit.load(found.place("a"))
            [two] = await unit.load_many(found.keys, [pack_id("a")])
            await unit.prefetch([found.place("a")])
            return one is two is await unit.load(found.place("a"))

        assert await found.transact(work)


# order


@in_virtual_time
async def test_a_transaction_that_moves_more_jobs_than_it_can_order_is_too_large() -> None:
    async with layer() as found:

        async def work(unit: UnitOfWork) -> None:
            for _ in range(65_536):
                unit.new_seq()
            with pytest.raises(TransactionTooLarge, match="more than 65536 jobs; split it"):
                unit.new_seq()

        await found.transact(work)


@in_virtual_time
async def test_changes_that_are_undone_leave_the_job_where_it_was() -> None:
    async with layer() as found:
        await found.add("a", 1)

        async def work(unit: UnitOfWork) -> None:
            with contextlib.suppress(JobExists), unit.all_or_nothing():
                await creation.remove(unit, found.place("a"), False)
                raise JobExists("of another one")

        await found.transact(work)
        await found.assert_sound()
        assert len(await found.pairs(found.keys.ready, found.keys.ready + AFTER)) == 1
