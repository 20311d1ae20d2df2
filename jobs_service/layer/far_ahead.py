"""Finds and sets right the times that a clock far ahead has written.

The pause before a job's next run, and the time for which a finished job is kept, are counted from the end of its run,
by the clock of the process that has ended it. Where that clock was a year ahead, the job would wait, or be kept, for a
year more. Such a job is known by its newest event, which lies more than MOST_AHEAD ahead of the present clock. Times
that a caller has given for a job that was added or resubmitted stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from jobs_service import run_data
from jobs_service.layer import inspection
from jobs_service.layer.awake_types import types_in
from jobs_service.layer.key_parts import AFTER, TIME_BYTES, pack_seconds
from jobs_service.layer.keyspace import EXPIRING, SCHEDULED, Keyspace, TypeKeys
from jobs_service.layer.record_format import SCHEDULED as IS_SCHEDULED
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.model import JobState
from jobs_service.run_values import HistoryKind
from jobs_service.sources import MOST_AHEAD
from jobs_service.store.base import Snapshot

SECTIONS = (SCHEDULED, EXPIRING)
"""The sections of the keyspace that have such times."""


class Suspects(NamedTuple):
    """Jobs of one type whose time lies far ahead, perhaps rightly.

    Attributes:
        keys: of the type.
        ids: packed.
    """

    keys: TypeKeys
    ids: list[bytes]


async def suspects(
    transaction: Snapshot, keyspace: Keyspace, section: int, begin: bytes, now: float, limit: int
) -> tuple[Suspects | None, bytes | None]:
    """Return the next jobs of a section whose time lies further ahead than a right clock would usually have written.

    Args:
        transaction, keyspace: to read from.
        section: one of SECTIONS.
        begin: where in the section to go on, empty at first.
        now: seconds since the epoch.
        limit: jobs at most.

    Returns:
        Jobs of one type, None for none, and where to go on; None at the end of the section.
    """
    types, behind = await types_in(transaction, keyspace, section, begin, 1)
    if not types:
        return None, behind
    keys = keyspace.of_packed(types[0])
    rows, least = keys.scheduled, now + MOST_AHEAD
    if section == EXPIRING:
        kept = await inspection.retention(transaction, keys)
        rows, least = keys.expiring, least + max(kept.keep or 0.0, kept.keep_failed or 0.0)
    prefix = len(keyspace.sections[section])
    first = max(rows + pack_seconds(least), keyspace.sections[section] + begin)
    found = await transaction.get_range(first, rows + AFTER, limit=limit)
    if len(found) == limit:
        behind = found[-1][0][prefix:] + b"\x00"
    return Suspects(keys, [key[len(rows) + TIME_BYTES :] for key, _ in found]) if found else None, behind


async def set_right(unit: UnitOfWork, keys: TypeKeys, ids: Iterable[bytes]) -> int:
    """Have jobs run now, or expire after the time for which they are kept, if a clock far ahead has ended their run.

    Returns:
        How many jobs there were.
    """
    changed = 0
    for entry in await unit.load_fitting(keys, list(ids)):
        record = entry.record
        newest = None if record is None else next(iter(run_data.history_of(record.run_data)), None)
        if record is None or newest is None or newest.at <= unit.now + MOST_AHEAD:
            continue
        if record.place == IS_SCHEDULED and newest.kind is not HistoryKind.ADDED:
            moved = record.pending(unit.place_for(unit.now), unit.new_seq(), record.priority, unit.now)
        elif record.state is JobState.FINISHED and record.outcome is not None:
            expires = run_data.expires_at(record.run_data)
            if expires is None or expires < newest.at:  # that was set right before
                continue
            expiring = run_data.expiring(record.run_data, unit.now + (expires - newest.at))
            moved = record.finished(unit.new_seq(), record.outcome, expiring)
        else:
            continue
        unit.replace(entry, moved)
        changed += 1
    return changed
