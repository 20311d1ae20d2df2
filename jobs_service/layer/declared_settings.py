"""The options that programs have declared for a type: the last new value wins, whether a program's or an operator's.

A type's activity timeout and retention are kept in the store, and two parties may set them: the program, by its
handler's options, and an operator, by `set_type_timeout` and `set_retention`. At the start of a handler, an option is
set only if it differs from the program's last declaration; so an operator's change in between stays. The last
declaration is a row of its own per type: (timeout, keep, keep_failed), times in seconds, None for ever; or (timeout)
before handlers have run. A removed type has an empty row, so that `enqueue` does not make it again.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import fdb.tuple

from jobs_service.layer.key_parts import unpacked
from jobs_service.layer.keyspace import TypeKeys
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.model.type_state import Retention

_FIELDS: Final = 3
_REMOVED: Final[bytes] = fdb.tuple.pack(())


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
