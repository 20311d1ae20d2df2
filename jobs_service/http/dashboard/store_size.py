"""How much room an embedded store takes, how fast that grows, and what is left where it is."""

from __future__ import annotations

import os
import time
from collections import deque
from dataclasses import dataclass
from typing import Final

_PREFIX: Final = "lmdb:"
_MOST: Final = 60
_APART: Final = 60.0
"""Seconds between two sizes that are remembered: an hour of them in all."""


@dataclass(frozen=True, slots=True)
class StoreSize:
    """The size of a store.

    Attributes:
        bytes: that it takes.
        free: bytes that are free where it is.
        grown: bytes by which it has grown since the oldest size that is remembered.
        since: when that was, seconds since the epoch; None if there is no earlier size.
    """

    bytes: int
    free: int
    grown: int
    since: float | None


class SizeWatch:
    """Remembers the sizes of a store that somebody has looked at."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque(maxlen=_MOST)

    def look(self, location: str) -> StoreSize | None:
        """Return the size of a store, and by how much it has grown; None for one that is no directory."""
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
