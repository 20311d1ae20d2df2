"""Lost jobs: those whose workers fell silent, or whose processes have died, are pending again, or finished if canceled.

The index of running jobs by their last sign of life tells of both.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Sequence
from typing import NamedTuple

from jobs_service import run_data
from jobs_service.errors import RecordDamaged
from jobs_service.layer import running_jobs
from jobs_service.layer.counters import LOST
from jobs_service.layer.keyspace import (
    ACTIVITY,
    AFTER,
    DATA,
    STAMP_CODE,
    Keyspace,
    Place,
    TypeFinder,
    TypeKeys,
    is_id,
    unpack_id,
)
from jobs_service.layer.record import Entry, Record, lock_in
from jobs_service.layer.removal import take_out
from jobs_service.layer.running_jobs import give_back
from jobs_service.layer.type_settings import timeout_in
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.model import JobId
from jobs_service.run_data import HistoryKind
from jobs_service.store.base import Snapshot

_LAST_ORDER = b"\xff\xff"


_SEQ_BYTES = len(STAMP_CODE) + 12


# Silent workers


async def samples(transaction: Snapshot, keys: Sequence[TypeKeys]) -> list[tuple[float | None, bytes | None]]:
    """Return (timeout in seconds, activity stamp) of several types; the reads go out together."""
    wanted = [key for each in keys for key in (each.timeout, each.watch_activity)]
    values = await transaction.get_many(wanted)
    return [
        (None if timeout is None else timeout_in(timeout), stamp)
        for timeout, stamp in zip(values[::2], values[1::2], strict=True)
    ]


async def active_ids(
    transaction: Snapshot, keys: TypeKeys, after: bytes | None, limit: int
) -> list[tuple[bytes, JobId]]:
    """Return (seq, id) of running jobs behind a seq or a 10-byte stamp, by last activity."""
    head = keys.activity + STAMP_CODE
    begin = head if after is None else head + after.ljust(12, b"\xff") + b"\x00"
    found = await transaction.get_range(begin, keys.activity + AFTER, limit=limit)
    return [(key[len(head) :], unpack_id(value)) for key, value in found if is_id(value)]


class TaskPart(NamedTuple):
    """One transaction's part of a long task.

    Attributes:
        ids: of the jobs.
        more: whether there may be more to do.
    """

    ids: list[JobId]
    more: bool


async def re_enqueue(
    unit: UnitOfWork, keys: TypeKeys, until: bytes, limit: int, own: Container[bytes] = ()
) -> TaskPart:
    """Treat running jobs last active at or before a stamp as lost: pending again, or finished if canceled.

    Args:
        unit, keys: of the type.
        until: 10-byte versionstamp.
        limit: most jobs; fewer if a transaction cannot hold them, and no more are read then.
        own: locks of jobs that the caller runs itself. They are silent because its loop stood still, or the store was
            away; they get a heartbeat instead.
    """
    # A job that is updated meanwhile changes its record, which is read: that is a conflict, and it stays its worker's.
    found = await unit.transaction.snapshot.get_range(*_until(keys, until), limit=limit)
    entries = await unit.load_fitting(keys, [packed_id for _, packed_id in found])
    held: list[tuple[Place, bytes]] = []
    silent: list[tuple[bytes, Entry, Record | None]] = []
    for (key, _), entry in zip(found, entries, strict=False):
        record = entry.record
        if record is None or record.lock is None or record.seq != key[len(keys.activity_head) :]:
            silent.append((key, entry, None))
        elif record.lock in own:
            held.append(((keys, entry.id, entry.packed_id), record.lock))
        else:
            silent.append((key, entry, record))
    if held:
        await running_jobs.beat(unit, held)
    lost: list[JobId] = []
    for key, entry, record in silent:
        if record is not None:
            try:
                await lose(unit, entry, record)
                lost.append(entry.id)
                continue
            except RecordDamaged as error:
                unit.condemn(entry, error)
        # A stray entry, left by damage: remove it, or every later call would find it first.
        take_out(unit, keys, key, entry.packed_id)
    return TaskPart(lost, len(found) == limit or len(entries) < len(found))


async def lose(unit: UnitOfWork, entry: Entry, record: Record) -> None:
    """Take a running job from a worker that fell silent: pending, or finished if it is canceled.

    Raises:
        RecordDamaged: its run data are damaged, so that no end of a run can be written: it would run, and be lost, for
            ever.
    """
    run_data.check_sizes(record.run_data)
    unit.take_away(entry.keys)
    packed = run_data.with_event(record.run_data, HistoryKind.LOST, unit.now)
    await give_back(unit, entry, record, packed, record.run_at, LOST)


def _until(keys: TypeKeys, stamp: bytes) -> tuple[bytes, bytes]:
    return keys.activity, keys.activity + STAMP_CODE + stamp + _LAST_ORDER + b"\x00"


# Dead processes: a lock begins with the id of the store's instance that accepted the job, if it has one


async def held_jobs(
    transaction: Snapshot,
    keyspace: Keyspace,
    instances: Collection[bytes],
    after: bytes | None,
    limit: int,
) -> tuple[list[Place], bytes | None]:
    """Find running jobs that instances hold, in one page of all running jobs.

    Args:
        transaction: reads.
        keyspace: of the keys.
        instances: the ids.
        after: the last key of the page before; None to begin.
        limit: running jobs to read.

    Returns:
        The jobs, and the last key of this page; None at the end.
    """
    section = keyspace.sections[ACTIVITY]
    begin = section if after is None else after + b"\x00"
    found = await transaction.get_range(begin, section + AFTER, limit=limit)
    data = keyspace.sections[DATA]
    # The rest of the key without its section and its seq is the packed type.
    raws = await transaction.get_many([data + key[len(section) : -_SEQ_BYTES] + id for key, id in found])
    size = len(next(iter(instances)))
    finder = TypeFinder(keyspace)
    held = [
        (finder.keys_of(key[len(section) :]), unpack_id(id), id)
        for (key, id), raw in zip(found, raws, strict=True)
        if (lock := lock_in(raw)) is not None and lock[:size] in instances
    ]
    return held, found[-1][0] if len(found) == limit else None


async def take_from(unit: UnitOfWork, jobs: Sequence[Place], instances: Collection[bytes]) -> tuple[list[Entry], int]:
    """Take jobs from dead instances that still hold them: pending again, or finished if canceled.

    Jobs with unreadable run data are set aside.

    Args:
        unit: of work.
        jobs: the jobs that the instances held when they were read.
        instances: the ids.

    Returns:
        The taken jobs, and the number of `jobs` that were done: as many as fit into a transaction.
    """
    size = len(next(iter(instances)))
    lost: list[Entry] = []
    for position, place in enumerate(jobs):
        # One by one is no slower: the embedded store, the only one with instances, answers a read at once.
        try:
            entry = await unit.load(place)
        except RecordDamaged:
            continue
        record = entry.record
        if record is not None and record.lock is not None and record.lock[:size] in instances:
            assert isinstance(record.seq, bytes)
            try:
                await lose(unit, entry, record)
                lost.append(entry)
            except RecordDamaged as error:
                # Set it aside. If it stayed, each attempt would fail at it, and the instances' other jobs stay locked.
                unit.condemn(entry, error)
                take_out(unit, entry.keys, entry.keys.activity_head + record.seq, entry.packed_id)
        if unit.is_full:
            return lost, position + 1
    return lost, len(jobs)
