"""Stray index entries, which point at no readable job, and jobs whose records cannot be read.

A damaged page, or a process of a newer version, may leave a record that cannot be decoded, an index entry that cannot
be parsed, or one that belongs to no job. None of them may stop the work on other jobs. So code that reads an index and
finds a stray entry removes it, in the same transaction, and goes on. A job with an unreadable record is set aside: it
gets a row in SET_ASIDE, and its subscribers an error. A version that can read it puts it back.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from typing import Final

from jobs_service import run_data
from jobs_service.errors import RecordDamaged
from jobs_service.layer.counters import AFTER_CRASH, STATES, lane_of, lane_of_damaged
from jobs_service.layer.entry import write_index
from jobs_service.layer.key_parts import AFTER, STAMP_CODE, TIME_BYTES, is_id, is_priority, pack_seconds
from jobs_service.layer.keyspace import SET_ASIDE, Keyspace, TypeFinder, TypeKeys, end_of_priority
from jobs_service.layer.record import Record
from jobs_service.layer.unit_of_work import Place, UnitOfWork
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


async def set_aside(transaction: Snapshot, keys: TypeKeys, after: bytes, limit: int) -> list[bytes]:
    """Return the packed ids of the type's jobs that were set aside, behind one of them; empty to begin."""
    begin = keys.set_aside + after + b"\x00"
    found = await transaction.get_range(begin, keys.set_aside + AFTER, limit=limit)
    return [key[len(keys.set_aside) :] for key, _ in found]


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


async def put_back(unit: UnitOfWork, keys: TypeKeys, packed_ids: Sequence[bytes]) -> int:
    """Restore the index entries of jobs that were set aside, as far as their records can be read now.

    Args:
        unit, keys: as everywhere.
        packed_ids: of these jobs; not all are read if their records are large.

    Returns:
        The number of jobs that were read.
    """
    entries = await unit.load_fitting(keys, packed_ids)
    rows = await unit.transaction.get_many([keys.set_aside + entry.packed_id for entry in entries])
    for packed_id, entry, row in zip(packed_ids, entries, rows, strict=False):
        if keys.data + packed_id in unit.damaged or not _is_sound(entry.record):
            continue
        unit.transaction.clear(keys.set_aside + packed_id)
        if row:
            unit.recount(keys, row[0] % STATES, 1)
        if entry.record is not None:
            write_index(unit.transaction, entry, entry.record)
            if lane_of(entry.record) >= AFTER_CRASH:
                unit.transaction.set(keys.retrying + packed_id, b"")
            unit.watch_over(keys, entry.record)
            unit.wake(keys)
    return len(entries)


def _is_sound(record: Record | None) -> bool:
    """Whether the whole record can be read, with its run data: otherwise the job would be set aside again and again."""
    try:
        run_data.check(b"" if record is None else record.run_data)
    except RecordDamaged:
        return False
    return True


async def remove_damaged(unit: UnitOfWork, place: Place) -> None:
    """Remove a job whose record cannot be read, with those of its index entries that can be found.

    They are guessed from the readable parts of the record, and searched for at the front of each index. A remaining
    entry is a stray, and is removed when it is read.
    """
    keys, _, packed_id = place
    data_key = keys.data + packed_id
    transaction = unit.transaction
    raw, row = await transaction.get_many((data_key, keys.set_aside + packed_id))
    found = await _entries_of(transaction.snapshot, keys, packed_id)
    guessed = [key for key in _guessed(keys, packed_id, raw or b"") if len(key) <= transaction.limits.key]
    there = await transaction.snapshot.get_many(guessed)
    found += [key for key, value in zip(guessed, there, strict=True) if value is not None and key not in found]
    lane = lane_of_damaged(keys, found[0] if found else None, raw)
    if row is None:
        unit.recount(keys, lane, -1)
    for key in found:
        transaction.clear(key)
    transaction.clear(keys.set_aside + packed_id)
    transaction.clear(keys.retrying + packed_id)
    unit.forget(place)


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


def _guessed(keys: TypeKeys, packed_id: bytes, raw: bytes) -> list[bytes]:
    """Return the index entries that a damaged record may have had: none of them can be another job's."""
    salvaged = Record.salvaged(raw)
    if salvaged is None:
        return []
    seq, priority, run_at = salvaged
    guessed = [keys.scheduled + pack_seconds(run_at) + packed_id, keys.failed_head + seq]
    if is_priority(priority):
        guessed.append(keys.ready + priority + STAMP_CODE + seq + packed_id)
    return guessed


def id_of_ready(keys: TypeKeys, key: bytes) -> bytes | None:
    """Return the packed id in a READY key; None if it cannot be parsed."""
    try:
        packed_id = key[end_of_priority(keys, key) + 1 + _SEQ_BYTES :]
    except Exception:  # fdb.tuple raises many kinds of errors for bytes that are no tuple
        return None
    return packed_id if is_id(packed_id) else None
