"""Reading long ranges of keys over several transactions, each of them bounded. Floor: between layer and service."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from jobs_service.errors import TransactionTooLarge, TransactionTooOld
from jobs_service.store.base import KeyValue, Snapshot, Store

T = TypeVar("T")

FIRST_CHUNK: Final = 8
LARGEST_CHUNK: Final = 64
"""Rows that are read at once, first and later: the largest records there are must not be too much."""

_GROWTH: Final = 16


@dataclass(frozen=True, slots=True)
class Batch:
    """What one transaction takes at most: well within every store's limits.

    Attributes:
        jobs: how many.
        bytes: of their keys and values; a single job may be larger.
    """

    jobs: int = 500
    bytes: int = 1_000_000


class Pace:
    """How many rows go into one transaction: fewer when they were too many, more again when they were not.

    Args:
        batch: the most that one takes.
    """

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.size = batch.jobs

    async def fitting(self, attempt: Callable[[int], Awaitable[T]]) -> T:
        """Do something with so many rows as fit into a transaction, and return its result.

        Args:
            attempt: called with the number; it reads and writes in one transaction each.

        Raises:
            TransactionTooLarge, TransactionTooOld: even a single row is too much.
        """
        while True:
            size = self.size
            try:
                result = await attempt(size)
            except (TransactionTooLarge, TransactionTooOld):
                if size == 1:
                    raise
                self.size = size // 2
            else:
                self.size = min(self.batch.jobs, size + max(1, self.batch.jobs // _GROWTH))
                return result


class Room:
    """Counts bytes up to a limit; the first row always fits.

    Args:
        most: bytes.
    """

    def __init__(self, most: int) -> None:
        self._left = most
        self._untouched = True

    def takes(self, size: int) -> bool:
        """Whether so many bytes more fit; they are counted."""
        self._left -= size
        fits = self._left >= 0 or self._untouched
        self._untouched = False
        return fits


async def read_rows(
    transaction: Snapshot, begin: bytes, end: bytes, most: int, most_bytes: int
) -> tuple[list[KeyValue], bool]:
    """Return the first rows of a range, at least one if there is any, and whether these are all."""
    room = Room(most_bytes)
    found: list[KeyValue] = []
    chunk = FIRST_CHUNK
    while len(found) < most:
        limit = min(chunk, most - len(found))
        page = await transaction.get_range(begin, end, limit=limit)
        for row in page:
            if not room.takes(len(row[0]) + len(row[1])):
                return found, False
            found.append(row)
        if len(page) < limit:
            return found, True
        begin = page[-1][0] + b"\x00"
        chunk = min(2 * chunk, LARGEST_CHUNK)
    return found, False


class Stream:
    """The rows of a range, one after the other, whatever number of transactions it takes to read them.

    Args:
        store: open.
        begin, end: of the range.
        pace: of the transactions.
    """

    def __init__(self, store: Store, begin: bytes, end: bytes, pace: Pace) -> None:
        self._store = store
        self._begin = begin
        self._end = end
        self._pace = pace
        self._rows: list[KeyValue] = []
        self._position = 0
        self._last = False

    async def next(self) -> KeyValue | None:
        """Return the next row, None when there are no more."""
        if self._position == len(self._rows):
            if self._last:
                return None
            await self._pace.fitting(self._read)
            if not self._rows:
                return None
        row = self._rows[self._position]
        self._position += 1
        return row

    async def _read(self, size: int) -> None:
        begin, end, most_bytes = self._begin, self._end, self._pace.batch.bytes
        self._rows, self._last = await self._store.read(lambda tr: read_rows(tr, begin, end, size, most_bytes))
        self._position = 0
        if self._rows:
            self._begin = self._rows[-1][0] + b"\x00"
