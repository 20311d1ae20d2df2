"""`stats`: counts the jobs of each type by status."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jobs_service.cli import exits, output, secrets, session
from jobs_service.cli.names import parse_type
from jobs_service.cli.options import JsonOption, OptionalType, StoreOption
from jobs_service.cli.tables import Column, table
from jobs_service.cli.tally import STATUS_COLUMNS, Tally
from jobs_service.names import printable, shown
from jobs_service.status import Status

if TYPE_CHECKING:
    from jobs_service import JobsService

JobsOption = Annotated[
    int, typer.Option("--jobs", min=0, metavar="N", help="Show also up to so many unfinished jobs of each type.")
]

COLUMNS = (
    Column("type"),
    *STATUS_COLUMNS,
    Column("paused", nothing="no"),
)
JOB_COLUMNS = (
    Column("type"),
    Column("id"),
    Column("state", status=True),
    Column("attempts", right=True),
    Column("crashes", right=True),
    Column("since"),
    Column("error", cut=True),
)


def stats(
    context: typer.Context,
    type: OptionalType = None,
    jobs: JobsOption = 0,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Count jobs by state.

    Each count of unfinished jobs has the average time since their latest event, of up to 32 of them. Ready jobs could
    run now, scheduled ones are not due, retrying ones wait for another attempt as their last run has crashed. With
    --jobs all are read.
    """
    only = None if type is None else parse_type(type)
    rows = session.run(context, store, lambda service: gauges(service, only, jobs))
    if only is not None and not rows:
        raise exits.AnswerIsNo(f"there is no type {shown(only)}")
    print_rows(rows, as_json)
    summaries = [(row["type"], summary) for row in rows for summary in row.get("jobs", ())]
    if summaries and not as_json:
        output.line("")
        table(JOB_COLUMNS, [_summary(type, summary) for type, summary in summaries])


def print_rows(rows: list[dict[str, Any]], as_json: bool) -> None:
    """Print the figures of types, as JSON or as a table."""
    output.rows(COLUMNS, rows, cells, as_json, "no types; jobs-service types set TYPE SECONDS makes one")


async def gauges(jobs: JobsService, only: Any = None, summaries: int = 0) -> list[dict[str, Any]]:
    """Return the figures of each type for `--json`, also of types without jobs."""
    from jobs_service.service.stats import some_unfinished
    from jobs_service.sources import Sources

    wall_time = Sources().wall_time
    types: dict[str, Any] = {}
    tallies: dict[str, Tally] = {}
    counted = await jobs.counts(only)
    for type in counted:
        name = shown(type)
        types[name], tallies[name] = type, Tally(summaries)
    if not summaries:
        async for type, some in some_unfinished(jobs.page, counted):
            tally = tallies[shown(type)]
            for job in some:
                tally.add(job, wall_time())
            tally.take(counted[type])
    if summaries:
        async for job in jobs.list(only):
            name = shown(job.type)
            tally = tallies.setdefault(name, Tally(summaries))
            types.setdefault(name, job.type)
            tally.add(await secrets.without(jobs, job) if len(tally.summaries) < summaries else job, wall_time())
    return [await _row(jobs, types[name], tallies[name], summaries) for name in sorted(types)]


async def _row(jobs: JobsService, type: Any, tally: Tally, summaries: int) -> dict[str, Any]:
    return {
        "type": shown(type),
        "paused": await jobs.paused(type),
        **tally.gauges(),
        "states": tally.counts(),
        "average_seconds": tally.average_seconds(),
        **({"jobs": tally.summaries} if summaries else {}),
    }


def cells(row: dict[str, Any]) -> list[str]:
    """Return a type's cells for COLUMNS."""
    counts = [_count(row, status) for status in Status]
    return [row["type"], *counts, "yes" if row["paused"] else "no"]


def _summary(type: str, summary: dict[str, Any]) -> list[str]:
    since = summary["last_updated"]
    return [
        type,
        summary["id"],
        summary["status"],
        str(summary["attempts"]),
        str(summary["error_count"]),
        "" if since is None else output.time_text(datetime.fromisoformat(since)),
        printable((summary["error"] or "").replace("\n", " ")),
    ]


def _count(row: dict[str, Any], status: Status) -> str:
    count: int = row["states"].get(status, 0)
    seconds: float | None = row["average_seconds"].get(status)
    return f"{count} ({output.duration_text(seconds)})" if count and seconds is not None else str(count)
