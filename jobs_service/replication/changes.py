"""The way of changes from the source's feed to the workers: reader, queue, and how far all is copied."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final

from jobs_service.log import EventLog
from jobs_service.replication.checkpoints import ReplicationTally
from jobs_service.replication.contract import (
    Change,
    ChangesFeed,
    EndOfChanges,
    MaxBackoff,
    ReplicationError,
    RevisionRefusal,
    Seq,
    ServerSilent,
)
from jobs_service.replication.database import HttpDatabase
from jobs_service.replication.options import ReplicationOptions

log = EventLog("jobs_service.replication")

FIRST_PAUSE: Final = 0.25
"""Seconds before the feed is requested again after an error; doubled with each further error."""

LONGEST_PAUSE: Final = 30.0


# The feed


class ChangesReader:
    """Follows the feed of changes of one source.

    A continuous feed shows only changes that match its filter; the end of a normal feed also tells the sequence up to
    which the source was read. So a continuous replication with a filter begins with a normal feed, and reads another
    one whenever no change has matched for the time between two checkpoints.

    Args:
        source: the database.
        queue: takes the rows.
        options: the options of the replication.
        tally: counts rows, and documents whose ids are too long.
        since: the sequence to begin after.
        newest: the current sequence of the source. If sequences are numbers, a normal feed is read up to it. If they
            are opaque, as in CouchDB, one request reads the whole feed up to the time of the request.
    """

    def __init__(
        self,
        source: HttpDatabase,
        queue: ChangeQueue,
        options: ReplicationOptions,
        tally: ReplicationTally,
        since: Seq,
        newest: Seq = None,
    ) -> None:
        self._source = source
        self._queue = queue
        self._options = options
        self._tally = tally
        self._feed = options.feed()
        self._has_numbers = type(newest) is int
        if not options.continuous and type(newest) is int:
            self._feed = replace(self._feed, until=newest)
        self._catches_up = options.continuous and options.is_filtered
        self._since = since
        self._heard = False

    async def run(self) -> None:
        """Read until the feed ends, then close the queue; a continuous feed has no end.

        A feed that breaks after a row or a heartbeat is requested again without limit, from the last sequence; a silent
        feed is requested again as often as other requests are repeated.

        Raises:
            ReplicationError: the feed cannot be read.
        """
        pause, left = FIRST_PAUSE, self._options.retries_per_request
        while True:
            since, self._heard = self._since, False
            try:
                has_ended = await self._read()
            except ReplicationError as error:
                if not error.transient or isinstance(error, MaxBackoff):
                    raise
                log.info("feed_broken", source=self._source.masked, error=str(error))
                was_endless = self._options.continuous and not self._catches_up
                self._catches_up = False
                if self._since != since:
                    pause, left = FIRST_PAUSE, self._options.retries_per_request
                    continue
                if not self._heard:
                    if not left:
                        raise
                    left -= 1
                    if was_endless and isinstance(error, ServerSilent):
                        # A proxy may hold back an endless answer.
                        log.warning("feed_held_back", source=self._source.masked)
                        self._feed = replace(self._feed, continuous=False, longpoll=True)
            else:
                if has_ended and not self._options.continuous:
                    self._queue.close()
                    return
                pause, left = FIRST_PAUSE, self._options.retries_per_request
                if self._catches_up or not has_ended or self._since != since:
                    self._catches_up = not has_ended
                    continue
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _read(self) -> bool:
        """Read one answer; return whether it has ended. Otherwise no change has matched for a while."""
        clock = asyncio.get_running_loop()
        feed = await self._normal_feed() if self._catches_up else self._feed
        last_at = clock.time()
        async with aclosing(self._source.changes(self._since, feed)) as rows:
            async for row in rows:
                if isinstance(row, Change):
                    await self._take(row)
                    last_at = clock.time()
                elif isinstance(row, EndOfChanges):
                    if row.last_seq is not None and row.last_seq != self._since:
                        self._since = row.last_seq
                        await self._queue.put(row)
                    return True
                else:
                    self._heard = True
                    may_catch_up = self._options.continuous and self._options.is_filtered and not self._catches_up
                    if may_catch_up and clock.time() - last_at >= self._options.checkpoint_interval:
                        return False
        return False

    async def _normal_feed(self) -> ChangesFeed:
        """Return a request for all changes up to now."""
        until = (await self._source.info()).update_seq if self._has_numbers else None
        return replace(self._feed, continuous=False, longpoll=False, until=until)

    async def _take(self, change: Change) -> None:
        self._tally.rows += 1
        most = self._options.max_document_id_length
        if most is not None and len(change.id.encode(errors="surrogatepass")) > most:
            self._tally.skip(RevisionRefusal(change.id, change.revs[0] if change.revs else None, "id_too_long"))
        elif change.id:  # old servers could have a document with an empty id, which cannot be read
            await self._queue.put(change)
        if change.seq is not None:
            self._since = change.seq


# The queue


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


@dataclass(frozen=True, slots=True)
class ChangeBatch:
    """Some changes for a worker.

    Attributes:
        changes: changes in the order of the feed; none if only the feed's sequence has advanced.
        place: the batch of the through sequence, to be ended when the changes have been copied.
    """

    changes: list[Change]
    place: ChangesBatch


def _size(row: Change | EndOfChanges) -> int:
    return row.size if isinstance(row, Change) else 0


def _seq(row: Change | EndOfChanges) -> object:
    return row.seq if isinstance(row, Change) else row.last_seq


# Copied changes


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
        self._open: deque[ChangesBatch] = deque()

    def begin(self, seq: Seq | None, changes: int = 0) -> ChangesBatch:
        """Begin the next batch of the feed.

        Args:
            seq: the last sequence in it, None without one.
            changes: the number of changes in it.
        """
        batch = ChangesBatch(seq, changes)
        self._open.append(batch)
        return batch

    def end(self, batch: ChangesBatch) -> None:
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


@dataclass(slots=True, eq=False)
class ChangesBatch:
    """A batch of changes that a worker copies.

    Attributes:
        seq: the last sequence in it; None if the source has shown none for its rows.
        changes: the number of changes in it.
        is_done: whether it has ended.
    """

    seq: Seq | None
    changes: int = 0
    is_done: bool = False
