"""Finds and corrects times written by a clock far ahead.

The pause before a job's next run, and the retention of a finished job, are counted from the end of its run, by the
clock of the process that ended it. If that clock was a year ahead, the job would wait, or be kept, for a year more.
Such a job is known by its newest event, which lies more than MOST_AHEAD ahead of the present clock. Times that a caller
has given stay as they are.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from jobs_service import run_data
from jobs_service.errors import RecordDamaged
from jobs_service.layer import reads
from jobs_service.layer.awake_types import types_in
from jobs_service.layer.keyspace import AFTER, EXPIRING, SCHEDULED, TIME_BYTES, Keyspace, TypeKeys, pack_seconds
from jobs_service.layer.record import SCHEDULED as IS_SCHEDULED
from jobs_service.layer.record import Record
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.model import JobState
from jobs_service.run_data import HistoryKind
from jobs_service.sources import MOST_AHEAD
from jobs_service.store.base import Snapshot

SECTIONS = (SCHEDULED, EXPIRING)
"""The sections of the keyspace with such times, in the order of their keys."""

_BEGINS_A_PAUSE = frozenset({HistoryKind.CRASHED, HistoryKind.STOPPED})


class Suspects(NamedTuple):
    """Jobs of one type whose time lies far ahead, perhaps rightly.

    Attributes:
        keys: of the type.
        ids: packed.
        rows: the keys of their index entries.
    """

    keys: TypeKeys
    ids: list[bytes]
    rows: list[bytes]


async def suspects(
    transaction: Snapshot, keyspace: Keyspace, begin: bytes, now: float, limit: int
) -> tuple[Suspects | None, bytes | None]:
    """Return the next jobs whose time lies further ahead than a right clock would usually have written.

    Args:
        transaction, keyspace: to read from.
        begin: the key to go on from, empty at first.
        now: seconds since the epoch.
        limit: most jobs.

    Returns:
        Jobs of one type, None for none, and the key to go on from; None at the end.
    """
    for section in SECTIONS:
        prefix = keyspace.sections[section]
        types, behind = await types_in(transaction, keyspace, section, max(begin, prefix)[len(prefix) :], 1)
        if behind is None:
            continue
        if not types:
            return None, prefix + behind
        keys = keyspace.of_packed(types[0])
        rows, least = keys.scheduled, now + MOST_AHEAD
        if section == EXPIRING:
            kept = await reads.retention(transaction, keys)
            rows, least = keys.expiring, least + max(kept.keep or 0.0, kept.keep_failed or 0.0)
        first = max(rows + pack_seconds(least), begin)
        found = [key for key, _ in await transaction.get_range(first, rows + AFTER, limit=limit)]
        behind = found[-1] + b"\x00" if len(found) == limit else rows + AFTER
        return Suspects(keys, [key[len(rows) + TIME_BYTES :] for key in found], found) if found else None, behind
    return None, None


async def set_right(unit: UnitOfWork, keys: TypeKeys, ids: list[bytes]) -> tuple[int, int]:
    """Treat runs that a clock far ahead has ended as ended now, and set back all times that follow from it.

    Returns:
        The number of jobs that were examined, as many from the front as a transaction can hold, and of changed ones.
    """
    entries, changed = await unit.load_fitting(keys, ids), 0
    for entry in entries:
        record = entry.record
        with suppress(RecordDamaged):
            if record is not None and (moved := _set_back(unit, record)) is not None:
                unit.replace(entry, moved)
                changed += 1
    return len(entries), changed


def _set_back(unit: UnitOfWork, record: Record) -> Record | None:
    now, newest = unit.now, next(iter(run_data.history_of(record.run_data)), None)
    if newest is None or newest.at <= now + MOST_AHEAD:
        return None
    if record.place == IS_SCHEDULED and record.run_at is not None and newest.kind in _BEGINS_A_PAUSE:
        run_at = max(now, record.run_at - (newest.at - now))
        moved = record.pending(unit.place_for(run_at), unit.new_seq(), record.priority, run_at)
    elif record.state is JobState.FINISHED and record.outcome is not None:
        moved = record.finished(unit.new_seq(), record.outcome)
    else:
        return None
    return moved.with_run_data(run_data.set_back(record.run_data, now))
