"""The queue between the reader of changes and the workers: bounded in rows and in bytes, taken in batches."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from jobs_service.replication.contract import Change, EndOfChanges
from jobs_service.replication.sequences import Batch, ThroughSequence


@dataclass(frozen=True, slots=True)
class ChangeBatch:
    """Some changes for a worker.

    Attributes:
        changes: changes in the order of the feed; none if only the feed's sequence has advanced.
        place: the batch of the through sequence, to be ended when the changes have been copied.
    """

    changes: list[Change]
    place: Batch


class ChangeQueue:
    """Changes that wait for a worker.

    One task puts changes in; any number of workers take them out, first come, first served.

    Args:
        through: records each batch, in the order of the feed.
        most_rows, most_bytes: bounds of the queue; beyond them the reader waits.
        fills_batches: whether a partial batch waits for more rows, as long as the feed goes on.
    """

    def __init__(self, through: ThroughSequence, most_rows: int, most_bytes: int, *, fills_batches: bool) -> None:
        self._through = through
        self._most_rows = most_rows
        self._most_bytes = most_bytes
        self._fills_batches = fills_batches
        self._rows: deque[Change | EndOfChanges] = deque()
        self._bytes = 0
        self._is_closed = False
        self._has_room = asyncio.Event()
        self._has_rows = asyncio.Event()
        self._turn = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._rows)

    async def put(self, row: Change | EndOfChanges) -> None:
        """Add a row of the feed, as soon as there is room. An end of the feed only brings its last sequence."""
        while self._is_full():
            self._has_room.clear()
            await self._has_room.wait()
        self._rows.append(row)
        self._bytes += _size(row)
        self._has_rows.set()

    def close(self) -> None:
        """Let the workers end when the queue is empty."""
        self._is_closed = True
        self._has_rows.set()

    async def take(self, most: int) -> ChangeBatch | None:
        """Return the next batch, as soon as there is one; None after the last.

        Args:
            most: largest number of rows in the batch.
        """
        async with self._turn:  # first come, first served, so that no worker waits for ever
            while not self._has_batch(most):
                if self._is_closed:
                    return None
                self._has_rows.clear()
                await self._has_rows.wait()
            rows = [self._rows.popleft() for _ in range(min(most, len(self._rows)))]
        self._bytes -= sum(map(_size, rows))
        self._has_room.set()
        seqs = [seq for row in rows if (seq := _seq(row)) is not None]
        changes = [row for row in rows if isinstance(row, Change)]
        return ChangeBatch(changes, self._through.begin(seqs[-1] if seqs else None, len(changes)))

    def _is_full(self) -> bool:
        return len(self._rows) >= self._most_rows or self._bytes >= self._most_bytes

    def _has_batch(self, most: int) -> bool:
        if not self._fills_batches or self._is_closed:
            return bool(self._rows)
        return len(self._rows) >= most or self._is_full()


def _size(row: Change | EndOfChanges) -> int:
    return row.size if isinstance(row, Change) else 0


def _seq(row: Change | EndOfChanges) -> object:
    return row.seq if isinstance(row, Change) else row.last_seq
