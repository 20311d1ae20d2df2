"""Stray index entries, which point at no readable job, and jobs whose records cannot be read.

A fault, or a process of a newer version, may leave a record that cannot be decoded, an index entry that cannot
be parsed, or one that belongs to no job. None of them may stop the work on other jobs. So code that reads an index and
finds a stray entry removes it, in the same transaction, and goes on. A job with an unreadable record is set aside: it
is in no index any more but has a row in SET_ASIDE, and its subscribers get an error. It stays so until it is removed.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Final

from jobs_service.layer.counters import lane_of_damaged
from jobs_service.layer.keyspace import (
    AFTER,
    SET_ASIDE,
    TIME_BYTES,
    Keyspace,
    Place,
    TypeFinder,
    TypeKeys,
    end_of_priority,
    is_id,
)
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.store.base import Snapshot

_SEQ_BYTES: Final = 12
_LOOKED_AT: Final = 1000
"""Entries of each index that are searched for a job with an unreadable record."""


def take_out(unit: UnitOfWork, keys: TypeKeys, index_key: bytes, packed_id: bytes | None) -> None:
    """Remove a stray index entry; set its job aside if the job's record cannot be read.

    Args:
        unit: has read the job's record, so that a concurrent change of it is a conflict.
        keys: of the type.
        index_key: of the entry.
        packed_id: of the job; None if the entry names none.
    """
    unit.transaction.clear(index_key)
    if packed_id is not None and keys.data + packed_id in unit.damaged:
        unit.set_aside(keys, packed_id, index_key)


async def unreadable(transaction: Snapshot, keyspace: Keyspace, keys: TypeKeys | None) -> Counter[bytes]:
    """Return how many jobs of each packed type are uncounted because their records cannot be read, 1,000 at most.

    Args:
        transaction, keyspace: of the jobs.
        keys: of the only type to read; None for all.
    """
    section = keyspace.sections[SET_ASIDE]
    begin = section if keys is None else keys.set_aside
    found = await transaction.get_range(begin, begin + AFTER, limit=_LOOKED_AT)
    if keys is not None:
        return Counter(keys.packed for _, lane in found if lane)
    finder = TypeFinder(keyspace)
    counted: Counter[bytes] = Counter()
    for key, lane in found:
        # A row that is damaged itself names no job.
        with contextlib.suppress(Exception):
            counted[finder.keys_of(key[len(section) :]).packed] += bool(lane)
    return +counted


async def remove_damaged(unit: UnitOfWork, place: Place) -> None:
    """Remove a job whose record cannot be read, with its entries among the first of each index.

    A remaining entry is a stray, and is removed when it is read.
    """
    keys, _, packed_id = place
    transaction = unit.transaction
    row, retrying = keys.set_aside + packed_id, keys.retrying + packed_id
    is_set_aside, is_retrying = [value is not None for value in await transaction.get_many((row, retrying))]
    found = await _entries_of(transaction.snapshot, keys, packed_id)
    for key in (row, retrying, *found):
        transaction.clear(key)
    unit.forget(place, None if is_set_aside else lane_of_damaged(keys, found[0] if found else b"", is_retrying))


async def _entries_of(reads: Snapshot, keys: TypeKeys, packed_id: bytes) -> list[bytes]:
    """Return the index entries of a job among the first of each index."""
    found: list[bytes] = []
    for section in (keys.ready, keys.scheduled, keys.activity, keys.expiring, keys.failed_head):
        for key, value in await reads.get_range(section, section + AFTER, limit=_LOOKED_AT):
            if section in (keys.activity, keys.failed_head):
                named: bytes | None = value
            elif section is keys.ready:
                named = id_of_ready(keys, key)
            else:
                named = key[len(section) + TIME_BYTES :]
            if named == packed_id:
                found.append(key)
    return found


def id_of_ready(keys: TypeKeys, key: bytes) -> bytes | None:
    """Return the packed id in a READY key; None if it cannot be parsed."""
    try:
        packed_id = key[end_of_priority(keys, key) + 1 + _SEQ_BYTES :]
    except Exception:  # fdb.tuple raises many kinds of errors for bytes that are no tuple
        return None
    return packed_id if is_id(packed_id) else None
