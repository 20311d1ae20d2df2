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
| (WATCH_CANCELED, type)                  | counter      | bumped when a running job is taken away     |
| (PAUSED, type)                          | nothing      | nobody is to accept jobs of the type        |
| (RETENTION, type)                       | two times    | finished jobs of the type are to expire     |
| (EXPIRING, type, time, id)              | nothing      | finished, and to be removed then            |
| (PERIODIC, name)                        | last tick    | somebody has asked for periodic jobs        |
| (COPYING)                               | a note       | a copy into this store is not complete      |
| (COPYING, type)                         | a mark       | that copy has written jobs of the type      |
| (DECLARED, type)                        | some times   | a program has used or somebody removed the type |
| (SET_ASIDE, type, id)                   | nothing      | the record cannot be read; in no index      |
| (AWAKE, type)                           | nothing      | it may have jobs to be watched over now     |
| (AWAKE)                                 | counter      | bumped when any of these, or of the alarms, changes |
| (ASLEEP, type)                          | a time       | nothing of it is to be watched over before  |
| (ALARM, time, type)                     | nothing      | the same, in the order of the times         |
| (ALARM)                                 | nothing      | the rows above are complete: see `layer/awake_types.py` |
| (FOLLOWED, type)                        | versionstamp | notifiers follow its changes: see `layer/changes.py` |
| (CHANGES, type, stamp)                  | ids          | jobs that changed then otherwise than in ACTIVITY |
| (CHANGES, type)                         | versionstamp | up to there such rows have been removed     |

Prefixes are computed once per type. Ids, times and stamps are encoded here rather than by the tuple layer's own,
twenty times slower code; the bytes are the same, and the tests compare them.
"""

from __future__ import annotations

import math
import struct
import threading
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

import fdb.tuple

from jobs_service.errors import InvalidJob, JobTooLarge, a_kind_of, in_one_line, kind_of, shown
from jobs_service.model import JobId, JobType, Priority, RunAt

DATA: Final = 1
READY: Final = 2
SCHEDULED: Final = 3
WATCH_PENDING: Final = 4
WATCH_ACTIVITY: Final = 5
ACTIVITY_TIMEOUT: Final = 6
ACTIVITY: Final = 7
WATCH_CANCELED: Final = 8
PAUSED: Final = 9
RETENTION: Final = 10
EXPIRING: Final = 11
PERIODIC: Final = 12
COPYING: Final = 13
DECLARED: Final = 14
SET_ASIDE: Final = 15
AWAKE: Final = 16
ASLEEP: Final = 17
ALARM: Final = 18
FOLLOWED: Final = 19
CHANGES: Final = 20
_SECTIONS: Final = 20

STAMP_CODE: Final = b"\x33"
"""What the tuple layer puts before the 12 bytes of a versionstamp."""

TIME_CODE: Final = b"\x21"
"""What the tuple layer puts before the 8 bytes of a double."""

AFTER: Final = b"\xff"
"""Greater than whatever the tuple layer puts behind a prefix."""

_DOUBLE = struct.Struct(">d")
_FIRST_POSITIVE: Final = b"\x21\x80"
_SIGN = 0x80
_GOES_ON: Final = 0xFF
# The tuple layer's type codes of integers of up to 8 bytes; the distance from zero's is the length.
_SMALLEST_INT: Final = 0x0C
_ZERO: Final = 0x14
_LARGEST_INT: Final = 0x1C
_ZERO_PRIORITY: Final[bytes] = fdb.tuple.pack((0,))
_MAX_CACHED_TYPES: Final = 10_000
"""Types whose keys are kept ready; each takes about a kilobyte, and some microseconds to be made anew."""

MAX_NESTING: Final = 50
"""Levels of tuples in a type or a priority: what is read back on any stack."""

_MAX_INTEGER_BITS: Final = 8 * 255
_LEAST_BEHIND_TYPE: Final = 1 + 13 + 2
"""Bytes of the shortest priority, of what surrounds a versionstamp, and of the shortest id."""

_MAX_NAME: Final = 20_000
"""Bytes, about, of what tuples may hold: more than the longest key of any store, and quickly counted."""

_class_of = type
_PLAIN_IDS: Final = frozenset({str, bytes})
_ELEMENTS: Final = (str, bytes, int, float, type(None), uuid.UUID, fdb.tuple.SingleFloat)
EARLIEST: Final = datetime(1, 1, 2, tzinfo=UTC).timestamp()
LATEST: Final = datetime(9999, 12, 30, tzinfo=UTC).timestamp()


class TypeKeys:
    """The prefixes and keys of one type; equal to those of the same type under the same prefix, as a value."""

    __slots__ = (
        "_hash",
        "activity",
        "activity_head",
        "asleep",
        "awake",
        "changes",
        "data",
        "declared",
        "expiring",
        "followed",
        "packed",
        "paused",
        "ready",
        "ready_bytes",
        "retention",
        "scheduled",
        "set_aside",
        "timeout",
        "type",
        "watch_activity",
        "watch_canceled",
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
        self.watch_canceled = sections[WATCH_CANCELED] + packed
        self.paused = sections[PAUSED] + packed
        self.retention = sections[RETENTION] + packed
        self.expiring = sections[EXPIRING] + packed
        self.declared = sections[DECLARED] + packed
        self.set_aside = sections[SET_ASIDE] + packed
        self.awake = sections[AWAKE] + packed
        self.asleep = sections[ASLEEP] + packed
        self.followed = sections[FOLLOWED] + packed
        self.changes = sections[CHANGES] + packed
        # Asked for every job that is written.
        self.ready_bytes = len(self.ready)
        self._hash = hash(self.data)

    def __eq__(self, other: object) -> bool:
        # Dictionaries look at identity first: as long as the cache has the type, this is not called.
        return self is other or (other.__class__ is TypeKeys and self.data == other.data)

    def __hash__(self) -> int:
        return self._hash

    @property
    def name(self) -> str:
        """What processes of the type are named by: as no other type's are."""
        name = repr(self.type)
        # The tuple layer tells NaNs apart that look alike.
        return f"{name} {self.packed.hex()}" if "nan" in name and type(self.type) is tuple else name

    def __repr__(self) -> str:
        return f"TypeKeys({self.type!r})"


class Keyspace:
    """All keys of the jobs under one prefix.

    Args:
        prefix: what every key begins with; the store's `prefix()`.
        longest: bytes of the longest key that the store takes.
    """

    def __init__(self, prefix: bytes, longest: int = 10_000) -> None:
        self.prefix = prefix
        self.longest = longest
        numbers = range(1, _SECTIONS + 1)
        self.sections: tuple[bytes, ...] = (b"", *(prefix + fdb.tuple.pack((number,)) for number in numbers))
        self._by_name: dict[str, TypeKeys] = {}
        self._by_packed: dict[bytes, TypeKeys] = {}
        # Transaction functions run on other threads as well.
        self._filling = threading.Lock()

    def of(self, type: JobType) -> TypeKeys:
        """Return the keys of a type.

        Raises:
            InvalidJob: no type can be called that.
            JobTooLarge: no job of that type would have keys that the store takes.
        """
        # Only str looks up by value: 1, True and 1.0 are equal, but encoded differently.
        if _class_of(type) is str:
            keys = self._by_name.get(type)
            if keys is not None:
                return keys
        packed = pack_type(type)
        least = len(self.sections[READY]) + len(packed) + _LEAST_BEHIND_TYPE
        if least > self.longest:
            refused = f"type {shown(type)}: its keys take {least} bytes and more; the store's limit is {self.longest}"
            raise JobTooLarge(refused).about(type)
        return self.of_packed(packed)

    def stored(self, type: JobType) -> TypeKeys:
        """Return the keys of a type as it was read from the store, whose keys were short enough for some process."""
        return self.of_packed(fdb.tuple.pack((type,)))

    def of_packed(self, packed: bytes) -> TypeKeys:
        """Return the keys of a type that is given as the tuple layer packed it."""
        keys = self._by_packed.get(packed)
        if keys is None:
            # The type as every process reads it, not the caller's object, which may be a member of an enumeration.
            keys = TypeKeys(unpacked_type(packed), packed, self.sections)
            with self._filling:
                self._keep(keys)
        return keys

    def _keep(self, keys: TypeKeys) -> None:
        """Put the keys into the cache, in place of the oldest when it is full: others may be looked up for ever."""
        if len(self._by_packed) >= _MAX_CACHED_TYPES:
            oldest = self._by_packed.pop(next(iter(self._by_packed)))
            if _class_of(oldest.type) is str:
                self._by_name.pop(oldest.type, None)
        self._by_packed[keys.packed] = keys
        if _class_of(keys.type) is str:
            self._by_name[keys.type] = keys

    def split_data_key(self, key: bytes) -> tuple[TypeKeys, JobId]:
        """Return the type's keys and the id of a DATA key."""
        packed = key[len(self.sections[DATA]) :]
        type, id = fdb.tuple.unpack(packed)
        return self.stored(type), id


class TypeFinder:
    """Finds the types of many keys, one after the other: those of one type mostly come together.

    Args:
        keyspace: of the keys.
    """

    def __init__(self, keyspace: Keyspace) -> None:
        self._keyspace = keyspace
        self._keys: TypeKeys | None = None

    def keys_of_data(self, key: bytes) -> TypeKeys:
        """Return the keys of the type of a DATA key."""
        return self.keys_of(key[len(self._keyspace.sections[DATA]) :])

    def keys_of(self, rest: bytes) -> TypeKeys:
        """Return the keys of the type that the rest of a key, behind its section, begins with; more must follow it."""
        keys = self._keys
        # A string goes on behind a zero byte if 0xff follows; nothing else that begins alike is another element.
        if keys is None or not rest.startswith(keys.packed) or rest[len(keys.packed)] == _GOES_ON:
            keys = self._keys = self._keyspace.stored(fdb.tuple.unpack(rest)[0])
        return keys


def end_of_priority(keys: TypeKeys, key: bytes) -> int:
    """Return where in a READY key the priority ends, and the versionstamp begins."""
    start = len(keys.ready)
    code = key[start]
    if _SMALLEST_INT <= code <= _LARGEST_INT:
        return start + 1 + abs(code - _ZERO)
    return start + len(fdb.tuple.pack(fdb.tuple.unpack(key[start:])[:1]))


def pack_type(type: Any) -> bytes:
    """Return the tuple layer's encoding of a type, checked."""
    if not _is_name(type):
        refused = f"type {shown(type)}: {a_kind_of(type)}; allowed are str, bytes, int and tuples of these"
        raise InvalidJob(refused).about(type)
    try:
        return _pack("type", type)
    except (InvalidJob, JobTooLarge) as error:
        raise error.about(type) from None


def unpacked_type(packed: bytes) -> JobType:
    """Return the type that was packed, as every process reads it."""
    type: JobType = fdb.tuple.unpack(packed)[0]
    return type


def pack_priority(priority: Any) -> bytes:
    """Return the tuple layer's encoding of a priority, checked."""
    if _class_of(priority) is int and priority == 0:
        return _ZERO_PRIORITY
    if not _is_name(priority):
        raise InvalidJob(
            f"priority {shown(priority)}: {a_kind_of(priority)}; allowed are int, str, bytes and tuples of these"
        )
    return _pack("priority", priority)


def is_priority(packed: bytes) -> bool:
    """Return whether these bytes are a priority as `pack_priority` packs it."""
    if not packed:
        return False
    code = packed[0]
    if _SMALLEST_INT <= code <= _LARGEST_INT:
        return len(packed) == 1 + abs(code - _ZERO)
    try:
        if code in (1, 2) and packed.find(b"\x00") == len(packed) - 1:
            return code == 1 or packed.decode() is not None
        (priority,) = fdb.tuple.unpack(packed)
        return pack_priority(priority) == packed
    except Exception:  # the tuple layer's own, of whatever kind, for what is no tuple
        return False


def pack_id(id: Any) -> bytes:
    """Return the tuple layer's encoding of an id, checked."""
    if isinstance(id, str):
        try:
            return b"\x02" + id.encode().replace(b"\x00", b"\x00\xff") + b"\x00"
        except UnicodeEncodeError:
            raise InvalidJob(f"id {shown(id)}: a str that is not UTF-8 (a lone surrogate)", id=id) from None
    if isinstance(id, bytes):
        return b"\x01" + id.replace(b"\x00", b"\x00\xff") + b"\x00"
    raise InvalidJob(f"id {shown(id)}: {a_kind_of(id)}; allowed are str and bytes")


Place: TypeAlias = tuple[TypeKeys, JobId, bytes]
"""Where a job is: its type's keys, its id, and its id as packed."""


def place_of(keys: TypeKeys, id: Any) -> Place:
    """Return the place of a job, its id checked."""
    packed = pack_id(id)
    # The member of a StrEnum, for instance, comes back as the plain text that it is.
    return keys, id if type(id) in _PLAIN_IDS else unpack_id(packed), packed


def unpack_id(packed: bytes) -> JobId:
    """Return the id that `pack_id` packed."""
    raw = packed[1:-1].replace(b"\x00\xff", b"\x00")
    return raw.decode() if packed[0] == 2 else raw


def is_id(packed: bytes) -> bool:
    """Return whether these bytes are an id as `pack_id` packs it."""
    try:
        return pack_id(unpack_id(packed)) == packed
    except (IndexError, ValueError, InvalidJob):
        return False


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
    """Return the double that `pack_seconds` packed (bytes behind it are ignored, missing ones are zero)."""
    raw = bytearray(packed[1:9])
    if len(raw) < _DOUBLE.size:
        raw = raw.ljust(_DOUBLE.size, b"\x00")
    if raw[0] & _SIGN:
        raw[0] ^= _SIGN
    else:
        raw = bytearray(byte ^ 0xFF for byte in raw)
    seconds: float = _DOUBLE.unpack(raw)[0]
    return seconds


def unpacked(packed: bytes | None) -> tuple[Any, ...]:
    """Return the elements that the tuple layer packed; none when nothing is there, or what it did not pack."""
    try:
        return () if packed is None else fdb.tuple.unpack(packed)
    except Exception:  # the tuple layer's own, of whatever kind
        return ()


def next_time(found: Sequence[tuple[bytes, bytes]], offset: int) -> float | None:
    """Return the time that the first of some index entries has in its key, from this offset on; None for none."""
    if not found:
        return None
    packed = found[0][0][offset:]
    seconds = unpack_seconds(packed)
    if not math.isnan(seconds):
        return seconds
    # No time at all: what is before all times is due at once, and what is behind them never.
    return 0.0 if packed < _FIRST_POSITIVE else None


def to_seconds(time: RunAt | None, what: str = "run_at") -> float | None:
    """Return a time as seconds since the epoch, checked.

    Raises:
        InvalidJob: a naive datetime, something that is no time, or a time no datetime can hold.
    """
    if time is None:
        return None
    if isinstance(time, datetime):
        seconds = _timestamp(time, what)
    else:
        try:
            number = exact_seconds(time)
        except OverflowError:
            number = math.inf
        if number is None:
            raise InvalidJob(
                f"{what} {shown(time)}: {a_kind_of(time)}; allowed are aware datetimes and seconds since the epoch"
            )
        seconds = number
    if not EARLIEST <= seconds <= LATEST:
        raise InvalidJob(f"{what} {shown(time)}: allowed are times of the years 1 to 9999")
    return seconds


def exact_seconds(seconds: Any) -> float | None:
    """Return a number of seconds as a float, None for what is no number.

    Raises:
        OverflowError: no float can hold it.
    """
    return float(seconds) if isinstance(seconds, int | float) and not isinstance(seconds, bool) else None


def exact_int(value: Any) -> int | None:
    """Return an int, None for what is none; bool is none."""
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _timestamp(time: datetime, what: str) -> float:
    try:
        if time.utcoffset() is not None:
            return time.timestamp()
        text = time.isoformat()
    except Exception as error:  # whatever the time zone's own code raises
        raise InvalidJob(f"{what} {shown(time)}: its time zone fails with {kind_of(error)}") from None
    raise InvalidJob(f"{what} {text}: a naive datetime; give it a time zone")


def _is_name(value: Any) -> bool:
    return isinstance(value, str | bytes | int | tuple) and not isinstance(value, bool)


def _pack(what: str, value: Any) -> bytes:
    try:
        if not isinstance(value, str | bytes):
            _Elements().check(value, MAX_NESTING)
        packed: bytes = fdb.tuple.pack((value,))
    except (TypeError, ValueError, OverflowError, struct.error) as error:
        why = in_one_line(str(error), 100)
        raise InvalidJob(f"{what} {shown(value)}: the tuple layer cannot encode it: {why}") from None
    return packed


class _Elements:
    """Checks that the tuple layer can encode a value, and that a key has room for it."""

    def __init__(self) -> None:
        self._left = _MAX_NAME

    def check(self, value: Any, levels: int) -> None:
        """Check a value and all that it holds.

        Raises:
            ValueError: something in it cannot be encoded.
            JobTooLarge: it holds more than any key.
        """
        self._take(1)
        if isinstance(value, tuple | list):
            if not levels:
                raise ValueError(f"nested deeper than {MAX_NESTING} levels")
            for item in value:
                self.check(item, levels - 1)
        elif isinstance(value, str | bytes):
            self._take(len(value))
        elif isinstance(value, int):
            _check_bits(value)
        elif isinstance(value, fdb.tuple.Versionstamp):
            raise ValueError("a versionstamp, which only a commit makes")
        elif not isinstance(value, _ELEMENTS):
            raise ValueError(a_kind_of(value))

    def _take(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise JobTooLarge(f"tuples of more than {_MAX_NAME} bytes; no store takes so long a key")


def _check_bits(value: int) -> None:
    if value.bit_length() > _MAX_INTEGER_BITS:
        raise ValueError(f"an integer of {value.bit_length()} bits; {_MAX_INTEGER_BITS} are allowed")


__all__ = [
    "AFTER",
    "STAMP_CODE",
    "Keyspace",
    "Place",
    "Priority",
    "TypeFinder",
    "TypeKeys",
    "end_of_priority",
    "exact_int",
    "exact_seconds",
    "id_at_end",
    "is_id",
    "is_priority",
    "pack_id",
    "pack_priority",
    "pack_seconds",
    "pack_type",
    "place_of",
    "to_seconds",
    "unpack_id",
    "unpack_seconds",
]
