"""An ordered map of bytes that keeps past states while transactions read them: the data of the memory store."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from sortedcontainers import SortedDict

from jobs_service.store.base import KeyValue
from jobs_service.store.write_log import CLEAR_RANGE, Write, outcome

_BEFORE_END: Final = (True, False)
_version_of: Callable[[tuple[int, Any]], int] = itemgetter(0)


class Versions:
    """The map.

    It holds the newest state, and, for each key written since the begin of the oldest open transaction, the earlier
    values. The same lists have the last write of each key, which suffices to find conflicts.
    """

    def __init__(self) -> None:
        self.version = 0
        self._values: SortedDict[bytes, bytes] = SortedDict()
        # key -> (version of a commit that wrote it, value before that), oldest first
        self._before: SortedDict[bytes, list[tuple[int, bytes | None]]] = SortedDict()
        # (version of a commit, keys that it wrote) and (version, begin, end of a range that it cleared), oldest first
        self._commits: deque[tuple[int, list[bytes]]] = deque()
        self._cleared: deque[tuple[int, bytes, bytes]] = deque()
        # version -> how many open transactions read it, oldest first
        self._readers: OrderedDict[int, int] = OrderedDict()

    @property
    def kept(self) -> int:
        """Number of past values, commits and cleared ranges kept for open transactions."""
        return sum(map(len, self._before.values())) + len(self._commits) + len(self._cleared)

    def enter(self) -> int:
        """Begin to read the newest version, and return its number; its state is kept until `leave`."""
        self._readers[self.version] = self._readers.get(self.version, 0) + 1
        return self.version

    def leave(self, version: int) -> None:
        """End one reading of a version."""
        if self._readers[version] > 1:
            self._readers[version] -= 1
            return
        del self._readers[version]
        oldest = next(iter(self._readers), self.version)
        if self._commits and self._commits[0][0] <= oldest:
            self._drop_until(oldest)

    def get(self, key: bytes) -> bytes | None:
        """Return a key's newest value."""
        return self._values.get(key)

    def get_at(self, version: int, key: bytes) -> bytes | None:
        """Return a key's value in an entered version."""
        before = self._before.get(key)
        if before is not None and before[-1][0] > version:
            return before[bisect_right(before, version, key=_version_of)][1]
        return self._values.get(key)

    def scan_at(self, version: int, begin: bytes, end: bytes, reverse: bool) -> Iterator[KeyValue]:
        """Yield the pairs from begin up to, not including, end, in an entered version."""
        values = self._values
        keys = values.irange(begin, end, _BEFORE_END, reverse)
        if version == self.version:
            for key in keys:
                yield key, values[key]
            return
        changed = self._before.irange(begin, end, _BEFORE_END, reverse)
        for key, _ in groupby(heapq.merge(keys, changed, reverse=reverse)):
            value = self.get_at(version, key)
            if value is not None:
                yield key, value

    def conflict(self, version: int, ranges: list[tuple[bytes, bytes]]) -> bool:
        """Return whether a key in one of the ranges was written after this entered version."""
        if version == self.version:
            return False
        before = self._before
        for begin, end in ranges:
            if end == begin + b"\x00":
                if begin in before and before[begin][-1][0] > version:
                    return True
            elif any(before[key][-1][0] > version for key in before.irange(begin, end, _BEFORE_END)):
                return True
        for cleared, low, high in reversed(self._cleared):
            if cleared <= version:
                break
            if any(begin < high and low < end for begin, end in ranges):
                return True
        return False

    def apply(self, log: list[Write]) -> tuple[bytes, dict[bytes, bytes | None]]:
        """Make the next version by a transaction's writes; return its stamp, and the new value of each written key."""
        stamp = (self.version + 1).to_bytes(8, "big") + b"\x00\x00"
        written = outcome(log, stamp, self._values.get, self._keys_in)
        self.version += 1
        if self._readers:
            self._keep(written, log)
        values = self._values
        for key, value in written.items():
            if value is not None:
                values[key] = value
            elif key in values:
                del values[key]
        return stamp, written

    def _keys_in(self, begin: bytes, end: bytes) -> Iterator[bytes]:
        return iter(self._values.irange(begin, end, _BEFORE_END))

    def _keep(self, written: dict[bytes, bytes | None], log: list[Write]) -> None:
        """Keep the keys' values from before this version."""
        for key in written:
            entry = (self.version, self._values.get(key))
            if key in self._before:
                self._before[key].append(entry)
            else:
                self._before[key] = [entry]
        self._commits.append((self.version, list(written)))
        for operation, begin, end, _ in log:
            if operation == CLEAR_RANGE:
                self._cleared.append((self.version, begin, end))

    def _drop_until(self, oldest: int) -> None:
        """Drop the values that only versions before the oldest reader's would need."""
        if oldest == self.version:
            self._commits.clear()
            self._cleared.clear()
            self._before.clear()
            return
        stale: set[bytes] = set()
        while self._commits and self._commits[0][0] <= oldest:
            stale.update(self._commits.popleft()[1])
        while self._cleared and self._cleared[0][0] <= oldest:
            self._cleared.popleft()
        for key in stale:
            before = self._before[key]
            del before[: bisect_right(before, oldest, key=_version_of)]
            if not before:
                del self._before[key]


class View:
    """The state of a transaction: one entered version."""

    __slots__ = ("_version", "_versions")

    def __init__(self, versions: Versions, version: int) -> None:
        self._versions = versions
        self._version = version

    def get(self, key: bytes) -> bytes | None:
        return self._versions.get_at(self._version, key)

    def scan(self, begin: bytes, end: bytes, reverse: bool) -> Iterator[KeyValue]:
        return self._versions.scan_at(self._version, begin, end, reverse)
