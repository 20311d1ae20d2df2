"""The progress of a replication whose batches end out of order."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from jobs_service.replication.contract import Seq


@dataclass(slots=True, eq=False)
class Batch:
    """A batch of changes that a worker copies.

    Attributes:
        seq: the last sequence in it; None if the source has shown none for its rows.
        changes: the number of changes in it.
        is_done: whether it has ended.
    """

    seq: Seq | None
    changes: int = 0
    is_done: bool = False


class ThroughSequence:
    """The sequence up to which all changes have been copied.

    Sequences are opaque: their order is the order in which batches begin.

    Args:
        start: the sequence where the feed begins.

    Attributes:
        seq: all changes up to it have been copied; fit for a checkpoint.
        highest: the sequence of the last ended batch, even if an earlier batch goes on; for display only.
    """

    def __init__(self, start: Seq) -> None:
        self.seq = start
        self.highest = start
        self._open: deque[Batch] = deque()

    def begin(self, seq: Seq | None, changes: int = 0) -> Batch:
        """Begin the next batch of the feed.

        Args:
            seq: the last sequence in it, None without one.
            changes: the number of changes in it.
        """
        batch = Batch(seq, changes)
        self._open.append(batch)
        return batch

    def end(self, batch: Batch) -> None:
        """End a batch: all of its documents are on the target, or are refused for good."""
        batch.is_done = True
        if batch.seq is not None:
            self.highest = batch.seq
        while self._open and self._open[0].is_done:
            first = self._open.popleft()
            if first.seq is not None:
                self.seq = first.seq
        if not self._open:
            self.highest = self.seq

    @property
    def passed_over(self) -> int:
        """The number of changes before `highest` that have not been copied yet, in overtaken batches."""
        overtaken = waiting = 0
        for batch in self._open:
            if not batch.is_done:
                waiting += batch.changes
            elif batch.seq is not None:
                overtaken = waiting
        return overtaken
