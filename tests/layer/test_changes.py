"""Which changes of a type a follower still finds."""

from __future__ import annotations

from jobs_service.layer import changes
from jobs_service.layer.changes import Found, Position
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

    async def since(position: Position, limit: int) -> Found | None:
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


def test_the_ids_of_a_row_are_told_apart_whatever_bytes_they_have() -> None:
    packed_ids = [pack_id(id) for id in ("a", "a\x00b", b"\x00", b"\x00\xff", "", "\x00\x00")]
    [row] = changes.write(packed_ids)
    assert [*changes._ids(row)] == packed_ids
