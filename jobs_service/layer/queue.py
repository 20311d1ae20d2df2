"""The queue: accepting jobs in order, making scheduled ones ready.

The module has more than 600 lines because an accept is one piece of work: how far from the front it begins, which
index entries it reads, and what it takes of them depend on each other.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from enum import IntEnum
from operator import itemgetter
from typing import Final, NamedTuple, TypeAlias

from jobs_service import run_data
from jobs_service.arguments import Spread, check_positive, check_spread, to_seconds
from jobs_service.errors import RecordDamaged
from jobs_service.layer.counters import count_starts
from jobs_service.layer.creation import id_of_ready, take_out
from jobs_service.layer.keyspace import (
    AFTER,
    SEQ_BYTES,
    TIME_BYTES,
    TIME_CODE,
    TypeKeys,
    end_of_priority,
    next_time,
    pack_priority,
    pack_seconds,
    unpack_seconds,
)
from jobs_service.layer.record import READY, SCHEDULED, Entry, NewSeq, Record, ready_key, scheduled_key
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.model import JobId, Priority, RunAt
from jobs_service.run_data import HistoryKind
from jobs_service.sources import Sources
from jobs_service.store.base import KeyValue, Snapshot, Watch

_CLEAN_LOOKS: Final = 8
"""Looks without a collision that undo the effect of one collision."""

_MEMORY: Final = 1000
"""Looks without a collision after which a service's workers stop taking turns."""

_MOST_DOUBLINGS: Final = 10
_WIDEST: Final = 1024
"""Widest spread: most jobs at the front among which a look chooses its start."""

_WIDEST_FACTOR: Final = 16
"""Widest spread as a multiple of the jobs that one look takes: a wider one would read too much of the queue."""

PAGE: Final = 256
LONG_PAGE: Final = 2000
MOST_TAKEN: Final = 16_000
"""Most jobs that one accept takes or passes over: a transaction cannot rewrite more, even of the smallest."""

_MOST_KEYS: Final = 4_000_000
"""Bytes of keys of later due jobs after which an accept stops reading."""

MOST_EARLY: Final = 2000
"""Entries of early jobs after which an accept stops reading. It moves some of them away, so the next finds fewer."""

Ranked: TypeAlias = tuple[tuple[bytes, int, bytes], bytes]
"""((packed priority, one of the three kinds below, place within that kind), packed id)."""

WAS_READY: Final = 0
MADE_READY: Final = 1
"""Made ready by this transaction; it has no index entry yet."""
FOR_LATER: Final = 2
"""Scheduled, and due by the future time of the terms."""

_FEW_EARLY: Final = 64
"""Ready jobs not yet due that an accept leaves in place: they come due soon. Only a clock far ahead of this one makes
more of them ready; these are moved back to SCHEDULED, since every accept has to read past them."""
_CLOCK_CHECK: Final = 5.0
"""Most seconds of a wait while a ready job is not due by this clock, which may be set forward."""
_PASSED_CHECK: Final = 5.0
"""Most seconds of a wait after ready jobs were left unread: no watch fires when those before them leave."""


# Spread


class Spreading:
    """The spread of each type's queue, as one service has learnt it from the conflicts of its workers.

    On a store with optimistic concurrency, two workers that take the same jobs collide, and one of them begins again.
    If each begins to take jobs at a random distance from the front, that happens less often, but the order is less
    exact. So the spread follows a weighted up-and-down staircase (Kaernbach 1991): a collision doubles it, and eight
    accepts without one halve it. It settles at one collision in nine accepts, whatever the number of workers, and at
    exact order without collisions. A "look" is one read of a queue's front by an accept.
    """

    def __init__(self) -> None:
        # How often the spread has been doubled, by type; types without collisions are left out.
        self._doublings: dict[TypeKeys, float] = {}
        # For how many more looks the service's own workers take turns, by type.
        self._turns: dict[TypeKeys, int] = {}

    def takes_turns(self, keys: TypeKeys) -> bool:
        """Whether the service's own workers read the type's queue one after the other, so that none of them collide.

        That costs next to nothing, so it goes on long after a collision.
        """
        return keys in self._turns

    def is_crowded(self, keys: TypeKeys) -> bool:
        """Whether workers have recently collided on the type's queue."""
        return keys in self._doublings

    def spread(self, keys: TypeKeys, limit: int, collisions: int = 0) -> int:
        """Return the number of jobs at the front among which a look chooses its start; 1 for exact order.

        Args:
            keys: of the type.
            limit: most jobs that the look takes.
            collisions: of this accept so far.
        """
        factor = round(2 ** min(self._doublings.get(keys, 0.0) + collisions, _MOST_DOUBLINGS))
        return min((factor - 1) * limit + 1, max(_WIDEST, _WIDEST_FACTOR * limit))

    def learn(self, keys: TypeKeys, collisions: int) -> None:
        """Widen the spread after an accept with collisions, and narrow it after one without."""
        doublings, turns = self._doublings.pop(keys, 0.0), self._turns.pop(keys, 0)
        if collisions:
            doublings, turns = min(doublings + collisions, _MOST_DOUBLINGS), _MEMORY
        else:
            doublings, turns = doublings - 1 / _CLEAN_LOOKS, turns - 1
        if doublings > 0:
            self._doublings[keys] = doublings
        if turns > 0:
            self._turns[keys] = turns


class _Look:
    """The collisions that one transaction's looks at one queue have met, and the jobs that they took."""

    __slots__ = ("before", "collisions", "spread", "taken")

    def __init__(self) -> None:
        self.collisions = 0
        self.spread = 1
        self.before: list[JobId] | None = None
        self.taken: list[JobId] = []

    def again(self) -> None:
        """Note that the transaction function is run again."""
        self.compare()
        if self.spread > 1:
            self.collisions += 1
            self.before = None
        else:
            self.before = self.taken
        self.taken = []

    def compare(self) -> None:
        """Count a collision if the last run found other jobs than the run before it found in exact order."""
        # If the same jobs are there again, no worker took them: the conflict was with a heartbeat or a creator.
        if self.before is not None and self.before != self.taken:
            self.collisions += 1


class QueueReads:
    """The looks at queues of one transaction, over all runs of its function.

    Args:
        spreading: of the service.
    """

    __slots__ = ("_looks", "_spreading")

    def __init__(self, spreading: Spreading) -> None:
        self._spreading = spreading
        self._looks: dict[TypeKeys, _Look] = {}

    def begin(self) -> None:
        """Begin a run of the function."""
        for look in self._looks.values():
            look.again()

    def spread(self, keys: TypeKeys, limit: int) -> int:
        """Return the spread of a look that takes at most so many jobs; see `Spreading.spread`."""
        look = self._looks.setdefault(keys, _Look())
        return self._spreading.spread(keys, limit, look.collisions)

    def took(self, keys: TypeKeys, spread: int, ids: Iterable[JobId]) -> None:
        """Note the jobs that a look with this spread has taken."""
        look = self._looks.setdefault(keys, _Look())
        look.spread = spread
        look.taken += ids

    def end(self) -> None:
        """Learn from the collisions of this transaction."""
        for keys, look in self._looks.items():
            look.compare()
            self._spreading.learn(keys, look.collisions)
        self._looks.clear()


# Candidates


class AcceptTerms(NamedTuple):
    """The terms on which a worker takes jobs.

    Attributes:
        limit: most jobs; never more than a transaction can rewrite.
        max_priority: packed; the largest accepted priority. None for all.
        due_by: seconds since the epoch; None for now. Of the jobs scheduled for later, the next 2,000 (or `limit`) by
            time are read, and further ones until there are enough, up to 16,000 or some megabytes. As many ready jobs
            due after `due_by` are passed over: they are in the order in which they became ready.
        spread: number of jobs at the front among which the start is random; 1 keeps exact order. Callers resolve
            ADAPTIVE.
        make_ready: most due jobs that are made ready.
        worker: the worker's name, for the jobs' history.
        max_history: events of it that are kept; None for the present number, and 20 at least.
        is_elsewhere: whether the worker is outside this process, whose death then does not release the jobs.
        open_end: whether a job added behind the last one taken is no conflict, although fewer than `limit` were taken.
    """

    limit: int
    max_priority: bytes | None
    due_by: float | None
    spread: int
    make_ready: int
    worker: str = ""
    max_history: int | None = None
    open_end: bool = False
    is_elsewhere: bool = False


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


async def candidates(
    unit: UnitOfWork, keys: TypeKeys, terms: AcceptTerms, due_by: float, wanted: int
) -> tuple[list[Ranked], list[KeyValue], bool]:
    """Find the first due jobs in order, those that this transaction has made pending included.

    Returns:
        The jobs; the READY entries that were read and are not due; and whether ready jobs were left unread behind too
        many that are due after `due_by`.
    """
    ranked, early, is_cut = await _ready_in_store(unit, keys, terms, due_by, wanted)
    own = _pending_here(unit, keys, terms, due_by)
    later = await _scheduled_by(unit, keys, terms, due_by, wanted) if due_by > unit.now else []
    if own or later:
        # The id decides between jobs that are due at the same time. It is a part of the keys in the store, but not of
        # the ranks of jobs that this transaction made pending, so it is added to all.
        ranked = sorted(ranked + own + later, key=lambda item: (*item[0][:2], item[0][2] + item[1]))
    # No job is here twice: the index entries of those that this transaction has moved are cleared already.
    return ranked[:wanted], early, is_cut


async def _ready_in_store(
    unit: UnitOfWork, keys: TypeKeys, terms: AcceptTerms, due_by: float, wanted: int
) -> tuple[list[Ranked], list[KeyValue], bool]:
    # Snapshot reads make no conflicts. `accept` adds those that are needed, when it knows which jobs it takes.
    reads = unit.transaction.snapshot
    begin = keys.ready
    end = keys.ready + AFTER if terms.max_priority is None else keys.ready + terms.max_priority + AFTER
    limit = wanted
    places: list[Ranked] = []
    early: list[KeyValue] = []
    passed = size = 0
    while True:
        found = await reads.get_range(begin, end, limit=limit)
        try:
            due = [_ranked(keys, key) for key, value in found if is_due(value, due_by)]
        except Exception:  # fdb.tuple raises many kinds of errors for bytes that are no tuple
            due = _parsed(unit, keys, found, due_by)
        if len(due) < len(found):
            later = [(key, value) for key, value in found if not is_due(value, due_by)]
            early += later if due_by >= unit.now else [row for row in later if not is_due(row[1], unit.now)]
            passed += len(later)
            size += sum([len(key) for key, _ in later])
        places += due
        if len(found) < limit or len(places) >= wanted or len(early) >= MOST_EARLY:
            return places[:wanted], early, False
        if passed >= MOST_TAKEN or size > _MOST_KEYS:
            return places, early, True
        begin = found[-1][0] + b"\x00"
        limit = PAGE


def _parsed(unit: UnitOfWork, keys: TypeKeys, found: list[KeyValue], due_by: float) -> list[Ranked]:
    """Return rank and packed id of the due entries; remove entries that cannot be parsed."""
    entries: list[KeyValue] = []
    for key, value in found:
        if id_of_ready(keys, key) is None:
            take_out(unit, keys, key, None)
        else:
            entries.append((key, value))
    return [_ranked(keys, key) for key, value in entries if is_due(value, due_by)]


async def _scheduled_by(
    unit: UnitOfWork, keys: TypeKeys, terms: AcceptTerms, due_by: float, wanted: int
) -> list[Ranked]:
    """Return the first scheduled jobs that are due by the caller's future time.

    They are stored in the order of time, not of priority: of the next due ones the lowest priorities are taken. Further
    ones are read only until there are enough, and a bounded number: the terms may exclude nearly all of them.
    """
    reads = unit.transaction if terms.spread == 1 else unit.transaction.snapshot
    begin = keys.scheduled
    end = keys.scheduled + pack_seconds(due_by) + AFTER
    offset = len(keys.scheduled)
    page = max(LONG_PAGE, wanted)
    first: list[Ranked] = []
    looked_at = size = 0
    while True:
        found = await reads.get_range(begin, end, limit=page)
        looked_at += len(found)
        size += sum([len(key) for key, _ in found])
        ranked = [
            ((priority, FOR_LATER, key[offset:]), key[offset + TIME_BYTES :])
            for key, priority in found
            if terms.max_priority is None or priority <= terms.max_priority
        ]
        first = heapq.nsmallest(wanted, first + ranked, key=itemgetter(0))
        if len(found) < page or len(first) >= wanted or looked_at >= MOST_TAKEN or size > _MOST_KEYS:
            return first
        begin = found[-1][0] + b"\x00"


def _pending_here(unit: UnitOfWork, keys: TypeKeys, terms: AcceptTerms, due_by: float) -> list[Ranked]:
    """Return the jobs that this transaction has made pending: their index entries are not written yet."""
    own: list[Ranked] = []
    if not unit.woke(keys):  # nearly always: its jobs, perhaps thousands of other types, need not be looked at
        return own
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
        own.append(((record.priority, MADE_READY if record.place == READY else FOR_LATER, place), entry.packed_id))
    return own


def _ranked(keys: TypeKeys, key: bytes) -> Ranked:
    """Return rank and packed id of a READY key."""
    start = len(keys.ready)
    stamp = end_of_priority(keys, key)
    after = stamp + 1 + SEQ_BYTES
    return (key[start:stamp], WAS_READY, key[stamp:after]), key[after:]


def is_due(packed_run_at: bytes, due_by: float | None) -> bool:
    # A damaged time counts as due: otherwise the job would wait for ever.
    return due_by is None or not packed_run_at or not unpack_seconds(packed_run_at) > due_by


# Accepting


class More(IntEnum):
    """Whether another accept may find jobs after this one has found too few."""

    NO = 0
    DUE = 1
    """Scheduled jobs have come due, and some of them were made ready; perhaps none that the terms allow."""
    YES = 2
    """Unreadable or early jobs were in the way, and have been moved out of it."""
    BEHIND = 3
    """Further jobs may stand behind ready ones that were passed over as due too late; they come when these leave."""

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
        _remove_stray(unit, keys, found)
    return taken, packed


def _is_there(keys: TypeKeys, rank: tuple[bytes, int, bytes], entry: Entry, record: Record) -> bool:
    """Whether a job that was found as scheduled still has that entry. A changed job has another, by which it is found
    as well: it must not be taken twice.
    """
    _, kind, place = rank
    if kind != FOR_LATER or len(place) <= TIME_BYTES:  # an earlier operation of this transaction made it pending
        return True
    return record.place == SCHEDULED and scheduled_key(entry, record) == keys.scheduled + place


def _remove_stray(unit: UnitOfWork, keys: TypeKeys, stray: Ranked) -> None:
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


# Scheduled jobs


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
            unit.replace(entry, record.pending(READY, unit.new_seq(), record.priority, record.run_at))
        else:
            take_out(unit, keys, key, entry.packed_id)
    return len(entries)


async def next_scheduled(transaction: Snapshot, keys: TypeKeys) -> float | None:
    """Return when the next scheduled job comes due, seconds since the epoch; None if none is scheduled."""
    begin, end = keys.scheduled + TIME_CODE, keys.scheduled + TIME_CODE + AFTER
    return next_time(await transaction.get_range(begin, end, limit=1), len(keys.scheduled))


# Waiting


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
