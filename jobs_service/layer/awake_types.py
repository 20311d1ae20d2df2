"""The awake types: those with jobs that need a monitor.

A store may have very many types, and few of them have running, scheduled or expiring jobs at any moment. Each service
monitors only those, and needs one watch for all others. So the store marks them:

- A type is *awake* while it has a row (AWAKE, type). The transaction that makes a job run, be scheduled or expire reads
  that row, with a conflict if it exists, and writes it if it is missing. Only the first job of an idle type does.
- A type whose next scheduled or expiring job comes later is *asleep* until then: (ASLEEP, type) has the time, and
  (ALARM, time, type) finds the types whose time has come. A service wakes them a moment ahead.
- A type without either has only ready and finished jobs, which need no monitor: `settle` removes the rows. It reads the
  beginnings of the type's indexes with conflicts, so that one of the two transactions sees a job that begins to run
  meanwhile.
- (AWAKE), without a type, is a counter that is bumped with every change of these rows. Services watch it.
- (AWAKE, null) is there while the store has schedules: services have them tick, as they have types monitored.

The rows follow from the indexes. Services scan ACTIVITY now and then: a type with running jobs is found in any case,
if later.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import fdb.tuple

from jobs_service.layer import changes
from jobs_service.layer.keyspace import (
    AFTER,
    ALARM,
    AWAKE,
    STAMP_CODE,
    TIME_BYTES,
    TIME_CODE,
    Keyspace,
    TypeFinder,
    TypeKeys,
    next_time,
    pack_seconds,
    unpack_seconds,
)
from jobs_service.store.base import ONE, Snapshot, Transaction

NEVER: Final = math.inf


class TypePage(NamedTuple):
    """Some types, as packed, in key order.

    Attributes:
        types: of this page.
        more: whether others may follow the last of them.
    """

    types: list[bytes]
    more: bool


HAS_SCHEDULES: Final[bytes] = fdb.tuple.pack((None,))
"""In the place of a type: there are schedules."""


async def mark_schedules(transaction: Transaction, keyspace: Keyspace, *, whether: bool) -> None:
    """Note whether the store has schedules."""
    key = keyspace.sections[AWAKE] + HAS_SCHEDULES
    if (await transaction.get(key) is not None) == whether:
        return
    if whether:
        transaction.set(key, b"")
    else:
        transaction.clear(key)
    transaction.add(counter(keyspace), ONE)


def counter(keyspace: Keyspace) -> bytes:
    """Return the key that changes whenever a type wakes up or falls asleep."""
    return keyspace.sections[AWAKE]


async def wake(transaction: Transaction, keyspace: Keyspace, keys: TypeKeys, at: float = 0.0) -> bool:
    """Have a type monitored.

    Args:
        transaction, keyspace, keys: of the type.
        at: when its jobs first need a monitor, seconds since the epoch; a type that wakes up before goes on sleeping.

    Returns:
        Whether the type is woken by this call: it was neither awake nor asleep until `at` or earlier.
    """
    # Two wakers are no conflict, and neither are many transactions that begin with an idle type at the same time.
    is_awake, until = await transaction.snapshot.get_many((keys.awake, keys.asleep))
    if is_awake is not None:
        transaction.add_read_conflict_key(keys.awake)
        return False
    transaction.add_read_conflict_key(keys.asleep)
    if until is not None:
        if unpack_seconds(until) <= at:
            return False
        _forget_alarm(transaction, keyspace, keys, until)
    transaction.set(keys.awake, b"")
    transaction.add(counter(keyspace), ONE)
    return True


async def awake_types(transaction: Snapshot, keyspace: Keyspace, after: bytes | None, limit: int) -> TypePage:
    """Return a page of the awake types behind a packed one."""
    section = keyspace.sections[AWAKE]
    found = await transaction.get_range(section + (after or b"") + b"\x00", section + AFTER, limit=limit)
    return TypePage([key[len(section) :] for key, _ in found], len(found) == limit)


async def next_alarm(transaction: Snapshot, keyspace: Keyspace) -> float:
    """Return when the next sleeping type is to be woken, seconds since the epoch; NEVER if there is none."""
    section = keyspace.sections[ALARM]
    found = await transaction.get_range(section + TIME_CODE, section + TIME_CODE + AFTER, limit=1)
    return _or_never(next_time(found, len(section)))


async def wake_due(transaction: Transaction, keyspace: Keyspace, until: float, limit: int) -> int:
    """Wake the types whose time has come, the earliest first; return their number."""
    section = keyspace.sections[ALARM]
    found = await transaction.get_range(section + b"\x00", section + pack_seconds(until) + AFTER, limit=limit)
    for key, _ in found:
        transaction.clear(key)
        keys = keyspace.found(key[len(section) + TIME_BYTES :])
        if keys is not None:
            await wake(transaction, keyspace, keys, -NEVER)
    return len(found)


async def settle(transaction: Transaction, keyspace: Keyspace, keys: TypeKeys, sleep_from: float) -> bool:
    """Mark a type as idle, unless its jobs need a monitor soon.

    Args:
        transaction, keyspace, keys: of the type.
        sleep_from: seconds since the epoch; jobs scheduled or expiring before it keep the type awake.

    Returns:
        Whether it is no longer awake.
    """
    if await transaction.get(keys.awake) is None:
        return True
    # By a snapshot first: on a type with running jobs the conflicts would be many.
    if await _next_time(transaction.snapshot, keys) < sleep_from:
        return False
    until = await _next_time(transaction, keys)
    transaction.clear(keys.awake)
    transaction.add(counter(keyspace), ONE)
    if until != NEVER:
        packed = pack_seconds(until)
        transaction.set(keys.asleep, packed)
        transaction.set(_alarm(keyspace, keys, packed), b"")
    return True


async def unmarked_in(
    transaction: Snapshot, keyspace: Keyspace, section: int, begin: bytes, limit: int
) -> tuple[list[bytes], bytes | None]:
    """Return the types of `types_in` that are not awake, and the beginning of the next page."""
    types, behind = await types_in(transaction, keyspace, section, begin, limit)
    return await not_awake(transaction, keyspace, types), behind


async def types_in(
    transaction: Snapshot, keyspace: Keyspace, section: int, begin: bytes, limit: int
) -> tuple[list[bytes], bytes | None]:
    """Return the types of a page that have rows in a section, by one short read for each.

    Args:
        transaction, keyspace: to read from.
        section: of the keyspace.
        begin: position in the section.
        limit: most reads.

    Returns:
        The types, as packed, and the beginning of the next page; None if this is the last one.
    """
    prefix = keyspace.sections[section]
    finder = TypeFinder(keyspace)
    types: list[bytes] = []
    behind: bytes | None = begin
    for _ in range(limit):
        found = await transaction.get_range(prefix + begin, prefix + AFTER, limit=1)
        if not found:
            behind = None
            break
        row = found[0][0][len(prefix) :]
        try:
            packed = finder.keys_of(row).packed
        except Exception:  # a damaged key: its type's monitor takes it out
            behind = begin = row + b"\x00"
        else:
            types.append(packed)
            behind = begin = packed + AFTER
    return types, behind


async def not_awake(transaction: Snapshot, keyspace: Keyspace, types: Sequence[bytes]) -> list[bytes]:
    """Return the packed types that are not awake."""
    rows = await transaction.get_many([keyspace.of_packed(type).awake for type in types])
    return [type for type, row in zip(types, rows, strict=True) if row is None]


async def _next_time(transaction: Snapshot, keys: TypeKeys) -> float:
    """Return when the type's jobs first need a monitor; running ones need it now."""
    # Rows of changes are removed by followers, or by the type's monitor, as are those of jobs that have left.
    for index in (keys.activity, keys.changes + STAMP_CODE, keys.last):
        if await transaction.get_range(index, index + AFTER, limit=1):
            return -NEVER
    # The monitor finds out whether the type is still followed.
    followed = await transaction.get(keys.followed)
    if followed is not None and changes.is_in_doubt(followed):
        return -NEVER
    times = []
    for index in (keys.scheduled, keys.expiring):
        found = await transaction.get_range(index + TIME_CODE, index + TIME_CODE + AFTER, limit=1)
        times.append(_or_never(next_time(found, len(index))))
    return min(times)


def _or_never(time: float | None) -> float:
    return NEVER if time is None else time


def _forget_alarm(transaction: Transaction, keyspace: Keyspace, keys: TypeKeys, until: bytes) -> None:
    transaction.clear(keys.asleep)
    transaction.clear(_alarm(keyspace, keys, until))


def _alarm(keyspace: Keyspace, keys: TypeKeys, packed_time: bytes) -> bytes:
    return keyspace.sections[ALARM] + packed_time + keys.packed
