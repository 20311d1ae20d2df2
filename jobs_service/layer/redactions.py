"""Which fields of a type's jobs are secret, kept with the type: what is set, and what programs have declared last.

The last who said something new is heard, as for a type's other settings (`declared_settings`). A row is the packed
tuple (paths, declared), each a tuple of strings; declared is None where only an operator has said something.
"""

from __future__ import annotations

import functools
from typing import Any, Final

import fdb.tuple

from jobs_service import json_data
from jobs_service.errors import InvalidJob, InvalidSettings, JobTooLarge, shown
from jobs_service.layer.key_parts import AFTER, type_in, unpacked
from jobs_service.layer.keyspace import REDACTION, Keyspace, TypeKeys
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.model import JobId, JobType
from jobs_service.redaction import NO_REDACTION, REDACTED, Redaction
from jobs_service.store.base import Snapshot

ALL_SECRET: Final = Redaction(("data:", "result:", "error:", "progress:"))
"""All that programs have said of a job is secret: where nobody knows what is."""

_PAGE: Final = 100


async def redaction(transaction: Snapshot, keys: TypeKeys) -> Redaction:
    """Return which fields of a type's jobs are secret."""
    packed = await transaction.get(keys.redaction)
    return NO_REDACTION if packed is None else _decoded(packed)


async def redactions_page(
    transaction: Snapshot, keyspace: Keyspace, after: bytes | None
) -> tuple[list[tuple[JobType, Redaction]], bytes | None]:
    """Return some of the types that have secret fields, with these, and where this page ends; None if it is the last.

    Args:
        transaction, keyspace: of the types.
        after: where the page before has ended; None to begin.
    """
    section = keyspace.sections[REDACTION]
    begin = section if after is None else after + b"\x00"
    found = await transaction.get_range(begin, section + AFTER, limit=_PAGE)
    page = [(type_in(key[len(section) :]), _decoded(value)) for key, value in found]
    declared = [(type, rules) for type, rules in page if type is not None and rules]
    return declared, found[-1][0] if len(found) == _PAGE else None


async def set_redaction(unit: UnitOfWork, keys: TypeKeys, wanted: Redaction) -> None:
    """Say which fields of a type's jobs are secret.

    Raises:
        JobTooLarge: the type's key is over the store's limit.
    """
    if len(keys.redaction) > unit.transaction.limits.key:
        raise JobTooLarge(f"the type's keys take {len(keys.redaction)} bytes and more").about(keys.type)
    packed = await unit.transaction.get(keys.redaction)
    _write(unit, keys, wanted.paths, None if packed is None else _values(packed)[1])


async def declare(unit: UnitOfWork, keys: TypeKeys, wanted: Redaction, *, may_show: bool = True) -> Redaction:
    """Set what a program declares as its handler starts, unless it has declared the same before.

    Args:
        unit, keys: of the type.
        wanted: what it declares.
        may_show: whether what is secret already need not stay so.

    Returns:
        What is set now: an operator may have set something else since.
    """
    packed = await unit.transaction.get(keys.redaction)
    if packed is not None and _values(packed)[1] == wanted.paths:
        return _decoded(packed)
    if packed is not None and not may_show:
        before = _decoded(packed)
        # A declaration that adds nothing is not kept: whoever may show more would not be heard with the same one.
        if before.paths == (more := tuple(dict.fromkeys((*before.paths, *wanted.paths)))):
            return before
        _write(unit, keys, Redaction(more).paths, _values(packed)[1])
        return Redaction(more)
    _write(unit, keys, wanted.paths, wanted.paths)
    return wanted


async def refuse_mark(
    unit: UnitOfWork, keys: TypeKeys, id: JobId, json: bytes, declared: Redaction | None = None
) -> None:
    """Refuse data that have the mark in the place of a secret: who writes them has not seen what they would replace.

    For data that have the mark at all, which is nearly never.

    Args:
        unit, keys: of the type.
        id: of the job.
        json: its data.
        declared: what is secret if nobody has said so yet.

    Raises:
        InvalidJob: they have it.
    """
    packed = await unit.transaction.snapshot.get(keys.redaction)
    rules = declared if packed is None else _decoded(packed)
    if rules is not None and rules.hides_a_mark(json_data.decode(json)):
        refused = f"data with {REDACTED} where the type {shown(keys.type)} has a secret: write the secret itself"
        raise InvalidJob(refused).about(keys.type, id)


async def is_undeclared(unit: UnitOfWork, keys: TypeKeys) -> bool:
    """Whether nobody has said yet what is secret: only then what a program declares as it enqueues a job counts."""
    if await unit.transaction.snapshot.get(keys.redaction) is not None:
        return False
    unit.transaction.add_read_conflict_key(keys.redaction)
    return True


def declare_first(unit: UnitOfWork, keys: TypeKeys, wanted: Redaction) -> None:
    """Set what a program declares, where `is_undeclared`."""
    _write(unit, keys, wanted.paths, wanted.paths)


def _write(unit: UnitOfWork, keys: TypeKeys, paths: tuple[str, ...], declared: tuple[str, ...] | None) -> None:
    unit.transaction.set(keys.redaction, fdb.tuple.pack((paths, declared)))


@functools.lru_cache(maxsize=1000)
def _decoded(packed: bytes) -> Redaction:
    """Return what is secret; everything, if these bytes cannot be read: nothing is shown by mistake."""
    try:
        return Redaction(_values(packed)[0])
    except InvalidSettings:
        return ALL_SECRET


def _values(packed: bytes) -> tuple[Any, Any]:
    values = unpacked(packed)
    if len(values) != 2 or not isinstance(values[0], tuple):
        return ALL_SECRET.paths, None
    return values[0], values[1]
