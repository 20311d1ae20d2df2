"""The room for growth of an embedded store, and the transactions that may use the rest.

LMDB writes a changed page to another place, so that even a removal needs room, and a completely full store can never be
emptied. So the map is larger than the store's limit, by a reserve:

| effect of a transaction                                          | goes through as long as                        |
|------------------------------------------------------------------|------------------------------------------------|
| adds jobs, or writes the application's own keys beside no job    | the store is smaller than `lmdb_map_size`      |
| takes, updates, ends or removes jobs (`Transaction.use_reserve`) | a quarter of the reserve is left: see `_URGENT`|
| makes the store smaller                                          | there are pages at all                         |

On a disk that is nearly full, additions are refused a little before everything is. A long reader, such as a backup,
keeps LMDB from reusing pages: while there is one, nothing may be added beyond half of the reserve.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from time import monotonic
from typing import Final

import lmdb

from jobs_service.errors import StoreFull
from jobs_service.log import EventLog
from jobs_service.store.lmdb.file import DATA_FILE
from jobs_service.store.lmdb.state import LmdbTransaction, grows

_MIB: Final = 1 << 20
_SHARE: Final = 16
"""Divisor of the map's size for the reserve, and of a disk's size for the part kept free."""
_LEAST_RESERVE: Final = 64 * _MIB
_URGENT: Final = 0.75
"""The share of the reserve for urgent transactions; the rest is for transactions that make the store smaller."""
_MOST_OF_A_DISK: Final = 16 * _MIB
_PAGE_FILL: Final = 2
"""Estimated bytes of pages per byte written, until the next measurement."""
_FILLING: Final = 0.8
_NO_LONGER_FILLING: Final = 0.7
_AMPLE: Final = 2048 * _MIB
"""Room from which on disk and map are measured only now and then."""
_RARELY: Final = 64
_RECENTLY: Final = 0.25

log = EventLog("jobs_service.store")


def map_size(limit: int) -> int:
    """Return the map's size of a store with a limit of so many bytes."""
    return limit + max(limit // _SHARE, _LEAST_RESERVE)


def limit_of(size: int) -> int:
    """Return the limit in bytes of a store with a map of this size: the inverse of `map_size`."""
    small = size - _LEAST_RESERVE
    return small if small // _SHARE < _LEAST_RESERVE else size * _SHARE // (_SHARE + 1)


class Room:
    """The remaining room of a store. Used by its writer thread.

    Args:
        directory: the store's directory.
        location: name of the store in logs.
        limit: most bytes of the store.
    """

    def __init__(self, directory: Path, location: str, limit: int) -> None:
        self._directory = directory
        self._location = location
        self._limit = limit
        self._reserve = map_size(limit) - limit
        self._left = 0.0
        self._left_for_urgent = 0.0
        self._of_disk = False
        self._next = 0
        self._disk_at = -_RECENTLY
        self._disk_left = 0.0
        self._disk_share = 0.0
        self._filling = False

    def measure(self, environment: lmdb.Environment, number: int) -> None:
        """Measure the room, if it may have changed much; called at the begin of each LMDB transaction.

        Args:
            environment: the store's environment.
            number: number of the transaction.
        """
        if number < self._next:
            return
        statistics = environment.stat()
        page = statistics["psize"]
        used = page * (statistics["branch_pages"] + statistics["leaf_pages"] + statistics["overflow_pages"])
        file_size = page * (environment.info()["last_pgno"] + 1)
        left = self._limit - used
        if file_size > self._limit + self._reserve // 2 and _has_old_reader(environment, number):
            left = min(left, 0)
        self._look_at_disk(used, file_size)
        self._of_disk = self._disk_left < left
        self._left = min(left, self._disk_left)
        self._left_for_urgent = self._limit + _URGENT * self._reserve - used
        self._next = number + (_RARELY if self._left > _AMPLE else 0)
        self._tell(used)

    def grow(self, size: int) -> None:
        """Raise the store's limit to that of a process with a map of so many bytes; called on any thread."""
        limit = max(self._limit, limit_of(size))
        self._limit, self._reserve, self._next = limit, map_size(limit) - limit, 0

    def wrote(self, size: int) -> None:
        """Subtract so many bytes of keys and values, written since the last measurement."""
        size *= _PAGE_FILL
        self._left -= size
        self._left_for_urgent -= size
        self._disk_left -= size

    def claim(self, size: int) -> None:
        """Refuse an addition of so many bytes if there is no room.

        Raises:
            StoreFull: there is no room.
        """
        if size > self._left:
            raise self._full()

    def admit(self, own: LmdbTransaction) -> None:
        """Refuse a transaction that has run, if there is no room for its writes.

        Raises:
            StoreFull: there is no room.
        """
        size = own.size
        if size > self._left and not (own.is_urgent and size <= self._left_for_urgent) and grows(own):
            raise self._full()

    def _look_at_disk(self, used: int, file_size: int) -> None:
        now = monotonic()
        if now - self._disk_at < _RECENTLY:
            return
        self._disk_at = now
        try:
            disk = os.statvfs(self._directory)
            allocated = 512 * os.stat(self._directory / DATA_FILE).st_blocks
        except OSError:  # somebody has moved it: that is for LMDB to say
            self._disk_left, self._disk_share = math.inf, 0.0
            return
        free = disk.f_bavail * disk.f_frsize
        kept = min(_MOST_OF_A_DISK, disk.f_blocks * disk.f_frsize // _SHARE)
        # Free pages within the file are on the disk already.
        within = max(0, min(file_size, allocated) - used)
        self._disk_left = free + within - kept
        self._disk_share = used / (used + within + free) if free else 1.0

    def _tell(self, used: int) -> None:
        """Warn once when the store, or its disk, is nearly full; again only after it was emptier."""
        share = max(used / self._limit, self._disk_share)
        if self._filling:
            self._filling = share > _NO_LONGER_FILLING
        elif share >= _FILLING:
            self._filling = True
            of = "disk" if self._disk_share > used / self._limit else "lmdb_map_size"
            log.warning("store_filling", store=self._location, of=of, percent=int(100 * share), bytes=used)

    def _full(self) -> StoreFull:
        if self._of_disk:
            return StoreFull(
                f"store {self._location}: the disk is full but for a reserve, kept for what ends or removes jobs: "
                "nothing was written; make room and try again"
            )
        return StoreFull(
            f"store {self._location} is full: what is left is kept for what ends or removes jobs; nothing was written. "
            f"Remove jobs, or set JOBS_SERVICE_LMDB_MAP_SIZE higher than {self._limit}"
        )


def _has_old_reader(environment: lmdb.Environment, number: int) -> bool:
    """Whether a reader uses an old state: LMDB must keep every page of it."""
    rows = [row.split() for row in environment.readers().splitlines()[1:]]
    return any(len(row) == 3 and row[2].isdigit() and int(row[2]) < number - 2 for row in rows)
