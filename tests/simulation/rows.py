"""Where the rows of jobs and types must be: keys made from docs/layout.md, and read by it, not by the package."""

from __future__ import annotations

import functools
from typing import Any, Final, NamedTuple

import fdb.tuple

from jobs_service.model import JobId, JobType
from tests import reader
from tests.reader import Undocumented

DAMAGED: Final = "damaged-"
"""What the ids of damaged jobs begin with: they are no part of the history."""

MARK: Final = DAMAGED.encode()

PREFIX: Final[bytes] = fdb.tuple.pack(("jobs_service",))
"""Of the jobs' keys in the simulated cluster."""

_NUMBERS: Final = {
    "DATA": 1,
    "READY": 2,
    "SCHEDULED": 3,
    "WATCH_PENDING": 4,
    "WATCH_ACTIVITY": 5,
    "ACTIVITY_TIMEOUT": 6,
    "ACTIVITY": 7,
    "WATCH_CANCELED": 8,
    "PAUSED": 9,
    "RETENTION": 10,
    "EXPIRING": 11,
    "PERIODIC": 12,
    "AWAKE": 16,
    "ASLEEP": 17,
    "ALARM": 18,
    "FOLLOWED": 19,
    "CHANGES": 20,
    "COUNTS": 21,
    "MINUTES": 22,
    "HOURS": 23,
    "FAILED": 24,
    "LAST": 26,
    "RETRYING": 27,
}


def section(family: str) -> bytes:
    """Return what all keys of a family begin with."""
    packed: bytes = fdb.tuple.pack((_NUMBERS[family],))
    return PREFIX + packed


def data_key(type: JobType, id: JobId) -> bytes:
    """Return where a job's record is."""
    packed: bytes = fdb.tuple.pack((type, id))
    return section("DATA") + packed


def last_key(type: JobType, id: JobId) -> bytes:
    """Return where the last record of a job is that has left with its end."""
    packed: bytes = fdb.tuple.pack((type, id))
    return section("LAST") + packed


def changes_of(type: JobType, id: JobId) -> tuple[bytes, bytes]:
    """Return what the keys of a type's rows of changes begin with, and how they name a job."""
    packed: bytes = fdb.tuple.pack((type,))
    packed_id: bytes = fdb.tuple.pack((id,))
    return section("CHANGES") + packed, packed_id


class TypeRows(NamedTuple):
    """The keys of what is told of a type."""

    type: JobType
    watch_pending: bytes
    watch_activity: bytes
    watch_canceled: bytes
    timeout: bytes
    paused: bytes
    retention: bytes
    followed: bytes


@functools.lru_cache(256, typed=True)
def rows_of(type: JobType) -> TypeRows:
    """Return the keys of a type."""
    packed: bytes = fdb.tuple.pack((type,))
    names = ("WATCH_PENDING", "WATCH_ACTIVITY", "WATCH_CANCELED", "ACTIVITY_TIMEOUT", "PAUSED", "RETENTION", "FOLLOWED")
    return TypeRows(type, *(section(name) + packed for name in names))


def names_in(key: bytes) -> tuple[Any, ...]:
    """Return type and id in a DATA key, or the type in a key of a type."""
    return reader.names(key[len(PREFIX) :])


def value_in(key: bytes, raw: bytes) -> Any:
    """Return the value of a row; what is wrong with it where it is undocumented."""
    try:
        return reader.row(key[len(PREFIX) :], raw).value
    except Undocumented as error:
        return f"{error}"


def is_damage(key: bytes, value: bytes | None = None) -> bool:
    """Whether a key, or what its value names, belongs to a damaged job."""
    return MARK in key or (value is not None and MARK in value)
