"""How far a replication has come, when its batches end out of order."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from jobs_service.replication.contract import Seq


@dataclass(slots=True, eq=False)
class Batch:
    """A batch of changes that a worker copies.

    Attributes:
        seq: the last sequence in it; None when the source has shown none for its rows.
        changes: how many.
        is_done: whether it has ended.
    """

    seq: Seq | None
    changes: int = 0
    is_done: bool = False


class ThroughSequence:
    """The sequence up to which everything has been copied.

    Sequences are opaque: their order is the order in which batches begin.

    Args:
        start: the sequence that the feed was read from.

    Attributes:
        seq: everything up to it has been copied; a checkpoint may say so.
        highest: the last sequence that a batch has ended with, whatever goes on before it; for display only.
    """

    def __init__(self, start: Seq) -> None:
        self.seq = start
        self.highest = start
        self._open: deque[Batch] = deque()

    def begin(self, seq: Seq | None, changes: int = 0) -> Batch:
        """Begin the next batch of the feed.

        Args:
            seq: the last sequence in it, None when there is none.
            changes: how many.
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
        """How many changes before `highest` have not been copied yet: those of batches that others have overtaken."""
        overtaken = waiting = 0
        for batch in self._open:
            if not batch.is_done:
                waiting += batch.changes
            elif batch.seq is not None:
                overtaken = waiting
        return overtaken

    @property
    def in_progress(self) -> int:
        """How many batches have begun and not been passed."""
        return len(self._open)
