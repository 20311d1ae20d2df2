"""`workers`: shows the running jobs of each worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

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

COLUMNS = (
    Column("worker"),
    Column("type"),
    Column("id"),
    Column("since"),
    Column("attempt", right=True, nothing="1"),
    Column("canceled", nothing="no"),
    Column("progress", cut=True),
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
    output.rows(COLUMNS, rows, _cells, as_json, "no job is running")


async def _held(jobs: JobsService, only: Any) -> list[dict[str, Any]]:
    """Return a row for each running job."""
    import asyncio

    if only is not None:
        await require_type(jobs, only)
    rows: list[dict[str, Any]] = []
    for type in [only] if only is not None else await jobs.types():
        # The running jobs of a type have an index of their own, so not all jobs are read.
        ids = await jobs.active_ids(type)
        for at in range(0, len(ids), AT_ONCE):
            found = await asyncio.gather(*(_running(jobs, type, id) for id in ids[at : at + AT_ONCE]))
            held = await secrets.without_in_all(jobs, [job for job in found if job is not None])
            rows += [output.as_far_as_readable(_row, job) for job in held]
    return sorted(rows, key=lambda row: (row["worker"] or "", row["since"] or ""))


async def _running(jobs: JobsService, type: Any, id: Any) -> Job | None:
    from jobs_service import JobNotFound, JobState, RecordDamaged

    try:
        job = await jobs.get(type, id)
    except (JobNotFound, RecordDamaged):  # it was removed meanwhile, or it is unknown whether it runs
        return None
    return job if job.state is JobState.RUNNING else None


def _row(job: Job) -> dict[str, Any]:
    started = next((event for event in job.history if event.kind == "started"), None)
    progress: Progress | None = job.progress
    return {
        "worker": None if started is None else started.detail,
        "type": shown(job.type),
        "id": shown(job.id),
        "since": None if started is None else output.timestamp(started.time),
        "attempt": job.attempts,
        "cancel": job.cancel,
        "progress": None if progress is None else output.progress_json(progress),
    }


def _cells(row: dict[str, Any]) -> list[str]:
    from datetime import datetime

    from jobs_service import Progress

    since = row["since"]
    return [
        printable(row["worker"] or "-"),
        row["type"],
        row["id"],
        "" if since is None else output.time_text(datetime.fromisoformat(since)),
        str(row["attempt"]),
        "yes" if row["cancel"] else "no",
        "" if row["progress"] is None else output.progress_text(Progress(**row["progress"])),
    ]
