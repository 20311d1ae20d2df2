"""Whether those who wait for changes of a type, or of its queue, were told of what a commit has changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from jobs_service.model import JobType
from tests.simulation.model_job import Key, ModelJob
from tests.simulation.operations import Operations
from tests.simulation.rows import rows_of


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
