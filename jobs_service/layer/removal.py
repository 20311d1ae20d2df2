"""Removal of jobs: by their creators, and when they expire; and of index entries that point at no readable job.

A fault, or a process of a newer version, may leave a record that cannot be decoded, an index entry that cannot
be parsed, or one that belongs to no job. None of them may stop the work on other jobs. So code that reads an index and
finds a stray entry removes it, in the same transaction, and goes on. A job with an unreadable record is set aside: it
is in no index any more but has a row in SET_ASIDE, and its subscribers get an error. It stays so until it is removed.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Final

from jobs_service import run_data
from jobs_service.errors import (
    RecordDamaged,
)
from jobs_service.layer.counters import EXPIRED, lane_of_damaged
from jobs_service.layer.creation import not_found
from jobs_service.layer.keyspace import (
    AFTER,
    SET_ASIDE,
    TIME_BYTES,
    TIME_CODE,
    Keyspace,
    Place,
    TypeFinder,
    TypeKeys,
    end_of_priority,
    is_id,
    next_time,
    pack_seconds,
)
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.model import JobState, Removal
from jobs_service.store.base import Snapshot

_SEQ_BYTES: Final = 12


_LOOKED_AT: Final = 1000
"""Entries of each index that are searched for a job with an unreadable record."""


# Jobs


async def remove(unit: UnitOfWork, place: Place, force: bool) -> Removal:
    """Remove a job; a running one is asked to stop, unless force is set.

    Raises:
        JobNotFound: there is no such job.
        RecordDamaged: its record cannot be read, and force is not set.
    """
    try:
        entry = await unit.load(place)
    except RecordDamaged:
        if not force:
            raise
        await remove_damaged(unit, place)
        unit.take_away(place[0])
        return Removal.REMOVED
    record = entry.record
    if record is None:
        raise not_found(entry)
    if record.state is JobState.RUNNING:
        if not record.cancel or force:
            unit.take_away(entry.keys)
        if not force:
            if not record.cancel:
                unit.replace(entry, record.canceled())
            return Removal.CANCELED
    unit.remove(entry)
    return Removal.REMOVED


async def next_expiry(transaction: Snapshot, keys: TypeKeys) -> float | None:
    """Return when the next finished job expires, seconds since the epoch; None if none expires."""
    begin, end = keys.expiring + TIME_CODE, keys.expiring + TIME_CODE + AFTER
    return next_time(await transaction.get_range(begin, end, limit=1), len(keys.expiring))


async def remove_expired(unit: UnitOfWork, keys: TypeKeys, until: float, limit: int) -> int:
    """Remove finished jobs that expire by `until`, the earliest first; return their number.

    One call removes at most `limit` jobs, and no more than a transaction can hold: call again until it returns 0.
    """
    found = await unit.transaction.snapshot.get_range(
        keys.expiring, keys.expiring + pack_seconds(until) + AFTER, limit=limit
    )
    offset = len(keys.expiring) + TIME_BYTES
    entries = await unit.load_fitting(keys, [key[offset:] for key, _ in found])
    removed = 0
    for (key, _), entry in zip(found, entries, strict=False):
        record = entry.record
        # One that was resubmitted does not expire any more.
        expires = (
            None if record is None or record.state is not JobState.FINISHED else run_data.expires_at(record.run_data)
        )
        if expires is not None and expires <= until:
            unit.remove(entry)
            unit.happened(keys, EXPIRED)
            removed += 1
        else:
            # A stray entry must not stay in the way for ever.
            take_out(unit, keys, key, entry.packed_id)
    return removed


# Damage


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
