"""Copies all types and jobs of one store into another, in bounded transactions.

Nobody may use either store meanwhile. The source is only read. The target must be empty, and has a mark until all is
there: a service or another copy refuses it. A copy that was cut off leaves the mark, and is begun anew.

Order: the ready jobs come first, in the order of their queues, then the others in the order of their ids.
Versionstamps cannot be copied; writing in this order gives new ones in the same order.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from jobs_service import run_data
from jobs_service.errors import JobsError, JobTooLarge, RecordDamaged, job_name, shown
from jobs_service.layer import awake_types, rows
from jobs_service.layer.batch_bounds import Batch, Pace
from jobs_service.layer.keyspace import (
    ACTIVITY_TIMEOUT,
    AFTER,
    DATA,
    DECLARED,
    PAUSED,
    PERIODIC,
    READY,
    REDACTION,
    RETENTION,
    SCHEDULES,
    STAMP_CODE,
    WATCH_ACTIVITY,
    WATCH_CANCELED,
    WATCH_PENDING,
    Keyspace,
    TypeFinder,
    TypeKeys,
    end_of_priority,
    type_in,
    unpack_id,
)
from jobs_service.layer.reads import FIRST_CHUNK, read_rows
from jobs_service.layer.record import READY as IS_READY
from jobs_service.layer.record import Record, refuse_too_large, rewritten_bytes
from jobs_service.layer.rows import MARK_BYTES, half_copied, mark_key, refuse_half_copied
from jobs_service.layer.unit_of_work import UnitOfWork, run
from jobs_service.model import JobId, JobState, JobType
from jobs_service.model.type_state import Retention
from jobs_service.sources import Sources
from jobs_service.store.base import OFFSET_BYTES, ONE, KeyValue, Store, Transaction, background

__all__ = ["Batch", "Copied", "CopiedType", "CopyProgress", "CopyRefused", "CopyStep", "copy_jobs"]

_SETTINGS: Final = (ACTIVITY_TIMEOUT, RETENTION, PERIODIC, DECLARED, REDACTION, PAUSED)
"""The sections of a type's settings, which are copied as they are."""

_TELLING: Final = (WATCH_PENDING, WATCH_ACTIVITY, WATCH_CANCELED, *_SETTINGS, SCHEDULES)
"""The sections that show every change: any change of a job gives its type a new activity stamp. Schedules
have names in place of types."""

_OF_A_USED_STORE: Final = (DATA, ACTIVITY_TIMEOUT, RETENTION, PERIODIC, REDACTION, PAUSED, SCHEDULES)
"""The sections of which an empty store has no row."""

_STAMP_LENGTH: Final = 13
"""Bytes of a versionstamp in a key: its code, the stamp, and the order within its transaction."""

_REPORT_EVERY: Final = 200

_TypeRows: TypeAlias = Mapping[tuple[int, bytes], bytes]
"""Values by section and packed type."""

_AGAIN: Final = "end the programs that use it, and copy again with --anew"


class CopyRefused(JobsError):
    """The copy is refused, or cannot go on; the message says why and what to do."""


class CopyStep(enum.StrEnum):
    """The steps of a copy, for progress."""

    LOOKING = "looking"
    """All jobs of the source are read once, to count them and to check that the target can hold them."""
    REMOVING = "removing"
    """The rows that an earlier copy has left are removed from the target."""
    COPYING = "copying"
    """Jobs are written."""
    COMPARING = "comparing"
    """The jobs of the target are counted."""


CopyProgress: TypeAlias = Callable[[CopyStep, int, int | None], object]
"""Called now and then with the step, the number of jobs (or rows to remove) done in it, and their total (None while
unknown)."""


@dataclass(slots=True)
class CopiedType:
    """Jobs of one type by state.

    Attributes:
        type: the type of the jobs.
        ready, scheduled, finished: numbers of jobs.
    """

    type: JobType
    ready: int = 0
    scheduled: int = 0
    finished: int = 0

    @property
    def jobs(self) -> int:
        """The number of jobs in all states."""
        return self.ready + self.scheduled + self.finished


@dataclass(frozen=True, slots=True)
class Copied:
    """The result of a copy.

    Attributes:
        types: numbers of copied jobs by type, types without jobs included.
        unreadable: damaged jobs of the source, left out.
        strays: entries in the source's queues without a job, left out.
    """

    types: tuple[CopiedType, ...]
    unreadable: int = 0
    strays: int = 0

    @property
    def jobs(self) -> int:
        """The number of copied jobs."""
        return sum(counts.jobs for counts in self.types)


async def copy_jobs(
    source: Store,
    target: Store,
    *,
    sources: Sources,
    make: Callable[[], Awaitable[Store]] | None = None,
    anew: bool = False,
    batch: Batch | None = None,
    progress: CopyProgress | None = None,
) -> Copied:
    """Copy all types and jobs of one store into another, which is empty; nobody may use either of them.

    Args:
        source: an open store; never written to.
        target: an open store without types and jobs.
        sources: wall-clock time, and the mark.
        make: creates and opens the target once the source has been looked through; until then `target` is an empty
            store with the same address and limits. None if the target exists.
        anew: first remove everything from a target that an earlier copy has left half done; others stay as they are.
        batch: bounds of one transaction; None for bounds that suit every store.
        progress: called now and then; see `CopyProgress`.

    Raises:
        CopyRefused: one of the stores is in use, or in the wrong state.
        JobTooLarge: a job's record or keys exceed the target's limits; nothing was written.
        StoreError: one of the stores failed, or is half a copy.
    """
    batch, report = batch or Batch(), progress or (lambda step, done, total: None)
    # A copy reads and writes whole stores: on a busy cluster other transactions come first.
    with background():
        ours = _CopySource(source, await source.prefix(), batch, report)
        theirs = _CopyTarget(target, await target.prefix(), batch, report, sources)
        await refuse_half_copied(source, ours.keyspace)
        await target.read(partial(theirs.require_fit, anew))
        await ours.require_unused(sources)
        settings = await ours.type_rows()
        types = {type for section, type in settings if section in _SETTINGS}
        counts = await ours.looked_through(theirs, types)
        if make is not None:
            made = await make()
            theirs = _CopyTarget(made, await made.prefix(), batch, report, sources)
        await theirs.begin(anew)
        await ours.copy_to(theirs, sum(each.jobs for each in counts.values()))
        await theirs.require_jobs(counts, ours.name)
        if await ours.type_rows() != settings:
            raise CopyRefused(f"{ours.name} has changed since its copy began: {_AGAIN}")
        every = sorted(types | counts.keys())
        await theirs.open_types(every, settings, await ours.outboxes())
        told = tuple(counts.get(type) or CopiedType(ours.keyspace.of_packed(type).type) for type in every)
        return Copied(told, ours.unreadable, ours.strays)


class _CopiedJob(NamedTuple):
    """One job of a store: the keys of its type there, its id, plain and packed, and its record."""

    keys: TypeKeys
    id: JobId
    packed_id: bytes
    record: Record

    @property
    def size(self) -> int:
        return rewritten_bytes(self.record, self.keys.ready_bytes + len(self.packed_id))


class _CopySide:
    """One of the two stores.

    Args:
        store: an open store.
        prefix: the prefix of the jobs' keys in it.
        batch: bounds of one transaction.
        report: see `CopyProgress`.

    Attributes:
        unreadable: damaged jobs met by the last `counts`.
    """

    def __init__(self, store: Store, prefix: bytes, batch: Batch, report: CopyProgress) -> None:
        self.store = store
        self.name = store.address
        self.keyspace = Keyspace(prefix, store.limits.key)
        self.unreadable = 0
        self.batch = batch
        self.report = report
        self.types = TypeFinder(self.keyspace)

    async def pages(self, section: int) -> AsyncIterator[list[KeyValue]]:
        """Yield the rows of a section in order, read in several bounded transactions."""
        begin = self.keyspace.sections[section]
        end, pace, last = begin + AFTER, Pace(self.batch), False
        while not last:

            async def page(size: int, begin: bytes = begin) -> tuple[list[KeyValue], bool]:
                return await self.store.read(lambda tr: read_rows(tr, begin, end, size, self.batch.bytes))

            rows, last = await pace.fitting(page)
            if rows:
                yield rows
                begin = rows[-1][0] + b"\x00"

    async def require_unused(self, sources: Sources) -> None:
        """Refuse a store that living processes use, as far as the store knows them."""
        others, after = await self.store.other_processes(), None
        living, more = (0, True) if others is None else (others[0], False)
        while more:
            found, after = await self.store.read(partial(rows.page, keyspace=self.keyspace, after=after))
            living += sum(not row.has_ended(sources.wall_time(), ()) for row in found)
            more = after is not None
        if living:
            raise CopyRefused(f"{self.name} is in use (processes: {living}): end the programs that use it, then copy")

    async def counts(
        self, step: CopyStep, total: int | None, check: Callable[[_CopiedJob], object]
    ) -> dict[bytes, CopiedType]:
        """Return the number of jobs by packed type, of those that can be read, after checking each."""
        counts: dict[bytes, CopiedType] = {}
        self.unreadable = done = 0
        async for some in self.pages(DATA):
            for job in map(self.job_at, some):
                if job is None:
                    self.unreadable += 1
                    continue
                check(job)
                of = counts.setdefault(job.keys.packed, CopiedType(job.keys.type))
                if job.record.state is JobState.FINISHED:
                    of.finished += 1
                elif job.record.place == IS_READY:
                    of.ready += 1
                else:
                    of.scheduled += 1
                done += 1
                if done % _REPORT_EVERY == 0:
                    self.report(step, done, total)
        return counts

    def job_at(self, row: KeyValue) -> _CopiedJob | None:
        """Return the job of a DATA row; None if its key or its record cannot be read."""
        key, raw = row
        try:
            keys = self.types.keys_of_data(key)
            packed_id = key[len(keys.data) :]
            id = unpack_id(packed_id)
        except Exception:  # fdb.tuple raises many kinds of errors for bytes that are no tuple
            return None
        try:
            record = Record.decode(raw, True)
            run_data.check(record.run_data)
        except RecordDamaged:
            return None
        return _CopiedJob(keys, id, packed_id, record)


class _CopySource(_CopySide):
    """The store that is copied.

    Attributes:
        strays: entries of queues without a job, met by `copy_to`.
    """

    strays = 0

    async def type_rows(self) -> _TypeRows:
        """Return all rows about types that change with any job or setting."""
        found: dict[tuple[int, bytes], bytes] = {}
        for section in _TELLING:
            start = len(self.keyspace.sections[section])
            async for some in self.pages(section):
                # A foreign row is none of a type.
                found.update({(section, key[start:]): value for key, value in some if type_in(key[start:]) is not None})
        return found

    async def outboxes(self) -> list[KeyValue]:
        """Return the rows about relayed outboxes, without the prefix of their keys."""
        begin = rows.outboxes_begin(self.keyspace)
        found = await self.store.read(lambda tr: tr.get_range(begin, begin + AFTER))
        return [(key[len(begin) :], value) for key, value in found]

    async def looked_through(self, target: _CopyTarget, types: Iterable[bytes]) -> dict[bytes, CopiedType]:
        """Return the number of jobs by packed type; refuse jobs, and packed types, that the target cannot have."""

        def check(job: _CopiedJob) -> None:
            if job.record.state is JobState.RUNNING:
                raise CopyRefused(
                    f"job {job_name(job.keys.type, job.id)} of {self.name} runs: wait until it has ended or is given "
                    "back, and end the programs that use the store"
                )
            target.require_room(job)

        for type in types:
            target.require_room_for_type(type)
        return await self.counts(CopyStep.LOOKING, None, check)

    async def copy_to(self, target: _CopyTarget, total: int) -> None:
        """Write all jobs into the target: the ready ones in the order of their queues, then the others."""
        written, size = 0, 0
        waiting: list[_CopiedJob] = []
        self.report(CopyStep.COPYING, 0, total)
        for jobs in (self._ready_jobs(), self._other_jobs()):
            async for job in jobs:
                waiting.append(job)
                size += job.size
                if len(waiting) >= self.batch.jobs or size >= self.batch.bytes:
                    written, size = await target.write(waiting, written, total), 0
                    waiting = []
        await target.write(waiting, written, total)

    async def _ready_jobs(self) -> AsyncIterator[_CopiedJob]:
        pace = Pace(self.batch, first=FIRST_CHUNK)
        async for some in self.pages(READY):
            entries = [key for key, _ in some]
            while entries:
                found = await pace.fitting(partial(self._behind, entries), measure=_measured)
                for entry, row in zip(entries, found, strict=False):
                    job = self.job_at(row)
                    if job is not None and job.record.place == IS_READY and entry == _ready_key(job):
                        yield job
                    else:
                        self.strays += 1
                entries = entries[len(found) :]

    async def _behind(self, entries: Sequence[bytes], size: int) -> list[KeyValue]:
        """Return the DATA rows of the first of these entries of READY; empty values where there is none."""
        keys = [self._data_key(entry) for entry in entries[:size]]
        raws = await self.store.read(lambda tr: tr.get_many(keys))
        return [(key, raw or b"") for key, raw in zip(keys, raws, strict=True)]

    def _data_key(self, entry: bytes) -> bytes:
        try:
            keys = self.types.keys_of(entry[len(self.keyspace.sections[READY]) :])
            return keys.data + entry[end_of_priority(keys, entry) + _STAMP_LENGTH :]
        except Exception:  # fdb.tuple raises many kinds of errors for bytes that are no tuple
            return self.keyspace.sections[DATA] + AFTER  # where there is nothing

    async def _other_jobs(self) -> AsyncIterator[_CopiedJob]:
        async for some in self.pages(DATA):
            for job in map(self.job_at, some):
                if job is not None and job.record.place != IS_READY:
                    yield job


class _CopyTarget(_CopySide):
    """The store that gets the jobs.

    Args:
        store, prefix, batch, report: as for every side.
        sources: wall-clock time, and the mark.
    """

    def __init__(self, store: Store, prefix: bytes, batch: Batch, report: CopyProgress, sources: Sources) -> None:
        super().__init__(store, prefix, batch, report)
        self._sources = sources
        self._mark = sources.token(MARK_BYTES)
        self._pace = Pace(batch)

    async def require_fit(self, anew: bool, transaction: Transaction) -> bool:
        """Return whether the store has a mark; refuse one that is neither empty nor to be copied to anew."""
        if await transaction.get(mark_key(self.keyspace)) is not None:
            if anew:
                return True
            raise half_copied(self.name)
        for section in _OF_A_USED_STORE:
            begin = self.keyspace.sections[section]
            if await transaction.get_range(begin, begin + AFTER, limit=1):
                raise CopyRefused(f"{self.name} is not empty, it has jobs or types: name an empty store")
        return False

    def require_room(self, job: _CopiedJob) -> None:
        """Check that a job's record and keys fit into the store, in every state.

        Raises:
            JobTooLarge: they do not.
        """
        keys = self.keyspace.of_packed(job.keys.packed)
        record = job.record.with_next(job.record.next)
        record.fit(self.store.limits.value - OFFSET_BYTES)
        refuse_too_large(self.store.limits, keys, job.id, job.packed_id, record, f"the limit of {self.name}")

    def require_room_for_type(self, packed: bytes) -> None:
        """Check that the keys of a type fit into the store.

        Raises:
            JobTooLarge: they do not.
        """
        keys = self.keyspace.of_packed(packed)
        if len(keys.retention) > self.store.limits.key:
            raise JobTooLarge(
                f"type {shown(keys.type)} makes a key of {len(keys.retention)} bytes; the limit of {self.name} is "
                f"{self.store.limits.key}"
            ).about(keys.type)

    async def begin(self, anew: bool) -> None:
        """Set the mark, and remove what an earlier copy has left.

        A process that uses the store is known before it looks for the mark. So it sees the mark, or is seen here.
        """

        async def mark(transaction: Transaction) -> bool:
            was_marked = await self.require_fit(anew, transaction)
            transaction.set(mark_key(self.keyspace), self._mark)
            return was_marked

        was_marked = await self.store.transact(mark)
        try:
            await self.require_unused(self._sources)
        except CopyRefused:
            if not was_marked:
                await self._end()
            raise
        if was_marked:
            await self._clear()

    async def _clear(self) -> None:
        """Remove all rows of jobs and types but the mark."""
        begin, end = self.keyspace.sections[DATA], self.keyspace.sections[-1] + AFTER
        pace, removed, last = Pace(self.batch), 0, False

        async def remove(size: int) -> tuple[int, bool]:
            async def work(transaction: Transaction) -> tuple[int, bool]:
                await self._require_mark(transaction)
                rows, last = await read_rows(transaction, begin, end, size, self.batch.bytes)
                if rows:
                    transaction.clear_range(begin, rows[-1][0] + b"\x00")
                transaction.set(mark_key(self.keyspace), self._mark)
                return len(rows), last

            return await self.store.transact(work)

        while not last:
            count, last = await pace.fitting(remove)
            removed += count
            self.report(CopyStep.REMOVING, removed, None)

    async def write(self, jobs: Sequence[_CopiedJob], written: int, total: int) -> int:
        """Write jobs in order; return the number of all jobs written, `written` of them before."""
        await self._pace.through(jobs, lambda job: job.size, self._write)
        self.report(CopyStep.COPYING, written + len(jobs), total)
        return written + len(jobs)

    async def _write(self, jobs: Sequence[_CopiedJob]) -> None:
        places = [(self.keyspace.of_packed(job.keys.packed), job.id, job.packed_id) for job in jobs]

        async def work(unit: UnitOfWork) -> None:
            await self._require_mark(unit.transaction)
            await unit.prefetch(places)
            for place, job in zip(places, jobs, strict=True):
                entry = await unit.load(place)
                if entry.record is not None:
                    name = job_name(place[0].type, job.id)
                    raise CopyRefused(f"job {name} is in {self.name} already; one of the stores is in use: {_AGAIN}")
                unit.take_over(entry, _moved(unit, job.record))
            # For programs that had opened the store before it got the mark.
            for keys in {place[0] for place in places}:
                unit.transaction.set(keys.paused, b"")

        await self.store.transact(lambda tr: run(tr, self.keyspace, self._sources, work))

    async def require_jobs(self, wanted: Mapping[bytes, CopiedType], source: str) -> None:
        """Refuse a target that has not as many jobs of each type and state as its source."""
        total = sum(counts.jobs for counts in wanted.values())
        found = await self.counts(CopyStep.COMPARING, total, lambda job: None)
        self.report(CopyStep.COMPARING, total, total)
        for type in wanted.keys() | found.keys():
            if wanted.get(type) != found.get(type):
                name = shown(self.keyspace.of_packed(type).type)
                raise CopyRefused(f"{self.name} has not as many jobs of type {name} as {source}: {_AGAIN}")

    async def open_types(self, types: Sequence[bytes], rows: _TypeRows, outboxes: Sequence[KeyValue]) -> None:
        """Set the settings of the types and the schedules, then remove the mark.

        Args:
            types: packed types.
            rows: of the source's types.
            outboxes: rows about outboxes: a row of a database that was moved, and not removed there, is not moved anew.
        """

        def size_of(type: bytes) -> int:
            return sum(len(type) + len(rows.get((section, type), b"")) for section in _SETTINGS)

        await self._pace.through(types, size_of, partial(self._open, rows))
        schedules = {name: value for (section, name), value in rows.items() if section == SCHEDULES}
        await self._pace.through(
            [*schedules], lambda name: len(name) + len(schedules[name]), partial(self._schedule, schedules)
        )
        await self._end(outboxes)

    async def _open(self, rows: _TypeRows, types: Sequence[bytes]) -> None:
        async def work(unit: UnitOfWork) -> None:
            transaction = unit.transaction
            await self._require_mark(transaction)
            for type in types:
                keys = self.keyspace.of_packed(type)
                transaction.clear(keys.paused)
                retention = rows.get((RETENTION, type))
                if retention is not None and Retention.decode(retention).lets_leave:
                    await unit.tell_of_leaving(keys)
                for section in _SETTINGS:
                    value = rows.get((section, type))
                    if value is not None:
                        transaction.set(self.keyspace.sections[section] + type, value)
                # Wakes the accepts that wait for jobs of the type.
                transaction.add(keys.watch_pending, ONE)

        await self.store.transact(lambda tr: run(tr, self.keyspace, self._sources, work))

    async def _schedule(self, schedules: Mapping[bytes, bytes], some: Sequence[bytes]) -> None:
        async def work(transaction: Transaction) -> None:
            await self._require_mark(transaction)
            section = self.keyspace.sections[SCHEDULES]
            for name in some:
                transaction.set(section + name, schedules[name])
            transaction.add(section, ONE)
            await awake_types.mark_schedules(transaction, self.keyspace, whether=True)

        await self.store.transact(work)

    async def _end(self, outboxes: Sequence[KeyValue] = ()) -> None:
        async def work(transaction: Transaction) -> None:
            await self._require_mark(transaction)
            for name, value in outboxes:
                transaction.set(rows.outboxes_begin(self.keyspace) + name, value)
            transaction.clear(mark_key(self.keyspace))

        await self.store.transact(work)

    async def _require_mark(self, transaction: Transaction) -> None:
        if await transaction.get(mark_key(self.keyspace)) != self._mark:
            raise CopyRefused(f"another process copies jobs to {self.name}: it goes on, this one has ended")


def _measured(rows: Sequence[KeyValue]) -> tuple[int, int]:
    return len(rows), sum(len(key) + len(value) for key, value in rows)


def _ready_key(job: _CopiedJob) -> bytes:
    record = job.record
    assert isinstance(record.seq, bytes)
    return job.keys.ready + record.priority + STAMP_CODE + record.seq + job.packed_id


def _moved(unit: UnitOfWork, record: Record) -> Record:
    """Return the record for another store, where it comes last of its queue."""
    seq = unit.new_seq()
    if record.outcome is not None:
        return record.finished(seq, record.outcome)
    return record.pending(record.place, seq, record.priority, record.run_at)
