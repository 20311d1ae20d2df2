"""Types, their timeouts and retention, and the index of running jobs by their last sign of life."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import NamedTuple

import fdb.tuple

from jobs_service import run_data
from jobs_service.arguments import check_seconds
from jobs_service.errors import InvalidJob, JobTooLarge, RecordDamaged
from jobs_service.layer import declared_settings, running_jobs
from jobs_service.layer.counters import EXPIRED
from jobs_service.layer.creation import no_type
from jobs_service.layer.damage import take_out
from jobs_service.layer.declared_settings import Declared
from jobs_service.layer.keyspace import (
    ACTIVITY_TIMEOUT,
    AFTER,
    STAMP_CODE,
    TIME_BYTES,
    TIME_CODE,
    Keyspace,
    Place,
    TypeKeys,
    is_id,
    next_time,
    pack_seconds,
    type_in,
    unpack_id,
    unpacked,
)
from jobs_service.layer.record import Entry, Record
from jobs_service.layer.running_jobs import lose
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.model import JobId, JobState, JobType
from jobs_service.model.type_state import FOR_EVER, Retention, TypeSettings
from jobs_service.store.base import Snapshot

_ONE = (1).to_bytes(8, "little")
_LAST_ORDER = b"\xff\xff"
_TYPES_PAGE = 1000


async def set_type_timeout(unit: UnitOfWork, keys: TypeKeys, seconds: float) -> None:
    """Create the type, or change its timeout.

    Raises:
        JobTooLarge: the type's key is over the store's limit.
    """
    _check_length(unit, keys)
    unit.transaction.set(keys.timeout, fdb.tuple.pack((seconds,)))
    # Monitors sample a long timeout seldom. A change of the queue's watch makes them read the new one at once.
    unit.transaction.add(keys.watch_pending, _ONE)


async def clear_type_timeout(unit: UnitOfWork, keys: TypeKeys) -> None:
    """Remove the type; its jobs stay. Raises like `set_type_timeout`."""
    _check_length(unit, keys)
    if await unit.transaction.get(keys.timeout) is not None:
        declared_settings.note_removal(unit, keys)
    unit.transaction.clear(keys.timeout)
    unit.existing_types.discard(keys.timeout)


async def type_timeout(transaction: Snapshot, keys: TypeKeys) -> float:
    """Return the type's activity timeout in seconds.

    Raises:
        NoTypeTimeout: the type does not exist.
    """
    seconds = await timeout_if_any(transaction, keys)
    if seconds is None:
        raise no_type(keys)
    return seconds


async def timeout_if_any(transaction: Snapshot, keys: TypeKeys) -> float | None:
    """Return the type's activity timeout in seconds, None when it does not exist."""
    packed = await transaction.get(keys.timeout)
    return None if packed is None else _seconds(packed)


async def settings_of(transaction: Snapshot, types: Sequence[TypeKeys]) -> list[TypeSettings]:
    """Return timeout, pause flag and retention of each of these types, by one read."""
    raws = await transaction.get_many([key for keys in types for key in (keys.timeout, keys.paused, keys.retention)])
    return [
        TypeSettings(
            None if timeout is None else _seconds(timeout),
            paused is not None,
            FOR_EVER if kept is None else Retention.decode(kept),
        )
        for timeout, paused, kept in zip(raws[::3], raws[1::3], raws[2::3], strict=True)
    ]


async def types(transaction: Snapshot, keyspace: Keyspace) -> list[JobType]:
    """Return the types that exist, in the tuple layer's order, page by page."""
    found: list[JobType] = []
    after: bytes | None = None
    while True:
        page, after = await types_page(transaction, keyspace, after)
        found += page
        if after is None:
            return found


async def types_page(
    transaction: Snapshot, keyspace: Keyspace, after: bytes | None
) -> tuple[list[JobType], bytes | None]:
    """Return some of the existing types, in the tuple layer's order.

    Args:
        transaction, keyspace: of the types.
        after: the end of the page before; None to begin.

    Returns:
        The types, and the end of this page, None if it is the last one.
    """
    section = keyspace.sections[ACTIVITY_TIMEOUT]
    begin = section if after is None else after + b"\x00"
    found = await transaction.get_range(begin, section + AFTER, limit=_TYPES_PAGE)
    page = [type for key, _ in found if (type := type_in(key[len(section) :])) is not None]
    return page, found[-1][0] if len(found) == _TYPES_PAGE else None


async def samples(transaction: Snapshot, keys: Sequence[TypeKeys]) -> list[tuple[float | None, bytes | None]]:
    """Return (timeout in seconds, activity stamp) of several types; the reads go out together."""
    wanted = [key for each in keys for key in (each.timeout, each.watch_activity)]
    values = await transaction.get_many(wanted)
    return [
        (None if timeout is None else _seconds(timeout), stamp)
        for timeout, stamp in zip(values[::2], values[1::2], strict=True)
    ]


async def active_ids(
    transaction: Snapshot, keys: TypeKeys, after: bytes | None, limit: int
) -> list[tuple[bytes, JobId]]:
    """Return (seq, id) of running jobs behind a seq or a 10-byte stamp, by last activity."""
    head = keys.activity + STAMP_CODE
    begin = head if after is None else head + after.ljust(12, b"\xff") + b"\x00"
    found = await transaction.get_range(begin, keys.activity + AFTER, limit=limit)
    return [(key[len(head) :], unpack_id(value)) for key, value in found if is_id(value)]


class TaskPart(NamedTuple):
    """One transaction's part of a long task.

    Attributes:
        ids: of the jobs.
        more: whether there may be more to do.
    """

    ids: list[JobId]
    more: bool


async def re_enqueue(
    unit: UnitOfWork, keys: TypeKeys, until: bytes, limit: int, own: Container[bytes] = ()
) -> TaskPart:
    """Treat running jobs last active at or before a stamp as lost: pending again, or finished if canceled.

    Args:
        unit, keys: of the type.
        until: 10-byte versionstamp.
        limit: most jobs; fewer if a transaction cannot hold them, and no more are read then.
        own: locks of jobs that the caller runs itself. They are silent because its loop stood still, or the store was
            away; they get a heartbeat instead.
    """
    # A job that is updated meanwhile changes its record, which is read: that is a conflict, and it stays its worker's.
    found = await unit.transaction.snapshot.get_range(*_until(keys, until), limit=limit)
    entries = await unit.load_fitting(keys, [packed_id for _, packed_id in found])
    held: list[tuple[Place, bytes]] = []
    silent: list[tuple[bytes, Entry, Record | None]] = []
    for (key, _), entry in zip(found, entries, strict=False):
        record = entry.record
        if record is None or record.lock is None or record.seq != key[len(keys.activity_head) :]:
            silent.append((key, entry, None))
        elif record.lock in own:
            held.append(((keys, entry.id, entry.packed_id), record.lock))
        else:
            silent.append((key, entry, record))
    if held:
        await running_jobs.beat(unit, held)
    lost: list[JobId] = []
    for key, entry, record in silent:
        if record is not None:
            try:
                await lose(unit, entry, record)
                lost.append(entry.id)
                continue
            except RecordDamaged as error:
                unit.condemn(entry, error)
        # A stray entry, left by damage: remove it, or every later call would find it first.
        take_out(unit, keys, key, entry.packed_id)
    return TaskPart(lost, len(found) == limit or len(entries) < len(found))


async def pause(unit: UnitOfWork, keys: TypeKeys) -> None:
    """Stop all workers from accepting jobs of the type. Raises like `set_type_timeout`."""
    _check_length(unit, keys)
    unit.pause(keys)


async def resume(unit: UnitOfWork, keys: TypeKeys) -> None:
    """Let workers accept jobs of the type again. Raises like `set_type_timeout`."""
    _check_length(unit, keys)
    unit.resume(keys)


async def is_paused(transaction: Snapshot, keys: TypeKeys) -> bool:
    """Whether the type is paused."""
    return await transaction.get(keys.paused) is not None


async def set_retention(unit: UnitOfWork, keys: TypeKeys, retention: Retention) -> None:
    """Set the retention of jobs of the type that finish from now on. Raises like `set_type_timeout`."""
    _check_length(unit, keys)
    await unit.set_retention(keys, retention)


async def declare(unit: UnitOfWork, keys: TypeKeys, wanted: Declared, *, may_change: bool = True) -> Declared:
    """Set the options that a program declares for a type at the start of its handler, if they are new.

    Args:
        unit, keys: of the type.
        wanted: the declared options.
        may_change: whether to change an existing type too.

    Returns:
        The options in force: an operator may have changed them since the program last declared the same.
    """
    timeout, retention = await declared_settings.noted(unit, keys)
    seconds = await timeout_if_any(unit.transaction, keys)
    if seconds is not None and not may_change:
        return Declared(seconds, await unit.retention(keys))
    if seconds is None or timeout not in (None, wanted.timeout):
        await set_type_timeout(unit, keys, wanted.timeout)
        seconds = wanted.timeout
    is_set = await unit.transaction.get(keys.retention) is not None
    kept = await unit.retention(keys)
    if kept != wanted.retention and (not is_set or retention not in (None, wanted.retention)):
        await set_retention(unit, keys, wanted.retention)
        kept = wanted.retention
    if (timeout, retention) != wanted:
        declared_settings.note(unit, keys, wanted)
    return Declared(seconds, kept)


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


def _check_length(unit: UnitOfWork, keys: TypeKeys) -> None:
    limit = unit.transaction.limits.key
    if len(keys.timeout) > limit:
        raise JobTooLarge(
            f"a type that makes a key of {len(keys.timeout)} bytes; the store's limit is {limit}", type=keys.type
        )


def _until(keys: TypeKeys, stamp: bytes) -> tuple[bytes, bytes]:
    return keys.activity, keys.activity + STAMP_CODE + stamp + _LAST_ORDER + b"\x00"


def _seconds(packed: bytes) -> float | None:
    """Return a type's timeout in seconds. None for damaged bytes, as if the type did not exist: it can be set again."""
    try:
        (seconds,) = unpacked(packed)
        return check_seconds(seconds)
    except (ValueError, InvalidJob):
        return None
