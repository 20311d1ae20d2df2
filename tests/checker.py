"""Checks a store: walks all keys of the jobs and verifies every invariant that follows from the table of keys.

Tests call it after anything: a kill, a fault, a random sequence of operations. What the bytes say is read by the tests'
own reader, so that the package cannot be wrong about them and find itself right.
"""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

import fdb.tuple

from jobs_service.store import Store, Transaction
from jobs_service.store.base import STAMP_BYTES, CommitStamp, KeyValue
from tests import reader
from tests.asked_processes import asked_of_nobody
from tests.reader import Counts, Record, Row, Undocumented

_STAMP_CODE = b"\x33"
_DATA = 1
_KINDS = ("added", "started", "stopped", "crashed", "lost", "finished", "canceled")
_REMEMBERED = 2_000
"""Bytes of values that are kept with what was read of them."""

Name = tuple[Hashable, ...]
"""A row's family and the elements of its key, packed, but times as they are."""

Named = tuple[bytes, bytes]
"""A job's type and id, packed."""

Jobs = Iterable[tuple[Any, Any]]
"""Jobs by type and id."""


async def check_store(store: Store, *, now: float | None = None, damaged: Jobs = ()) -> list[str]:
    """Return what is wrong with the jobs in an open store, one line each; nothing when all is well.

    Args:
        store: may be in use: everything is read in one state.
        now: the wall-clock time, seconds since the epoch; None for the machine's. No ready job is due later.
        damaged: types and ids of jobs whose records may be anything, and are in no index once they are set aside.
    """
    prefix = await store.prefix()

    async def everything(transaction: Transaction) -> list[KeyValue]:
        # What follows is the FoundationDB store's own.
        return await transaction.get_range(prefix, prefix + b"\xfe")

    async def stamp(transaction: Transaction) -> CommitStamp:
        transaction.clear(b"nothing is here")  # a write, so that it gets a versionstamp
        return transaction.stamp

    pairs = await store.read(everything)
    newest = (await store.transact(stamp)).value
    assert newest is not None
    return complaints_about(prefix, newest, time.time() if now is None else now, pairs, damaged)


def complaints_about(
    prefix: bytes,
    newest: bytes,
    now: float,
    pairs: list[KeyValue],
    damaged: Jobs = (),
    *,
    counted: bool = True,
    happened: bool = False,
) -> list[str]:
    """Return what is wrong with these keys and values, which are all that begin with the prefix.

    Args:
        prefix: of the jobs' keys.
        newest: a versionstamp later than whatever is stored.
        now: seconds since the epoch, as for `check_store`.
        pairs: in key order, in one state.
        damaged: as for `check_store`.
        counted: whether the counts are to be right: not where damaged records were never counted.
        happened: whether all that the histories tell was counted: not of jobs from other stores.
    """
    check = _Check(prefix, newest, now, {(packed(type), packed(id)) for type, id in damaged})
    found = [*check.complaints(pairs), *asked_of_nobody(len(prefix), pairs), *(check.counted() if counted else ())]
    return [*found, *(check.happened() if happened else ())]


async def assert_sound(store: Store, *, now: float | None = None, damaged: Jobs = ()) -> None:
    """Fail unless the jobs in an open store are as they must be; see `check_store`."""
    complaints = await check_store(store, now=now, damaged=damaged)
    assert complaints == [], "\n".join(["the store is damaged:", *complaints[:50]])


class _Check:
    """One look at all keys.

    Args:
        prefix: of the jobs' keys.
        newest: a versionstamp later than whatever is stored.
        now: seconds since the epoch.
        damaged: jobs whose records may be anything.
    """

    def __init__(self, prefix: bytes, newest: bytes, now: float, damaged: set[Named]) -> None:
        self._prefix = prefix
        self._damaged = damaged
        self._damaged_rows = {packed(_DATA) + type + id for type, id in damaged}
        self._set_aside: set[Named] = set()
        self._newest = newest
        self._now = now
        self._records: dict[Named, Record] = {}
        self._expected: dict[Name, tuple[Any, Named]] = {}
        self._found: dict[Name, Any] = {}
        self._activity: dict[bytes, bytes] = {}
        self._woken: set[bytes] = set()
        self._awake: set[bytes] = set()
        self._asleep: dict[bytes, float] = {}
        self._alarms: set[tuple[bytes, float]] = set()
        self._followed: set[bytes] = set()
        self._last: dict[Named, Record] = {}
        self._counts: dict[bytes, Counts] = {}
        self._totals: dict[tuple[str, bytes], Counter[str]] = {}
        self._checks: dict[str, Callable[[Row], Iterable[str]]] = {
            "DATA": self._data,
            "READY": self._ready,
            "SCHEDULED": self._timed,
            "ACTIVITY": self._ready,
            "EXPIRING": self._timed,
            "WATCH_PENDING": self._watch_pending,
            "WATCH_ACTIVITY": self._watch_activity,
            "AWAKE": self._awake_row,
            "ASLEEP": self._asleep_row,
            "ALARM": self._alarm_row,
            "FOLLOWED": self._followed_row,
            "CHANGES": self._of_the_past,
            "SET_ASIDE": self._set_aside_row,
            "COUNTS": self._counts_row,
            "MINUTES": self._interval_row,
            "HOURS": self._interval_row,
            "FAILED": self._ready,
            "RETRYING": self._ready,
            "LAST": self._last_row,
        }

    def complaints(self, pairs: list[KeyValue]) -> list[str]:
        """Return what is wrong with these keys and values."""
        found: list[str] = []
        start, checks = len(self._prefix), self._checks
        for key, value in pairs:
            if self._damaged and key[start:] in self._damaged_rows:
                continue
            try:
                row = _remembered(start, key, value) if len(value) <= _REMEMBERED else reader.row(key[start:], value)
            except Undocumented as error:
                found.append(str(error))
                continue
            check = checks.get(row.family)
            if check is not None:
                for complaint in check(row):
                    found.append(f"{row.family} {row.names}: {complaint}")
        return [*found, *self._indexes(), *self._seqs(), *self._stamps(), *self._watched_over()]

    # Single keys

    def _data(self, row: Row) -> Iterator[str]:
        job, record = (row.packed[0], row.packed[1]), row.value
        self._records[job] = record
        yield from self._told(record)
        if record.lock is not None and not any(record.lock):
            yield f"a lock of {record.lock.hex()}"
        if record.state == "scheduled" and record.run_at is None:
            yield "scheduled for no time"
        if record.state == "ready" and record.run_at is not None and record.run_at > self._now:
            yield f"ready, but due only in {record.run_at - self._now:.3f} s"
        self._expect_entry(job, record)

    def _expect_entry(self, job: Named, record: Record) -> None:
        type, id = job
        if _lane_of(record).endswith("after a crash"):
            self._expected["RETRYING", type, id] = (None, job)
        if record.state == "running":
            name: Name = "ACTIVITY", type, _STAMP_CODE + record.seq
            value: Any = id
        elif record.state == "ready":
            name, value = ("READY", type, record.priority, _STAMP_CODE + record.seq, id), record.run_at
        elif record.state == "scheduled":
            name, value = ("SCHEDULED", type, record.run_at, id), record.priority
        else:
            if record.outcome == "failed":
                self._expected["FAILED", type, _STAMP_CODE + record.seq] = (id, job)
            if record.notes.expires is None:
                return
            name, value = ("EXPIRING", type, record.notes.expires, id), None
        self._expected[name] = (value, job)

    def _told(self, record: Record) -> Iterator[str]:
        told = record.notes
        if record.state != "finished" and told.expires is not None:
            yield f"a {record.state} job that expires"
        if record.lock is not None and not told.attempts:
            yield "it runs without an attempt"
        # A job that has no room for a history goes without.
        if record.outcome is not None and told.history:
            last = told.history[0].kind
            if last != ("canceled" if record.outcome == "canceled" else "finished"):
                yield f"it is finished, {record.outcome}, and its history says {last}"

    def _ready(self, row: Row) -> Iterable[str]:
        self._found[(row.family, *row.packed)] = row.value
        return ()

    def _timed(self, row: Row) -> Iterable[str]:
        self._found[row.family, row.packed[0], row.names[1], row.packed[2]] = row.value
        return ()

    def _watch_pending(self, row: Row) -> Iterable[str]:
        self._woken.add(row.packed[0])
        return ()

    def _watch_activity(self, row: Row) -> Iterator[str]:
        self._activity[row.packed[0]] = row.value
        if row.value >= self._newest:
            yield f"versionstamp {row.value.hex()} is ahead of the store's, {self._newest.hex()}"

    def _of_the_past(self, row: Row) -> Iterator[str]:
        stamp = row.value if len(row.names) == 1 else row.names[1]
        if stamp >= self._newest:
            yield f"no versionstamp of the past: {stamp.hex()}"

    def _followed_row(self, row: Row) -> Iterable[str]:
        self._followed.add(row.packed[0])
        return () if row.value is None else self._of_the_past(row)

    def _last_row(self, row: Row) -> Iterator[str]:
        job, record = (row.packed[0], row.packed[1]), row.value
        self._last[job] = record
        yield from self._told(record)

    def _awake_row(self, row: Row) -> Iterable[str]:
        self._awake.update(row.packed)
        return ()

    def _asleep_row(self, row: Row) -> Iterable[str]:
        self._asleep[row.packed[0]] = row.value
        return ()

    def _alarm_row(self, row: Row) -> Iterable[str]:
        self._alarms.add((row.packed[1], row.names[0]))
        return ()

    def _set_aside_row(self, row: Row) -> Iterable[str]:
        self._set_aside.add((row.packed[0], row.packed[1]))
        return ()

    def _counts_row(self, row: Row) -> Iterable[str]:
        self._counts[row.packed[0]] = row.value
        return self._within(row.value)

    def _interval_row(self, row: Row) -> Iterable[str]:
        self._totals.setdefault((row.family, row.packed[0]), Counter()).update(row.value.totals)
        return self._within(row.value)

    @staticmethod
    def _within(counts: Counts) -> Iterator[str]:
        """No more times than runs that began, and that ended."""
        totals = counts.totals
        ended = sum(totals[name] for name in ("succeeded", "failed", "canceled", "crashed", "lost", "released"))
        if sum(counts.waited) > totals["started"] or sum(counts.ran) > ended:
            yield f"more times than runs: {counts}"

    # Keys that belong together

    def happened(self) -> Iterator[str]:
        """What the histories tell was counted; they do not tell all, as they are cut, and jobs go."""
        told: dict[bytes, Counter[str]] = {}
        for (type, _), record in self._records.items():
            told.setdefault(type, Counter()).update(event.kind for event in record.notes.history)
        for type, events in told.items():
            counts = self._counts.get(type)
            totals = dict.fromkeys(_KINDS, 0) if counts is None else {**counts.totals}
            totals["stopped"] = totals.pop("released", 0)
            totals["finished"] = totals.get("succeeded", 0) + totals.get("failed", 0)
            if missing := {kind: count for kind, count in events.items() if count > totals[kind]}:
                yield f"the totals of type {reader.elements(type)[0][0]!r}, {totals}, lack some of {missing}"

    def counted(self) -> Iterator[str]:
        """The counts are those of the jobs; nothing happened in a minute that was not counted."""
        states: dict[bytes, Counter[str]] = {}
        for (type, _), record in self._records.items():
            states.setdefault(type, Counter())[_lane_of(record)] += 1
        # A damaged record counts as what it was before.
        damaged = Counter(type for type, _ in self._damaged)
        for type in states.keys() | self._counts.keys():
            wanted = states.get(type, Counter())
            counts = self._counts.get(type)
            found = Counter({} if counts is None else counts.states)
            off = sum(abs(found[lane] - wanted[lane]) for lane in found.keys() | wanted.keys())
            if off > damaged[type]:
                yield f"the counts of type {reader.elements(type)[0][0]!r} are {+found}, its jobs are {wanted}"
            for family in ("MINUTES", "HOURS"):
                more = self._totals.get((family, type), Counter()) - Counter({} if counts is None else counts.totals)
                if more:
                    yield f"{family} of type {reader.elements(type)[0][0]!r} have {more}, which its counts have not"

    def _indexes(self) -> Iterator[str]:
        missing = object()
        for name, (value, job) in self._expected.items():
            found = self._found.get(name, missing)
            if found != value:
                state = f"{_shown(job)} is {self._records[job].state}, but its index entry {name!r}"
                yield f"{state} is missing" if found is missing else f"{state} holds {found!r}, not {value!r}"
        for name in self._found.keys() - self._expected.keys():
            owner = name[1], self._found[name] if name[0] in ("ACTIVITY", "FAILED") else name[-1]
            if owner not in self._damaged:
                yield f"index entry {name!r} belongs to no job in that state and place"
            elif owner in self._set_aside and name[0] != "FAILED":
                yield f"index entry {name!r} belongs to a job that is set aside"

    def _watched_over(self) -> Iterator[str]:
        """Types with jobs that monitors must watch over are awake, or asleep until the first of them."""
        if self._alarms != {*self._asleep.items()}:
            yield f"alarms {sorted(self._alarms)} for the sleeping types {sorted(self._asleep.items())}"
        for type in self._awake & self._asleep.keys():
            yield f"type {reader.elements(type)[0][0]!r} is awake and asleep"
        for type, id in self._last:
            if type not in self._awake:
                yield f"{_shown((type, id))} has left with its end, but its type is not awake"
            if type not in self._followed:
                yield f"{_shown((type, id))} has left with its end, but nobody follows its type"
        for job, record in self._records.items():
            if job[0] in self._awake:
                continue
            until = self._asleep.get(job[0])
            first = record.run_at if record.state == "scheduled" else record.notes.expires
            if record.state == "running":
                yield f"{_shown(job)} runs, but its type is not awake"
            elif record.state != "ready" and first is not None and (until is None or until > first):
                yield f"{_shown(job)} is {record.state} until {first}, but nobody watches over its type then"

    def _seqs(self) -> Iterator[str]:
        owners: dict[bytes, Named] = {}
        for job, record in (*self._records.items(), *self._last.items()):
            if record.seq in owners:
                yield f"{_shown(job)} and {_shown(owners[record.seq])} have the same seq {record.seq.hex()}"
            owners[record.seq] = job

    def _stamps(self) -> Iterator[str]:
        for job, record in (*self._records.items(), *self._last.items()):
            latest = self._activity.get(job[0])
            if latest is None:
                yield f"{_shown(job)} exists, but its type has no WATCH_ACTIVITY"
            elif record.seq[:STAMP_BYTES] > latest:
                yield f"{_shown(job)}: its seq {record.seq.hex()} is ahead of its type's activity, {latest.hex()}"
            if job[0] not in self._woken:
                yield f"{_shown(job)} exists, but its type has no WATCH_PENDING"


def _lane_of(record: Record) -> str:
    """Return the name of the lane in which a job counts."""
    again = record.state in ("ready", "scheduled") and record.notes.history[:1] and record.notes.history[0].kind
    return f"{record.state} after a crash" if again == "crashed" else record.outcome or record.state


@functools.lru_cache(16_384)
def _remembered(start: int, key: bytes, value: bytes) -> Row:
    """Return what a key, from this place on, and its value say: most are looked at many times."""
    return reader.row(key[start:], value)


def unpacked(key: bytes) -> list[Any]:
    """Return the elements of a tuple."""
    return [value for value, _ in reader.elements(key)]


def packed(*fields: Any) -> bytes:
    """Return the tuple layer's encoding; its own packs no versionstamps without FoundationDB's library."""
    return b"".join(map(_packed_field, fields))


def _packed_field(field: Any) -> bytes:
    if isinstance(field, fdb.tuple.Versionstamp):
        stamp: bytes = field.tr_version or b"\xff" * STAMP_BYTES
        order: int = field.user_version
        return _STAMP_CODE + stamp + order.to_bytes(2, "big")
    if isinstance(field, reader.Stamp):
        return _STAMP_CODE + field
    encoded: bytes = fdb.tuple.pack((field,))
    return encoded


def _shown(job: Named) -> str:
    type, id = (reader.elements(packed)[0][0] for packed in job)
    return f"{type!r}/{id!r}"
