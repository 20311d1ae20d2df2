"""A job that a transaction has touched, and the index entries that its record points at."""

from __future__ import annotations

from typing import NamedTuple

from jobs_service import run_data
from jobs_service.layer.key_parts import STAMP_CODE, pack_seconds
from jobs_service.layer.keyspace import TypeKeys
from jobs_service.layer.record import Record
from jobs_service.layer.record_format import READY, SCHEDULED
from jobs_service.model import JobId
from jobs_service.store.base import Transaction


class JobSnapshot(NamedTuple):
    """A job at one moment of a transaction.

    Attributes:
        keys, id: the job.
        record: None when there is none.
        added: whether `enqueue` has just added it; None where nobody asked.
    """

    keys: TypeKeys
    id: JobId
    record: Record | None
    added: bool | None = None


class Entry:
    """One touched job: its place in the keyspace, whether the store has it, and its present record, None for none."""

    __slots__ = ("added", "changed", "id", "keys", "packed_id", "record", "stored")

    def __init__(self, keys: TypeKeys, id: JobId, packed_id: bytes, raw: bytes | None) -> None:
        self.keys = keys
        self.id = id
        self.packed_id = packed_id
        self.stored = raw is not None
        self.record = None if raw is None else Record.decode(raw, True)
        self.changed = False
        self.added: bool | None = None

    def seen(self) -> JobSnapshot:
        """Return what the job is now: the entry itself goes on with the transaction."""
        return JobSnapshot(self.keys, self.id, self.record, self.added)


def write_index(transaction: Transaction, entry: Entry, record: Record) -> None:
    """Write the index entry that a stored record points at."""
    keys = entry.keys
    assert isinstance(record.seq, bytes)
    if record.lock is not None:
        transaction.set(keys.activity_head + record.seq, entry.packed_id)
    elif record.place == READY:
        run_at = b"" if record.run_at is None else pack_seconds(record.run_at)
        transaction.set(ready_key(entry, record), run_at)
    elif record.place == SCHEDULED:
        transaction.set(scheduled_key(entry, record), record.priority)
    elif (expires := run_data.expires_at(record.run_data)) is not None:
        transaction.set(keys.expiring + pack_seconds(expires) + entry.packed_id, b"")


def clear_index(transaction: Transaction, entry: Entry, record: Record) -> None:
    """Clear the index entry that the store has of a job, if it has one."""
    keys = entry.keys
    if record.place == SCHEDULED:
        transaction.clear(scheduled_key(entry, record))
    elif record.seq.__class__ is not bytes:
        return  # Its entry would have been written by flush.
    elif record.lock is not None:
        transaction.clear(keys.activity_head + record.seq)
    elif record.place == READY:
        transaction.clear(ready_key(entry, record))
    elif (expires := run_data.expires_at(record.run_data)) is not None:
        transaction.clear(entry.keys.expiring + pack_seconds(expires) + entry.packed_id)


def ready_key(entry: Entry, record: Record) -> bytes:
    """Return the READY key that the record points at."""
    assert isinstance(record.seq, bytes)
    return entry.keys.ready + record.priority + STAMP_CODE + record.seq + entry.packed_id


def scheduled_key(entry: Entry, record: Record) -> bytes:
    """Return the SCHEDULED key that the record points at."""
    assert record.run_at is not None
    return entry.keys.scheduled + pack_seconds(record.run_at) + entry.packed_id
