"""The parts of a key, checked and encoded: types, priorities, ids and times, as the tuple layer encodes them.

Ids, times and stamps are encoded here rather than by the tuple layer's own, twenty times slower code; the bytes are the
same, and the tests compare them.
"""

from __future__ import annotations

import math
import struct
import uuid
from collections.abc import Sequence
from typing import Any, Final

import fdb.tuple

from jobs_service.errors import InvalidJob, JobTooLarge, a_kind_of, in_one_line, shown
from jobs_service.model import JobId, JobType

STAMP_CODE: Final = b"\x33"
"""The tuple layer's code before the 12 bytes of a versionstamp."""

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
SMALLEST_INT: Final = 0x0C
ZERO: Final = 0x14
LARGEST_INT: Final = 0x1C
_ZERO_PRIORITY: Final[bytes] = fdb.tuple.pack((0,))
MAX_NESTING: Final = 50
"""Most levels of tuples in a type or a priority: any stack can decode them."""

_MAX_INTEGER_BITS: Final = 8 * 255
_MAX_NAME: Final = 20_000
"""Approximate most bytes in tuples: more than the longest key of any store, and quickly counted."""

PLAIN_IDS: Final = frozenset({str, bytes})
_ELEMENTS: Final = (str, bytes, int, float, type(None), uuid.UUID, fdb.tuple.SingleFloat)


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
    """Return the type that was packed, as every process reads it.

    Raises:
        ValueError: the bytes are no type, or not in the tuple layer's form; fdb.tuple raises other errors as well.
    """
    type: JobType = fdb.tuple.unpack(packed)[0]
    if fdb.tuple.pack((type,)) != packed:
        # In a damaged store: under these keys no reader would find the jobs of the type.
        raise ValueError(f"{packed!r} is no type as the tuple layer packs it")
    return type


def type_in(packed: bytes) -> JobType | None:
    """Return the type in these bytes of a row; None if they are invalid, in a damaged store."""
    try:
        type = unpacked_type(packed)
        return type if _is_name(type) else None
    except Exception:  # fdb.tuple raises many kinds of errors for bytes that are no tuple
        return None


def pack_priority(priority: Any) -> bytes:
    """Return the tuple layer's encoding of a priority, checked."""
    if type(priority) is int and priority == 0:
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
    if SMALLEST_INT <= code <= LARGEST_INT:
        return len(packed) == 1 + abs(code - ZERO)
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
        """Check a value and its elements.

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
