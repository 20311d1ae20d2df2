"""The source of a copy: reads its jobs page by page, and detects changes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import Final, TypeAlias

from jobs_service import run_data
from jobs_service.copying.note import Phase, note_key
from jobs_service.copying.results import CopyRefused, Counts
from jobs_service.copying.rows import Stream
from jobs_service.errors import RecordDamaged, job_name, shown
from jobs_service.layer.batch_bounds import Batch, Pace, Room
from jobs_service.layer.key_parts import AFTER, STAMP_CODE, type_in, unpack_id
from jobs_service.layer.keyspace import (
    ACTIVITY,
    ACTIVITY_TIMEOUT,
    DATA,
    DECLARED,
    PAUSED,
    PERIODIC,
    READY,
    REDACTION,
    RETENTION,
    WATCH_ACTIVITY,
    WATCH_CANCELED,
    WATCH_PENDING,
    Keyspace,
    TypeFinder,
    TypeKeys,
    end_of_priority,
)
from jobs_service.layer.listing import FIRST_CHUNK, LARGEST_CHUNK, read_rows
from jobs_service.layer.record import Record
from jobs_service.layer.record_format import READY as IS_READY
from jobs_service.model import JobId, JobState
from jobs_service.model.type_state import FOR_EVER, Retention
from jobs_service.store.base import Snapshot, Store, Transaction

_FINGERPRINTED: Final = (
    WATCH_PENDING,
    WATCH_ACTIVITY,
    ACTIVITY_TIMEOUT,
    WATCH_CANCELED,
    PAUSED,
    RETENTION,
    PERIODIC,
    DECLARED,
    REDACTION,
)
"""The sections that show every change: any change of a job gives its type a new activity stamp."""

SECTIONS: Final = {Phase.RUNNING: ACTIVITY, Phase.READY: READY, Phase.REST: DATA}
"""The section that each phase of copying jobs reads."""

STAMP_LENGTH: Final = 13
"""Bytes of a versionstamp in a key: its code, the stamp, and the order within its transaction."""

_DIGEST_BYTES: Final = 16


_Row: TypeAlias = tuple[bytes, bytes, bytes]
"""The key read in the phase's section, the job's DATA key, and its record as stored."""


@dataclass(slots=True)
class TypeSettings:
    """The settings of one type: values as stored, None for unset ones.

    Attributes:
        timeout: the activity timeout.
        retention: how long finished jobs are kept.
        periodic: the last tick of its periodic jobs.
        declared: the settings declared by programs.
        redaction: the secret fields of its jobs.
        paused: whether accepting its jobs is paused.
    """

    timeout: bytes | None = None
    retention: bytes | None = None
    periodic: bytes | None = None
    declared: bytes | None = None
    redaction: bytes | None = None
    paused: bool = False

    def keep(self) -> Retention:
        """Return how long finished jobs are kept."""
        return FOR_EVER if self.retention is None else Retention.decode(self.retention)


@dataclass(slots=True)
class Overview:
    """The types of a store, and a fingerprint that detects changes.

    Attributes:
        fingerprint: a digest of all rows that change with any job or type.
        activity: activity stamps by packed type.
        settings: settings by packed type.
    """

    fingerprint: str = ""
    activity: dict[bytes, bytes] = field(default_factory=dict)
    settings: dict[bytes, TypeSettings] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Found:
    """One job of the source.

    Attributes:
        type: the packed type.
        id, packed_id: the id, plain and packed.
        record: the record.
    """

    type: bytes
    id: JobId
    packed_id: bytes
    record: Record


@dataclass(frozen=True, slots=True)
class Page:
    """Some jobs in the order for writing them.

    Attributes:
        jobs: the jobs; may be empty although more follow.
        last: the last key read, without the section's prefix; empty if there was none.
        more: whether there are more.
    """

    jobs: Sequence[Found]
    last: bytes
    more: bool


class Source:
    """The store that a copy reads.

    Args:
        store: an open store.
        prefix: the prefix of the jobs' keys in it.
        batch: bounds of one transaction.
    """

    def __init__(self, store: Store, prefix: bytes, batch: Batch) -> None:
        self.store = store
        self.name = store.address
        self.keyspace = Keyspace(prefix, store.limits.key)
        self._batch = batch
        self._types = TypeFinder(self.keyspace)

    def stream(self, section: int) -> Stream:
        """Return all rows of a section."""
        begin = self.keyspace.sections[section]
        return Stream(self.store, begin, begin + AFTER, Pace(self._batch))

    async def is_complete(self) -> bool:
        """Return whether the store is not the target of an unfinished copy."""
        return await self.store.read(lambda tr: tr.get(note_key(self.keyspace))) is None

    async def overview(self) -> Overview:
        """Read the overview of the store's types."""
        overview = Overview()
        digest = blake2b(digest_size=_DIGEST_BYTES)
        for section in _FINGERPRINTED:
            start = len(self.keyspace.sections[section])
            rows = self.stream(section)
            while (row := await rows.next()) is not None:
                packed, value = row[0][start:], row[1]
                digest.update(b"%d %d %d " % (section, len(packed), len(value)) + packed + value)
                if type_in(packed) is not None:  # a foreign row is no setting of a type
                    _take(overview, section, packed, value)
        overview.fingerprint = digest.hexdigest()
        return overview

    async def running_job(self) -> str | None:
        """Return the name of a running job, None if none runs; an ACTIVITY entry without such a job does not count."""
        pace = Pace(self._batch)
        after, more = b"", True
        while more:
            page = await pace.fitting(partial(self.page, Phase.RUNNING, after, unchanged=None))
            for job in page.jobs:
                return job_name(self.keyspace.of_packed(job.type).type, job.id)
            after, more = page.last, page.more
        return None

    def job_at(self, key: bytes, raw: bytes) -> Found:
        """Return the job of a DATA row.

        Raises:
            RecordDamaged: its record or its key cannot be read.
        """
        rest = key[len(self.keyspace.sections[DATA]) :]
        try:
            keys = self._types.keys_of(rest)
            packed_id = key[len(keys.data) :]
            id = unpack_id(packed_id)
        except Exception:  # fdb.tuple raises many kinds of errors for bytes that are no tuple
            raise RecordDamaged(f"{self.name}: the key {shown(rest)} names no job") from None
        try:
            record = Record.decode(raw, True)
            run_data.check(record.run_data)
        except RecordDamaged as error:
            what = f"job {job_name(keys.type, id)} of {self.name}: {error}"
            raise RecordDamaged(what, type=keys.type, id=id) from None
        return Found(keys.packed, id, packed_id, record)

    def _readable(self, rows: Iterable[_Row], unchanged: Overview | None) -> list[tuple[bytes, Found]]:
        """Decode the jobs of DATA rows; skip damaged ones if the source may be in use."""
        jobs: list[tuple[bytes, Found]] = []
        for key, data_key, raw in rows:
            try:
                jobs.append((key, self.job_at(data_key, raw)))
            except RecordDamaged:
                if unchanged is not None:
                    raise
        return jobs

    async def page(self, phase: Phase, after: bytes, size: int, unchanged: Overview | None) -> Page:
        """Return the next jobs of a phase.

        Args:
            phase: RUNNING, READY or REST.
            after: `last` of the previous page; empty for the first one.
            size: the largest number of entries to read.
            unchanged: the overview that must still hold for the types; None if they may change.

        Raises:
            CopyRefused: a type of the page has changed.
        """
        section = self.keyspace.sections[SECTIONS[phase]]
        most_bytes = self._batch.bytes

        async def read(transaction: Transaction) -> Page:
            begin = section + after + (b"\x00" if after else b"")
            rows, last = await read_rows(transaction, begin, section + AFTER, size, most_bytes)
            if phase is Phase.REST:
                read = len(rows)
                jobs = self._readable([(key, key, raw) for key, raw in rows], unchanged)
            else:
                found, read = await self._indexed(transaction, phase, rows)
                jobs = self._readable(found, unchanged)
            if unchanged is not None:
                await self._require_unchanged(transaction, [job for _, job in jobs], unchanged)
            more = read < len(rows) or not last
            belonging = [
                job
                for key, job in jobs
                if _belongs(job.record, phase, unchanged is not None)
                and (phase is not Phase.READY or key == self._ready_key(job))
            ]
            return Page(belonging, rows[read - 1][0][len(section) :] if read else b"", more)

        return await self.store.read(read)

    async def _indexed(
        self, transaction: Snapshot, phase: Phase, rows: Sequence[tuple[bytes, bytes]]
    ) -> tuple[list[_Row], int]:
        """Return the DATA rows of index entries, as many as fit into a page, and the number of entries read."""
        room = Room(self._batch.bytes)
        jobs: list[_Row] = []
        read = 0
        chunk = FIRST_CHUNK
        while read < len(rows):
            entries = rows[read : read + chunk]
            keys = [self._data_key(phase, key, value) for key, value in entries]
            for (index_key, _), key, raw in zip(entries, keys, await transaction.get_many(keys), strict=True):
                if not room.takes(len(key) + len(raw or b"")):
                    return jobs, read
                read += 1
                if raw is not None:
                    jobs.append((index_key, key, raw))
            chunk = min(2 * chunk, LARGEST_CHUNK)
        return jobs, read

    def _data_key(self, phase: Phase, key: bytes, value: bytes) -> bytes:
        """Return the DATA key of an index entry's job; an unused key if the entry does not parse."""
        try:
            keys = self._types.keys_of(key[len(self.keyspace.sections[SECTIONS[phase]]) :])
            return keys.data + (value if phase is Phase.RUNNING else key[end_of_priority(keys, key) + STAMP_LENGTH :])
        except Exception:  # fdb.tuple raises many kinds of errors for bytes that are no tuple
            return self.keyspace.sections[DATA] + AFTER

    def _ready_key(self, job: Found) -> bytes:
        record = job.record
        assert isinstance(record.seq, bytes)
        return self.keyspace.of_packed(job.type).ready + record.priority + STAMP_CODE + record.seq + job.packed_id

    async def is_stray(self, key: bytes) -> bool:
        """Return whether a READY entry belongs to no ready job; accepting jobs removes such entries."""
        data_key = self._data_key(Phase.READY, key, b"")
        raw = await self.store.read(lambda transaction: transaction.get(data_key))
        try:
            job = None if raw is None else self.job_at(data_key, raw)
        except RecordDamaged:
            return True
        return job is None or job.record.place != IS_READY or key != self._ready_key(job)

    def place_in_queue(self, key: bytes) -> tuple[bytes, bytes]:
        """Return the parts of a READY key before and after its versionstamp, without the section's prefix."""
        section = len(self.keyspace.sections[READY])
        stamp = end_of_priority(self._types.keys_of(key[section:]), key)
        return key[section:stamp], key[stamp + STAMP_LENGTH :]

    async def _require_unchanged(self, transaction: Snapshot, jobs: Sequence[Found], unchanged: Overview) -> None:
        types = list(dict.fromkeys(job.type for job in jobs))
        stamps = await transaction.get_many([self.keyspace.of_packed(type).watch_activity for type in types])
        for type, stamp in zip(types, stamps, strict=True):
            if stamp != unchanged.activity.get(type):
                raise changed(self.name, self.keyspace.of_packed(type))


def changed(name: str, keys: TypeKeys | None = None) -> CopyRefused:
    """Return the error for a source that has changed since the copy began."""
    what = "" if keys is None else f" (jobs of type {shown(keys.type)})"
    return CopyRefused(
        f"{name} has changed since its copy began{what}: end the programs that use it and copy again with "
        "--start-over, or go on with --force"
    )


def counted(counts: dict[bytes, Counts], keyspace: Keyspace, job: Found) -> None:
    """Count a job under its type."""
    own = counts.get(job.type)
    if own is None:
        own = counts[job.type] = Counts(keyspace.of_packed(job.type).type)
    own.add(job.record)


def _belongs(record: Record, phase: Phase, unchanged: bool) -> bool:
    """Return whether a phase copies a job.

    Args:
        record: the record of the job.
        phase: the current one.
        unchanged: whether the source is the same as in the earlier phases.
    """
    if phase is Phase.RUNNING:
        return record.state is JobState.RUNNING
    if phase is Phase.READY:
        return record.place == IS_READY
    return not unchanged or record.place != IS_READY


def _take(overview: Overview, section: int, packed: bytes, value: bytes) -> None:
    """Add one row of a section to an overview."""
    if section == WATCH_ACTIVITY:
        overview.activity[packed] = value
    elif section in (ACTIVITY_TIMEOUT, PAUSED, RETENTION, PERIODIC, DECLARED, REDACTION):
        settings = overview.settings.setdefault(packed, TypeSettings())
        if section == ACTIVITY_TIMEOUT:
            settings.timeout = value
        elif section == RETENTION:
            settings.retention = value
        elif section == PERIODIC:
            settings.periodic = value
        elif section == DECLARED:
            settings.declared = value
        elif section == REDACTION:
            settings.redaction = value
        else:
            settings.paused = True
