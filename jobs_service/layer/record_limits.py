"""Whether a store takes a job's record and keys in every state until the job has ended."""

from __future__ import annotations

from typing import Final

from jobs_service.errors import JobTooLarge, job_name
from jobs_service.layer.entry import Entry
from jobs_service.layer.keyspace import TypeKeys
from jobs_service.layer.record import Record
from jobs_service.model import JobId
from jobs_service.store.base import LONGEST_STAMPED_KEY, OFFSET_BYTES, Limits

_KEY_OVERHEAD: Final = 13

_SHARE_OF_RUNS: Final = 32
"""This part of a record is kept free for data about the job's runs beside a result: 3,125 bytes."""


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
