"""A job that a transaction has touched, and the index entries of its record."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from jobs_service import run_data
from jobs_service.errors import RecordDamaged
from jobs_service.layer.key_parts import STAMP_CODE, pack_seconds
from jobs_service.layer.keyspace import Place, TypeKeys
from jobs_service.layer.record import Record
from jobs_service.layer.record_format import READY, SCHEDULED
from jobs_service.model import Enqueued, Job, JobId, Outcome, RunningJob, Worker
from jobs_service.store.base import Transaction

T = TypeVar("T")


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
