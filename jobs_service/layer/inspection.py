"""What operators ask of types: where queues stand, how long jobs are kept, when types ticked last. Floor: layer.

Nothing here counts by reading: it costs the same however many jobs there are.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from jobs_service import notes
from jobs_service.errors import StoreError
from jobs_service.layer import pending
from jobs_service.layer.keyspace import (
    AFTER,
    PERIODIC,
    Keyspace,
    TypeKeys,
    end_of_priority,
    unpack_id,
    unpacked,
)
from jobs_service.layer.record import Record
from jobs_service.layer.strays import id_of_ready
from jobs_service.layer.unit import FOR_EVER, Retention
from jobs_service.model import JobId, JobType
from jobs_service.store.base import Snapshot

_MOST_PRIORITIES: Final = 32
"""Priorities of a type whose oldest jobs are looked at."""


class QueueState(NamedTuple):
    """Where the queue of a type stands; times in seconds since the epoch.

    Attributes:
        id, ready_since: of the job that has been ready for longest; None when none is ready.
        next_scheduled: when the first job that is not made ready yet is due; None when there is none.
        paused: whether nobody accepts jobs.
    """

    id: JobId | None
    ready_since: float | None
    next_scheduled: float | None
    paused: bool


async def queue_state(transaction: Snapshot, keys: TypeKeys) -> QueueState:
    """Return where the queue of a type stands."""
    oldest: tuple[float, JobId] | None = None
    begin = keys.ready
    for _ in range(_MOST_PRIORITIES):
        # The first of each priority is its oldest.
        found = await transaction.get_range(begin, keys.ready + AFTER, limit=1)
        if not found:
            break
        key = found[0][0]
        packed_id = id_of_ready(keys, key)
        if packed_id is None:  # damaged: others take it out
            begin = key + b"\x00"
            continue
        since = await _pending_since(transaction, keys, packed_id)
        if since is not None and (oldest is None or since < oldest[0]):
            oldest = since, unpack_id(packed_id)
        begin = key[: end_of_priority(keys, key)] + AFTER
    since, id = oldest or (None, None)
    paused = await transaction.get(keys.paused) is not None
    return QueueState(id, since, await pending.next_scheduled(transaction, keys), paused)


async def retention(transaction: Snapshot, keys: TypeKeys) -> Retention:
    """Return how long finished jobs of a type are kept."""
    packed = await transaction.get(keys.retention)
    return FOR_EVER if packed is None else Retention.decode(packed)


async def last_ticks(transaction: Snapshot, keyspace: Keyspace) -> list[tuple[JobType, float]]:
    """Return the periodic types with the last of their ticks, or of their program's first look before there was one."""
    section = keyspace.sections[PERIODIC]
    found = await transaction.get_range(section, section + AFTER)
    ticks = [(unpacked(key[len(section) :]), unpacked(value)) for key, value in found]
    return [(type[0], float(last[0])) for type, last in ticks if type and last]


async def _pending_since(transaction: Snapshot, keys: TypeKeys, packed_id: bytes) -> float | None:
    """Return when a ready job became ready; None where its record does not tell."""
    raw = await transaction.get(keys.data + packed_id)
    try:
        record = None if raw is None else Record.decode(raw)
    except StoreError:
        return None
    if record is None:
        return None
    history = notes.history_of(record.notes)
    times = [*(event.at for event in history[:1]), *([] if record.run_at is None else [record.run_at])]
    return max(times, default=None)
