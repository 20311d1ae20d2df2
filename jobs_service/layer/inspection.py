"""What operators ask of types: where queues stand, how long jobs are kept, when types ticked last.

Nothing here counts by reading: it costs the same however many jobs there are.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from jobs_service import run_data
from jobs_service.arguments import EARLIEST, LATEST
from jobs_service.errors import RecordDamaged, StoreDamaged
from jobs_service.layer import queue
from jobs_service.layer.key_parts import AFTER, unpack_id, unpacked
from jobs_service.layer.keyspace import PERIODIC, Keyspace, TypeKeys, end_of_priority
from jobs_service.layer.record import Record
from jobs_service.layer.retention import FOR_EVER, Retention
from jobs_service.layer.strays import id_of_ready
from jobs_service.model import JobId, JobType
from jobs_service.store.base import Snapshot

_MOST_LOOKS: Final = 32
"""Ready jobs of a type that are looked at: the first of so many priorities, where each tells since when it is ready."""


class QueueState(NamedTuple):
    """Where the queue of a type stands; times in seconds since the epoch.

    Attributes:
        id, ready_since: of the job that has been ready for longest; None when none is ready. A record that is as
            large as can be has no room to tell since when, and a damaged history does not tell: such a job is named
            only where no other tells, with None.
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
        if packed_id is None or record is None:  # damaged: others take it out
            begin = key + b"\x00"
            continue
        since = _pending_since(record)
        if since is None:  # The one behind it may tell.
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
    """Return how long finished jobs of a type are kept."""
    packed = await transaction.get(keys.retention)
    return FOR_EVER if packed is None else Retention.decode(packed)


async def last_ticks(transaction: Snapshot, keyspace: Keyspace) -> list[tuple[JobType, float]]:
    """Return the periodic types with the last of their ticks, or of their program's first look before there was one."""
    section = keyspace.sections[PERIODIC]
    found = await transaction.get_range(section, section + AFTER)
    ticks = [(unpacked(key[len(section) :]), unpacked(value)) for key, value in found]
    return [(type[0], float(last[0])) for type, last in ticks if type and last]


async def _record(transaction: Snapshot, keys: TypeKeys, packed_id: bytes) -> Record | None:
    """Return a job's record; None where there is none, or none that can be read."""
    try:
        raw = await transaction.get(keys.data + packed_id)
        return None if raw is None else Record.decode(raw)
    except (RecordDamaged, StoreDamaged):
        return None


def _pending_since(record: Record) -> float | None:
    """Return when a ready job became ready; None where its record does not tell."""
    try:
        history = run_data.history_of(record.run_data)
    except RecordDamaged:
        return None
    times = [event.at for event in history[:1] if EARLIEST <= event.at <= LATEST]
    return max([*times, *([] if record.run_at is None else [record.run_at])], default=None)
