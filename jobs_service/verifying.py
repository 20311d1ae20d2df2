"""Looks for rows of jobs that do not belong together, as after a change by hand in the file of a store.

Any store may be looked at, also while it is in use: each page of rows is read with all that belongs to it in one state.
It checks the promises of docs/layout.md: the rows that a job has, no other ones, and counts that are right.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias, TypeVar

from jobs_service.errors import RecordDamaged, StoreDamaged
from jobs_service.layer import counters
from jobs_service.layer.batch_bounds import Batch, Pace
from jobs_service.layer.keyspace import (
    ACTIVITY,
    AFTER,
    ALARM,
    ASLEEP,
    COUNTS,
    DATA,
    EXPIRING,
    FAILED,
    READY,
    RETRYING,
    SCHEDULED,
    TIME_BYTES,
    Keyspace,
    TypeFinder,
    TypeKeys,
    is_id,
    unpack_id,
    unpack_seconds,
)
from jobs_service.layer.reads import head_of, id_in, read_rows, seq_of
from jobs_service.layer.record import READY as IS_READY
from jobs_service.layer.record import Entry, Record, write_index
from jobs_service.model.type_state import TypeCounts
from jobs_service.names import shown
from jobs_service.run_data import crashed_last, expires_at
from jobs_service.store.base import STAMP_BYTES, KeyValue, Store, Transaction, background

T = TypeVar("T")

_INDEXES: Final = {
    READY: ("READY", b"r"),
    SCHEDULED: ("SCHEDULED", b"s"),
    ACTIVITY: ("ACTIVITY", b"a"),
    EXPIRING: ("EXPIRING", b"e"),
    FAILED: ("FAILED", b"f"),
    RETRYING: ("RETRYING", b"t"),
}
"""By section, its name in docs/layout.md and its order in `layer.reads`."""

_LANES: Final = ("ready", "scheduled", "running", "succeeded", "failed", "canceled", "retrying", "retrying")
"""The name of each lane of the counts in `TypeCounts`."""

_ROWS_AT_ONCE: Final = 2_000


@dataclass(slots=True)
class _Type:
    """A type, as far as a page of jobs, or several, tell of it.

    Attributes:
        keys: of the type.
        first, last: its row of COUNTS at the beginning and the end of these pages.
        states: its jobs by the names of `_LANES`.
        unreadable: its jobs whose records cannot be read: they are counted in an unknown state, or no longer.
        faults: of the type, each once.
    """

    keys: TypeKeys
    first: bytes | None
    last: bytes | None
    states: Counter[str] = field(default_factory=Counter)
    unreadable: int = 0
    faults: dict[str, None] = field(default_factory=dict)


_Page: TypeAlias = tuple[list[_Type], list[str]]
"""The types of a page of jobs, in their order, and the faults of the jobs."""


class Verification:
    """One look at the rows of all jobs.

    Args:
        store: an open store.
        prefix: of the jobs' keys.
        batch: bounds of one page; None for bounds that suit the store.

    Attributes:
        jobs, types: numbers of those that were checked.
        moving: types whose counts changed while their jobs were counted, so that they could not be compared.
    """

    def __init__(self, store: Store, prefix: bytes, batch: Batch | None = None) -> None:
        self.jobs = self.types = self.moving = 0
        self._store = store
        self._keyspace = Keyspace(prefix, store.limits.key)
        self._batch = batch or Batch.of(store.limits, jobs=_ROWS_AT_ONCE)

    async def faults(self) -> AsyncIterator[str]:
        """Yield a line for each fault.

        Raises:
            StoreError: the store fails, or is so damaged that it cannot be read.
        """
        with background():
            async for fault in self._of_jobs():
                yield fault
            looks = [(section, self._entries_without_job(section)) for section in _INDEXES]
            looks += [
                (COUNTS, self._counts_without_jobs),
                (ASLEEP, self._without_alarm),
                (ALARM, self._without_sleeper),
            ]
            for section, look in looks:
                async for found in self._pages(section, look):
                    for fault in found:
                        yield fault

    async def _pages(
        self, section: int, look: Callable[[Transaction, Sequence[KeyValue]], Awaitable[T]]
    ) -> AsyncIterator[T]:
        """Yield what a look at each page of a section finds; the look may read more in the same state."""
        begin = self._keyspace.sections[section]
        end, pace, last = begin + AFTER, Pace(self._batch), False
        while not last:

            async def page(size: int, begin: bytes = begin) -> tuple[list[KeyValue], bool, T]:
                async def read(transaction: Transaction) -> tuple[list[KeyValue], bool, T]:
                    rows, last = await read_rows(transaction, begin, end, size, self._batch.bytes)
                    return rows, last, await look(transaction, rows)

                return await self._store.read(read)

            rows, last, found = await pace.fitting(page)
            yield found
            if rows:
                begin = rows[-1][0] + b"\x00"

    # Jobs, with the rows that they must have

    async def _of_jobs(self) -> AsyncIterator[str]:
        present: _Type | None = None
        async for types, faults in self._pages(DATA, self._look_at_jobs):
            for fault in faults:
                yield fault
            for found in types:
                if present is not None and present.keys == found.keys:
                    present.last = found.last
                    present.states += found.states
                    present.unreadable += found.unreadable
                    present.faults |= found.faults
                    continue
                if present is not None:
                    for fault in self._of_type(present):
                        yield fault
                present = found
        if present is not None:
            for fault in self._of_type(present):
                yield fault

    def _of_type(self, found: _Type) -> Iterator[str]:
        self.types += 1
        self.jobs += found.states.total() + found.unreadable
        yield from found.faults
        if found.first != found.last:
            self.moving += 1
            return
        yield from _wrong_counts(found.keys, found.last, found.states, found.unreadable)

    async def _look_at_jobs(self, transaction: Transaction, rows: Sequence[KeyValue]) -> _Page:
        finder = TypeFinder(self._keyspace)
        types: dict[TypeKeys, _Type] = {}
        faults: list[str] = []
        entries: dict[TypeKeys, list[Entry]] = {}
        for key, raw in rows:
            try:
                keys = finder.keys_of_data(key)
                packed_id = key[len(keys.data) :]
                id = unpack_id(packed_id)
                if not is_id(packed_id):
                    raise ValueError
            except Exception:  # fdb.tuple raises many kinds of errors for bytes that are no tuple
                faults.append(f"DATA has a key of no job: {key.hex()}")
                continue
            if keys not in types:
                counts = await transaction.get(keys.counts)
                types[keys], entries[keys] = _Type(keys, counts, counts), []
            try:
                entry = Entry(keys, id, packed_id, raw)
                types[keys].states[_LANES[counters.lane_of(_record(entry))]] += 1
                entries[keys].append(entry)
            except RecordDamaged as error:
                types[keys].unreadable += 1
                faults.append(f"{_job(keys, packed_id)} is unreadable: {error}")
        for keys, some in entries.items():
            types[keys].faults |= dict.fromkeys(await _faults_of_type(transaction, keys, [*map(_record, some)]))
        faults += await _missing(transaction, [entry for some in entries.values() for entry in some])
        return [*types.values()], faults

    # Rows without a job

    def _entries_without_job(self, section: int) -> Callable[[Transaction, Sequence[KeyValue]], Awaitable[list[str]]]:
        name, order = _INDEXES[section]

        async def look(transaction: Transaction, rows: Sequence[KeyValue]) -> list[str]:
            finder, start = TypeFinder(self._keyspace), len(self._keyspace.sections[section])
            faults: list[str] = []
            found: list[tuple[bytes, TypeKeys, bytes]] = []
            for row in rows:
                try:
                    keys = finder.keys_of(row[0][start:])
                except Exception:  # fdb.tuple raises many kinds of errors for bytes that are no tuple
                    keys = None
                id = None if keys is None or not row[0].startswith(head_of(keys, order)) else id_in(keys, order, row)
                if keys is None or id is None:
                    faults.append(f"{name} has a row of no job: {row[0].hex()}")
                else:
                    found.append((row[0], keys, id))
            raws = await transaction.get_many([keys.data + id for _, keys, id in found])
            for (key, keys, id), raw in zip(found, raws, strict=True):
                try:
                    if raw is None or key not in _rows_of(Entry(keys, unpack_id(id), id, raw)):
                        why = "which does not exist" if raw is None else "which is not in that place"
                        faults.append(f"{name} has a row of {_job(keys, id)}, {why}")
                except RecordDamaged:  # it was told with the jobs
                    continue
            return faults

        return look

    async def _counts_without_jobs(self, transaction: Transaction, rows: Sequence[KeyValue]) -> list[str]:
        faults: list[str] = []
        for key, row in rows:
            keys = self._keyspace.found(key[len(self._keyspace.sections[COUNTS]) :])
            if keys is None:
                faults.append(f"COUNTS has a row of no type: {key.hex()}")
            elif not await transaction.get_range(keys.data, keys.data + AFTER, limit=1):
                faults += _wrong_counts(keys, row, Counter(), 0)
        return faults

    async def _without_alarm(self, transaction: Transaction, rows: Sequence[KeyValue]) -> list[str]:
        start = len(self._keyspace.sections[ASLEEP])
        alarms = [self._keyspace.sections[ALARM] + time + key[start:] for key, time in rows]
        found = await transaction.get_many(alarms)
        types = [key[start:] for (key, _), alarm in zip(rows, found, strict=True) if alarm is None]
        return [f"{self._named(type)} is in ASLEEP, but its row in ALARM is missing" for type in types]

    async def _without_sleeper(self, transaction: Transaction, rows: Sequence[KeyValue]) -> list[str]:
        start = len(self._keyspace.sections[ALARM])
        alarms = [(key[start : start + TIME_BYTES], key[start + TIME_BYTES :]) for key, _ in rows]
        found = await transaction.get_many([self._keyspace.sections[ASLEEP] + type for _, type in alarms])
        types = [type for (time, type), asleep in zip(alarms, found, strict=True) if asleep != time]
        return [f"{self._named(type)} has a row in ALARM, but none of that time in ASLEEP" for type in types]

    def _named(self, packed: bytes) -> str:
        keys = self._keyspace.found(packed)
        return f"the type packed as {packed.hex()}" if keys is None else f"type {shown(keys.type)}"


class _Rows(dict[bytes, bytes]):
    """Takes the rows that a job writes."""

    def set(self, key: bytes, value: bytes) -> None:
        self[key] = value


def _record(entry: Entry) -> Record:
    assert entry.record is not None
    return entry.record


def _rows_of(entry: Entry) -> _Rows:
    """Return the rows that a job must have in indexes."""
    rows, record = _Rows(), _record(entry)
    write_index(rows, entry, record)
    if record.place and crashed_last(record.run_data):
        rows.set(entry.keys.retrying + entry.packed_id, b"")
    return rows


async def _missing(transaction: Transaction, entries: Sequence[Entry]) -> list[str]:
    wanted = [(entry, key, value) for entry in entries for key, value in _rows_of(entry).items()]
    found = await transaction.get_many([key for _, key, _ in wanted])
    faults = []
    for (entry, key, value), stored in zip(wanted, found, strict=True):
        if stored != value:
            name = next(name for name, order in _INDEXES.values() if key.startswith(head_of(entry.keys, order)))
            how = "is missing" if stored is None else "has another value"
            faults.append(f"{_job(entry.keys, entry.packed_id)}: its row in {name} {how}")
    return faults


async def _faults_of_type(transaction: Transaction, keys: TypeKeys, records: Sequence[Record]) -> list[str]:
    """Return what a type lacks for some of its jobs: who waits must hear of them, and monitors watch over them."""
    of_type = keys.watch_pending, keys.watch_activity, keys.awake, keys.asleep
    pending, activity, awake, asleep = await transaction.get_many(of_type)
    until = math.inf if asleep is None else unpack_seconds(asleep)
    due = [-math.inf if record.lock is not None else _due(record) for record in records]
    latest = max((seq_of(record)[:STAMP_BYTES] for record in records), default=b"")
    name = f"type {shown(keys.type)}"
    faults = [f"{name} has jobs, but no row in WATCH_PENDING"] if pending is None else []
    if activity is None or latest > activity:
        faults.append(
            f"{name}: its row in WATCH_ACTIVITY is {'missing' if activity is None else 'older than its jobs'}"
        )
    if awake is None and until > min(due, default=math.inf):
        faults.append(f"{name} has jobs to be watched over, but is not in AWAKE, nor early enough in ASLEEP")
    return faults


def _due(record: Record) -> float:
    """Return when a monitor has something to do for a job."""
    time = expires_at(record.run_data) if record.outcome is not None else record.run_at
    return math.inf if time is None or record.place == IS_READY else time


def _wrong_counts(keys: TypeKeys, row: bytes | None, states: Counter[str], unreadable: int) -> Iterator[str]:
    name = f"type {shown(keys.type)}"
    try:
        counts = TypeCounts() if row is None else counters.decoded(row)
    except StoreDamaged as error:
        yield f"{name}: {error}"
        return
    told = {state: getattr(counts, state) for state in dict.fromkeys(_LANES)}
    if sum(abs(told[state] - states[state]) for state in told) > unreadable:
        wrong = [f"{told[state]} {state}, not {states[state]}" for state in told if told[state] != states[state]]
        yield f"{name}: COUNTS says {'; '.join(wrong)}"


def _job(keys: TypeKeys, packed_id: bytes) -> str:
    return f"job {shown(unpack_id(packed_id))} of type {shown(keys.type)}"
