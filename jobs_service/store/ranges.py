"""Sets of keys as ranges, and the keys that a transaction cannot read back."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final

from jobs_service.store.base import STAMP_BYTES

LOWEST_STAMP: Final = b"\x00" * STAMP_BYTES
HIGHEST_STAMP: Final = b"\xff" * STAMP_BYTES


class Ranges:
    """A set of keys, as disjoint ranges in order."""

    __slots__ = ("_begins", "_ends")

    def __init__(self) -> None:
        self._begins: list[bytes] = []
        self._ends: list[bytes] = []

    def __contains__(self, key: bytes) -> bool:
        place = bisect_right(self._begins, key) - 1
        return place >= 0 and key < self._ends[place]

    def add(self, begin: bytes, end: bytes) -> None:
        """Add the keys from begin up to, not including, end (> begin)."""
        first = bisect_left(self._ends, begin)
        last = bisect_right(self._begins, end)
        if first < last:
            begin = min(begin, self._begins[first])
            end = max(end, self._ends[last - 1])
        self._begins[first:last] = [begin]
        self._ends[first:last] = [end]

    def remove(self, begin: bytes, end: bytes) -> None:
        """Remove the keys from begin up to, not including, end (> begin)."""
        first = bisect_right(self._ends, begin)
        last = bisect_left(self._begins, end)
        if first < last:
            lowest, highest = self._begins[first], self._ends[last - 1]
            self._begins[first:last] = [lowest] * (lowest < begin) + [end] * (end < highest)
            self._ends[first:last] = [begin] * (lowest < begin) + [highest] * (end < highest)

    def first_within(self, begin: bytes, end: bytes) -> bytes | None:
        """Return the lowest of the set's keys from begin up to, not including, end."""
        place = bisect_right(self._ends, begin)
        if place == len(self._begins) or self._begins[place] >= end:
            return None
        return max(begin, self._begins[place])

    def last_within(self, begin: bytes, end: bytes) -> bytes | None:
        """Return the end of the set's last range with keys from begin up to, not including, end; at most end."""
        place = bisect_left(self._begins, end) - 1
        if place < 0 or self._ends[place] <= begin:
            return None
        return min(end, self._ends[place])

    def gaps(self, begin: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
        """Return the gaps of the set between begin and end, in order."""
        gaps = []
        for place in range(bisect_right(self._ends, begin), bisect_left(self._begins, end)):
            if begin < self._begins[place]:
                gaps.append((begin, self._begins[place]))
            begin = self._ends[place]
        if begin < end:
            gaps.append((begin, end))
        return gaps


class Stamped:
    """The keys that await a versionstamp in themselves or their value; they become ranges only for a read."""

    __slots__ = ("_new", "_ranges")

    def __init__(self) -> None:
        self._new: list[tuple[bytes, bytes | None]] = []
        self._ranges: Ranges | None = None

    def add_value(self, key: bytes) -> None:
        """Add a key whose value awaits a stamp."""
        self._new.append((key, None))

    def add_key(self, before: bytes, after: bytes) -> None:
        """Add all keys that can result from a stamp between the two parts."""
        self._new.append((before, after))

    def forget(self) -> None:
        """Remove all of them."""
        self._new.clear()
        self._ranges = None

    def unreadable(self) -> Ranges | None:
        """Return the keys that cannot be read back, as ranges; None for none."""
        if self._new:
            if self._ranges is None:
                self._ranges = Ranges()
            for key, after in self._new:
                if after is None:
                    self._ranges.add(key, key + b"\x00")
                else:
                    self._ranges.add(key + LOWEST_STAMP + after, key + HIGHEST_STAMP + after + b"\x00")
            self._new.clear()
        return self._ranges
