"""The jobs that an accept may take: the first due ones in order, found in the queue's index entries.

Jobs that the same transaction has made pending have no index entries yet: they are found among its own entries.
"""

from __future__ import annotations

import heapq
from operator import itemgetter
from typing import Final, NamedTuple, TypeAlias

from jobs_service.layer.key_parts import AFTER, TIME_BYTES, pack_seconds, unpack_seconds
from jobs_service.layer.keyspace import TypeKeys, end_of_priority
from jobs_service.layer.record import NewSeq
from jobs_service.layer.record_format import READY, SCHEDULED
from jobs_service.layer.strays import id_of_ready, take_out
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.store.base import KeyValue

_SEQ_BYTES: Final = 12
PAGE: Final = 256
LONG_PAGE: Final = 2000
MOST_TAKEN: Final = 16_000
"""Most jobs that one accept takes or passes over: a transaction cannot rewrite more, even of the smallest."""

_MOST_KEYS: Final = 4_000_000
"""Bytes of keys of later due jobs after which an accept stops reading."""

MOST_EARLY: Final = 2000
"""Entries of early jobs after which an accept stops reading. It moves some of them away, so the next finds fewer."""


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


async def candidates(
    unit: UnitOfWork, keys: TypeKeys, terms: AcceptTerms, due_by: float, wanted: int
) -> tuple[list[Ranked], list[KeyValue], bool]:
    """Return the first due jobs in order, including those that this transaction made pending; the entries read of ready
    jobs that are not due; and whether ready jobs were left unread behind too many that are due after `due_by`.
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


Ranked: TypeAlias = tuple[tuple[bytes, int, bytes], bytes]
"""((packed priority, one of the three kinds below, place within), packed id)."""

WAS_READY: Final = 0
MADE_READY: Final = 1
"""By this transaction."""
FOR_LATER: Final = 2
"""Scheduled."""


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
    after = stamp + 1 + _SEQ_BYTES
    return (key[start:stamp], WAS_READY, key[stamp:after]), key[after:]


def is_due(packed_run_at: bytes, due_by: float | None) -> bool:
    # A damaged time counts as due: otherwise the job would wait for ever.
    return due_by is None or not packed_run_at or not unpack_seconds(packed_run_at) > due_by
