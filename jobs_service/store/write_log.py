"""The log of a transaction's writes: its entries, and their combined outcome."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, Final

SET: Final = 0
CLEAR: Final = 1
CLEAR_RANGE: Final = 2
ADD: Final = 3
STAMPED_KEY: Final = 4
STAMPED_VALUE: Final = 5

Write = tuple[int, bytes, Any, Any]
"""(operation, key, value or end or operand, None); with a versionstamp between `before` and `after`
(STAMPED_KEY, before, after, value) and (STAMPED_VALUE, key, before, after)."""


def added(value: bytes | None, operand: bytes) -> bytes:
    """Return the little-endian sum, as long as the operand, wrapping on overflow."""
    if not value:
        return operand
    size = len(operand)
    if len(value) != size:
        value = value[:size].ljust(size, b"\x00")
    number, end = _number(operand)
    total = int.from_bytes(value[:end], "little") + number
    if total.bit_length() <= 8 * end:
        return total.to_bytes(end, "little") + value[end:]
    total = int.from_bytes(value, "little") + number
    return (total & ((1 << (8 * size)) - 1)).to_bytes(size, "little")


@functools.lru_cache(64)  # of what is counted, most additions are the same as others
def _number(operand: bytes) -> tuple[int, int]:
    """Return an operand as a number, and the count of a value's low bytes that change without a carry.

    Mostly these are few: the rest of the operand is zero.
    """
    number = int.from_bytes(operand, "little")
    return number, min((number.bit_length() + 63) // 64 * 8, len(operand))


def outcome(
    log: list[Write],
    stamp: bytes,
    get: Callable[[bytes], bytes | None],
    keys_in: Callable[[bytes, bytes], Iterable[bytes]],
) -> dict[bytes, bytes | None]:
    """Return the new value of each key that the log writes; None for a removed key.

    Args:
        log: the log of one transaction.
        stamp: the transaction's versionstamp.
        get: returns the value of a key before the transaction.
        keys_in: returns the existing keys from begin up to, not including, end.
    """
    written: dict[bytes, bytes | None] = {}
    for operation, key, argument, last in log:
        if operation == SET:
            written[key] = argument
        elif operation == STAMPED_VALUE:
            written[key] = argument + stamp + last
        elif operation == CLEAR:
            written[key] = None
        elif operation == ADD:
            written[key] = added(written[key] if key in written else get(key), argument)
        elif operation == CLEAR_RANGE:
            written.update((own, None) for own in list(written) if key <= own < argument)
            written.update((found, None) for found in keys_in(key, argument))
        else:
            written[key + stamp + argument] = last
    return written
