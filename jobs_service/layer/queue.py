"""The queue: accepting jobs in order, making scheduled ones ready, counting."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from jobs_service import run_data
from jobs_service.arguments import Spread, check_positive, check_spread, to_seconds
from jobs_service.errors import RecordDamaged
from jobs_service.layer.candidates import (
    IS_READY,
    IS_SCHEDULED,
    LONG_PAGE,
    MOST_EARLY,
    MOST_TAKEN,
    TIME_BYTES,
    Ranked,
    candidates,
    is_due,
)
from jobs_service.layer.candidates import AcceptTerms as AcceptTerms
from jobs_service.layer.entry import Entry, ready_key, scheduled_key
from jobs_service.layer.key_parts import AFTER, TIME_CODE, next_time, pack_priority, pack_seconds, unpack_seconds
from jobs_service.layer.keyspace import TypeKeys
from jobs_service.layer.record import NewSeq, Record
from jobs_service.layer.record_format import READY, SCHEDULED
from jobs_service.layer.strays import id_of_ready, take_out
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.model import Priority, RunAt
from jobs_service.run_values import HistoryKind
from jobs_service.sources import Sources
from jobs_service.store.base import KeyValue, Snapshot, Watch

_FEW_EARLY: Final = 64
"""Ready jobs not yet due that a look passes over as they are: they come due soon, or a clock will be right again."""
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
    if terms.limit > MOST_TAKEN:
        terms = terms._replace(limit=MOST_TAKEN)
    moved = await make_ready(unit, keys, min(now, due_by), terms.make_ready)
    skipped = unit.sources.below(min(terms.spread, MOST_TAKEN)) if terms.spread > 1 else 0
    found, early = await candidates(unit, keys, terms, due_by, terms.limit + skipped)
    chosen = _some_of(found, skipped, terms.limit, unit.sources)
    ids = [packed_id for _, packed_id in chosen]
    # Only what is taken is read: the records of other candidates may change without a conflict.
    loaded = await unit.load_fitting(keys, ids)
    taken, packed = _takeable(unit, keys, terms, chosen, loaded)
    if terms.spread > 1:
        _claim(unit, taken)
    else:
        _claim_front(unit, keys, terms, taken, len(ids) < terms.limit)
    for entry, lock, run_data_after in zip(taken, unit.new_locks(len(taken), terms.is_elsewhere), packed, strict=True):
        record = entry.record
        assert record is not None
        unit.replace(entry, record.running(lock, unit.new_seq(), run_data_after))
    if len(early) > _FEW_EARLY:
        await _schedule_again(unit, keys, early[: terms.make_ready])
    if len(taken) < len(ids) or len(early) >= MOST_EARLY:
        return taken, More.YES
    return taken, More.DUE if moved else More.NO


def _takeable(
    unit: UnitOfWork, keys: TypeKeys, terms: AcceptTerms, chosen: list[Ranked], loaded: list[Entry]
) -> tuple[list[Entry], list[bytes]]:
    """Return the jobs that can be taken, with the run data that they get; the others are taken out of the queue.

    Args:
        unit, keys, terms: of the accept.
        chosen: as found in the queue.
        loaded: the first of them.
    """
    taken: list[Entry] = []
    packed: list[bytes] = []
    started, now, worker, most = HistoryKind.STARTED, unit.now, terms.worker, terms.max_history
    for found, entry in zip(chosen, loaded, strict=False):
        record = entry.record
        rank = found[0]
        if (
            record is not None
            and record.place
            and (record.seq == rank[2][1:] if rank[1] == IS_READY else _is_there(keys, rank, entry, record))
        ):
            try:
                packed.append(run_data.with_event(record.run_data, started, now, worker, attempts=1, most=most))
                taken.append(entry)
                continue
            except RecordDamaged as error:
                unit.condemn(entry, error)
        _take_out(unit, keys, found)
    return taken, packed


def _is_there(keys: TypeKeys, rank: tuple[bytes, int, bytes], entry: Entry, record: Record) -> bool:
    """Whether a job that was not ready is where it was found: one that is elsewhere is found a second time."""
    _, kind, place = rank
    if kind != IS_SCHEDULED or len(place) <= TIME_BYTES:  # this transaction itself has made it pending
        return True
    return record.place == SCHEDULED and scheduled_key(entry, record) == keys.scheduled + place


def _take_out(unit: UnitOfWork, keys: TypeKeys, stray: Ranked) -> None:
    """Take an entry out of the queue that points at no job in that place, or at none that can be read."""
    (priority, kind, place), packed_id = stray
    if kind == IS_READY:
        take_out(unit, keys, keys.ready + priority + place + packed_id, packed_id)
    elif len(place) > TIME_BYTES:  # otherwise this transaction itself has made it pending
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


def _some_of(ids: list[Ranked], skipped: int, limit: int, sources: Sources) -> list[Ranked]:
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
    offset = len(keys.scheduled) + TIME_BYTES
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
        found = await unit.transaction.snapshot.get_range(begin, end, limit=LONG_PAGE)
        for _, value in found:
            if not is_due(value, unit.now):
                run_at = unpack_seconds(value)
                earliest = run_at if earliest is None else min(earliest, run_at)
        if len(found) < LONG_PAGE:
            return earliest
        begin = found[-1][0] + b"\x00"


def terms(
    limit: int,
    max_priority: Priority | None,
    due_by: RunAt | None,
    spread: Spread,
    make_ready: int,
    worker: str,
    max_history: int | None = None,
) -> AcceptTerms:
    """Return the checked terms of an accept."""
    return AcceptTerms(
        check_positive("limit", limit),
        None if max_priority is None else pack_priority(max_priority),
        to_seconds(due_by, "due_by"),
        check_spread(spread),
        make_ready,
        worker,
        max_history,
    )
