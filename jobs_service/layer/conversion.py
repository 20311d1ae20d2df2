"""Converts a store of an earlier format to one with counted jobs, page by page.

Each job's record is rewritten, with the version that marks it as counted, in the transaction that counts it. So
concurrent writers and restarts of the conversion do no harm: a transaction that changes an uncounted job counts it, and
each job is counted once. A row holds the position for the next start.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Final, NamedTuple, TypeAlias

from jobs_service.layer.batch_bounds import Batch, Pace
from jobs_service.layer.key_parts import AFTER, is_id, unpack_id
from jobs_service.layer.keyspace import COUNTS, DATA, Keyspace, TypeFinder, TypeKeys
from jobs_service.layer.listing import read_rows
from jobs_service.layer.record_format import UNCOUNTED
from jobs_service.layer.unit_of_work import Place, UnitOfWork, run
from jobs_service.sources import Sources
from jobs_service.store.base import Store

_JOBS: Final = 1000
_OLD: Final = bytes((UNCOUNTED,))

Progress: TypeAlias = Callable[[int, bool], object]
"""Called with the number of jobs counted so far, and whether these are all."""

PROGRESS: ContextVar[Progress | None] = ContextVar("conversion progress", default=None)
"""The callback for the progress of a conversion that begins because a store is opened."""


class _Done(NamedTuple):
    """The work of one transaction: the number of jobs that it counted, and whether they were the last."""

    counted: int
    is_last: bool


async def convert(store: Store, keyspace: Keyspace, sources: Sources) -> int:
    """Count all uncounted jobs, in bounded transactions; return their number.

    Args:
        store: open; other processes may use it.
        keyspace: of its keys.
        sources: wall-clock time.
    """
    pace = Pace(Batch.of(store.limits, jobs=_JOBS))
    progress = PROGRESS.get()
    counted = 0

    async def attempt(size: int) -> _Done:
        async def work(unit: UnitOfWork) -> _Done:
            return await _count(unit, size, pace.batch.bytes)

        return await store.transact(lambda tr: run(tr, keyspace, sources, work))

    while True:
        done = await pace.fitting(attempt)
        counted += done.counted
        if progress is not None:
            progress(counted, done.is_last)
        if done.is_last:
            return counted


async def _count(unit: UnitOfWork, size: int, most_bytes: int) -> _Done:
    """Count the jobs of the next page."""
    transaction, section = unit.transaction, unit.keyspace.sections[DATA]
    come_to = unit.keyspace.sections[COUNTS]
    after = await transaction.get(come_to)
    begin = section if after is None else section + after + b"\x00"
    rows, is_last = await read_rows(transaction.snapshot, begin, section + AFTER, size, most_bytes)
    finder = TypeFinder(unit.keyspace)
    places = [place for key, raw in rows if raw[:1] == _OLD and (place := _place(finder, key)) is not None]
    await unit.prefetch(places)
    counted = 0
    for place in places:
        entry = unit.loaded(place)
        if entry is not None and entry.counted is None and entry.record is not None:
            entry.changed = True
            counted += 1
    if is_last:
        transaction.clear(come_to)
    else:
        transaction.set(come_to, rows[-1][0][len(section) :])
    return _Done(counted, is_last)


def _place(finder: TypeFinder, key: bytes) -> Place | None:
    """Return the place of a DATA key's job, None if it cannot be parsed."""
    try:
        keys: TypeKeys = finder.keys_of_data(key)
    except Exception:  # fdb.tuple raises many kinds of errors for bytes that are no tuple
        return None
    packed_id = key[len(keys.data) :]
    return (keys, unpack_id(packed_id), packed_id) if is_id(packed_id) else None
