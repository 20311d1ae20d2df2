"""Types, their activity timeouts, and who was active when: what the actors read and write. Floor: layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import fdb.tuple

from jobs_service import notes
from jobs_service.errors import InvalidJob, JobTooLarge, shown
from jobs_service.layer.creation import no_type
from jobs_service.layer.keyspace import (
    AFTER,
    STAMP_CODE,
    Keyspace,
    TypeKeys,
    exact_seconds,
    pack_seconds,
    unpack_id,
    unpack_seconds,
)
from jobs_service.layer.processing import lose
from jobs_service.layer.unit import Retention, Unit
from jobs_service.model import JobId, JobState, JobType
from jobs_service.store.base import Snapshot

_LAST_ORDER = b"\xff\xff"
_TIME_BYTES = 9
_LONGEST_KEEP = 1e9


def check_seconds(seconds: Any) -> float:
    """Return an activity timeout if a type can have it.

    Raises:
        InvalidJob: it is no positive, finite number of seconds.
    """
    try:
        checked = exact_seconds(seconds)
    except OverflowError:
        if seconds > 0:
            raise InvalidJob("activity timeout: more seconds than a float can hold") from None
        checked = None
    if checked is None or not 0 < checked < math.inf:
        raise InvalidJob(f"activity timeout {shown(seconds)}: allowed are positive, finite numbers of seconds")
    return checked


async def set_type_timeout(unit: Unit, keys: TypeKeys, seconds: float) -> None:
    """Create the type, or change its timeout.

    Raises:
        JobTooLarge: the type's key is over the store's limit.
    """
    _check_length(unit, keys)
    unit.transaction.set(keys.timeout, fdb.tuple.pack((seconds,)))


async def clear_type_timeout(unit: Unit, keys: TypeKeys) -> None:
    """Remove the type; its jobs stay. Raises like `set_type_timeout`."""
    _check_length(unit, keys)
    unit.transaction.clear(keys.timeout)
    unit.existing_types.discard(keys)


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


async def types(transaction: Snapshot, keyspace: Keyspace) -> list[JobType]:
    """Return the types that exist, in the tuple layer's order."""
    section = keyspace.sections[6]
    found = await transaction.get_range(section, section + AFTER)
    return [fdb.tuple.unpack(key[len(section) :])[0] for key, _ in found]


async def samples(transaction: Snapshot, keys: Sequence[TypeKeys]) -> list[tuple[float | None, bytes | None]]:
    """Return (timeout in seconds, activity stamp) of several types, by reads that go out together."""
    wanted = [key for each in keys for key in (each.timeout, each.watch_activity)]
    values = await transaction.get_many(wanted)
    return [
        (None if timeout is None else _seconds(timeout), stamp)
        for timeout, stamp in zip(values[::2], values[1::2], strict=True)
    ]


async def active_ids(
    transaction: Snapshot, keys: TypeKeys, after: bytes | None, limit: int
) -> list[tuple[bytes, JobId]]:
    """Return (seq, id) of running jobs by last activity, those after a seq or a 10-byte stamp."""
    head = keys.activity + STAMP_CODE
    begin = head if after is None else head + after.ljust(12, b"\xff") + b"\x00"
    found = await transaction.get_range(begin, keys.activity + AFTER, limit=limit)
    return [(key[len(head) :], unpack_id(value)) for key, value in found]


async def re_enqueue(unit: Unit, keys: TypeKeys, until: bytes, limit: int) -> list[JobId]:
    """Take running jobs that were last active at or before a stamp for lost: pending, or finished if canceled.

    Args:
        until: 10-byte versionstamp.
        limit: at most so many.

    Returns:
        Their ids.
    """
    # A job that is updated meanwhile changes its record, which is read: that is a conflict, and it stays its worker's.
    found = await unit.transaction.snapshot.get_range(*_until(keys, until), limit=limit)
    lost: list[JobId] = []
    for entry in await unit.load_many(keys, [packed_id for _, packed_id in found]):
        record = entry.record
        if record is not None and record.lock is not None:
            await lose(unit, entry, record)
            lost.append(entry.id)
    return lost


def check_keep(what: str, seconds: Any) -> float | None:
    """Return how long finished jobs are kept if they can be kept so long; None for ever.

    Raises:
        InvalidJob: it is no number of seconds from 0 up.
    """
    if seconds is None:
        return None
    try:
        checked = exact_seconds(seconds)
    except OverflowError:
        checked = None
    if checked is None or not 0 <= checked <= _LONGEST_KEEP:
        raise InvalidJob(f"{what}={shown(seconds)}: allowed are None and seconds from 0 to {_LONGEST_KEEP:.0f}")
    return checked


async def pause(unit: Unit, keys: TypeKeys) -> None:
    """Have nobody accept jobs of the type. Raises like `set_type_timeout`."""
    _check_length(unit, keys)
    unit.pause(keys)


async def resume(unit: Unit, keys: TypeKeys) -> None:
    """Have jobs of the type accepted again. Raises like `set_type_timeout`."""
    _check_length(unit, keys)
    unit.resume(keys)


async def is_paused(transaction: Snapshot, keys: TypeKeys) -> bool:
    """Whether jobs of the type are not accepted for the time being."""
    return await transaction.get(keys.paused) is not None


async def set_retention(unit: Unit, keys: TypeKeys, retention: Retention) -> None:
    """Say how long jobs of the type are kept that finish from now on. Raises like `set_type_timeout`."""
    _check_length(unit, keys)
    unit.set_retention(keys, retention)


async def next_expiry(transaction: Snapshot, keys: TypeKeys) -> float | None:
    """Return when the next finished job expires, seconds since the epoch; None when none does."""
    found = await transaction.get_range(keys.expiring, keys.expiring + AFTER, limit=1)
    return unpack_seconds(found[0][0][len(keys.expiring) :]) if found else None


async def remove_expired(unit: Unit, keys: TypeKeys, until: float, limit: int) -> int:
    """Remove finished jobs that expire by `until`, the earliest first; return how many.

    There may be more as long as there are any: `limit`, and what a transaction can hold, bound one call.
    """
    found = await unit.transaction.snapshot.get_range(
        keys.expiring, keys.expiring + pack_seconds(until) + AFTER, limit=limit
    )
    offset = len(keys.expiring) + _TIME_BYTES
    entries = unit.fitting(await unit.load_many(keys, [key[offset:] for key, _ in found]))
    removed = 0
    for (key, _), entry in zip(found, entries, strict=False):
        record = entry.record
        # One that was resubmitted does not expire any more.
        expires = None if record is None or record.state is not JobState.FINISHED else notes.expires_at(record.notes)
        if expires is not None and expires <= until:
            unit.remove(entry)
            removed += 1
        else:
            # Whatever left it behind, it must not be in the way for ever.
            unit.transaction.clear(key)
    return removed


def _check_length(unit: Unit, keys: TypeKeys) -> None:
    limit = unit.transaction.limits.key
    if len(keys.timeout) > limit:
        raise JobTooLarge(
            f"a type that makes a key of {len(keys.timeout)} bytes; the store's limit is {limit}", type=keys.type
        )


def _until(keys: TypeKeys, stamp: bytes) -> tuple[bytes, bytes]:
    return keys.activity, keys.activity + STAMP_CODE + stamp + _LAST_ORDER + b"\x00"


def _seconds(packed: bytes) -> float:
    seconds: float = fdb.tuple.unpack(packed)[0]
    return seconds
