"""Rows: the families of keys, and what a key and its value say."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple, TypeAlias

from tests.reader import counts, records, values
from tests.reader.key_elements import (
    check_id,
    check_name,
    check_number,
    check_process_id,
    check_seq,
    check_text,
    check_time,
)
from tests.reader.tuples import Undocumented, elements


class Row(NamedTuple):
    """One key with its value.

    Attributes:
        family: its name.
        names: the elements of the key behind the family's number.
        packed: the same, as they are packed.
        value: as read; a Record in DATA.
    """

    family: str
    names: tuple[Any, ...]
    packed: tuple[bytes, ...]
    value: Any


_type = partial(check_name, "type")
_priority = partial(check_name, "priority")
_id, _seq, _time = partial(check_id, "id"), partial(check_seq, "seq"), partial(check_time, "time")
_number = partial(check_number, "number")


def _type_or_null(value: Any) -> None:
    if value is not None:
        _type(value)


Family: TypeAlias = tuple[str, tuple[Callable[[Any], None], ...], Callable[[bytes], Any]]
"""The name of a family, what checks each element of its keys, and what reads its values."""

FAMILIES: Final[dict[int, tuple[Family, ...]]] = {
    1: (("DATA", (_type, _id), records.record),),
    2: (("READY", (_type, _priority, _seq, _id), values.packed_time_or_nothing),),
    3: (("SCHEDULED", (_type, _time, _id), values.packed_priority),),
    4: (("WATCH_PENDING", (_type,), values.counter),),
    5: (("WATCH_ACTIVITY", (_type,), values.stamp),),
    6: (("ACTIVITY_TIMEOUT", (_type,), values.timeout),),
    7: (("ACTIVITY", (_type, _seq), values.packed_id),),
    8: (("WATCH_CANCELED", (_type,), values.counter),),
    9: (("PAUSED", (_type,), values.nothing),),
    10: (("RETENTION", (_type,), values.retention),),
    11: (("EXPIRING", (_type, _time, _id), values.nothing),),
    12: (("PERIODIC", (_type,), values.tick),),
    13: (("COPYING", (), values.mark),),
    14: (("DECLARED", (_type,), values.declared),),
    15: (("SET_ASIDE", (_type, _id), counts.uncounted_or_nothing),),
    16: (("AWAKE", (), values.counter), ("AWAKE", (_type_or_null,), values.nothing)),
    17: (("ASLEEP", (_type,), values.packed_time),),
    18: (("ALARM", (_time, _type), values.nothing),),
    19: (("FOLLOWED", (_type,), values.followed),),
    20: (("CHANGES", (_type,), values.stamp), ("CHANGES", (_type, _seq), values.packed_ids)),
    21: (("COUNTS", (_type,), counts.counts),),
    22: (("MINUTES", (_type, _number), counts.interval),),
    23: (("HOURS", (_type, _number), counts.interval),),
    24: (("FAILED", (_type, _seq), values.packed_id),),
    25: (("REDACTION", (_type,), values.redaction),),
    26: (("LAST", (_type, _id), records.last),),
    27: (("RETRYING", (_type, _id), values.nothing),),
    28: (("SCHEDULES", (), values.counter), ("SCHEDULES", (check_text,), values.schedule)),
    40: (("TOKENS", (), values.counter), ("TOKENS", (check_text,), values.token)),
    41: (("REQUESTS", (_type, check_text), values.request),),
    42: (("REQUESTS_BY_TIME", (_time, _type, check_text), values.nothing),),
    43: (("SESSIONS", (_time, check_text), values.session),),
    50: (("PROCESSES", (check_process_id,), values.process),),
    51: (("PROCESS_REQUESTS", (check_process_id,), values.process_request),),
    52: (("OUTBOXES", (check_text,), values.outbox),),
}


def row(key: bytes, value: bytes) -> Row:
    """Return what a key, without the store's prefix, and its value say.

    Raises:
        Undocumented: docs/layout.md does not explain them.
    """
    family, names, packed = _key(key)
    try:
        return Row(family[0], names, packed, family[2](value))
    except ValueError as error:
        raise Undocumented(f"{family[0]} {names}: {error}") from None


def names(key: bytes) -> tuple[Any, ...]:
    """Return the elements of a key, without the store's prefix, behind the number of its family. Raises like `row`."""
    return _key(key)[1]


@lru_cache(8_192)
def _key(key: bytes) -> tuple[Family, tuple[Any, ...], tuple[bytes, ...]]:
    """Return the family of a key, and its other elements, read and packed."""
    try:
        (number, _), *rest = elements(key)
    except ValueError as error:
        raise Undocumented(f"key {key!r}: no tuple: {error}") from None
    if number.__class__ is not int or number not in FAMILIES:
        raise Undocumented(f"key {key!r}: unknown section {number!r}")
    names = tuple(value for value, _ in rest)
    for family in FAMILIES[number]:
        if len(family[1]) == len(rest):
            break
    else:
        raise Undocumented(f"{family[0]} key {names}: {len(rest)} elements, not {len(family[1])}")
    for check, value in zip(family[1], names, strict=True):
        try:
            check(value)
        except Undocumented as error:
            raise Undocumented(f"{family[0]} key {names}: {error}") from None
    return family, names, tuple(packed for _, packed in rest)
