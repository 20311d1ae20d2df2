"""The settings of types: timeout, pause, retention, secret fields; and those that programs have declared for them.

A type's activity timeout and retention are kept in the store, and two parties may set them: the program, by its
handler's options, and an operator, by `set_type_timeout` and `set_retention`. The last new value wins: at the start of
a handler, an option is set only if it differs from the program's last declaration, so an operator's change in between
stays. The last declaration is a row of its own per type: (timeout, keep, keep_failed), times in seconds, None for ever;
or (timeout) before handlers have run. A removed type has an empty row, so that `enqueue` does not make it again.

The secret fields of a type's jobs have a row as well: (paths, declared), each a tuple of strings; declared is None if
only an operator has set the rules.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import fdb.tuple

from jobs_service import json_data
from jobs_service.arguments import check_seconds
from jobs_service.errors import InvalidJob, InvalidSettings, JobTooLarge, NoTypeTimeout, shown
from jobs_service.layer.keyspace import ACTIVITY_TIMEOUT, AFTER, REDACTION, Keyspace, TypeKeys, type_in, unpacked
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.model import JobId, JobType
from jobs_service.model.type_state import FOR_EVER, Retention, TypeSettings
from jobs_service.redaction import NO_REDACTION, REDACTED, Redaction
from jobs_service.store.base import ONE, Snapshot

_FIELDS: Final = 3
_REMOVED: Final[bytes] = fdb.tuple.pack(())

ALL_SECRET: Final = Redaction(("data:", "result:", "error:", "progress:"))
"""Hides all of a job that programs have written, if the rules cannot be read."""

_PAGE: Final = 100


# What programs have declared


class Declared(NamedTuple):
    """The options of a handler that are kept with its type; times in seconds.

    Attributes:
        timeout: the activity timeout.
        retention: of finished jobs.
    """

    timeout: float
    retention: Retention


async def is_removed(unit: UnitOfWork, keys: TypeKeys) -> bool:
    """Whether a missing type was removed on purpose, rather than never made."""
    return await unit.transaction.get(keys.declared) == _REMOVED


async def _last_declared(unit: UnitOfWork, keys: TypeKeys) -> tuple[float | None, Retention | None]:
    """Return the last timeout and retention that programs have declared; None for unknown ones."""
    values = unpacked(await unit.transaction.get(keys.declared))
    return (values[0] if values else None, Retention(*values[1:]) if len(values) == _FIELDS else None)


# Secret fields


async def redaction(transaction: Snapshot, keys: TypeKeys) -> Redaction:
    """Return the secret fields of a type's jobs."""
    packed = await transaction.get(keys.redaction)
    return NO_REDACTION if packed is None else _decoded(packed)


async def redactions_page(
    transaction: Snapshot, keyspace: Keyspace, after: bytes | None
) -> tuple[list[tuple[JobType, Redaction]], bytes | None]:
    """Return some types with their secret fields, and the end of this page; None if it is the last.

    Args:
        transaction, keyspace: of the types.
        after: the end of the page before; None to begin.
    """
    section = keyspace.sections[REDACTION]
    begin = section if after is None else after + b"\x00"
    found = await transaction.get_range(begin, section + AFTER, limit=_PAGE)
    page = [(type_in(key[len(section) :]), _decoded(value)) for key, value in found]
    declared = [(type, rules) for type, rules in page if type is not None and rules]
    return declared, found[-1][0] if len(found) == _PAGE else None


async def set_redaction(unit: UnitOfWork, keys: TypeKeys, wanted: Redaction) -> None:
    """Set the secret fields of a type's jobs.

    Raises:
        JobTooLarge: the type's key is over the store's limit.
    """
    _check_length(unit, keys)
    packed = await unit.transaction.get(keys.redaction)
    _write(unit, keys, wanted.paths, None if packed is None else _values(packed)[1])


async def declare_redaction(unit: UnitOfWork, keys: TypeKeys, wanted: Redaction, *, may_show: bool = True) -> Redaction:
    """Set a program's declaration at the start of its handler, unless it has declared the same before.

    Args:
        unit, keys: of the type.
        wanted: the declaration.
        may_show: whether fields that are secret now may become visible.

    Returns:
        The rules in force: an operator may have set others since.
    """
    packed = await unit.transaction.get(keys.redaction)
    if packed is not None and _values(packed)[1] == wanted.paths:
        return _decoded(packed)
    if packed is not None and not may_show:
        before = _decoded(packed)
        # A declaration that adds nothing is not kept: otherwise the same one with `may_show` would be ignored.
        if before.paths == (more := tuple(dict.fromkeys((*before.paths, *wanted.paths)))):
            return before
        _write(unit, keys, Redaction(more).paths, _values(packed)[1])
        return Redaction(more)
    _write(unit, keys, wanted.paths, wanted.paths)
    return wanted


async def refuse_mark(
    unit: UnitOfWork, keys: TypeKeys, id: JobId, json: bytes, declared: Redaction | None = None
) -> None:
    """Refuse data with the mark in place of a secret: their writer has not seen the value that they would replace.

    Called only for data that contain the mark, which is rare.

    Args:
        unit, keys: of the type.
        id: of the job.
        json: its data.
        declared: the rules if none are set yet.

    Raises:
        InvalidJob: the data have the mark in place of a secret.
    """
    packed = await unit.transaction.snapshot.get(keys.redaction)
    rules = declared if packed is None else _decoded(packed)
    if rules is not None and rules.hides_a_mark(json_data.decode(json)):
        refused = f"data with {REDACTED} where the type {shown(keys.type)} has a secret: write the secret itself"
        raise InvalidJob(refused).about(keys.type, id)


async def is_undeclared(unit: UnitOfWork, keys: TypeKeys) -> bool:
    """Whether no rules are set yet: only then a program's declaration at an enqueue counts."""
    if await unit.transaction.snapshot.get(keys.redaction) is not None:
        return False
    unit.transaction.add_read_conflict_key(keys.redaction)
    return True


def declare_first(unit: UnitOfWork, keys: TypeKeys, wanted: Redaction) -> None:
    """Set a program's declaration, where `is_undeclared`."""
    _write(unit, keys, wanted.paths, wanted.paths)


def _write(unit: UnitOfWork, keys: TypeKeys, paths: tuple[str, ...], declared: tuple[str, ...] | None) -> None:
    unit.transaction.set(keys.redaction, fdb.tuple.pack((paths, declared)))


@functools.lru_cache(maxsize=1000)
def _decoded(packed: bytes) -> Redaction:
    """Return the rules; everything is secret if the bytes cannot be read, so that nothing is shown by mistake."""
    try:
        return Redaction(_values(packed)[0])
    except InvalidSettings:
        return ALL_SECRET


def _values(packed: bytes) -> tuple[Any, Any]:
    values = unpacked(packed)
    if len(values) != 2 or not isinstance(values[0], tuple):
        return ALL_SECRET.paths, None
    return values[0], values[1]


# Types: their timeouts, pauses and retention


_TYPES_PAGE = 1000


def make_type(unit: UnitOfWork, keys: TypeKeys, timeout: float) -> None:
    """Create the type, which does not exist by a snapshot, with the timeout of a program."""
    packed = fdb.tuple.pack((timeout,))
    # A timeout set meanwhile must not be overwritten.
    unit.transaction.add_read_conflict_key(keys.timeout)
    unit.transaction.set(keys.timeout, packed)
    unit.transaction.set(keys.declared, packed)


async def set_type_timeout(unit: UnitOfWork, keys: TypeKeys, seconds: float) -> None:
    """Create the type, or change its timeout.

    Raises:
        JobTooLarge: the type's key is over the store's limit.
    """
    _check_length(unit, keys)
    unit.transaction.set(keys.timeout, fdb.tuple.pack((seconds,)))
    # Monitors sample a long timeout seldom. A change of the queue's watch makes them read the new one at once.
    unit.transaction.add(keys.watch_pending, ONE)


async def clear_type_timeout(unit: UnitOfWork, keys: TypeKeys) -> None:
    """Remove the type; its jobs stay. Raises like `set_type_timeout`."""
    _check_length(unit, keys)
    if await unit.transaction.get(keys.timeout) is not None:
        unit.transaction.set(keys.declared, _REMOVED)
    unit.transaction.clear(keys.timeout)
    unit.existing_types.discard(keys.timeout)


async def type_timeout(transaction: Snapshot, keys: TypeKeys) -> float:
    """Return the type's activity timeout in seconds.

    Raises:
        NoTypeTimeout: the type does not exist.
    """
    seconds = await timeout_if_any(transaction, keys)
    if seconds is None:
        raise NoTypeTimeout.of(keys.type)
    return seconds


async def timeout_if_any(transaction: Snapshot, keys: TypeKeys) -> float | None:
    """Return the type's activity timeout in seconds, None when it does not exist."""
    packed = await transaction.get(keys.timeout)
    return None if packed is None else timeout_in(packed)


async def settings_of(transaction: Snapshot, types: Sequence[TypeKeys]) -> list[TypeSettings]:
    """Return timeout, pause flag and retention of each of these types, by one read."""
    raws = await transaction.get_many([key for keys in types for key in (keys.timeout, keys.paused, keys.retention)])
    return [
        TypeSettings(
            None if timeout is None else timeout_in(timeout),
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
    timeout, retention = await _last_declared(unit, keys)
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
        kept_for = wanted.retention
        unit.transaction.set(keys.declared, fdb.tuple.pack((wanted.timeout, kept_for.keep, kept_for.keep_failed)))
    return Declared(seconds, kept)


def _check_length(unit: UnitOfWork, keys: TypeKeys) -> None:
    limit = unit.transaction.limits.key
    if len(keys.timeout) > limit:
        raise JobTooLarge(
            f"a type that makes a key of {len(keys.timeout)} bytes; the store's limit is {limit}", type=keys.type
        )


def timeout_in(packed: bytes) -> float | None:
    """Return a type's timeout in seconds. None for damaged bytes, as if the type did not exist: it can be set again."""
    try:
        (seconds,) = unpacked(packed)
        return check_seconds(seconds)
    except (ValueError, InvalidJob):
        return None
