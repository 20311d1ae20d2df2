"""`top`: shows the counts of `stats` live."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from jobs_service.cli import output, session, values
from jobs_service.cli.options import DURATION_HELP, JsonOption, StoreOption
from jobs_service.cli.tables import Table
from jobs_service.cli.verbs.stats import COLUMNS, counted, print_counted

if TYPE_CHECKING:
    from jobs_service import JobsService

IntervalOption = Annotated[
    str, typer.Option("--interval", metavar="S", help=f"Time between two updates: {DURATION_HELP}.")
]
OnceOption = Annotated[bool, typer.Option("--once", help="Show it once.")]


def top(
    context: typer.Context,
    interval: IntervalOption = "2",
    once: OnceOption = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the counts of stats live, until Ctrl-C.

    If the output is not a terminal, and with --json, they are shown once.
    """
    seconds = values.positive_duration(interval, "--interval")
    if once or as_json or not sys.stdout.isatty():
        print_counted(session.run(context, store, counted), as_json)
        return
    try:
        session.run(context, store, lambda jobs: _show_live(jobs, seconds))
    except KeyboardInterrupt:
        raise typer.Exit from None


async def _show_live(jobs: JobsService, seconds: float) -> None:
    import asyncio

    from rich.live import Live
    from rich.text import Text

    from jobs_service.cli.signals import cursor_given_back

    with cursor_given_back(sys.stdout), Live(console=output.console(), auto_refresh=False) as live:
        while True:
            table = Table(COLUMNS)
            lines = table.lines([*map(table.row, await counted(jobs))])
            live.update(Text.from_ansi("\n".join(lines)), refresh=True)
            await asyncio.sleep(seconds)
