"""`stats` and `top`: how many jobs are in which state, and for how long. Floor: command line."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jobs_service.cli import exits, output, parsing, session
from jobs_service.cli.names import parse_type, printable, shown
from jobs_service.cli.options import DURATION_HELP, JsonOption, StoreOption

if TYPE_CHECKING:
    from jobs_service import JobsService

OptionalType = Annotated[str | None, typer.Argument(metavar="[TYPE]", help="Only jobs of this type.")]
JobsOption = Annotated[
    int, typer.Option("--jobs", min=0, metavar="N", help="Show also up to so many unfinished jobs of each type.")
]
IntervalOption = Annotated[
    str, typer.Option("--interval", metavar="S", help=f"Look again after so long: {DURATION_HELP}.")
]
OnceOption = Annotated[bool, typer.Option("--once", help="Look once.")]

STATES = ("pending", "scheduled", "running", "crashed")
COLUMNS = (
    output.Column("type"),
    output.Column("paused"),
    *(output.Column(state, right=True) for state in STATES),
    output.Column("finished", right=True),
)
JOB_COLUMNS = (
    output.Column("type"),
    output.Column("id"),
    output.Column("state"),
    output.Column("attempts", right=True),
    output.Column("crashes", right=True),
    output.Column("since"),
    output.Column("error", cut=True),
)


def stats(
    context: typer.Context,
    type: OptionalType = None,
    jobs: JobsOption = 0,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Count jobs by state.

    With each count comes the average time that the jobs have been in that state. Pending ones could run now;
    scheduled ones are not due; crashed ones wait for their next attempt. It reads all jobs, page by page.
    """
    only = None if type is None else parse_type(type)
    rows = session.run(context, store, lambda service: _gauges(service, only, jobs))
    if only is not None and not rows:
        raise exits.AnswerIsNo(f"there is no type {shown(only)}")
    _print(rows, as_json)
    summaries = [(row["type"], summary) for row in rows for summary in row.get("jobs", ())]
    if summaries and not as_json:
        output.line("")
        output.table(JOB_COLUMNS, [_summary(type, summary) for type, summary in summaries])


def top(
    context: typer.Context,
    interval: IntervalOption = "2",
    once: OnceOption = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what stats counts, live, until Ctrl-C.

    Where the output is no terminal, and with --json, it is shown once.
    """
    seconds = parsing.duration(interval, "--interval")
    if seconds <= 0:
        raise typer.BadParameter("it must be more than 0", param_hint="--interval")
    if once or as_json or not sys.stdout.isatty():
        _print(session.run(context, store, _gauges), as_json)
        return
    try:
        session.run(context, store, lambda jobs: _show_live(jobs, seconds))
    except KeyboardInterrupt:
        raise typer.Exit from None


def _print(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        for row in rows:
            output.json_line(row)
    elif rows:
        output.table(COLUMNS, _cells(rows))
    else:
        output.line("no types; jobs-service types set TYPE SECONDS makes one")


async def _show_live(jobs: JobsService, seconds: float) -> None:
    import asyncio

    from rich.live import Live

    with Live(console=output.console(), auto_refresh=False) as live:
        while True:
            live.update(output.decorated(COLUMNS, _cells(await _gauges(jobs))), refresh=True)
            await asyncio.sleep(seconds)


async def _gauges(jobs: JobsService, only: Any = None, summaries: int = 0) -> list[dict[str, Any]]:
    """Return what `--json` prints of each type, also of one that has no jobs."""
    from jobs_service.runner.stats import gauges

    found = await jobs.stats(only, jobs=summaries)
    for each in found.values():
        for summary in each.get("jobs", ()):
            summary["id"] = shown(summary["id"])
    types = {shown(type): type for type in (*await jobs.types(), *found) if only is None or type == only}
    nothing = gauges([], 0.0)
    return [
        {"type": name, "paused": await jobs.paused(types[name]), **found.get(types[name], nothing)}
        for name in sorted(types)
    ]


def _cells(rows: list[dict[str, Any]]) -> list[list[str]]:
    return [
        [
            row["type"],
            "yes" if row["paused"] else "no",
            *(_gauge(row, state) for state in STATES),
            str(row["finished"]),
        ]
        for row in rows
    ]


def _summary(type: str, summary: dict[str, Any]) -> list[str]:
    since = summary["last_updated"]
    return [
        type,
        summary["id"],
        summary["state"],
        str(summary["attempts"]),
        str(summary["error_count"]),
        "" if since is None else output.time_text(datetime.fromtimestamp(since, UTC)),
        printable((summary["error"] or "").replace("\n", " ")),
    ]


def _gauge(row: dict[str, Any], state: str) -> str:
    return f"{row[state]} ({output.duration_text(row[f'average_{state}_seconds'])})" if row[state] else "0"
