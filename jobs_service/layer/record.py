"""A job as the store has it: its record with the moves from one state to the next, its index entries and its size.

The bytes are a fixed head, then the optional fields, then the JSON, which is decoded on demand. With CPython 3.11
packing takes half a microsecond and unpacking as much; the same fields as a tuple-layer tuple take 9.0 and 8.3.
Integers are big-endian:

| offset | bytes | field                                                                                             |
|--------|-------|---------------------------------------------------------------------------------------------------|
| 0      | 1     | format version: 1                                                                                 |
| 1      | 1     | flags: 1 running (a lock follows), 2 ready, 4 scheduled, 8 resubmit, 16 cancel;                    |
|        |       | bits 5 and 6: outcome (0 none, 1 succeeded, 2 failed, 3 canceled); 128 run data                 |
| 2      | 12    | seq: 10 bytes versionstamp, 2 bytes order within the transaction                                  |
| 14     | 8     | run_at, a double: seconds since the epoch; NaN for none                                           |
| 22     | 2     | p: length of the priority                                                                         |
| 24     | p     | priority, as the tuple layer packs it                                                             |
|        | 16    | lock, if running: random, behind the id of the store's instance (8) if it has one                  |
|        | 10+q  | if resubmit: the next run's run_at (8), q (2) and priority (q)                                    |
|        | 4+n   | if run data: n (4) and the run data (jobs_service/run_data.py)                                    |
|        | rest  | data as JSON, UTF-8; nothing for None                                                             |

The module has more than 600 lines because the bytes, their index entries and their sizes follow from each other.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

from jobs_service import run_data
from jobs_service.arguments import EARLIEST, LATEST
from jobs_service.errors import JobTooLarge, RecordDamaged, job_name
from jobs_service.layer.keyspace import STAMP_CODE, ZERO_PRIORITY, Place, TypeKeys, is_priority, pack_seconds
from jobs_service.model import Enqueued, Job, JobId, JobState, Outcome, Priority, RunningJob, Worker, unpack_priority
from jobs_service.run_data import HEAD_BYTES
from jobs_service.store.base import LONGEST_STAMPED_KEY, OFFSET_BYTES, STAMP_BYTES, CommitStamp, Limits, Transaction

VERSION: Final = 1
LOCK_BYTES: Final = 16

RUNNING: Final = 1
READY: Final = 2
SCHEDULED: Final = 4
RESUBMIT: Final = 8
CANCEL: Final = 16
RUN_DATA: Final = 128
OUTCOME_SHIFT = 5
PLACE = READY | SCHEDULED

HEAD = struct.Struct(">BB12sdH")
AFTER_STAMP = struct.Struct(">2sdH")
BEFORE_STAMP: Final = tuple(bytes((VERSION, flags)) for flags in range(256))
"""Version and flags as bytes, by flags: a lookup takes 10 ns, making them 60."""

NEXT = struct.Struct(">dH")
SIZE = struct.Struct(">I")
_AFTER_HEAD: Final = HEAD.size
_SIZE_BYTES: Final = SIZE.size
FIXED: Final = HEAD.size + LOCK_BYTES + NEXT.size + SIZE.size
LARGEST_HEAD: Final = FIXED + HEAD_BYTES
"""Most bytes in `Record.size` beside twice the bytes of the priorities, and those of run data and data."""
_INDEX_BYTES: Final = 32

NAN = math.nan

OUTCOMES: Final = (None, Outcome.SUCCEEDED, Outcome.FAILED, Outcome.CANCELED)
ONE_STATE: Final = tuple(
    (flags & RUNNING > 0) + (flags & READY > 0) + (flags & SCHEDULED > 0) + (flags >> OUTCOME_SHIFT & 3 > 0) == 1
    and (flags & RUNNING > 0 or not flags & CANCEL)
    for flags in range(256)
)
"""Whether a job with these flags is in exactly one state, and canceled only while it runs."""

DECODED: Final = tuple(
    (
        flags & PLACE,
        OUTCOMES[flags >> OUTCOME_SHIFT & 3],
        flags & CANCEL > 0,
        not good or flags & (SCHEDULED | RESUBMIT) > 0,
    )
    for flags, good in enumerate(ONE_STATE)
)
"""Place, outcome and cancel flag by flags; and whether the rest of the record must be checked as well."""

NextRun: TypeAlias = tuple[bytes, float | None]
"""Priority and run_at of the run after the present one."""


def lock_in(raw: bytes | None) -> bytes | None:
    """Return the lock in a record as stored, without decoding the rest; None if it has none or cannot be read."""
    if raw is None or len(raw) < HEAD.size or raw[0] != VERSION or not raw[1] & RUNNING:
        return None
    start = HEAD.size + int.from_bytes(raw[HEAD.size - 2 : HEAD.size], "big")
    return raw[start : start + LOCK_BYTES]


def _check_state(flags: int, run_at: float, run_data: bytes) -> None:
    """Check flags, and the fields that they require."""
    if not ONE_STATE[flags] or (flags & SCHEDULED and run_at != run_at):
        raise RecordDamaged(f"a job's record is damaged: its flags are {flags:#x}, which no job has")
    if 0 < len(run_data) < HEAD_BYTES:
        raise RecordDamaged(f"a job's record is damaged: its run data have {len(run_data)} bytes")


def _check_run(priority: bytes, run_at: float) -> None:
    """Check priority and time of a run."""
    if not is_priority(priority):
        raise RecordDamaged("a job's record is damaged: a priority that the tuple layer did not pack")
    if run_at == run_at and not EARLIEST <= run_at <= LATEST:
        raise RecordDamaged(f"a job's record is damaged: a time, {run_at}, that no calendar has")


def _of_another_version(raw: bytes) -> RecordDamaged:
    return RecordDamaged(f"a job's record has version {raw[:1].hex() or 'none'}; this one reads version 01: upgrade")


class NewSeq:
    """A seq whose versionstamp is known once its transaction has committed.

    Attributes:
        stamp: of the transaction.
        order: 2 bytes, the place within it.
    """

    __slots__ = ("order", "stamp")

    def __init__(self, stamp: CommitStamp, order: bytes) -> None:
        self.stamp = stamp
        self.order = order


class Record:
    """One state of a job; its moves return the next one.

    Attributes:
        lock: 16 bytes while running, else None.
        place: READY or SCHEDULED while pending, else 0.
        seq: 12 bytes, or a NewSeq until they are known.
        priority: as the tuple layer packs it.
        run_at: seconds since the epoch, or None.
        outcome: how it ended, None unless finished.
        cancel: whether a creator asked for the running job's removal.
        next: the run after this one, if one was asked for: the resubmit flag.
        json: the data.
        run_data: attempts, history, result, error and progress, packed.
    """

    __slots__ = ("cancel", "json", "lock", "next", "outcome", "place", "priority", "run_at", "run_data", "seq")

    def __init__(
        self,
        lock: bytes | None,
        place: int,
        seq: bytes | NewSeq,
        priority: bytes,
        run_at: float | None,
        outcome: Outcome | None,
        cancel: bool,
        next: NextRun | None,
        json: bytes,
        run_data: bytes = b"",
    ) -> None:
        self.lock = lock
        self.place = place
        self.seq = seq
        self.priority = priority
        self.run_at = run_at
        self.outcome = outcome
        self.cancel = cancel
        self.next = next
        self.json = json
        self.run_data = run_data

    def __reduce__(self) -> Any:
        # For other processes, which have no use for a seq that is not known yet.
        seq = self.seq_bytes or bytes(STAMP_BYTES + 2)
        moves = (self.priority, self.run_at, self.outcome, self.cancel, self.next, self.json, self.run_data)
        return Record, (self.lock, self.place, seq, *moves)

    @property
    def state(self) -> JobState:
        """Derived: a running job has a lock, a finished one neither lock nor queue entry, a pending one is the rest."""
        if self.lock is not None:
            return JobState.RUNNING
        return JobState.PENDING if self.place else JobState.FINISHED

    @property
    def named_priority(self) -> Priority:
        """The priority as the application gave it."""
        return unpack_priority(self.priority)

    @property
    def resubmit(self) -> bool:
        """Whether the job becomes pending again when it finishes."""
        return self.next is not None

    @property
    def seq_bytes(self) -> bytes | None:
        """The 12 bytes of seq, None until they are known."""
        seq = self.seq
        if seq.__class__ is bytes:
            return seq
        assert isinstance(seq, NewSeq)
        stamp = seq.stamp.value
        return None if stamp is None else stamp + seq.order

    def size(self) -> int:
        """Return the record's bytes in the largest of its job's states, with its present contents."""
        # Whichever of the two priorities is the longer one may be that of both runs.
        priority = len(self.priority) if self.next is None else max(len(self.priority), len(self.next[0]))
        return FIXED + 2 * priority + len(self.json) + max(len(self.run_data), HEAD_BYTES)

    def kept_size(self, room: int) -> int:
        """Return the least bytes of the record that suffice in every state until its job has ended.

        Args:
            room: bytes for data about the runs, beside the result.
        """
        return self._beside_run_data() + run_data.kept_bytes(self.run_data, room)

    def _beside_run_data(self) -> int:
        return self.size() - max(len(self.run_data), HEAD_BYTES)

    def encoded_size(self) -> int:
        """Return the record's present bytes."""
        size = HEAD.size + len(self.priority) + len(self.json)
        if self.lock is not None:
            size += LOCK_BYTES
        if self.next is not None:
            size += NEXT.size + len(self.next[0])
        return size + SIZE.size + len(self.run_data) if self.run_data else size

    def fit(self, limit: int) -> None:
        """Shrink the data about the runs in an oversized record: a job must always be able to end."""
        if self.size() > limit:
            self.run_data = run_data.fitted(self.run_data, limit - self._beside_run_data())

    def encode(self) -> bytes:
        """Return the bytes of a record whose seq is known."""
        before, after = self.around_stamp()
        assert isinstance(self.seq, bytes)
        return before + self.seq[:STAMP_BYTES] + after

    def around_stamp(self) -> tuple[bytes, bytes]:
        """Return the bytes before and after the versionstamp."""
        seq = self.seq
        order = seq.order if seq.__class__ is NewSeq else seq[STAMP_BYTES:]  # type: ignore[index]
        flags = self.place
        tail = self.json
        if packed := self.run_data:
            flags |= RUN_DATA
            tail = SIZE.pack(len(packed)) + packed + tail
        if self.next is not None:
            flags |= RESUBMIT
            priority, next_run_at = self.next
            tail = NEXT.pack(NAN if next_run_at is None else next_run_at, len(priority)) + priority + tail
        if self.lock is not None:
            flags |= RUNNING
            tail = self.lock + tail
        if self.cancel:
            flags |= CANCEL
        if self.outcome is not None:
            flags |= OUTCOMES.index(self.outcome) << OUTCOME_SHIFT
        run_at = self.run_at
        priority = self.priority
        after = AFTER_STAMP.pack(order, NAN if run_at is None else run_at, len(priority))
        return BEFORE_STAMP[flags], after + priority + tail

    @classmethod
    def decode(cls, raw: bytes, checked: bool = False) -> Record:
        """Return the record that `encode` encoded.

        Args:
            raw: the bytes.
            checked: whether to check as well that a job can have this record, so that any operation on it succeeds.

        Raises:
            RecordDamaged: the bytes are no record, or one of a newer version.
        """
        try:
            version, flags, seq, run_at, size = HEAD.unpack_from(raw)
            if version != VERSION:
                raise _of_another_version(raw)
            end = _AFTER_HEAD + size
            priority = raw[_AFTER_HEAD:end]
            lock = following = None
            if flags & RUNNING:
                lock = raw[end : end + LOCK_BYTES]
                end += LOCK_BYTES
            if flags & RESUBMIT:
                next_run_at, size = NEXT.unpack_from(raw, end)
                start = end + NEXT.size
                end = start + size
                following = (raw[start:end], None if next_run_at != next_run_at else next_run_at)
            run_data = b""
            if flags & RUN_DATA:
                [size] = SIZE.unpack_from(raw, end)
                start = end + _SIZE_BYTES
                end = start + size
                run_data = raw[start:end]
        except struct.error as error:
            if raw[:1] != bytes((VERSION,)):
                raise _of_another_version(raw) from None
            raise RecordDamaged(f"a job's record is damaged: {error}") from None
        if end > len(raw):
            raise RecordDamaged(f"a job's record is damaged: it has {len(raw)} bytes; its fields take {end}")
        place, outcome, cancel, needs_look = DECODED[flags]
        if checked and (needs_look or priority != ZERO_PRIORITY or run_at == run_at or len(run_data) < HEAD_BYTES):
            _check_state(flags, run_at, run_data)
            _check_run(priority, run_at)
            if following is not None:
                _check_run(following[0], NAN if following[1] is None else following[1])
        return cls(
            lock,
            place,
            seq,
            priority,
            None if run_at != run_at else run_at,
            outcome,
            cancel,
            following,
            raw[end:],
            run_data,
        )

    # The moves of a job: each returns the next state.

    def pending(self, place: int, seq: NewSeq, priority: bytes, run_at: float | None) -> Record:
        """Return the waiting record, with its flags kept."""
        return Record(None, place, seq, priority, run_at, None, False, self.next, self.json, self.run_data)

    def running(self, lock: bytes, seq: NewSeq, run_data: bytes | None = None) -> Record:
        """Return the record held by the lock's owner, with other run data if given; it may be running already."""
        packed = self.run_data if run_data is None else run_data
        return Record(lock, 0, seq, self.priority, self.run_at, None, self.cancel, self.next, self.json, packed)

    def finished(self, seq: NewSeq, outcome: Outcome, run_data: bytes | None = None) -> Record:
        """Return the ended record, with other run data if given; every flag is cleared."""
        packed = self.run_data if run_data is None else run_data
        return Record(None, 0, seq, self.priority, self.run_at, outcome, False, None, self.json, packed)

    def with_json(self, json: bytes) -> Record:
        """Return the record with other data."""
        record = self._copy()
        record.json = json
        return record

    def with_run_data(self, run_data: bytes) -> Record:
        """Return the record with other run data."""
        record = self._copy()
        record.run_data = run_data
        return record

    def with_next(self, following: NextRun | None) -> Record:
        """Return the record with the resubmit flag set or cleared."""
        record = self._copy()
        record.next = following
        return record

    def canceled(self) -> Record:
        """Return the record with the cancel flag."""
        record = self._copy()
        record.cancel = True
        return record

    def _copy(self) -> Record:
        return Record(
            self.lock,
            self.place,
            self.seq,
            self.priority,
            self.run_at,
            self.outcome,
            self.cancel,
            self.next,
            self.json,
            self.run_data,
        )


T = TypeVar("T")

_KEY_OVERHEAD: Final = 13

_SHARE_OF_RUNS: Final = 32
"""This part of a record is kept free for data about the job's runs beside a result: 3,125 bytes."""


# Entries


class JobSnapshot(NamedTuple):
    """A job at one moment of a transaction.

    Attributes:
        keys, id: the job.
        record: None if there is none.
        enqueued: the effect of `enqueue`; None after other operations.
    """

    keys: TypeKeys
    id: JobId
    record: Record | None
    enqueued: Enqueued | None = None


class Entry:
    """One touched job: its place in the keyspace, whether the store has it, and its present record, None for none.

    Attributes:
        counted: the record that the store has, with which the job is counted; None if it cannot be read, or for none.
    """

    __slots__ = ("changed", "counted", "enqueued", "id", "keys", "packed_id", "record", "stored")

    def __init__(self, keys: TypeKeys, id: JobId, packed_id: bytes, raw: bytes | None) -> None:
        self.keys = keys
        self.id = id
        self.packed_id = packed_id
        self.stored = raw is not None
        self.record = self.counted = None if raw is None else Record.decode(raw, True)
        self.changed = False
        self.enqueued: Enqueued | None = None

    def seen(self) -> JobSnapshot:
        """Return a copy of the job's present state; later operations of the transaction change the entry itself."""
        # Made as the tuple that it is: each operation has one, and JobSnapshot's own function takes twice as long.
        return tuple.__new__(JobSnapshot, (self.keys, self.id, self.record, self.enqueued))


class TakesRows(Protocol):
    """A transaction, or whatever else takes rows."""

    def set(self, key: bytes, value: bytes) -> None:
        """Set a key."""


def write_index(transaction: TakesRows, entry: Entry, record: Record) -> None:
    """Write the index entry of a stored record."""
    keys = entry.keys
    assert isinstance(record.seq, bytes)
    if record.lock is not None:
        transaction.set(keys.activity_head + record.seq, entry.packed_id)
    elif record.place == READY:
        run_at = b"" if record.run_at is None else pack_seconds(record.run_at)
        transaction.set(ready_key(entry, record), run_at)
    elif record.place == SCHEDULED:
        transaction.set(scheduled_key(entry, record), record.priority)
    else:
        if record.outcome is Outcome.FAILED:
            transaction.set(keys.failed_head + record.seq, entry.packed_id)
        if (expires := run_data.expires_at(record.run_data)) is not None:
            transaction.set(keys.expiring + pack_seconds(expires) + entry.packed_id, b"")


def clear_index(transaction: Transaction, entry: Entry, record: Record) -> None:
    """Clear a job's index entry in the store, if it has one."""
    keys = entry.keys
    if record.place == SCHEDULED:
        transaction.clear(scheduled_key(entry, record))
    elif record.seq.__class__ is not bytes:
        return  # this transaction has changed it already: its index entry is written by `flush` only
    elif record.lock is not None:
        transaction.clear(keys.activity_head + record.seq)
    elif record.place == READY:
        transaction.clear(ready_key(entry, record))
    else:
        if record.outcome is Outcome.FAILED:
            transaction.clear(keys.failed_head + record.seq)
        if (expires := run_data.expires_at(record.run_data)) is not None:
            transaction.clear(keys.expiring + pack_seconds(expires) + entry.packed_id)


def ready_key(entry: Entry, record: Record) -> bytes:
    """Return the record's READY key."""
    assert isinstance(record.seq, bytes)
    return entry.keys.ready + record.priority + STAMP_CODE + record.seq + entry.packed_id


def scheduled_key(entry: Entry, record: Record) -> bytes:
    """Return the record's SCHEDULED key."""
    assert record.run_at is not None
    return entry.keys.scheduled + pack_seconds(record.run_at) + entry.packed_id


def running_job(entry: Entry | JobSnapshot, worker: Worker | None) -> RunningJob:
    """Return the entry as the application's running job."""
    assert entry.record is not None
    return RunningJob(entry.keys.type, entry.id, entry.record, worker)


def job_of(entry: Entry | JobSnapshot) -> Job:
    """Return the entry as the application's job."""
    assert entry.record is not None
    return Job(entry.keys.type, entry.id, entry.record)


def enqueued_job(entry: Entry | JobSnapshot) -> Job:
    """Return the result of `enqueue`: the entry as the application's job, with the effect of the call."""
    job = job_of(entry)
    job._enqueued = entry.enqueued
    return job


async def naming_its_job(place: Place, work: Awaitable[T]) -> T:
    """Return the result of an operation on a job; an error about an unreadable part of its record names the job."""
    try:
        return await work
    except RecordDamaged as error:
        raise error.of(place[0].type, place[1]) from None


def jobs_listed(entry: Entry, state: Callable[[Job], bool] | None) -> list[Job]:
    """Return the entry as the application's job, in a list; empty if the job is gone, or in another state."""
    if entry.record is None:
        return []
    job = job_of(entry)
    return [job] if state is None or state(job) else []


# Sizes


def room_left(limits: Limits, record: Record) -> int:
    """Return the bytes by which a job's data and result may still grow together; below 0 if they are too large.

    An accepted job has room for its end: the newest events of its history, the class and the first thousand characters
    of its error, the numbers of its progress, its limits and the context of its trace.
    """
    # FoundationDB adds an offset to a stamped value. Any store's records can be copied to a cluster.
    return limits.value - OFFSET_BYTES - record.kept_size(limits.value // _SHARE_OF_RUNS)


def refuse_too_large(
    limits: Limits, keys: TypeKeys, id: JobId, packed_id: bytes, record: Record, limit: str = "the store's limit"
) -> None:
    """Check that a store takes the record and the keys of a job in every state until it has ended.

    Args:
        limits: of the store.
        keys, id, packed_id: the job.
        record: of the job, already shrunk.
        limit: name of the store's limit, for messages.

    Raises:
        JobTooLarge: the store does not take them.
    """
    left = room_left(limits, record)
    if left < 0:
        raise JobTooLarge(
            f"job {job_name(keys.type, id)}: its record takes {limits.value - left} bytes, with "
            f"{limits.value // _SHARE_OF_RUNS} that are kept for its end; {limit} is {limits.value}"
        ).about(keys.type, id)
    size = len(keys.ready) + len(packed_id) + _longest_priority(record) + _KEY_OVERHEAD
    if limits.key > LONGEST_STAMPED_KEY:
        size += OFFSET_BYTES
    if size > limits.key:
        raise JobTooLarge(
            f"job {job_name(keys.type, id)}: type, priority and id make a key of {size} bytes; {limit} is {limits.key}"
        ).about(keys.type, id)


def _longest_priority(record: Record) -> int:
    """Return the bytes of the longer priority of this run and the next."""
    return len(record.priority) if record.next is None else max(len(record.priority), len(record.next[0]))


def check_size(limits: Limits, entry: Entry, record: Record) -> None:
    """Refuse a record that may not fit until its job has ended, or whose keys may not."""
    before = entry.record
    record.fit(limits.value - OFFSET_BYTES)
    if (
        before is not None
        and room_left(limits, record) >= room_left(limits, before)
        and record.encoded_size() <= limits.value
        and _longest_priority(record) <= _longest_priority(before)
    ):
        return  # Nothing was added to it: an accepted job goes on to its end, even if another store accepted it.
    refuse_too_large(limits, entry.keys, entry.id, entry.packed_id, record)


def most_rewritten_bytes(jobs: int, read: int, ids: int, key_bytes: int) -> int:
    """Return an upper bound of the sum of `rewritten_bytes` of several jobs, which is cheaper than the sum.

    Args:
        jobs: number of jobs.
        read: bytes of their records as stored.
        ids: bytes of their packed ids.
        key_bytes: length of a job's key in the queue, without priority, versionstamp and id.
    """
    # A priority is in the record, and counts five times.
    return 5 * read + 3 * ids + jobs * (LARGEST_HEAD + 3 * (key_bytes + _INDEX_BYTES))


def rewritten_bytes(record: Record, key_bytes: int) -> int:
    """Return the approximate bytes of rewriting a job in a transaction: its record, and its index entries.

    Args:
        record: before or after the change.
        key_bytes: length of its key in the queue, without priority and versionstamp.
    """
    return record.size() + 3 * (key_bytes + len(record.priority) + _INDEX_BYTES)
