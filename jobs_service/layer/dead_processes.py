"""Running jobs by the store's instance that holds them: found, and taken away when its process is dead.

If the store's instances have ids, a running job's lock begins with the id of the instance that accepted it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from jobs_service.errors import RecordDamaged
from jobs_service.layer.entry import Entry
from jobs_service.layer.key_parts import AFTER, STAMP_CODE, unpack_id
from jobs_service.layer.keyspace import ACTIVITY, DATA, Keyspace, TypeFinder
from jobs_service.layer.record_format import lock_in
from jobs_service.layer.running_jobs import lose
from jobs_service.layer.strays import take_out
from jobs_service.layer.unit_of_work import Place, UnitOfWork
from jobs_service.store.base import Snapshot

_SEQ_BYTES = len(STAMP_CODE) + 12


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
