"""Which changes of a type a follower still finds."""

from __future__ import annotations

from functools import partial

import pytest

from jobs_service import JobsService
from jobs_service.layer import changes
from jobs_service.layer.changes import ChangedJobs, Position
from jobs_service.layer.keyspace import STAMP_CODE, Keyspace, pack_id
from jobs_service.settings import Settings
from jobs_service.sources import Sources
from jobs_service.store.base import Transaction
from jobs_service.store.memory import MemoryStore

KEYS = Keyspace(b"jobs/").of("type")


async def write_rows(transaction: Transaction) -> None:
    """Write two rows of changes, as one transaction does that changes very many jobs."""
    transaction.stamp_value(KEYS.watch_activity, b"", b"")
    for order in (b"\x00\x00", b"\x00\x01"):
        transaction.stamp_key(KEYS.changes + STAMP_CODE, order, b"\x01" + order)


async def test_who_has_seen_a_part_of_a_transaction_whose_rows_others_remove_looks_at_all_jobs() -> None:
    store = MemoryStore(settings=Settings(), sources=Sources())
    await store.open()
    await store.transact(lambda transaction: changes.follow(transaction, KEYS))

    async def since(position: Position, limit: int) -> ChangedJobs | None:
        return await store.read(lambda transaction: changes.since(transaction, KEYS, position, limit))

    begun = await store.read(lambda transaction: changes.begin(transaction, KEYS))
    assert begun is not None
    await store.transact(write_rows)
    part, all_of_it = await since(begun, 1), await since(begun, 10)
    assert part is not None
    assert all_of_it is not None
    assert (part.more, all_of_it.more) == (True, False)
    assert await since(part.position, 10) is not None
    seen = all_of_it.position
    await store.transact(lambda transaction: changes.remove_seen(transaction, KEYS, seen))
    assert await since(part.position, 10) is None
    assert await since(seen, 10) is not None
    await store.close()


@pytest.mark.parametrize("index", [KEYS.activity_head, KEYS.changes + STAMP_CODE], ids=["active", "changed"])
@pytest.mark.parametrize("limit", [1, 2, 10])
async def test_an_entry_far_ahead_that_somebody_has_left_behind_hides_no_change(index: bytes, limit: int) -> None:
    store = MemoryStore(settings=Settings(), sources=Sources())
    await store.open()
    await store.transact(lambda transaction: changes.follow(transaction, KEYS))
    ids = [pack_id(f"{number}\0\0{number}") for number in range(6)]

    async def leave_behind(transaction: Transaction) -> None:
        transaction.set(index + b"\xf0" * 12, pack_id("nobody"))

    await store.transact(leave_behind)
    position = await store.read(lambda transaction: changes.begin(transaction, KEYS))
    seen: list[bytes] = []
    for packed_id in ids:

        async def change(transaction: Transaction, packed_id: bytes = packed_id) -> None:
            transaction.stamp_value(KEYS.watch_activity, b"", b"")
            transaction.stamp_key(index, b"\x00\x00", packed_id)

        await store.transact(change)
        assert position is not None
        found = await store.read(partial(changes.since, keys=KEYS, position=position, limit=limit))
        assert found is not None
        seen += found.packed_ids
        position = found.position
    assert seen == ids
    await store.close()


async def test_who_follows_all_jobs_of_a_type_finds_those_that_are_added_and_others_do_not() -> None:
    async with JobsService("memory:") as jobs:
        await jobs.set_type_timeout("email", 30)
        context = jobs._context
        keys = context.keyspace.of("email")

        async def added(id: str, new: bool) -> list[bytes]:
            await context.transact(lambda unit: changes.follow(unit.transaction, keys, new=new))
            position = await context.read(lambda transaction: changes.begin(transaction, keys, new=new))
            assert position is not None
            await jobs.add("email", id)
            found = await context.read(lambda transaction: changes.since(transaction, keys, position, 10))
            assert found is not None
            return found.packed_ids

        assert await added("a", False) == []
        assert await context.read(lambda transaction: changes.begin(transaction, keys, new=True)) is None
        assert await added("b", True) == [pack_id("b")]
        # Who follows some jobs only goes on beside.
        assert await added("c", False) == [pack_id("c")]
