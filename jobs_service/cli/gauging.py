"""`stats` and `top`: how many jobs are in which state, and for how long. Floor: command line."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jobs_service.cli import exits, output, parsing, session
from jobs_service.cli.names import parse_type, shown
from jobs_service.cli.options import DURATION_HELP, JsonOption, StoreOption

if TYPE_CHECKING:
    from jobs_service import JobsService

OptionalType = Annotated[str | None, typer.Argument(metavar="[TYPE]", help="Only jobs of this type.")]
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


def stats(
    context: typer.Context, type: OptionalType = None, store: StoreOption = None, as_json: JsonOption = False
) -> None:
    """Count jobs by state.

    With each count comes the average time that the jobs have been in that state. Pending ones could run now;
    scheduled ones are not due; crashed ones wait for their next attempt. It reads all jobs, page by page.
    """
    only = None if type is None else parse_type(type)
    rows = session.run(context, store, lambda jobs: _gauges(jobs, only))
    if only is not None and not rows:
        raise exits.AnswerIsNo(f"there is no type {shown(only)}")
    _print(rows, as_json)


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


async def _gauges(jobs: JobsService, only: Any = None) -> list[dict[str, Any]]:
    """Return what `--json` prints of each type, also of one that has no jobs."""
    from jobs_service.runner.stats import gauges

    found = await jobs.stats(only)
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


def _gauge(row: dict[str, Any], state: str) -> str:
    return f"{row[state]} ({output.duration_text(row[f'average_{state}_seconds'])})" if row[state] else "0"
