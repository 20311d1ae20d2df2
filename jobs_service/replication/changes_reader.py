"""Reads the source's feed of changes into the queue, and connects again when the feed breaks."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import Final

from jobs_service.log import EventLog
from jobs_service.replication.change_queue import ChangeQueue
from jobs_service.replication.contract import Change, ChangesFeed, Database, EndOfChanges, Refusal, Seq
from jobs_service.replication.errors import MaxBackoff, ReplicationError, ServerSilent
from jobs_service.replication.options import ReplicationOptions
from jobs_service.replication.tally import Tally

log = EventLog("jobs_service.replication")

FIRST_PAUSE: Final = 0.25
"""Seconds before the feed is requested again after an error; doubled with each further error."""

LONGEST_PAUSE: Final = 30.0


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
        source: Database,
        queue: ChangeQueue,
        options: ReplicationOptions,
        tally: Tally,
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
            self._tally.skip(Refusal(change.id, change.revs[0] if change.revs else None, "id_too_long"))
        elif change.id:  # old servers could have a document with an empty id, which cannot be read
            await self._queue.put(change)
        if change.seq is not None:
            self._since = change.seq
