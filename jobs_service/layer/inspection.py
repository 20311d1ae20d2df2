"""The state of types, for operators: the front of the queue, retention, the last ticks of periodic types.

Nothing here counts jobs: each call costs the same however many there are.
"""

from __future__ import annotations

import math
from typing import Final

from jobs_service import run_data
from jobs_service.arguments import EARLIEST, LATEST
from jobs_service.errors import RecordDamaged
from jobs_service.layer import queue
from jobs_service.layer.key_parts import AFTER, type_in, unpack_id, unpacked
from jobs_service.layer.keyspace import PERIODIC, Keyspace, TypeKeys, end_of_priority
from jobs_service.layer.record import Record
from jobs_service.layer.strays import id_of_ready
from jobs_service.model import JobId, JobType
from jobs_service.model.type_state import FOR_EVER, QueueState, Retention
from jobs_service.store.base import Snapshot

_MOST_LOOKS: Final = 32
"""Most ready jobs of a type that are read to find the oldest one: the first of each priority, up to so many."""


async def queue_state(transaction: Snapshot, keys: TypeKeys) -> QueueState:
    """Return the state of a type's queue."""
    oldest: tuple[float, JobId] | None = None
    untold: JobId | None = None
    begin = keys.ready
    for _ in range(_MOST_LOOKS):
        # The first of each priority is its oldest.
        found = await transaction.get_range(begin, keys.ready + AFTER, limit=1)
        if not found:
            break
        key = found[0][0]
        packed_id = id_of_ready(keys, key)
        record = None if packed_id is None else await _record(transaction, keys, packed_id)
        if packed_id is None or record is None:  # damaged: this only reads; the next accept removes the entry
            begin = key + b"\x00"
            continue
        since = _pending_since(record)
        if since is None:  # unknown: try the job behind it
            untold = unpack_id(packed_id) if untold is None else untold
            begin = key + b"\x00"
            continue
        if oldest is None or since < oldest[0]:
            oldest = since, unpack_id(packed_id)
        begin = key[: end_of_priority(keys, key)] + AFTER
    since, id = oldest or (None, untold)
    paused = await transaction.get(keys.paused) is not None
    return QueueState(id, since, await queue.next_scheduled(transaction, keys), paused)


async def retention(transaction: Snapshot, keys: TypeKeys) -> Retention:
    """Return the retention of a type's finished jobs."""
    packed = await transaction.get(keys.retention)
    return FOR_EVER if packed is None else Retention.decode(packed)


async def last_ticks(transaction: Snapshot, keyspace: Keyspace) -> list[tuple[JobType, float]]:
    """Return the periodic types with the time of their last tick, or of their handler's first start before that."""
    section = keyspace.sections[PERIODIC]
    found = await transaction.get_range(section, section + AFTER)
    ticks = [(type_in(key[len(section) :]), tick_of(value)) for key, value in found]
    return [(type, last) for type, last in ticks if type is not None and last is not None]


def tick_of(packed: bytes | None) -> float | None:
    """Return the last tick of a periodic type; None if there was none yet, or if it cannot be read."""
    found = unpacked(packed)
    return found[0] if len(found) == 1 and isinstance(found[0], float) and math.isfinite(found[0]) else None


async def _record(transaction: Snapshot, keys: TypeKeys, packed_id: bytes) -> Record | None:
    """Return a job's record; None if it is missing or unreadable."""
    raw = await transaction.get(keys.data + packed_id)
    try:
        return None if raw is None else Record.decode(raw)
    except RecordDamaged:
        return None


def _pending_since(record: Record) -> float | None:
    """Return when a ready job became ready; None if its record does not have the time."""
    try:
        history = run_data.history_of(record.run_data)
    except RecordDamaged:
        return None
    times = [event.at for event in history[:1] if EARLIEST <= event.at <= LATEST]
    return max([*times, *([] if record.run_at is None else [record.run_at])], default=None)
