"""Reading long ranges of keys over several transactions, each of them bounded."""

from __future__ import annotations

from jobs_service.layer.batch_bounds import Pace
from jobs_service.layer.listing import read_rows
from jobs_service.store.base import KeyValue, Store


class Stream:
    """The rows of a range in order, read in several bounded transactions.

    Args:
        store: an open store.
        begin, end: the bounds of the range.
        pace: bounds the transactions.
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
        """Return the next row, None after the last."""
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
