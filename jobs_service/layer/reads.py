"""Reads for clients and operators, each bounded: pages of jobs, the state of types, counts of pending jobs.

Jobs with unreadable records have a state of their own. The module has more than 600 lines because pages by an index and
pages by time share their cursors, chunks and checks.
"""

from __future__ import annotations

import base64
import contextlib
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

import fdb.tuple

from jobs_service import run_data
from jobs_service.arguments import EARLIEST, LATEST, check_state, member
from jobs_service.errors import InvalidJob, RecordDamaged, a_kind_of, shown
from jobs_service.layer import queue
from jobs_service.layer.batch_bounds import SHARE
from jobs_service.layer.creation import id_of_ready
from jobs_service.layer.keyspace import (
    AFTER,
    DATA,
    PERIODIC,
    STAMP_CODE,
    TIME_BYTES,
    ZERO_PRIORITY,
    Keyspace,
    TypeFinder,
    TypeKeys,
    end_of_priority,
    is_id,
    pack_id,
    pack_seconds,
    type_in,
    unpack_id,
    unpacked,
)
from jobs_service.layer.queue import LONG_PAGE, MOST_TAKEN, is_due
from jobs_service.layer.record import READY, SCHEDULED, Record
from jobs_service.model import Job, JobId, JobState, JobType, Outcome
from jobs_service.model.job import Status
from jobs_service.model.type_state import FOR_EVER, QueueState, Retention
from jobs_service.run_data import ERROR, JobError
from jobs_service.store.base import KeyValue, Snapshot, Transaction

FIRST_CHUNK: Final = 16
LARGEST_CHUNK: Final = 256
"""Rows that are read at once: first and at most. A transaction can read as many, however large their records are."""
_GROWTH: Final = 4

MOST_ROWS: Final = 2000
MOST_BYTES: Final = 1_000_000
"""Rows, and bytes of records, that one transaction reads."""

_BY_ID: Final = b"i"
_RETRYING: Final = b"t"
_BY_TIME: Final = b"m"
_INDEXES: Final = {
    Status.READY: b"r",
    Status.SCHEDULED: b"s",
    Status.RETRYING: _RETRYING,
    Status.RUNNING: b"a",
    Status.FAILED: b"f",
}
"""The orders of the indexes of single states; a cursor begins with the order of its place."""
_MERGED: Final = {
    None: b"rsafe",
    JobState.PENDING: b"rs",
    JobState.FINISHED: b"fe",
    Status.SUCCEEDED: b"e",
    Status.CANCELED: b"e",
}
"""The indexes that are merged to list jobs in a state by the times of their last events."""

_MOST_LOOKS: Final = 32
"""Most ready jobs of a type that are read to find the oldest one: the first of each priority, up to so many."""


# Jobs in key order


class Unreadable:
    """Stands in for an unreadable record in lists of jobs: it has a state of its own, and its error says why.

    Args:
        why: the error met.
    """

    __slots__ = ("run_data",)

    state: Final = JobState.UNREADABLE
    lock: Final = None
    priority: Final = ZERO_PRIORITY
    named_priority: Final = 0
    run_at: Final = None
    outcome: Final = None
    cancel: Final = False
    resubmit: Final = False
    next: Final = None
    seq_bytes: Final = None
    json: Final = b""

    def __init__(self, why: RecordDamaged) -> None:
        error = JobError(type(why).__name__, str(why))
        self.run_data = run_data.with_part(b"", ERROR, run_data.error_json(error))

    def size(self) -> int:
        """Return 0: it is never rewritten."""
        return 0


class JobPage(NamedTuple):
    """Some jobs in key order.

    Attributes:
        jobs: (DATA key, job); may be empty although more follow.
        last: the last key that was read; None at the end.
    """

    jobs: Sequence[tuple[bytes, Job]]
    last: bytes | None


async def read_rows(
    transaction: Snapshot, begin: bytes, end: bytes, most: int, most_bytes: int
) -> tuple[list[KeyValue], bool]:
    """Return the first rows of a range, at least one if there is any, and whether these are all."""
    found: list[KeyValue] = []
    chunk, size = FIRST_CHUNK, 0
    while len(found) < most:
        limit = min(chunk, most - len(found))
        page = await transaction.get_range(begin, end, limit=limit)
        whole = size + sum(map(len, chain.from_iterable(page)))
        if whole > most_bytes:
            for row in page:
                size += len(row[0]) + len(row[1])
                if size > most_bytes and found:
                    return found, False
                found.append(row)
        else:  # as nearly always: no need to measure each row
            found += page
        size = whole
        if len(page) < limit:
            return found, True
        begin = page[-1][0] + b"\x00"
        # As many as fit if the next ones are as large as those so far.
        fitting = (most_bytes - size) * len(found) // size
        chunk = max(1, min(_GROWTH * chunk, LARGEST_CHUNK, fitting))
    return found, False


async def list_page(
    transaction: Transaction, keyspace: Keyspace, keys: TypeKeys | None, after: bytes | None, most: int
) -> JobPage:
    """Return one page of jobs, as many as a part of a transaction may hold.

    Args:
        transaction, keyspace: as everywhere.
        keys: of the type to list; None for all types.
        after: the last key of the page before; None to begin.
        most: jobs per page.
    """
    section = keyspace.sections[DATA] if keys is None else keys.data
    begin = section if after is None else after + b"\x00"
    rows, end = await read_rows(transaction, begin, section + AFTER, most, transaction.limits.transaction // SHARE)
    last = None if end or not rows else rows[-1][0]
    if keys is not None:
        type, start = keys.type, len(keys.data)
        with contextlib.suppress(RecordDamaged, IndexError, ValueError):
            return JobPage(
                [(key, Job(type, unpack_id(key[start:]), Record.decode(raw, True))) for key, raw in rows], last
            )
    finder = TypeFinder(keyspace)
    found = ((key, _job_at(keys or _type_of(finder, key), key, raw)) for key, raw in rows)
    return JobPage([(key, job) for key, job in found if job is not None], last)


def _type_of(finder: TypeFinder, key: bytes) -> TypeKeys | None:
    """Return the keys of a DATA key's type, None if it cannot be parsed."""
    try:
        return finder.keys_of_data(key)
    except Exception:  # fdb.tuple raises many kinds of errors for bytes that are no tuple
        return None


def _job_at(keys: TypeKeys | None, key: bytes, raw: bytes) -> Job | None:
    """Return the job of a row; None if its key cannot be parsed, because the job has no name then."""
    if keys is None:
        return None
    packed_id = key[len(keys.data) :]
    try:
        id = unpack_id(packed_id)
    except (IndexError, ValueError):
        return None
    try:
        return Job(keys.type, id, Record.decode(raw, True))
    except RecordDamaged as error:
        return Job(keys.type, id, Unreadable(error)) if is_id(packed_id) else None


class Listing:
    """Jobs in key order: awaited, a list; iterated, one after the other."""

    def __init__(self, jobs: AsyncIterator[Job]) -> None:
        self._jobs = jobs

    def __aiter__(self) -> AsyncIterator[Job]:
        return self._jobs

    def __await__(self) -> Generator[Any, None, list[Job]]:
        return self._all().__await__()

    async def _all(self) -> list[Job]:
        return [job async for job in self._jobs]


# Jobs of a type, from either end: by an index if there is one, otherwise by id


class Terms(NamedTuple):
    """The terms of a page.

    Attributes:
        order: b"i" by id, b"m" by time, otherwise an index's order.
        fits: whether a job found by its id, or by time, is wanted.
        prefix: of packed ids; empty for all.
        newest_first: whether to read from the other end.
        after: the end of the page before, in this order; None to begin.
        merged: orders of the indexes that make up the order by time.
    """

    order: bytes
    fits: Callable[[Job], bool] | None
    prefix: bytes
    newest_first: bool
    after: bytes | None
    merged: bytes = b""


class FoundJobs(NamedTuple):
    """The jobs that one transaction has found.

    Attributes:
        jobs: at most the wanted number.
        last: the place of the last row that was read; None at the end.
    """

    jobs: list[Job]
    last: bytes | None


def terms(state: Any, after: Any, newest_first: Any, prefix: Any, now: float, by_time: Any = False) -> Terms:
    """Return the checked terms of a page.

    Raises:
        InvalidJob: one of them is invalid.
    """
    fits = check_state(state, now)
    status = member(Status, state)
    order = _BY_ID if status is None else _INDEXES.get(status, _BY_ID)
    begins = b"" if prefix is None else pack_id(prefix)[:-1]
    merged = _MERGED.get(member(JobState, state) if status is None else status, b"") if by_time and not begins else b""
    order = _BY_TIME if merged else order
    return Terms(order, fits, begins, bool(newest_first), None if after is None else _decoded(after, order), merged)


def cursor(terms: Terms, place: bytes) -> str:
    """Return a place as URL-safe text."""
    return base64.urlsafe_b64encode(terms.order + place).decode().rstrip("=")


def _decoded(after: Any, order: bytes) -> bytes:
    try:
        if not issubclass(type(after), str):  # it is asked nothing, whatever it is
            raise TypeError
        place = base64.b64decode(after + "=" * (-len(after) % 4), b"-_", validate=True)
    except (TypeError, ValueError):
        refused = f"after {shown(after)}: {a_kind_of(after)}; allowed is what `next` of a page has"
        raise InvalidJob(refused) from None
    if place[:1] != order:
        refused = "it is not `next` of a page of jobs in this state; allowed is what that has, for the same state"
        raise InvalidJob(f"after {shown(after)}: {refused}")
    return place[1:]


async def page(transaction: Snapshot, keys: TypeKeys, terms: Terms, after: bytes | None, most: int) -> FoundJobs:
    """Return the next jobs, as far as a bounded look finds them.

    Args:
        transaction, keys: of the type.
        terms: of the page.
        after: the end of the look before; None to begin.
        most: most jobs.
    """
    if terms.merged:
        return await _page_by_time(transaction, keys, terms, after, most)
    head, end = _range(keys, terms)
    begin, start = head, len(head_of(keys, terms.order))
    if after is not None:
        place = head_of(keys, terms.order) + after
        begin, end = (begin, min(end, place)) if terms.newest_first else (max(begin, place + b"\x00"), end)
    jobs: list[Job] = []
    rows = size = 0
    last = b""
    chunk = min(FIRST_CHUNK + 1, most + 1)
    while True:
        found = await transaction.get_range(begin, end, limit=chunk, reverse=terms.newest_first)
        ids = [id_in(keys, terms.order, row) for row in found]
        wanted = [id for id in ids if id is not None and id.startswith(terms.prefix)]
        raws = await _records(transaction, keys, terms.order, found, wanted)
        for (key, _), id in zip(found, ids, strict=True):
            if len(jobs) == most or size > MOST_BYTES:
                return FoundJobs(jobs, last)
            last = key[start:]
            raw = None if id is None else raws.get(id)
            if id is not None and raw is not None:
                size += len(raw)
                jobs += _fitting(keys, terms, id, raw, last)
        rows += len(found)
        if len(found) < chunk:
            return FoundJobs(jobs, None)
        if rows >= MOST_ROWS:
            return FoundJobs(jobs, last)
        if terms.newest_first:
            end = found[-1][0]
        else:
            begin = found[-1][0] + b"\x00"
        fitting = (MOST_BYTES - size) * rows // max(size, 1)
        # Where all so far were wanted, the next ones probably are.
        missing = most + 1 - len(jobs) if len(jobs) == rows else LARGEST_CHUNK
        chunk = max(1, min(_GROWTH * chunk, LARGEST_CHUNK, fitting, missing))


async def _records(
    transaction: Snapshot, keys: TypeKeys, order: bytes, found: list[KeyValue], ids: list[bytes]
) -> dict[bytes, bytes | None]:
    """Return the records of jobs by packed id."""
    if order == _BY_ID:
        return {key[len(keys.data) :]: value for key, value in found}
    return dict(zip(ids, await transaction.get_many([keys.data + id for id in ids]), strict=True))


def head_of(keys: TypeKeys, order: bytes) -> bytes:
    """Return the prefix of all keys of an order."""
    return {
        _BY_ID: keys.data,
        b"r": keys.ready,
        b"s": keys.scheduled,
        _RETRYING: keys.retrying,
        b"a": keys.activity,
        b"f": keys.failed,
        b"e": keys.expiring,
    }[order]


def _range(keys: TypeKeys, terms: Terms) -> tuple[bytes, bytes]:
    head = head_of(keys, terms.order)
    if terms.order not in (_BY_ID, _RETRYING) or not terms.prefix:
        return head, head + AFTER
    # Bytes may go on with 0xff, and no prefix consists of them alone: it begins with the code of its kind.
    kept = terms.prefix.rstrip(b"\xff")
    return head + terms.prefix, head + kept[:-1] + bytes((kept[-1] + 1,))


def id_in(keys: TypeKeys, order: bytes, row: KeyValue) -> bytes | None:
    """Return the packed id in a row; None if it has none."""
    key, value = row
    if order == b"r":
        return id_of_ready(keys, key)
    behind = len(head_of(keys, order)) + (TIME_BYTES if order in b"se" else 0)
    id = value if order in b"af" else key[behind:]
    return id if is_id(id) else None


def _fitting(keys: TypeKeys, terms: Terms, id: bytes, raw: bytes, place: bytes) -> Iterator[Job]:
    """Yield the job if it is wanted: with an index, if it is in that place."""
    record: Record | Unreadable
    try:
        record = Record.decode(raw, True)
    except RecordDamaged as error:
        if terms.order != _BY_ID:
            return
        record = Unreadable(error)
    job = Job(keys.type, unpack_id(id), record)
    if terms.order == _BY_ID:
        if terms.fits is None or terms.fits(job):
            yield job
        return
    assert isinstance(record, Record)
    is_there = {
        b"r": record.place == READY and not job.retrying,
        b"s": record.place == SCHEDULED and not job.retrying,
        _RETRYING: job.retrying,
        b"a": record.lock is not None and STAMP_CODE + seq_of(record) == place,
        b"f": record.outcome is Outcome.FAILED and STAMP_CODE + seq_of(record) == place,
    }
    if is_there[terms.order]:
        yield job


def seq_of(record: Record) -> bytes:
    """Return the seq of a stored record."""
    assert isinstance(record.seq, bytes)
    return record.seq


async def beginning_with(
    transaction: Snapshot, types: Sequence[TypeKeys], prefix: bytes, most: int
) -> list[tuple[JobType, JobId]]:
    """Return the first jobs of each type whose packed ids begin with a prefix, `most` of each."""
    found: list[tuple[JobType, JobId]] = []
    for keys in types:
        begin, end = _range(keys, Terms(_BY_ID, None, prefix, False, None))
        rows = await transaction.get_range(begin, end, limit=most)
        ids = [key[len(keys.data) :] for key, _ in rows]
        found += [(keys.type, unpack_id(id)) for id in ids if is_id(id)]
    return found


# The state of types: each call costs the same however many jobs there are


async def queue_state(transaction: Snapshot, keys: TypeKeys) -> QueueState:
    """Return the state of a type's queue."""
    oldest: tuple[float, JobId] | None = None
    untold: JobId | None = None
    begin = keys.ready
    for _ in range(_MOST_LOOKS):
        # The first of each priority is its oldest.
        found = await transaction.get_range(begin, keys.ready + AFTER, limit=1)
        if not found:
            break
        key = found[0][0]
        packed_id = id_of_ready(keys, key)
        record = None if packed_id is None else await _record(transaction, keys, packed_id)
        if packed_id is None or record is None:  # damaged: this only reads; the next accept removes the entry
            begin = key + b"\x00"
            continue
        since = _pending_since(record)
        if since is None:  # unknown: try the job behind it
            untold = unpack_id(packed_id) if untold is None else untold
            begin = key + b"\x00"
            continue
        if oldest is None or since < oldest[0]:
            oldest = since, unpack_id(packed_id)
        begin = key[: end_of_priority(keys, key)] + AFTER
    since, id = oldest or (None, untold)
    paused = await transaction.get(keys.paused) is not None
    return QueueState(id, since, await queue.next_scheduled(transaction, keys), paused)


async def retention(transaction: Snapshot, keys: TypeKeys) -> Retention:
    """Return the retention of a type's finished jobs."""
    packed = await transaction.get(keys.retention)
    return FOR_EVER if packed is None else Retention.decode(packed)


async def last_ticks(transaction: Snapshot, keyspace: Keyspace) -> list[tuple[JobType, float]]:
    """Return the periodic types with the time of their last tick, or of their handler's first start before that."""
    section = keyspace.sections[PERIODIC]
    found = await transaction.get_range(section, section + AFTER)
    ticks = [(type_in(key[len(section) :]), tick_of(value)) for key, value in found]
    return [(type, last) for type, last in ticks if type is not None and last is not None]


def tick_of(packed: bytes | None) -> float | None:
    """Return the last tick of a periodic type; None if there was none yet, or if it cannot be read."""
    found = unpacked(packed)
    return found[0] if len(found) == 1 and isinstance(found[0], float) and math.isfinite(found[0]) else None


async def _record(transaction: Snapshot, keys: TypeKeys, packed_id: bytes) -> Record | None:
    """Return a job's record; None if it is missing or unreadable."""
    raw = await transaction.get(keys.data + packed_id)
    try:
        return None if raw is None else Record.decode(raw)
    except RecordDamaged:
        return None


def _pending_since(record: Record) -> float | None:
    """Return when a ready job became ready; None if its record does not have the time."""
    try:
        history = run_data.history_of(record.run_data)
    except RecordDamaged:
        return None
    times = [event.at for event in history[:1] if EARLIEST <= event.at <= LATEST]
    return max([*times, *([] if record.run_at is None else [record.run_at])], default=None)


# Counts of pending jobs


async def count(
    transaction: Snapshot, keys: TypeKeys, due_by: float | None, limit: int, after: bytes | None
) -> tuple[int, bytes | None]:
    """Count pending jobs in one page of keys.

    Args:
        due_by: counts only jobs due by then, seconds since the epoch; None for all.
        limit: keys to read.
        after: the last key of the page before; None to begin.

    Returns:
        The number, and the last key of this page; None at the end.
    """
    counted = 0
    if after is None or after < keys.scheduled:
        begin = keys.ready if after is None else after + b"\x00"
        found = await transaction.get_range(begin, keys.ready + AFTER, limit=limit)
        counted = sum(is_due(value, due_by) for _, value in found)
        if len(found) == limit:
            return counted, found[-1][0]
        # In this transaction, too: a job that becomes ready between two of them would be counted in neither part.
        limit -= len(found)
        after = keys.scheduled
    until = AFTER if due_by is None else pack_seconds(due_by) + AFTER
    found = await transaction.get_range(after + b"\x00", keys.scheduled + until, limit=limit)
    return counted + len(found), found[-1][0] if len(found) == limit else None


async def count_due(transaction: Snapshot, keys: TypeKeys, now: float, limit: int, max_priority: bytes | None) -> int:
    """Count due jobs, up to a limit, as far as a bounded look at the queue finds them.

    Scheduled jobs that have come due are in the order of their times: at most 16,000 are passed over because their
    priority is unwanted or a clock ahead of this one made them ready. Jobs behind them are counted when they are ready.

    Args:
        now: seconds since the epoch.
        limit: jobs to count.
        max_priority: packed; the largest counted priority. None for all.
    """
    end = keys.ready + AFTER if max_priority is None else keys.ready + max_priority + AFTER
    counted = await _count(transaction, keys.ready, end, limit, lambda run_at: is_due(run_at, now))
    if counted < limit:
        until = keys.scheduled + pack_seconds(now) + AFTER
        counted += await _count(
            transaction,
            keys.scheduled,
            until,
            limit - counted,
            lambda priority: max_priority is None or priority <= max_priority,
        )
    return counted


async def _count(transaction: Snapshot, begin: bytes, end: bytes, limit: int, counts: Callable[[bytes], bool]) -> int:
    """Count the matching values between two keys, up to a limit; the number of others that are read is bounded."""
    counted = looked_at = 0
    page = min(max(limit, queue.PAGE), LONG_PAGE)
    while True:
        found = await transaction.get_range(begin, end, limit=page)
        counted += sum(counts(value) for _, value in found)
        looked_at += len(found)
        if counted >= limit or len(found) < page or looked_at - counted >= MOST_TAKEN:
            return min(counted, limit)
        begin = found[-1][0] + b"\x00"


# By time: indexes, each in its own order, merged by the times of their jobs' last events
#
# No row is written for this order. Running and failed jobs of a type are in the order of their seq, ready ones in that
# of the queue, and ended ones in the order in which they expire: that of their ends as long as the retention stays.


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
        self._is_reversed = terms.newest_first and order != b"s"  # the job due next comes first in either direction

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
        self._note_place()
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
        self._note_place()
        return job

    def _note_place(self) -> None:
        """Move `place` behind all rows that were read, if they have no more jobs to take."""
        if not self.heads:
            self.place = None if self.is_done else self._read_to


async def _page_by_time(
    transaction: Snapshot, keys: TypeKeys, terms: Terms, after: bytes | None, most: int
) -> FoundJobs:
    """Return the next jobs by time, as far as a bounded look finds them; arguments as for `reads.page`."""
    places = unpacked(after) if after else (b"",) * len(terms.merged)
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
