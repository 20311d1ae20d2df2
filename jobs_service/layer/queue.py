"""The queue: accepting jobs in order, making scheduled ones ready, counting. Floor: layer."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from enum import IntEnum
from operator import itemgetter
from typing import Final, NamedTuple, TypeAlias

from jobs_service import run_data
from jobs_service.errors import RecordDamaged
from jobs_service.layer.keyspace import (
    AFTER,
    TIME_CODE,
    TypeKeys,
    end_of_priority,
    next_time,
    pack_seconds,
    unpack_seconds,
)
from jobs_service.layer.record import READY, SCHEDULED, NewSeq, Record
from jobs_service.layer.strays import id_of_ready, take_out
from jobs_service.layer.unit_of_work import Entry, UnitOfWork, ready_key, scheduled_key
from jobs_service.run_data import HistoryKind
from jobs_service.sources import Sources
from jobs_service.store.base import KeyValue, Snapshot, Watch

_SEQ_BYTES: Final = 12
_TIME_BYTES: Final = 9

ADAPTIVE: Final = 0
"""The spread of Terms that leave it to the conflicts of late; `accept` itself takes only what that comes to."""

_PAGE: Final = 256
_LONG_PAGE: Final = 2000
_MOST_TAKEN: Final = 16_000
"""Jobs that one look takes, or passes over, at most: no more of the smallest are rewritten in one transaction."""
_MOST_KEYS: Final = 4_000_000
"""Bytes of keys after which a look at jobs that are scheduled for later reads no further."""
_FEW_EARLY: Final = 64
"""Ready jobs not yet due that a look passes over as they are: they come due soon, or a clock will be right again."""
_MOST_EARLY: Final = 2000
"""Those after which a look reads no further: it has moved some of them, and the next one sees fewer."""
_CLOCK_CHECK: Final = 5.0


class More(IntEnum):
    """Whether another look may find jobs where one has found too few."""

    NO = 0
    DUE = 1
    """Jobs that were scheduled have come due: a part of them was made ready, none of which was wanted, perhaps."""
    YES = 2
    """Something was in the way, and is not any more."""


class EmptyQueue(NamedTuple):
    """What a look at the queue comes back with that found no job.

    Attributes:
        watch: on the type's queue, set in the transaction that found nothing; None where another look comes first, and
            for all but the first of several who found nothing together.
        due_in: seconds until the next scheduled job comes due; None when there is none. 0 without a watch: some have
            come due, and not all of them were made ready yet.
    """

    watch: Watch | None
    due_in: float | None


class AcceptTerms(NamedTuple):
    """Which jobs a worker takes.

    Attributes:
        limit: at most so many; never more than a transaction can rewrite.
        max_priority: packed; only up to and including this one. None for all.
        due_by: seconds since the epoch; None for now. Of the jobs that are scheduled for later, the next 2,000 (or
            `limit`) by time are looked at, and further ones until there are enough, up to 16,000 or some megabytes.
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


async def accept(unit: UnitOfWork, keys: TypeKeys, terms: AcceptTerms) -> tuple[list[Entry], More]:
    """Take due jobs from the front of the queue, as many as a transaction can hold: each gets a new lock and runs.

    What is in the queue and cannot be taken, now or ever, is taken out of it, a bounded number at a time: entries of
    unreadable jobs, and of those that a clock ahead of this one has made ready too early.

    Returns:
        The jobs, and whether another look may find more even though these are fewer than `limit`.
    """
    if await unit.is_paused(keys):
        return [], More.NO
    now = unit.now
    due_by = now if terms.due_by is None else terms.due_by
    if terms.limit > _MOST_TAKEN:
        terms = terms._replace(limit=_MOST_TAKEN)
    moved = await make_ready(unit, keys, min(now, due_by), terms.make_ready)
    skipped = unit.sources.below(min(terms.spread, _MOST_TAKEN)) if terms.spread > 1 else 0
    found, early = await _candidates(unit, keys, terms, due_by, terms.limit + skipped)
    chosen = _some_of(found, skipped, terms.limit, unit.sources)
    ids = [packed_id for _, packed_id in chosen]
    # Only what is taken is read: the records of other candidates may change without a conflict.
    loaded = await unit.load_fitting(keys, ids)
    taken, told = _takeable(unit, keys, terms, chosen, loaded)
    if terms.spread > 1:
        _claim(unit, taken)
    else:
        _claim_front(unit, keys, terms, taken, len(ids) < terms.limit)
    for entry, lock, said in zip(taken, unit.new_locks(len(taken)), told, strict=True):
        record = entry.record
        assert record is not None
        unit.replace(entry, record.running(lock, unit.new_seq(), said))
    if len(early) > _FEW_EARLY:
        await _schedule_again(unit, keys, early[: terms.make_ready])
    if len(taken) < len(ids) or len(early) >= _MOST_EARLY:
        return taken, More.YES
    return taken, More.DUE if moved else More.NO


def _takeable(
    unit: UnitOfWork, keys: TypeKeys, terms: AcceptTerms, chosen: list[_Ranked], loaded: list[Entry]
) -> tuple[list[Entry], list[bytes]]:
    """Return the jobs that can be taken, with the notes that they get; the others are taken out of the queue.

    Args:
        unit, keys, terms: of the accept.
        chosen: as found in the queue.
        loaded: the first of them.
    """
    taken: list[Entry] = []
    told: list[bytes] = []
    started, now, worker, most = HistoryKind.STARTED, unit.now, terms.worker, terms.max_history
    for found, entry in zip(chosen, loaded, strict=False):
        record = entry.record
        rank = found[0]
        if (
            record is not None
            and record.place
            and (record.seq == rank[2][1:] if rank[1] == _IS_READY else _is_there(keys, rank, entry, record))
        ):
            try:
                told.append(run_data.noted(record.run_data, started, now, worker, attempts=1, most=most))
                taken.append(entry)
                continue
            except RecordDamaged as error:
                unit.condemn(entry, error)
        _take_out(unit, keys, found)
    return taken, told


def _is_there(keys: TypeKeys, rank: tuple[bytes, int, bytes], entry: Entry, record: Record) -> bool:
    """Whether a job that was not ready is where it was found: one that is elsewhere is found a second time."""
    _, kind, place = rank
    if kind != _IS_SCHEDULED or len(place) <= _TIME_BYTES:  # this transaction itself has made it pending
        return True
    return record.place == SCHEDULED and scheduled_key(entry, record) == keys.scheduled + place


def _take_out(unit: UnitOfWork, keys: TypeKeys, stray: _Ranked) -> None:
    """Take an entry out of the queue that points at no job in that place, or at none that can be read."""
    (priority, kind, place), packed_id = stray
    if kind == _IS_READY:
        take_out(unit, keys, keys.ready + priority + place + packed_id, packed_id)
    elif len(place) > _TIME_BYTES:  # otherwise this transaction itself has made it pending
        take_out(unit, keys, keys.scheduled + place, packed_id)


async def _schedule_again(unit: UnitOfWork, keys: TypeKeys, early: list[KeyValue]) -> None:
    """Move ready jobs that are not due, made ready by a clock that was ahead, to where they wait for their time."""
    ids = [id_of_ready(keys, key) or b"" for key, _ in early]
    for (key, _), entry in zip(early, await unit.load_fitting(keys, ids), strict=False):
        record = entry.record
        if record is None or record.place != READY or isinstance(record.seq, NewSeq) or ready_key(entry, record) != key:
            take_out(unit, keys, key, entry.packed_id)
        else:
            place = unit.place_for(record.run_at)
            unit.replace(entry, record.pending(place, unit.new_seq(), record.priority, record.run_at))


def _some_of(ids: list[_Ranked], skipped: int, limit: int, sources: Sources) -> list[_Ranked]:
    """Return the wanted number of jobs, those in front skipped; where there are too few for that, fewer are skipped.

    They are neighbours in the queue: two who take many each rarely meet then, whereas of two who pick each of many at
    random nearly always some are the same.
    """
    spare = len(ids) - limit
    if skipped and spare < skipped:
        skipped = sources.below(spare + 1) if spare > 0 else 0
    return ids[skipped : skipped + limit]


def _claim(unit: UnitOfWork, taken: list[Entry]) -> None:
    """Make it a conflict when somebody else takes one of these jobs out of the queue."""
    for entry in taken:
        record = entry.record
        assert record is not None
        if record.place == READY and isinstance(record.seq, bytes):
            unit.transaction.add_read_conflict_key(ready_key(entry, record))


def _claim_front(unit: UnitOfWork, keys: TypeKeys, terms: AcceptTerms, taken: list[Entry], all_taken: bool) -> None:
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


async def make_ready(unit: UnitOfWork, keys: TypeKeys, until: float, limit: int) -> int:
    """Move jobs that are due by `until` from SCHEDULED to READY, the earliest first; return how many.

    There may be more as long as there are any: `limit`, and what a transaction can hold, bound one call. What points at
    no job that can be read is taken out, and counts.
    """
    found = await unit.transaction.snapshot.get_range(
        keys.scheduled, keys.scheduled + pack_seconds(until) + AFTER, limit=limit
    )
    if not found:
        return 0
    offset = len(keys.scheduled) + _TIME_BYTES
    entries = await unit.load_fitting(keys, [key[offset:] for key, _ in found])
    for (key, _), entry in zip(found, entries, strict=False):
        record = entry.record
        if record is not None and record.place == SCHEDULED and scheduled_key(entry, record) == key:
            unit.replace(
                entry,
                record.pending(READY, unit.new_seq(), record.priority, record.run_at),
            )
        else:
            take_out(unit, keys, key, entry.packed_id)
    return len(entries)


async def next_scheduled(transaction: Snapshot, keys: TypeKeys) -> float | None:
    """Return when the next scheduled job comes due, seconds since the epoch; None when none is scheduled."""
    begin, end = keys.scheduled + TIME_CODE, keys.scheduled + TIME_CODE + AFTER
    return next_time(await transaction.get_range(begin, end, limit=1), len(keys.scheduled))


async def wait_for_more(unit: UnitOfWork, keys: TypeKeys, max_priority: bytes | None = None) -> EmptyQueue:
    """Return a watch on the type's queue, and the seconds until the next of its jobs comes due.

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
    return EmptyQueue(unit.transaction.watch(keys.watch_pending), due_in)


async def _next_ready(unit: UnitOfWork, keys: TypeKeys, max_priority: bytes | None) -> float | None:
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
    counted = 0
    if after is None or after < keys.scheduled:
        begin = keys.ready if after is None else after + b"\x00"
        found = await transaction.get_range(begin, keys.ready + AFTER, limit=limit)
        counted = sum(_due(value, due_by) for _, value in found)
        if len(found) == limit:
            return counted, found[-1][0]
        # In the same state: a job that becomes ready meanwhile would be in neither part.
        limit -= len(found)
        after = keys.scheduled
    until = AFTER if due_by is None else pack_seconds(due_by) + AFTER
    found = await transaction.get_range(after + b"\x00", keys.scheduled + until, limit=limit)
    return counted + len(found), found[-1][0] if len(found) == limit else None


async def count_due(transaction: Snapshot, keys: TypeKeys, now: float, limit: int, max_priority: bytes | None) -> int:
    """Count jobs that are due, up to a limit, as far as a bounded look at the queue finds them.

    Scheduled jobs that have come due are in the order of their times: of those whose priority is not wanted, or that a
    clock ahead of this one has made ready, 16,000 are passed over. What is behind them is counted when they are ready.

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
    """Count the values between two keys that count, up to a limit; of those that do not a bounded number is read."""
    counted = looked_at = 0
    page = min(max(limit, _PAGE), _LONG_PAGE)
    while True:
        found = await transaction.get_range(begin, end, limit=page)
        counted += sum(counts(value) for _, value in found)
        looked_at += len(found)
        if counted >= limit or len(found) < page or looked_at - counted >= _MOST_TAKEN:
            return min(counted, limit)
        begin = found[-1][0] + b"\x00"


async def _candidates(
    unit: UnitOfWork, keys: TypeKeys, terms: AcceptTerms, due_by: float, wanted: int
) -> tuple[list[_Ranked], list[KeyValue]]:
    """Return the first due jobs in order, those that this transaction made pending among them.

    And the entries of ready jobs that are not due, as far as it met any.
    """
    ranked, early = await _ready_in_store(unit, keys, terms, due_by, wanted)
    own = _pending_here(unit, keys, terms, due_by)
    later = await _scheduled_by(unit, keys, terms, due_by, wanted) if due_by > unit.now else []
    if own or later:
        # Of those due at the same time the id decides, which is not in the places of this transaction's own.
        ranked = sorted(ranked + own + later, key=lambda item: (*item[0][:2], item[0][2] + item[1]))
    # No job is here twice: the index entries of those that this transaction has moved are cleared already.
    return ranked[:wanted], early


_Ranked: TypeAlias = tuple[tuple[bytes, int, bytes], bytes]
"""((packed priority, 0 ready before / 1 made ready here / 2 scheduled, place within), packed id)."""

_IS_READY: Final = 0
_IS_SCHEDULED: Final = 2


async def _ready_in_store(
    unit: UnitOfWork, keys: TypeKeys, terms: AcceptTerms, due_by: float, wanted: int
) -> tuple[list[_Ranked], list[KeyValue]]:
    # What of this must not change meanwhile is claimed when it is known what is taken.
    reads = unit.transaction.snapshot
    begin = keys.ready
    end = keys.ready + AFTER if terms.max_priority is None else keys.ready + terms.max_priority + AFTER
    limit = wanted
    places: list[_Ranked] = []
    early: list[KeyValue] = []
    while True:
        found = await reads.get_range(begin, end, limit=limit)
        try:
            due = [_ranked(keys, key) for key, value in found if _due(value, due_by)]
        except Exception:  # the tuple layer's own, of whatever kind, for what is no tuple
            due = _parsed(unit, keys, found, due_by)
        if len(due) < len(found):
            latest = max(due_by, unit.now)
            early += [(key, value) for key, value in found if not _due(value, latest)]
        places += due
        if len(found) < limit or len(places) >= wanted or len(early) >= _MOST_EARLY:
            return places[:wanted], early
        begin = found[-1][0] + b"\x00"
        limit = _PAGE


def _parsed(unit: UnitOfWork, keys: TypeKeys, found: list[KeyValue], due_by: float) -> list[_Ranked]:
    """Return rank and packed id of those of these READY entries that are due; what is no entry is taken out."""
    entries: list[KeyValue] = []
    for key, value in found:
        if id_of_ready(keys, key) is None:
            take_out(unit, keys, key, None)
        else:
            entries.append((key, value))
    return [_ranked(keys, key) for key, value in entries if _due(value, due_by)]


async def _scheduled_by(
    unit: UnitOfWork, keys: TypeKeys, terms: AcceptTerms, due_by: float, wanted: int
) -> list[_Ranked]:
    """Return the first of the scheduled jobs that are due by a time in the future that the caller named.

    They are stored in the order of time, not of priority: of those that come due next the lowest priorities are taken.
    Further ones are looked at only as long as there are fewer than wanted, and a bounded number: priorities may exclude
    nearly all of them.
    """
    reads = unit.transaction if terms.spread == 1 else unit.transaction.snapshot
    begin = keys.scheduled
    end = keys.scheduled + pack_seconds(due_by) + AFTER
    offset = len(keys.scheduled)
    page = max(_LONG_PAGE, wanted)
    first: list[_Ranked] = []
    looked_at = size = 0
    while True:
        found = await reads.get_range(begin, end, limit=page)
        looked_at += len(found)
        size += sum([len(key) for key, _ in found])
        ranked = [
            ((priority, 2, key[offset:]), key[offset + _TIME_BYTES :])
            for key, priority in found
            if terms.max_priority is None or priority <= terms.max_priority
        ]
        first = heapq.nsmallest(wanted, first + ranked, key=itemgetter(0))
        if len(found) < page or len(first) >= wanted or looked_at >= _MOST_TAKEN or size > _MOST_KEYS:
            return first
        begin = found[-1][0] + b"\x00"


def _pending_here(unit: UnitOfWork, keys: TypeKeys, terms: AcceptTerms, due_by: float) -> list[_Ranked]:
    """Return the jobs that this transaction has made pending: their index entries are not written yet."""
    own: list[_Ranked] = []
    for entry in unit.entries.values():
        record = entry.record
        if (
            record is None
            or not record.place
            or entry.keys != keys
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
    return (key[start:stamp], _IS_READY, key[stamp:after]), key[after:]


def _due(packed_run_at: bytes, due_by: float | None) -> bool:
    # What is no time at all is no reason to wait: nobody could say for how long.
    return due_by is None or not packed_run_at or not unpack_seconds(packed_run_at) > due_by
