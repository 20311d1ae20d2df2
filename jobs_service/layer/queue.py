"""The queue: accepting jobs in order, making scheduled ones ready, counting."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from jobs_service import run_data
from jobs_service.arguments import Spread, check_positive, check_spread, to_seconds
from jobs_service.errors import RecordDamaged
from jobs_service.layer.candidates import (
    FOR_LATER,
    LONG_PAGE,
    MOST_EARLY,
    MOST_TAKEN,
    WAS_READY,
    Ranked,
    candidates,
    is_due,
)
from jobs_service.layer.candidates import AcceptTerms as AcceptTerms
from jobs_service.layer.counters import count_starts
from jobs_service.layer.entry import Entry, ready_key, scheduled_key
from jobs_service.layer.key_parts import (
    AFTER,
    TIME_BYTES,
    TIME_CODE,
    next_time,
    pack_priority,
    pack_seconds,
    unpack_seconds,
)
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
"""Ready jobs not yet due that an accept leaves in place: they come due soon. Only a clock far ahead of this one makes
more of them ready; these are moved back to SCHEDULED, since every accept has to read past them."""
_CLOCK_CHECK: Final = 5.0
_PASSED_CHECK: Final = 5.0


class More(IntEnum):
    """Whether another accept may find jobs after this one has found too few."""

    NO = 0
    DUE = 1
    """Scheduled jobs have come due, and some of them were made ready; perhaps none that the terms allow."""
    YES = 2
    """Unreadable or early jobs were in the way, and have been moved out of it."""
    BEHIND = 3
    """Jobs may be behind the ready ones that were passed over, due too late for the terms, once those leave."""

    @property
    def at_once(self) -> bool:
        """Whether to accept again at once."""
        return self in (More.DUE, More.YES)


class EmptyQueue(NamedTuple):
    """The result of an accept that found no job.

    Attributes:
        watch: on the type's queue, set in the transaction that found nothing. None if the caller should accept again
            at once, and for all but the first of several callers that share an accept.
        due_in: seconds until the next scheduled job comes due; None if there is none. 0 without a watch: some have
            come due, and not all of them were made ready yet.
    """

    watch: Watch | None
    due_in: float | None


async def accept(unit: UnitOfWork, keys: TypeKeys, terms: AcceptTerms) -> tuple[list[Entry], More]:
    """Take due jobs from the front of the queue, as many as a transaction can hold: each gets a new lock and runs.

    Entries that cannot be taken are removed from the queue, a bounded number per call: those of unreadable jobs, and
    those of jobs that a clock ahead of this one has made ready too early.

    Returns:
        The jobs, and whether another call may find more even though these are fewer than `limit`.
    """
    if await unit.is_paused(keys):
        return [], More.NO
    now = unit.now
    due_by = now if terms.due_by is None else terms.due_by
    if terms.limit > MOST_TAKEN:
        terms = terms._replace(limit=MOST_TAKEN)
    moved = await make_ready(unit, keys, min(now, due_by), terms.make_ready)
    skipped = unit.sources.below(min(terms.spread, MOST_TAKEN)) if terms.spread > 1 else 0
    found, early, is_cut = await candidates(unit, keys, terms, due_by, terms.limit + skipped)
    chosen = _some_of(found, skipped, terms.limit, unit.sources)
    ids = [packed_id for _, packed_id in chosen]
    # Read only the records of chosen jobs. A read is a conflict with every writer, and other workers take the others.
    loaded = await unit.load_fitting(keys, ids)
    taken, packed = _takeable(unit, keys, terms, chosen, loaded)
    if terms.spread > 1:
        _claim(unit, taken)
    else:
        _claim_front(unit, keys, terms, taken, len(ids) < terms.limit)
    records = [entry.record for entry in taken if entry.record is not None]
    locks = unit.new_locks(len(taken), terms.is_elsewhere)
    for entry, record, lock, run_data_after in zip(taken, records, locks, packed, strict=True):
        unit.replace(entry, record.running(lock, unit.new_seq(), run_data_after))
    count_starts(unit.tally(keys), records, now)
    if len(early) > _FEW_EARLY:
        await _schedule_again(unit, keys, early[: terms.make_ready])
    if len(taken) < len(ids) or len(early) >= MOST_EARLY:
        return taken, More.YES
    if moved:
        return taken, More.DUE
    return taken, More.BEHIND if is_cut else More.NO


def _takeable(
    unit: UnitOfWork, keys: TypeKeys, terms: AcceptTerms, chosen: list[Ranked], loaded: list[Entry]
) -> tuple[list[Entry], list[bytes]]:
    """Return the jobs that can be taken, with their new run data; remove the others' entries from the queue.

    Args:
        unit, keys, terms: of the accept.
        chosen: the candidates, as found in the queue.
        loaded: the jobs of the first of them, as many as the transaction can hold.
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
            and (record.seq == rank[2][1:] if rank[1] == WAS_READY else _is_there(keys, rank, entry, record))
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
    """Whether a job that was found as scheduled still has that entry. A changed job has another, by which it is found
    as well: it must not be taken twice.
    """
    _, kind, place = rank
    if kind != FOR_LATER or len(place) <= TIME_BYTES:  # an earlier operation of this transaction made it pending
        return True
    return record.place == SCHEDULED and scheduled_key(entry, record) == keys.scheduled + place


def _take_out(unit: UnitOfWork, keys: TypeKeys, stray: Ranked) -> None:
    """Remove an entry of the queue whose job does not exist, has another entry, or cannot be read."""
    (priority, kind, place), packed_id = stray
    if kind == WAS_READY:
        take_out(unit, keys, keys.ready + priority + place + packed_id, packed_id)
    elif len(place) > TIME_BYTES:  # else an earlier operation of this transaction made it pending: no entry yet
        take_out(unit, keys, keys.scheduled + place, packed_id)


async def _schedule_again(unit: UnitOfWork, keys: TypeKeys, early: list[KeyValue]) -> None:
    """Move ready jobs that are not due, because a clock ahead of this one made them ready, back to SCHEDULED."""
    ids = [id_of_ready(keys, key) or b"" for key, _ in early]
    for (key, _), entry in zip(early, await unit.load_fitting(keys, ids), strict=False):
        record = entry.record
        if record is None or record.place != READY or isinstance(record.seq, NewSeq) or ready_key(entry, record) != key:
            take_out(unit, keys, key, entry.packed_id)
        else:
            place = unit.place_for(record.run_at)
            unit.replace(entry, record.pending(place, unit.new_seq(), record.priority, record.run_at))


def _some_of(ids: list[Ranked], skipped: int, limit: int, sources: Sources) -> list[Ranked]:
    """Return `limit` neighbors in the queue after the skipped ones; skip fewer if there are not enough.

    Neighbors, because two workers that take a run of jobs each rarely overlap. If both picked that many at random,
    nearly always at least one job would be the same, and one transaction would conflict.
    """
    spare = len(ids) - limit
    if skipped and spare < skipped:
        skipped = sources.below(spare + 1) if spare > 0 else 0
    return ids[skipped : skipped + limit]


def _claim(unit: UnitOfWork, taken: list[Entry]) -> None:
    """Make it a conflict if another transaction takes one of these jobs out of the queue."""
    for entry in taken:
        record = entry.record
        assert record is not None
        if record.place == READY and isinstance(record.seq, bytes):
            unit.transaction.add_read_conflict_key(ready_key(entry, record))


def _claim_front(unit: UnitOfWork, keys: TypeKeys, terms: AcceptTerms, taken: list[Entry], all_taken: bool) -> None:
    """Make it a conflict if another transaction takes one of these jobs, or adds one before the last of them.

    That keeps the strict order: no worker takes a job while a more urgent one is committed just before.

    Args:
        unit, keys, terms, taken: of the accept.
        all_taken: whether the queue has no more: then any new job is a conflict, unless the terms have an open end.
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
    """Move jobs that are due by `until` from SCHEDULED to READY, the earliest first; return their number.

    One call moves at most `limit` jobs, and no more than a transaction can hold: call again until it returns 0. Entries
    without a readable job are removed, and counted as well.
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
    """Return when the next scheduled job comes due, seconds since the epoch; None if none is scheduled."""
    begin, end = keys.scheduled + TIME_CODE, keys.scheduled + TIME_CODE + AFTER
    return next_time(await transaction.get_range(begin, end, limit=1), len(keys.scheduled))


async def wait_for_more(
    unit: UnitOfWork,
    keys: TypeKeys,
    max_priority: bytes | None = None,
    due_by: float | None = None,
    *,
    is_cut: bool = False,
) -> EmptyQueue:
    """Return a watch on the type's queue, and the seconds until the next of its jobs comes due.

    For a caller that has just found no due job, in the same transaction.

    Args:
        unit, keys: of the type.
        max_priority: the largest priority that the caller takes, packed; None for any.
        due_by: of the caller's terms.
        is_cut: whether it has not read all ready jobs: then the seconds are a few at most.
    """
    if await unit.is_paused(keys):
        # Jobs may be ready in any number: none is to be looked for before the type is resumed, which fires the watch.
        return EmptyQueue(unit.transaction.watch(keys.watch_pending), None)
    now = unit.now
    run_at = await next_scheduled(unit.transaction.snapshot, keys)
    # A due job that was not taken has too large a priority: the caller would wake for it at once, for ever.
    due_in = None if run_at is None or run_at <= now else run_at - now
    if due_by is not None:  # a fixed time: a ready job that is not due by then never will be
        if is_cut:  # no watch fires when the jobs that were passed over leave
            due_in = _PASSED_CHECK if due_in is None else min(due_in, _PASSED_CHECK)
    elif (ready_at := await _next_ready(unit, keys, max_priority)) is not None:
        # This clock may be set forward at any time, and no watch fires when a ready job comes due by that.
        due_in = min(ready_at - now, _CLOCK_CHECK, _CLOCK_CHECK if due_in is None else due_in)
    return EmptyQueue(unit.transaction.watch(keys.watch_pending), due_in)


async def _next_ready(unit: UnitOfWork, keys: TypeKeys, max_priority: bytes | None) -> float | None:
    """Return when the next READY job comes due by this clock; a faster clock may have made it ready early."""
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
