"""`workers`: shows the running jobs of each worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from jobs_service import json_forms
from jobs_service.cli import output, secrets, session
from jobs_service.cli.names import parse_type
from jobs_service.cli.options import JsonOption, OptionalType, StoreOption
from jobs_service.cli.tables import Column
from jobs_service.cli.type_checks import require_type
from jobs_service.names import printable, shown

if TYPE_CHECKING:
    from jobs_service import Job, JobsService, Progress

AT_ONCE = 100
"""Jobs read at the same time."""


class _Row(NamedTuple):
    job: Job
    worker: str | None
    since: float | None
    progress: Progress | None

    @classmethod
    def of(cls, job: Job) -> _Row:
        started = next((event for event in job.history if event.kind == "started"), None)
        if started is None:
            return cls(job, None, None, job.progress)
        return cls(job, started.detail, started.at, job.progress)


COLUMNS = (
    Column("worker", lambda row: printable(row.worker or "-")),
    Column("type", lambda row: shown(row.job.type)),
    Column("id", lambda row: shown(row.job.id)),
    Column("since", lambda row: output.time_text(row.since)),
    Column("attempt", lambda row: str(row.job.attempts), right=True, nothing="1"),
    Column("canceled", lambda row: "yes" if row.job.cancel else "no", nothing="no"),
    Column("progress", lambda row: "" if row.progress is None else output.progress_text(row.progress), cut=True),
)


def workers(
    context: typer.Context, type: OptionalType = None, store: StoreOption = None, as_json: JsonOption = False
) -> None:
    """Show which worker runs which job.

    A worker's name is its host and process id, from the event "started" in the job's history. A worker that has died is
    shown until its job is taken back.
    """
    only = None if type is None else parse_type(type)
    rows = session.run(context, store, lambda jobs: _held(jobs, only))
    output.rows(COLUMNS, rows, _form, as_json, "no job is running")


async def _held(jobs: JobsService, only: Any) -> list[_Row]:
    """Return a row for each running job."""
    import asyncio

    if only is not None:
        await require_type(jobs, only)
    rows: list[_Row] = []
    for type in [only] if only is not None else await jobs.types():
        # The running jobs of a type have an index of their own, so not all jobs are read.
        ids = await jobs.active_ids(type)
        for at in range(0, len(ids), AT_ONCE):
            found = await asyncio.gather(*(_running(jobs, type, id) for id in ids[at : at + AT_ONCE]))
            held = await secrets.without_in_all(jobs, [job for job in found if job is not None])
            rows += [output.as_far_as_readable(_Row.of, job) for job in held]
    return sorted(rows, key=lambda row: (row.worker or "", row.since or 0.0))


async def _running(jobs: JobsService, type: Any, id: Any) -> Job | None:
    from jobs_service import JobNotFound, JobState, RecordDamaged

    try:
        job = await jobs.get(type, id)
    except (JobNotFound, RecordDamaged):  # it was removed meanwhile, or it is unknown whether it runs
        return None
    return job if job.state is JobState.RUNNING else None


def _form(row: _Row) -> dict[str, Any]:
    from jobs_service.json_types import plain
    from jobs_service.json_values import time

    return {
        "worker": row.worker,
        "type": json_forms.name(row.job.type),
        "id": json_forms.name(row.job.id),
        "since": time(row.since),
        "attempt": row.job.attempts,
        "cancel": row.job.cancel,
        "progress": None if row.progress is None else plain(row.progress),
    }
