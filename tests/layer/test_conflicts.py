"""What must be a conflict: a transaction that relies on what another one changes before it commits."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from jobs_service.errors import TransactionConflict
from jobs_service.layer import awake_types, changes, creation
from jobs_service.layer.keyspace import pack_id
from jobs_service.layer.unit_of_work import UnitOfWork, run
from tests.layer.moves import accept, lose_all, running
from tests.layer.support import Layer, add, layer
from tests.layer.units import Work
from tests.virtual_time import EPOCH, in_virtual_time


@asynccontextmanager
async def overtaken(found: Layer, work: Work) -> AsyncIterator[None]:
    """Do work in a transaction; what others commit in the block must keep it from committing after that."""
    transaction = found.store.begin()
    try:
        await run(transaction, found.keyspace, found.sources, work)
        yield
        with pytest.raises(TransactionConflict):
            transaction.commit()
    finally:
        transaction.end()


@pytest.mark.parametrize("count", [1, 3])
@in_virtual_time
async def test_who_changes_jobs_conflicts_with_who_begins_to_follow_their_type(count: int) -> None:
    ids = [str(number) for number in range(count)]
    async with layer() as found:
        for id in ids:
            await found.add(id)
        places = [found.place(id) for id in ids]

        async def remove(unit: UnitOfWork) -> None:
            await unit.prefetch(places)
            for place in places:
                await creation.remove(unit, place, False)

        async with overtaken(found, remove):
            await found.transact(lambda unit: changes.follow(unit.transaction, found.keys))
            position = await found.store.read(lambda transaction: changes.begin(transaction, found.keys))
        assert position is not None
        # Run again, it notes what the follower is to be told.
        await found.transact(remove)
        told = await found.store.read(lambda transaction: changes.since(transaction, found.keys, position, 10))
        assert told is not None
        assert told.packed_ids == [pack_id(id) for id in ids]


@in_virtual_time
async def test_who_schedules_a_job_of_a_type_that_is_awake_conflicts_with_who_takes_the_type_for_idle() -> None:
    async with layer() as found:

        async def is_idle(unit: UnitOfWork) -> bool:
            return await awake_types.settle(unit.transaction, found.keyspace, found.keys, unit.now)

        async def not_awake(unit: UnitOfWork) -> list[bytes]:
            return await awake_types.not_awake(unit.transaction, found.keyspace, [found.keys.packed])

        await found.add("gone", run_at=EPOCH + 100)
        await found.transact(lambda unit: creation.remove(unit, found.place("gone"), False))
        assert await found.transact(not_awake) == []

        async with overtaken(found, lambda unit: add(unit, found.place("a"), run_at=EPOCH + 100)):
            assert await found.transact(is_idle)
            assert await found.transact(not_awake) == [found.keys.packed]
        # Added again, the job has its type watched over.
        await found.add("a", run_at=EPOCH + 100)
        assert await found.transact(not_awake) == []
        await found.assert_sound()


@in_virtual_time
async def test_who_takes_a_type_for_idle_conflicts_with_who_begins_one_of_its_jobs() -> None:
    async with layer() as found:

        async def settle(unit: UnitOfWork) -> bool:
            return await awake_types.settle(unit.transaction, found.keyspace, found.keys, unit.now)

        await running(found)
        await lose_all(found)
        async with overtaken(found, settle):
            await accept(found)
        # Run again, it leaves the type awake.
        assert not await found.transact(settle)
        await found.assert_sound()
