"""The last records of jobs that have left the store with their end, for earlier subscribers.

A job of a type that keeps its jobs for 0 seconds is gone with the transaction that ends it. Followers of the type at
that moment (FOLLOWED, see `layer/changes.py`) must still learn how it has ended: so its final record goes into a row
(LAST, type, id). A type without followers gets no such row.

- Followers look there if a changed job has no record any more. Without a row it was removed.
- A transaction that removes a job of a followed type clears the row of an earlier job with the same id. The rows of a
  type go with FOLLOWED at the latest. So a row without a record of the same job in DATA belongs to the last job with
  that id.
- The type's activity monitor removes the rows when they are old: a follower may be late by that much.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from jobs_service.errors import RecordDamaged
from jobs_service.layer.key_parts import AFTER
from jobs_service.layer.keyspace import TypeKeys
from jobs_service.layer.record import Record
from jobs_service.store.base import STAMP_BYTES, Snapshot, Transaction

_LARGEST_READ: Final = 1_000_000
"""Bytes of rows after which a transaction removes no more of them."""


class Removed(NamedTuple):
    """One transaction's part of a long removal.

    Attributes:
        looked_at: number of rows.
        behind: the last of them; None if none follow.
    """

    looked_at: int
    behind: bytes | None


async def are_there(transaction: Snapshot, keys: TypeKeys) -> bool:
    """Whether the type has such rows."""
    return bool(await transaction.get_range(keys.last, keys.last + AFTER, limit=1))


async def remove_old(transaction: Transaction, keys: TypeKeys, until: bytes, behind: bytes, limit: int) -> Removed:
    """Remove rows that were written up to a versionstamp.

    Args:
        transaction, keys: of the type.
        until: the versionstamp.
        behind: the key of the last row looked at; the type's prefix to begin.
        limit: most rows to look at.
    """
    page = max(1, transaction.limits.transaction // transaction.limits.value)
    looked_at = size = 0
    while looked_at < limit and size < _LARGEST_READ:
        wanted = min(page, limit - looked_at)
        found = await transaction.snapshot.get_range(behind + b"\x00", keys.last + AFTER, limit=wanted)
        for key, raw in found:
            if _is_old(raw, until):
                # A job of the same id may leave just now: its row stays.
                transaction.add_read_conflict_key(key)
                transaction.clear(key)
            size += len(raw)
        looked_at += len(found)
        if len(found) < wanted:
            return Removed(looked_at, None)
        behind = found[-1][0]
    return Removed(looked_at, behind)


def _is_old(raw: bytes, until: bytes) -> bool:
    try:
        seq = Record.decode(raw).seq_bytes
    except RecordDamaged:
        return True
    return seq is not None and seq[:STAMP_BYTES] <= until
