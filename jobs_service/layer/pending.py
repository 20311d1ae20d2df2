"""The queue: accepting jobs in order, making scheduled ones ready, counting. Floor: layer."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from operator import itemgetter
from typing import Final, NamedTuple

from jobs_service import notes
from jobs_service.layer.keyspace import AFTER, TypeKeys, end_of_priority, pack_seconds, unpack_seconds
from jobs_service.layer.record import READY, SCHEDULED, NewSeq
from jobs_service.layer.unit import Entry, Unit, ready_key
from jobs_service.notes import HistoryKind
from jobs_service.sources import Sources
from jobs_service.store.base import Snapshot, Watch

_SEQ_BYTES: Final = 12
_TIME_BYTES: Final = 9

ADAPTIVE: Final = 0
"""The spread of Terms that leave it to the conflicts of late; `accept` itself takes only what that comes to."""

_PAGE: Final = 256
_LONG_PAGE: Final = 2000
_CLOCK_CHECK: Final = 5.0


class Terms(NamedTuple):
    """Which jobs a worker takes.

    Attributes:
        limit: at most so many.
        max_priority: packed; only up to and including this one. None for all.
        due_by: seconds since the epoch; None for now.
        spread: begin to take at random among so many at the front; 1 keeps exact order. ADAPTIVE is resolved above.
        make_ready: how many due jobs are made ready at most.
        worker: who takes them, for their history.
        max_history: events of it that are kept; None for as many as there are, and 20 at least.
        open_end: whether fewer than `limit` may be taken though others come in behind them at the same time; otherwise
            that is a conflict.
    """

    limit: int
    max_priority: bytes | None
    due_by: float | None
    spread: int
    make_ready: int
    worker: str = ""
    max_history: int | None = None
    open_end: bool = False


async def accept(unit: Unit, keys: TypeKeys, terms: Terms) -> tuple[list[Entry], bool]:
    """Take due jobs from the front of the queue, as many as a transaction can hold: each gets a new lock and runs.

    Returns:
        The jobs, and whether another look may find more even though these are fewer than `limit`.
    """
    if await unit.is_paused(keys):
        return [], False
    now = unit.now
    due_by = now if terms.due_by is None else terms.due_by
    moved = await make_ready(unit, keys, min(now, due_by), terms.make_ready)
    skipped = unit.sources.below(terms.spread) if terms.spread > 1 else 0
    found = await _candidates(unit, keys, terms, due_by, terms.limit + skipped)
    ids = _some_of(found, skipped, terms.limit, unit.sources)
    # Only what is taken is read: the records of other candidates may change without a conflict.
    chosen = [entry for entry in await unit.load_many(keys, ids) if entry.record is not None and entry.record.place]
    taken = unit.fitting(chosen)
    if terms.spread > 1:
        _claim(unit, taken)
    else:
        _claim_front(unit, keys, terms, taken, len(ids) < terms.limit)
    for entry, lock in zip(taken, unit.new_locks(len(taken)), strict=True):
        record = entry.record
        assert record is not None
        told = notes.noted(record.notes, HistoryKind.STARTED, now, terms.worker, attempts=1, most=terms.max_history)
        unit.replace(entry, record.running(lock, unit.new_seq(), told))
    return taken, len(taken) < len(chosen) or moved > 0


def _some_of(ids: list[bytes], skipped: int, limit: int, sources: Sources) -> list[bytes]:
    """Return the wanted number of ids, those in front skipped; where there are too few for that, fewer are skipped.

    They are neighbours in the queue: two who take many each rarely meet then, whereas of two who pick each of many at
    random nearly always some are the same.
    """
    spare = len(ids) - limit
    if skipped and spare < skipped:
        skipped = sources.below(spare + 1) if spare > 0 else 0
    return ids[skipped : skipped + limit]


def _claim(unit: Unit, taken: list[Entry]) -> None:
    """Make it a conflict when somebody else takes one of these jobs out of the queue."""
    for entry in taken:
        record = entry.record
        assert record is not None
        if record.place == READY and isinstance(record.seq, bytes):
            unit.transaction.add_read_conflict_key(ready_key(entry, record))


def _claim_front(unit: Unit, keys: TypeKeys, terms: Terms, taken: list[Entry], all_taken: bool) -> None:
    """Make it a conflict when another job comes into the queue before the last one taken, or one of these is taken.

    Args:
        unit, keys, terms, taken: of the accept.
        all_taken: whether there are no more: then any job that comes in is a conflict, unless the end is open.
    """
    if all_taken and not terms.open_end:
        end = keys.ready + AFTER if terms.max_priority is None else keys.ready + terms.max_priority + AFTER
    elif taken:
        record = taken[-1].record
        assert record is not None
        if record.place == READY and isinstance(record.seq, bytes):
            end = ready_key(taken[-1], record) + b"\x00"
        else:  # Ready ones of its priority come before it.
            end = keys.ready + record.priority + AFTER
    else:
        return
    unit.transaction.add_read_conflict_range(keys.ready, end)


async def make_ready(unit: Unit, keys: TypeKeys, until: float, limit: int) -> int:
    """Move jobs that are due by `until` from SCHEDULED to READY, the earliest first; return how many.

    There may be more as long as there are any: `limit`, and what a transaction can hold, bound one call.
    """
    found = await unit.transaction.snapshot.get_range(
        keys.scheduled, keys.scheduled + pack_seconds(until) + AFTER, limit=limit
    )
    if not found:
        return 0
    offset = len(keys.scheduled) + _TIME_BYTES
    moved = 0
    for entry in unit.fitting(await unit.load_many(keys, [key[offset:] for key, _ in found])):
        record = entry.record
        if record is not None and record.place == SCHEDULED:
            unit.replace(
                entry,
                record.pending(READY, unit.new_seq(), record.priority, record.run_at),
            )
            moved += 1
    return moved


async def next_scheduled(transaction: Snapshot, keys: TypeKeys) -> float | None:
    """Return when the next scheduled job comes due, seconds since the epoch; None when none is scheduled."""
    found = await transaction.get_range(keys.scheduled, keys.scheduled + AFTER, limit=1)
    return unpack_seconds(found[0][0][len(keys.scheduled) :]) if found else None


async def wait_for_more(unit: Unit, keys: TypeKeys, max_priority: bytes | None = None) -> tuple[Watch, float | None]:
    """Return a watch on the type's queue, and the seconds until the next of its jobs comes due (None for never).

    Only of use to one who has just found no due job of the priorities up to max_priority (packed; None for all).
    """
    now = unit.now
    run_at = await next_scheduled(unit.transaction.snapshot, keys)
    # A job that is due, but was not taken, must not keep its waiter awake.
    due_in = None if run_at is None or run_at <= now else run_at - now
    ready_at = await _next_ready(unit, keys, max_priority)
    if ready_at is not None:
        # The clock may be set forward as it was set back, which nobody else looks at for a ready job.
        due_in = min(ready_at - now, _CLOCK_CHECK, _CLOCK_CHECK if due_in is None else due_in)
    return unit.transaction.watch(keys.watch_pending), due_in


async def _next_ready(unit: Unit, keys: TypeKeys, max_priority: bytes | None) -> float | None:
    """Return when the next of the ready jobs comes due that are not, made ready by a clock ahead of this one."""
    begin = keys.ready
    end = keys.ready + AFTER if max_priority is None else keys.ready + max_priority + AFTER
    earliest: float | None = None
    while True:
        found = await unit.transaction.snapshot.get_range(begin, end, limit=_LONG_PAGE)
        for _, value in found:
            if not _due(value, unit.now):
                run_at = unpack_seconds(value)
                earliest = run_at if earliest is None else min(earliest, run_at)
        if len(found) < _LONG_PAGE:
            return earliest
        begin = found[-1][0] + b"\x00"


async def count(
    transaction: Snapshot, keys: TypeKeys, due_by: float | None, limit: int, after: bytes | None
) -> tuple[int, bytes | None]:
    """Count pending jobs in one page of keys.

    Args:
        due_by: only those due by then, seconds since the epoch; None for all.
        limit: keys to look at.
        after: the last key of the page before; None to begin.

    Returns:
        How many, and the last key of this page; None when there are no more.
    """
    if after is None or after < keys.scheduled:
        begin = keys.ready if after is None else after + b"\x00"
        found = await transaction.get_range(begin, keys.ready + AFTER, limit=limit)
        counted = sum(_due(value, due_by) for _, value in found)
        return counted, found[-1][0] if len(found) == limit else keys.scheduled
    until = AFTER if due_by is None else pack_seconds(due_by) + AFTER
    found = await transaction.get_range(after + b"\x00", keys.scheduled + until, limit=limit)
    return len(found), found[-1][0] if len(found) == limit else None


async def count_due(transaction: Snapshot, keys: TypeKeys, now: float, limit: int, max_priority: bytes | None) -> int:
    """Count jobs that are due, up to a limit.

    Args:
        now: seconds since the epoch.
        limit: jobs to count.
        max_priority: packed; only up to and including this one. None for all.
    """
    end = keys.ready + AFTER if max_priority is None else keys.ready + max_priority + AFTER
    counted = await _count(transaction, keys.ready, end, limit, lambda run_at: _due(run_at, now))
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
    """Count the values between two keys that count, up to a limit, however many there are that do not."""
    counted = 0
    page = max(limit, _PAGE)
    while True:
        found = await transaction.get_range(begin, end, limit=page)
        counted += sum(counts(value) for _, value in found)
        if counted >= limit or len(found) < page:
            return min(counted, limit)
        begin = found[-1][0] + b"\x00"


async def _candidates(unit: Unit, keys: TypeKeys, terms: Terms, due_by: float, wanted: int) -> list[bytes]:
    """Return the packed ids of the first due jobs in order, those that this transaction made pending among them."""
    ranked = await _ready_in_store(unit, keys, terms, due_by, wanted)
    own = _pending_here(unit, keys, terms, due_by)
    later = await _scheduled_by(unit, keys, terms, due_by, wanted) if due_by > unit.now else []
    if own or later:
        ranked = sorted(ranked + own + later, key=lambda item: item[0])
    # No job is here twice: the index entries of those that this transaction has moved are cleared already.
    return [packed_id for _, packed_id in ranked[:wanted]]


_Ranked = tuple[tuple[bytes, int, bytes], bytes]
"""((packed priority, 0 ready before / 1 made ready here / 2 scheduled, place within), packed id)."""


async def _ready_in_store(unit: Unit, keys: TypeKeys, terms: Terms, due_by: float, wanted: int) -> list[_Ranked]:
    # What of this must not change meanwhile is claimed when it is known what is taken.
    reads = unit.transaction.snapshot
    begin = keys.ready
    end = keys.ready + AFTER if terms.max_priority is None else keys.ready + terms.max_priority + AFTER
    limit = wanted
    places: list[_Ranked] = []
    while True:
        found = await reads.get_range(begin, end, limit=limit)
        places += [_ranked(keys, key) for key, value in found if _due(value, due_by)]
        if len(found) < limit or len(places) >= wanted:
            return places[:wanted]
        begin = found[-1][0] + b"\x00"
        limit = _PAGE


async def _scheduled_by(unit: Unit, keys: TypeKeys, terms: Terms, due_by: float, wanted: int) -> list[_Ranked]:
    """Return the first of the scheduled jobs that are due by a time in the future that the caller named.

    They are stored in the order of time, not of priority: all of them must be looked at.
    """
    reads = unit.transaction if terms.spread == 1 else unit.transaction.snapshot
    begin = keys.scheduled
    end = keys.scheduled + pack_seconds(due_by) + AFTER
    offset = len(keys.scheduled)
    first: list[_Ranked] = []
    while True:
        found = await reads.get_range(begin, end, limit=_LONG_PAGE)
        ranked = [
            ((priority, 2, key[offset:]), key[offset + _TIME_BYTES :])
            for key, priority in found
            if terms.max_priority is None or priority <= terms.max_priority
        ]
        first = heapq.nsmallest(wanted, first + ranked, key=itemgetter(0))
        if len(found) < _LONG_PAGE:
            return first
        begin = found[-1][0] + b"\x00"


def _pending_here(unit: Unit, keys: TypeKeys, terms: Terms, due_by: float) -> list[_Ranked]:
    """Return the jobs that this transaction has made pending: their index entries are not written yet."""
    own: list[_Ranked] = []
    for entry in unit.entries.values():
        record = entry.record
        if (
            record is None
            or entry.keys is not keys
            or not record.place
            or not isinstance(record.seq, NewSeq)
            or (record.run_at is not None and record.run_at > due_by)
            or (terms.max_priority is not None and record.priority > terms.max_priority)
        ):
            continue
        place = pack_seconds(record.run_at or 0.0) if record.place == SCHEDULED else record.seq.order
        own.append(((record.priority, 1 if record.place == READY else 2, place), entry.packed_id))
    return own


def _ranked(keys: TypeKeys, key: bytes) -> _Ranked:
    """Return rank and packed id of a READY key."""
    start = len(keys.ready)
    stamp = end_of_priority(keys, key)
    after = stamp + 1 + _SEQ_BYTES
    return (key[start:stamp], 0, key[stamp:after]), key[after:]


def _due(packed_run_at: bytes, due_by: float | None) -> bool:
    return due_by is None or not packed_run_at or unpack_seconds(packed_run_at) <= due_by
