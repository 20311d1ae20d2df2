"""Jobs of a type by time: indexes, each in its own order, merged by the times of their jobs' last events.

No row is written for this order. Running and failed jobs of a type are in the order of their seq, ready ones in that of
the queue, and ended ones in the order in which they expire: that of their ends as long as the retention stays.
"""

from __future__ import annotations

import contextlib
from collections import deque

import fdb.tuple

from jobs_service import run_data
from jobs_service.errors import InvalidJob, RecordDamaged
from jobs_service.layer.keyspace import AFTER, STAMP_CODE, TypeKeys, pack_seconds, unpack_id, unpacked
from jobs_service.layer.reads import (
    FIRST_CHUNK,
    MOST_BYTES,
    MOST_ROWS,
    FoundJobs,
    Terms,
    head_of,
    id_in,
    seq_of,
)
from jobs_service.layer.record import READY, SCHEDULED, Record
from jobs_service.model import Job, Outcome
from jobs_service.store.base import Snapshot


class _Source:
    """One of the merged indexes.

    Args:
        keys, terms: of the page.
        order: of the index.
        place: of the last row that was consumed; b"" to begin, None at the end.
    """

    def __init__(self, keys: TypeKeys, terms: Terms, order: bytes, place: bytes | None) -> None:
        self._keys, self._terms, self._order = keys, terms, order
        self.place = place
        self.heads: deque[tuple[float, bytes, Job]] = deque()
        self._read_to = place or b""
        self.is_done = place is None
        self._is_reversed = terms.newest_first and order != b"s"  # what is due next comes first in either direction

    async def read(self, transaction: Snapshot) -> tuple[int, int]:
        """Read some rows more; return their number, and the bytes of their records."""
        keys, order = self._keys, self._order
        head = head_of(keys, order)
        begin, end = head, head + AFTER
        if self._read_to:
            begin, end = (begin, head + self._read_to) if self._is_reversed else (head + self._read_to + b"\x00", end)
        rows = await transaction.get_range(begin, end, limit=FIRST_CHUNK, reverse=self._is_reversed)
        ids = [id_in(keys, order, row) for row in rows]
        raws = await transaction.get_many([keys.data + id for id in ids if id is not None])
        found = iter(raws)
        for (key, _), id in zip(rows, ids, strict=True):
            self._read_to = key[len(head) :]
            raw = None if id is None else next(found)
            if id is not None and raw is not None:
                self._take(id, raw)
        self.is_done = len(rows) < FIRST_CHUNK
        self.skip()
        return len(rows), sum(map(len, filter(None, raws)))

    def _take(self, id: bytes, raw: bytes) -> None:
        with contextlib.suppress(RecordDamaged):
            record = Record.decode(raw, True)
            job = Job(self._keys.type, unpack_id(id), record)
            expires = run_data.expires_at(record.run_data)
            is_there = {
                b"r": record.place == READY,
                b"s": record.place == SCHEDULED,
                b"a": record.lock is not None and STAMP_CODE + seq_of(record) == self._read_to,
                b"f": record.outcome is Outcome.FAILED and STAMP_CODE + seq_of(record) == self._read_to,
                b"e": record.outcome not in (None, Outcome.FAILED)
                and expires is not None
                and self._read_to.startswith(pack_seconds(expires)),
            }
            if is_there[self._order] and (self._terms.fits is None or self._terms.fits(job)):
                self.heads.append((job.history[0].at if job.history else 0.0, self._read_to, job))

    def take(self) -> Job:
        """Consume the first head."""
        _, self.place, job = self.heads.popleft()
        self.skip()
        return job

    def skip(self) -> None:
        """Note that without heads all rows that were read are consumed."""
        if not self.heads:
            self.place = None if self.is_done else self._read_to


async def page(transaction: Snapshot, keys: TypeKeys, terms: Terms, after: bytes | None, most: int) -> FoundJobs:
    """Return the next jobs by time, as far as a bounded look finds them; arguments as for `reads.page`."""
    places = unpacked(after) or (b"",) * len(terms.merged)
    if len(places) != len(terms.merged) or not all(isinstance(each, bytes | None) for each in places):
        raise InvalidJob("after: it is not `next` of a page of jobs in this state; allowed is what that has")
    orders = [terms.merged[at : at + 1] for at in range(len(terms.merged))]
    sources = [_Source(keys, terms, order, place) for order, place in zip(orders, places, strict=True)]
    jobs: list[Job] = []
    rows = size = 0
    while len(jobs) < most:
        for source in sources:
            while not source.heads and not source.is_done:
                more, bytes_read = await source.read(transaction)
                rows, size = rows + more, size + bytes_read
                if rows >= MOST_ROWS or size > MOST_BYTES:
                    break
        ahead = [source for source in sources if source.heads]
        is_cut = any(not source.heads and not source.is_done for source in sources)
        if not ahead or is_cut:
            break
        choose = max if terms.newest_first else min
        jobs.append(choose(ahead, key=lambda source: source.heads[0][0]).take())
    if all(source.place is None and not source.heads for source in sources):
        return FoundJobs(jobs, None)
    return FoundJobs(jobs, fdb.tuple.pack(tuple(source.place for source in sources)))
