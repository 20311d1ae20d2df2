"""The options that programs have declared for a type: the last new value wins, whether a program's or an operator's.

A type's activity timeout and retention are kept in the store, and two parties may set them: the program, by its
handler's options, and an operator, by `set_type_timeout` and `set_retention`. At the start of a handler, an option is
set only if it differs from the program's last declaration; so an operator's change in between stays. The last
declaration is a row of its own per type: (timeout, keep, keep_failed), times in seconds, None for ever; or (timeout)
before handlers have run. A removed type has an empty row, so that `enqueue` does not make it again.

The secret fields of a type's jobs have a row as well: (paths, declared), each a tuple of strings; declared is None if
only an operator has set the rules.
"""

from __future__ import annotations

import functools
from typing import Any, Final, NamedTuple

import fdb.tuple

from jobs_service import json_data
from jobs_service.errors import InvalidJob, InvalidSettings, JobTooLarge, shown
from jobs_service.layer.keyspace import AFTER, REDACTION, Keyspace, TypeKeys, type_in, unpacked
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.model import JobId, JobType
from jobs_service.model.type_state import Retention
from jobs_service.redaction import NO_REDACTION, REDACTED, Redaction
from jobs_service.store.base import Snapshot

_FIELDS: Final = 3
_REMOVED: Final[bytes] = fdb.tuple.pack(())

ALL_SECRET: Final = Redaction(("data:", "result:", "error:", "progress:"))
"""Hides all of a job that programs have written, if the rules cannot be read."""

_PAGE: Final = 100


# Timeout and retention


class Declared(NamedTuple):
    """The options of a handler that are kept with its type; times in seconds.

    Attributes:
        timeout: the activity timeout.
        retention: of finished jobs.
    """

    timeout: float
    retention: Retention


def note_timeout(unit: UnitOfWork, keys: TypeKeys, timeout: float) -> None:
    """Record the timeout with which a program has made a type."""
    unit.transaction.set(keys.declared, fdb.tuple.pack((timeout,)))


def note(unit: UnitOfWork, keys: TypeKeys, declared: Declared) -> None:
    """Record the options that a program has declared."""
    kept = declared.retention
    unit.transaction.set(keys.declared, fdb.tuple.pack((declared.timeout, kept.keep, kept.keep_failed)))


def note_removal(unit: UnitOfWork, keys: TypeKeys) -> None:
    """Record that a type was removed on purpose."""
    unit.transaction.set(keys.declared, _REMOVED)


async def is_removed(unit: UnitOfWork, keys: TypeKeys) -> bool:
    """Whether a missing type was removed on purpose, rather than never made."""
    return await unit.transaction.get(keys.declared) == _REMOVED


async def noted(unit: UnitOfWork, keys: TypeKeys) -> tuple[float | None, Retention | None]:
    """Return the last timeout and retention that programs have declared; None for unknown ones."""
    packed = await unit.transaction.get(keys.declared)
    values = unpacked(packed)
    return (
        values[0] if values else None,
        Retention(*values[1:]) if len(values) == _FIELDS else None,
    )


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
    if len(keys.redaction) > unit.transaction.limits.key:
        raise JobTooLarge(f"the type's keys take {len(keys.redaction)} bytes and more").about(keys.type)
    packed = await unit.transaction.get(keys.redaction)
    _write(unit, keys, wanted.paths, None if packed is None else _values(packed)[1])


async def declare(unit: UnitOfWork, keys: TypeKeys, wanted: Redaction, *, may_show: bool = True) -> Redaction:
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
