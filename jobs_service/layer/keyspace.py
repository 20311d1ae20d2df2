"""Where every key of the jobs is: sections under one prefix, tuple-layer encoded. Floor: layer.

| key                                     | value        | as long as                                  |
|-----------------------------------------|--------------|---------------------------------------------|
| (DATA, type, id)                        | the record   | the job exists                              |
| (READY, type, priority, stamp, id)      | run_at       | pending and due                             |
| (SCHEDULED, type, run_at, id)           | priority     | pending, not yet due                        |
| (WATCH_PENDING, type)                   | counter      | bumped when something becomes pending       |
| (WATCH_ACTIVITY, type)                  | versionstamp | set when a job changes state or is updated  |
| (ACTIVITY_TIMEOUT, type)                | seconds      | the type exists                             |
| (ACTIVITY, type, seq)                   | id           | running                                     |

Prefixes are computed once per type. Ids, times and stamps are encoded here rather than by the tuple layer's own,
twenty times slower code; the bytes are the same, and the tests compare them.
"""

from __future__ import annotations

import math
import struct
from datetime import UTC, datetime
from typing import Any, Final

import fdb.tuple

from jobs_service.errors import InvalidJob, shown
from jobs_service.model import JobId, JobType, Priority, RunAt

DATA: Final = 1
READY: Final = 2
SCHEDULED: Final = 3
WATCH_PENDING: Final = 4
WATCH_ACTIVITY: Final = 5
ACTIVITY_TIMEOUT: Final = 6
ACTIVITY: Final = 7

STAMP_CODE: Final = b"\x33"
"""What the tuple layer puts before the 12 bytes of a versionstamp."""

AFTER: Final = b"\xff"
"""Greater than whatever the tuple layer puts behind a prefix."""

_DOUBLE = struct.Struct(">d")
_SIGN = 0x80
_ZERO_PRIORITY: Final[bytes] = fdb.tuple.pack((0,))
_MAX_TYPES = 100_000
_EARLIEST = datetime(1, 1, 2, tzinfo=UTC).timestamp()
_LATEST = datetime(9999, 12, 30, tzinfo=UTC).timestamp()


class TypeKeys:
    """The prefixes and keys of one type."""

    __slots__ = (
        "activity",
        "activity_head",
        "data",
        "packed",
        "ready",
        "scheduled",
        "timeout",
        "type",
        "watch_activity",
        "watch_pending",
    )

    def __init__(self, type: JobType, packed: bytes, sections: tuple[bytes, ...]) -> None:
        self.type = type
        self.packed = packed
        self.data = sections[DATA] + packed
        self.ready = sections[READY] + packed
        self.scheduled = sections[SCHEDULED] + packed
        self.watch_pending = sections[WATCH_PENDING] + packed
        self.watch_activity = sections[WATCH_ACTIVITY] + packed
        self.timeout = sections[ACTIVITY_TIMEOUT] + packed
        self.activity = sections[ACTIVITY] + packed
        self.activity_head = self.activity + STAMP_CODE

    def __repr__(self) -> str:
        return f"TypeKeys({self.type!r})"


class Keyspace:
    """All keys of the jobs under one prefix.

    Args:
        prefix: what every key begins with; the store's `prefix()`.
    """

    def __init__(self, prefix: bytes) -> None:
        self.prefix = prefix
        self.sections: tuple[bytes, ...] = (b"", *(prefix + fdb.tuple.pack((number,)) for number in range(1, 8)))
        self._by_name: dict[str, TypeKeys] = {}
        self._by_packed: dict[bytes, TypeKeys] = {}

    def of(self, type: JobType) -> TypeKeys:
        """Return the keys of a type.

        Raises:
            InvalidJob: no type can be called that.
        """
        # Only str looks up by value: 1, True and 1.0 are equal, but encoded differently.
        if type.__class__ is str:
            keys = self._by_name.get(type)
            if keys is not None:
                return keys
        return self._of_packed(type, pack_type(type))

    def of_packed(self, packed: bytes) -> TypeKeys:
        """Return the keys of a type that is given as the tuple layer packed it."""
        return self._by_packed.get(packed) or self._of_packed(fdb.tuple.unpack(packed)[0], packed)

    def _of_packed(self, type: JobType, packed: bytes) -> TypeKeys:
        keys = self._by_packed.get(packed)
        if keys is None:
            if len(self._by_packed) >= _MAX_TYPES:
                self._by_packed.clear()
                self._by_name.clear()
            # Transaction functions run on other threads, and types are compared by identity: the first one stays.
            keys = self._by_packed.setdefault(packed, TypeKeys(type, packed, self.sections))
            if type.__class__ is str:
                self._by_name[type] = keys
        return keys

    def split_data_key(self, key: bytes) -> tuple[TypeKeys, JobId]:
        """Return the type's keys and the id of a DATA key."""
        packed = key[len(self.sections[DATA]) :]
        type, id = fdb.tuple.unpack(packed)
        return self.of_packed(fdb.tuple.pack((type,))), id


def pack_type(type: Any) -> bytes:
    """Return the tuple layer's encoding of a type, checked."""
    if isinstance(type, bool) or not isinstance(type, str | bytes | int | tuple):
        refused = f"type {shown(type)}: a {_kind(type)}; allowed are str, bytes, int and tuples of these"
        raise InvalidJob(refused).about(type)
    try:
        return _pack("type", type)
    except InvalidJob as error:
        raise error.about(type) from None


def pack_priority(priority: Any) -> bytes:
    """Return the tuple layer's encoding of a priority, checked."""
    if priority.__class__ is int and priority == 0:
        return _ZERO_PRIORITY
    if isinstance(priority, bool) or not isinstance(priority, int | str | bytes | tuple):
        raise InvalidJob(
            f"priority {shown(priority)}: a {_kind(priority)}; allowed are int, str, bytes and tuples of these"
        )
    return _pack("priority", priority)


def pack_id(id: Any) -> bytes:
    """Return the tuple layer's encoding of an id, checked."""
    if id.__class__ is str:
        try:
            return b"\x02" + id.encode().replace(b"\x00", b"\x00\xff") + b"\x00"
        except UnicodeEncodeError:
            raise InvalidJob(f"id {shown(id)}: a str that is not UTF-8 (a lone surrogate)", id=id) from None
    if id.__class__ is bytes:
        return b"\x01" + id.replace(b"\x00", b"\x00\xff") + b"\x00"
    if isinstance(id, str):
        return pack_id(str(id))
    if isinstance(id, bytes):
        return pack_id(bytes(id))
    raise InvalidJob(f"id {shown(id)}: a {_kind(id)}; allowed are str and bytes")


def unpack_id(packed: bytes) -> JobId:
    """Return the id that `pack_id` packed."""
    raw = packed[1:-1].replace(b"\x00\xff", b"\x00")
    return raw.decode() if packed[0] == 2 else raw


def id_at_end(key: bytes, offset: int) -> JobId:
    """Return the id that a key has from this offset on."""
    return unpack_id(key[offset:])


def pack_seconds(seconds: float) -> bytes:
    """Return the tuple layer's encoding of a double: 9 bytes in the order of the numbers."""
    raw = bytearray(_DOUBLE.pack(seconds))
    if raw[0] & _SIGN:
        return b"\x21" + bytes(byte ^ 0xFF for byte in raw)
    raw[0] ^= _SIGN
    return b"\x21" + raw


def unpack_seconds(packed: bytes) -> float:
    """Return the double that `pack_seconds` packed (bytes behind it are ignored)."""
    raw = bytearray(packed[1:9])
    if raw[0] & _SIGN:
        raw[0] ^= _SIGN
    else:
        raw = bytearray(byte ^ 0xFF for byte in raw)
    seconds: float = _DOUBLE.unpack(raw)[0]
    return seconds


def to_seconds(time: RunAt | None, what: str = "run_at") -> float | None:
    """Return a time as seconds since the epoch, checked.

    Raises:
        InvalidJob: a naive datetime, something that is no time, or a time no datetime can hold.
    """
    if time is None:
        return None
    if isinstance(time, datetime):
        if time.utcoffset() is None:
            raise InvalidJob(f"{what} {time.isoformat()}: a naive datetime; give it a time zone")
        seconds = time.timestamp()
    elif isinstance(time, bool) or not isinstance(time, float | int):
        raise InvalidJob(
            f"{what} {shown(time)}: a {_kind(time)}; allowed are aware datetimes and seconds since the epoch"
        )
    else:
        try:
            seconds = float(time)
        except OverflowError:
            seconds = math.inf
    if not _EARLIEST <= seconds <= _LATEST:
        raise InvalidJob(f"{what} {shown(time)}: allowed are times of the years 1 to 9999")
    return seconds


def _holds_versionstamp(value: Any) -> bool:
    if isinstance(value, tuple):
        return any(map(_holds_versionstamp, value))
    return isinstance(value, fdb.tuple.Versionstamp)


def _pack(what: str, value: Any) -> bytes:
    try:
        if _holds_versionstamp(value):
            raise ValueError("a versionstamp, which only a commit makes")
        packed: bytes = fdb.tuple.pack((value,))
    except (TypeError, ValueError, OverflowError, RecursionError, AttributeError, struct.error) as error:
        raise InvalidJob(f"{what} {shown(value)}: the tuple layer cannot encode it: {error}") from None
    return packed


def _kind(value: object) -> str:
    return type(value).__name__


__all__ = [
    "AFTER",
    "STAMP_CODE",
    "Keyspace",
    "Priority",
    "TypeKeys",
    "id_at_end",
    "pack_id",
    "pack_priority",
    "pack_seconds",
    "pack_type",
    "to_seconds",
    "unpack_id",
    "unpack_seconds",
]
