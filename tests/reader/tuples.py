"""Tuples: the elements that keys, and some values, are packed from."""

from __future__ import annotations

import struct
from typing import Any, Final, TypeAlias

SEQ_BYTES: Final = 12


class Undocumented(ValueError):
    """Bytes that docs/layout.md does not explain."""


class Stamp(bytes):
    """A versionstamp with a number: 12 bytes."""


Element: TypeAlias = tuple[Any, bytes]
"""What was packed, and how."""


def elements(packed: bytes) -> list[Element]:
    """Return the elements of a tuple, each with its bytes.

    Raises:
        Undocumented: these bytes are no tuple.
    """
    found: list[Element] = []
    place = 0
    try:
        while place < len(packed):
            value, end = _element(packed, place)
            found.append((value, packed[place:end]))
            place = end
    except (IndexError, ValueError, struct.error) as error:
        raise Undocumented(f"no tuple: {packed!r}: {error}") from None
    return found


def _element(packed: bytes, place: int) -> tuple[Any, int]:
    """Return the element that begins at a place, and where it ends."""
    code = packed[place]
    place += 1
    if code in (0x01, 0x02):
        end = packed.index(b"\x00", place)
        while packed[end + 1 : end + 2] == b"\xff":
            end = packed.index(b"\x00", end + 2)
        raw = packed[place:end].replace(b"\x00\xff", b"\x00")
        return (raw if code == 0x01 else raw.decode()), end + 1
    if 0x0B <= code <= 0x1D:
        return _integer(packed, code, place)
    if code == 0x33:
        return Stamp(_taken(packed, place, SEQ_BYTES)), place + SEQ_BYTES
    if code == 0x21:
        return _double(_taken(packed, place, 8)), place + 8
    if code == 0x05:
        return _nested(packed, place)
    if code == 0x00:
        return None, place
    raise ValueError(f"no element begins with {code:#04x}")


def _taken(packed: bytes, place: int, size: int) -> bytes:
    if len(packed) < place + size:
        raise ValueError(f"it ends within an element of {size} bytes")
    return packed[place : place + size]


def _integer(packed: bytes, code: int, place: int) -> tuple[int, int]:
    negative = code < 0x14
    if code in (0x0B, 0x1D):
        size = packed[place] ^ (0xFF if negative else 0)
        place += 1
        # Python's tuple layer, alone among its like, writes the farthest numbers of 8 bytes so as well.
        shortest = 8 if packed[place : place + 8] == (b"\x00" if negative else b"\xff") * 8 else 9
    else:
        size = shortest = abs(code - 0x14)
    raw = _taken(packed, place, size)
    # A leading byte that says nothing.
    if size < shortest or (raw and raw[0] == (0xFF if negative else 0)):
        raise ValueError(f"an integer in {size} bytes that has a shorter form")
    value = int.from_bytes(raw, "big")
    return (value - (1 << 8 * size) + 1 if negative else value), place + size


def _double(raw: bytes) -> float:
    """Return the number of 8 bytes in the order of the numbers."""
    raw = bytes((raw[0] ^ 0x80, *raw[1:])) if raw[0] & 0x80 else bytes(byte ^ 0xFF for byte in raw)
    [value] = struct.unpack(">d", raw)
    return float(value)


def _nested(packed: bytes, place: int) -> tuple[tuple[Any, ...], int]:
    values: list[Any] = []
    while packed[place]:
        value, place = _element(packed, place)
        values.append(value)
    return tuple(values), place + 1


def one(packed: bytes) -> Any:
    """Return the only element of a tuple."""
    found = elements(packed)
    if len(found) != 1:
        raise Undocumented(f"{len(found)} elements, not 1: {packed!r}")
    return found[0][0]
