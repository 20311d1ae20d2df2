"""The size of an embedded store, its growth, and the free space of its file system."""

from __future__ import annotations

import os
import time
from collections import deque
from dataclasses import dataclass
from typing import Final

_PREFIX: Final = "lmdb:"
_MOST: Final = 60
_APART: Final = 60.0
"""Least seconds between two remembered sizes, which together span an hour."""


@dataclass(frozen=True, slots=True)
class StoreSize:
    """The size of a store.

    Attributes:
        bytes: bytes that the store takes.
        free: free bytes in its file system.
        grown: bytes of growth since the oldest remembered size.
        since: the time of that size, seconds since the epoch; None if there is no earlier size.
    """

    bytes: int
    free: int
    grown: int
    since: float | None


class SizeWatch:
    """Remembers the sizes of a store at earlier views of the page."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque(maxlen=_MOST)

    def look(self, location: str) -> StoreSize | None:
        """Return the size of a store and its growth; None for a store that is no directory."""
        if not location.startswith(_PREFIX):
            return None
        directory = location.removeprefix(_PREFIX)
        try:
            files = [entry.stat() for entry in os.scandir(directory) if entry.is_file()]
            room = os.statvfs(directory)
        except OSError:
            return None
        size, now = sum(found.st_blocks * 512 for found in files), time.time()
        if not self._seen or now - self._seen[-1][0] >= _APART:
            self._seen.append((now, size))
        since, before = self._seen[0]
        is_first = now - since < 1
        return StoreSize(size, room.f_bavail * room.f_frsize, size - before, None if is_first else since)
