"""The keys of the jobs: sections under one prefix, then types, priorities, ids and times, tuple-layer encoded.

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
| (PAUSED, type)                          | nothing      | the type is paused                          |
| (RETENTION, type)                       | two times    | finished jobs of the type are to expire     |
| (EXPIRING, type, time, id)              | nothing      | finished, and to be removed then            |
| (PERIODIC, type)                        | last tick    | a periodic handler of the type was run      |
| (COPYING)                               | a mark       | a copy into this store is not complete      |
| (DECLARED, type)                        | some times   | a program has used the type, or it was removed |
| (SET_ASIDE, type, id)                   | nothing or 1 | the record cannot be read; in no index      |
| (AWAKE, type)                           | nothing      | it may have jobs that need a monitor now    |
| (AWAKE)                                 | counter      | bumped when any of these, or of the alarms, changes |
| (ASLEEP, type)                          | a time       | no job of it needs a monitor before         |
| (ALARM, time, type)                     | nothing      | the same, in the order of the times         |
| (FOLLOWED, type)                        | versionstamp | notifiers follow its changes: see `layer/changes.py` |
| (CHANGES, type, stamp)                  | ids          | jobs changed then, other than in ACTIVITY   |
| (CHANGES, type)                         | versionstamp | such rows have been removed up to there     |
| (COUNTS, type)                          | counters     | something was counted: see `layer/counters.py` |
| (MINUTES, type, number)                 | counters     | something happened in that minute           |
| (HOURS, type, number)                   | counters     | the same by the hour                        |
| (FAILED, type, seq)                     | id           | finished, and has failed                    |
| (REDACTION, type)                       | paths        | secret fields were declared                 |
| (LAST, type, id)                        | a record     | the job has left with its end: see `layer/changes.py` |
| (RETRYING, type, id)                    | nothing      | pending, and its last run has crashed       |
| (SCHEDULES, name)                       | JSON         | the schedule was set: see `runner/stored_schedules.py` |
| (SCHEDULES)                             | counter      | bumped when a schedule is set or removed    |
| (AWAKE, null)                           | nothing      | there are schedules                         |

Prefixes are computed once per type. Ids, times and stamps are encoded here rather than by the tuple layer's own, twenty
times slower code; the bytes are the same, and the tests compare them.
"""

from __future__ import annotations

import math
import struct
import threading
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import fdb.tuple

from jobs_service.errors import InvalidJob, JobsError, JobTooLarge, a_kind_of, in_one_line, shown
from jobs_service.model import JobId, JobType
from jobs_service.names import check_name

STAMP_CODE: Final = b"\x33"
"""The tuple layer's code before the SEQ_BYTES of a versionstamp."""

SEQ_BYTES: Final = 12
"""Bytes of a versionstamp with the job's order within the transaction, 2 of them."""

LAST_ORDER: Final = b"\xff\xff"
"""Greater than the order of any job within its transaction."""

TIME_CODE: Final = b"\x21"
"""The tuple layer's code before the 8 bytes of a double."""

TIME_BYTES: Final = 9
"""Bytes of a packed time."""

AFTER: Final = b"\xff"
"""Greater than any byte that the tuple layer puts behind a prefix."""
_DOUBLE = struct.Struct(">d")
_FIRST_POSITIVE: Final = b"\x21\x80"
_SIGN = 0x80
# The tuple layer's type codes of integers of up to 8 bytes; the distance from zero's is the length.
_SMALLEST_INT: Final = 0x0C
_ZERO: Final = 0x14
_LARGEST_INT: Final = 0x1C
ZERO_PRIORITY: Final[bytes] = fdb.tuple.pack((0,))
_PLAIN_IDS: Final = frozenset({str, bytes})

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
COUNTS: Final = 21
MINUTES: Final = 22
HOURS: Final = 23
FAILED: Final = 24
REDACTION: Final = 25
LAST: Final = 26
RETRYING: Final = 27
SCHEDULES: Final = 28
_SECTIONS: Final = 28

_GOES_ON: Final = 0xFF
_class_of = type
_MAX_CACHED_TYPES: Final = 10_000
"""Types whose keys are cached; each takes about a kilobyte, and some microseconds to make anew."""

_LEAST_BEHIND_TYPE: Final = 1 + 13 + 2
"""Bytes of the shortest priority, of a versionstamp with its surroundings, and of the shortest id."""


# Parts of keys


def pack_type(type: Any) -> bytes:
    """Return the tuple layer's encoding of a type, checked."""
    try:
        return _pack("type", type)
    except JobsError as error:
        raise error.about(type) from None


def unpacked_type(packed: bytes) -> JobType:
    """Return the type that was packed, as every process reads it.

    Raises:
        ValueError, InvalidJob: the bytes are no type, or not in the tuple layer's form; fdb.tuple raises other errors
            as well.
    """
    type: JobType = fdb.tuple.unpack(packed)[0]
    if fdb.tuple.pack((type,)) != packed:
        # In a damaged store: under these keys no reader would find the jobs of the type.
        raise ValueError(f"{packed!r} is no type as the tuple layer packs it")
    check_name("type", type)
    return type


def type_in(packed: bytes) -> JobType | None:
    """Return the type in these bytes of a row; None if they are invalid, in a damaged store."""
    try:
        return unpacked_type(packed)
    except Exception:  # fdb.tuple raises many kinds of errors for bytes that are no tuple
        return None


def pack_priority(priority: Any) -> bytes:
    """Return the tuple layer's encoding of a priority, checked."""
    if type(priority) is int and priority == 0:
        return ZERO_PRIORITY
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
    except Exception:  # fdb.tuple raises many kinds of errors for bytes that are no tuple
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
    """Return the elements that the tuple layer packed; none for None or for bytes that it did not pack."""
    try:
        return () if packed is None else fdb.tuple.unpack(packed)
    except Exception:  # fdb.tuple raises many kinds of errors for bytes that are no tuple
        return ()


def next_time(found: Sequence[tuple[bytes, bytes]], offset: int) -> float | None:
    """Return the time at this offset of the first index entry's key; None if there is none."""
    if not found:
        return None
    packed = found[0][0][offset:]
    seconds = unpack_seconds(packed)
    if not math.isnan(seconds):
        return seconds
    # An invalid time: a key before all times is due at once, and a key behind them never.
    return 0.0 if packed < _FIRST_POSITIVE else None


def _pack(what: str, value: Any) -> bytes:
    check_name(what, value)
    try:
        packed: bytes = fdb.tuple.pack((value,))
    except ValueError as error:  # of a lone surrogate
        why = in_one_line(str(error), 100)
        raise InvalidJob(f"{what} {shown(value)}: the tuple layer cannot encode it: {why}") from None
    return packed


# Keys


class TypeKeys:
    """The prefixes and keys of one type; as a value, equal to those of the same type under the same prefix."""

    __slots__ = (
        "_hash",
        "activity",
        "activity_head",
        "asleep",
        "awake",
        "changes",
        "counts",
        "data",
        "declared",
        "expiring",
        "failed",
        "failed_head",
        "followed",
        "hours",
        "last",
        "minutes",
        "packed",
        "paused",
        "ready",
        "ready_bytes",
        "redaction",
        "retention",
        "retrying",
        "scheduled",
        "set_aside",
        "swept",
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
        self.counts = sections[COUNTS] + packed
        self.minutes = sections[MINUTES] + packed
        self.hours = sections[HOURS] + packed
        self.failed = sections[FAILED] + packed
        self.failed_head = self.failed + STAMP_CODE
        self.redaction = sections[REDACTION] + packed
        self.last = sections[LAST] + packed
        self.retrying = sections[RETRYING] + packed
        # The hour in which this process has removed old rows of minutes and hours last.
        self.swept = 0
        # Asked for every job that is written.
        self.ready_bytes = len(self.ready)
        self._hash = hash(self.data)

    def data_key(self, id: JobId) -> bytes:
        """Return the key of a job's record."""
        return self.data + pack_id(id)

    def __eq__(self, other: object) -> bool:
        # Dictionaries look at identity first: as long as the cache has the type, this is not called.
        return self is other or (other.__class__ is TypeKeys and self.data == other.data)

    def __hash__(self) -> int:
        return self._hash

    @property
    def name(self) -> str:
        """The type's name in names of its processes, unique among types."""
        return repr(self.type)

    def __repr__(self) -> str:
        return f"TypeKeys({self.type!r})"


class Keyspace:
    """All keys of the jobs under one prefix.

    Args:
        prefix: the beginning of every key; the store's `prefix()`.
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
            InvalidJob: the type is invalid.
            JobTooLarge: the store would take no key of a job of that type.
        """
        # Only str looks up by value: True and 1.0, which are no types, are equal to 1.
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

    def of_packed(self, packed: bytes) -> TypeKeys:
        """Return the keys of a type in its packed form, whatever their length.

        Raises:
            ValueError, InvalidJob: the bytes are no type; fdb.tuple raises other errors as well.
        """
        keys = self._by_packed.get(packed)
        if keys is None:
            # The type as every process reads it, not the caller's object, which may be a member of an enumeration.
            keys = TypeKeys(unpacked_type(packed), packed, self.sections)
            with self._filling:
                self._keep(keys)
        return keys

    def found(self, packed: bytes) -> TypeKeys | None:
        """Return the keys of a packed type in a row; None for an invalid one, in a damaged store."""
        return None if type_in(packed) is None else self.of_packed(packed)

    def _keep(self, keys: TypeKeys) -> None:
        """Put the keys into the cache, in place of the oldest if it is full: the number of types has no bound."""
        if len(self._by_packed) >= _MAX_CACHED_TYPES:
            oldest = self._by_packed.pop(next(iter(self._by_packed)))
            if _class_of(oldest.type) is str:
                self._by_name.pop(oldest.type, None)
        self._by_packed[keys.packed] = keys
        if _class_of(keys.type) is str:
            self._by_name[keys.type] = keys


class TypeFinder:
    """Finds the types of many keys, one after the other: keys of one type mostly come together.

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
        """Return the keys of the type at the beginning of a key without its section; more bytes must follow it."""
        keys = self._keys
        # A string goes on behind a zero byte if 0xff follows; nothing else that begins alike is another element.
        if keys is None or not rest.startswith(keys.packed) or rest[len(keys.packed)] == _GOES_ON:
            keys = self._keys = self._keyspace.of_packed(fdb.tuple.pack(fdb.tuple.unpack(rest)[:1]))
        return keys


def end_of_priority(keys: TypeKeys, key: bytes) -> int:
    """Return the end of the priority in a READY key, where the versionstamp begins."""
    start = len(keys.ready)
    code = key[start]
    if _SMALLEST_INT <= code <= _LARGEST_INT:
        return start + 1 + abs(code - _ZERO)
    return start + len(fdb.tuple.pack(fdb.tuple.unpack(key[start:])[:1]))


Place: TypeAlias = tuple[TypeKeys, JobId, bytes]
"""A job's place: its type's keys, its id, and its packed id."""


def place_of(keys: TypeKeys, id: Any) -> Place:
    """Return the place of a job, its id checked."""
    packed = pack_id(id)
    # The member of a StrEnum, for instance, comes back as the plain text that it is.
    return keys, id if type(id) in _PLAIN_IDS else unpack_id(packed), packed
