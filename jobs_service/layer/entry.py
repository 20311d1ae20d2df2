"""A job that a transaction has touched: its index entries, and whether a store takes it in each state until its end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeVar

from jobs_service import run_data
from jobs_service.errors import JobTooLarge, RecordDamaged, job_name
from jobs_service.layer.keyspace import STAMP_CODE, Place, TypeKeys, pack_seconds
from jobs_service.layer.record import READY, SCHEDULED, Record
from jobs_service.model import Enqueued, Job, JobId, Outcome, RunningJob, Worker
from jobs_service.store.base import LONGEST_STAMPED_KEY, OFFSET_BYTES, Limits, Transaction

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


def write_index(transaction: Transaction, entry: Entry, record: Record) -> None:
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
        return  # this transaction made it pending: its index entry is written by `flush` only
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
