"""Whether those who wait for changes of a type or its queue, or follow it, were told of what a commit has changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from jobs_service.model import JobType
from tests.simulation.model_job import Key, ModelJob
from tests.simulation.operations import Operations
from tests.simulation.rows import changes_of, rows_of

_WANTS_NEW = b"\x01"
"""What the value of FOLLOWED ends with where jobs that are added are noted as well."""
_STAMP_BYTES = 10


def untold(
    operations: Operations,
    touched: Mapping[Key, ModelJob | None],
    written: Mapping[bytes, bytes | None],
    is_of_commit: Callable[[bytes], bool],
) -> Iterator[str]:
    """Yield of what nobody was told.

    Args:
        operations: that have done the commit's operations last.
        touched: the jobs that these have changed, as they were before.
        written: rows, None for those that were removed.
        is_of_commit: whether a versionstamp is the commit's.
    """
    active: dict[JobType, None] = {}
    woken: dict[JobType, None] = {}
    for key, before in touched.items():
        job = operations.model.jobs.get(key)
        if job == before:
            continue
        if job is None or before is None or (job.place, job.data) != (before.place, before.data):
            active[key[0]] = None
        if job is not None and job.pending and job.place > operations.own_places:
            woken[key[0]] = None
    for keys in map(rows_of, active):
        stamp = written.get(keys.watch_activity)
        if stamp is None or not is_of_commit(stamp):
            yield f"jobs of {keys.type!r} have changed, but nobody was told"
    for keys in map(rows_of, woken):
        if written.get(keys.watch_pending) is None:
            yield f"jobs of {keys.type!r} became pending, but nobody was told"
    for keys in map(rows_of, operations.resumed):
        if written.get(keys.watch_pending) is None:
            yield f"{keys.type!r} was resumed, but nobody was told"
    for keys in map(rows_of, operations.taken_away):
        if written.get(keys.watch_canceled) is None:
            yield f"running jobs of {keys.type!r} were canceled or taken away, but nobody was told"


def unnoted(
    operations: Operations,
    touched: Mapping[Key, ModelJob | None],
    written: Mapping[bytes, bytes | None],
    followed: Mapping[bytes, bytes],
) -> Iterator[str]:
    """Yield the jobs of followed types that a commit has changed without a row that says so.

    Args:
        operations, touched, written: as for `untold`.
        followed: rows FOLLOWED that were there before the commit.
    """
    for (type, id), before in touched.items():
        generation = followed.get(rows_of(type).followed)
        job = operations.model.jobs.get((type, id))
        if generation is None or job == before:
            continue
        if before is None and (job is None or generation[_STAMP_BYTES:] != _WANTS_NEW):
            continue
        if job is not None and job.lock is not None and job.place > operations.own_places:
            continue  # it has a new row in ACTIVITY
        head, packed_id = changes_of(type, id)
        if not any(key.startswith(head) and raw is not None and packed_id in raw for key, raw in written.items()):
            yield f"{type!r}/{id!r} has changed, but those who follow its type find no row that says so"
