"""`stats` and `top`: count the jobs of each type by state, once or live."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from jobs_service import names
from jobs_service.cli import output, parsing, program
from jobs_service.cli.output import Column, Table
from jobs_service.cli.parsing import DURATION_HELP, JsonOption, OptionalType, StoreOption, parse_type
from jobs_service.names import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobs_service import JobsService, QueueState, TypeCounts

NO_TYPES: Final = "no types; jobs-service types set TYPE SECONDS makes one"
_ALWAYS: Final = ("ready", "running", "succeeded")

TYPE: Final = Column("type", lambda row: shown(row.type))
PAUSED: Final = Column("paused", lambda row: "yes" if row.paused else "no", nothing="no")

IntervalOption = Annotated[
    str, typer.Option("--interval", metavar="S", help=f"Time between two updates: {DURATION_HELP}.")
]
OnceOption = Annotated[bool, typer.Option("--once", help="Show it once.")]


class CountedType(NamedTuple):
    """A type with its counts.

    Attributes:
        type: its name.
        counts: its jobs by status, and what happened to them.
        queue: the front of its queue.
    """

    type: Any
    counts: TypeCounts
    queue: QueueState

    @property
    def paused(self) -> bool:
        """Whether its workers are stopped from accepting jobs."""
        return self.queue.paused


def _count(status: str) -> Column:
    nothing = "" if status in _ALWAYS else "0"
    return Column(status, lambda row: str(getattr(row.counts, status)), right=True, nothing=nothing)


def _oldest(row: CountedType) -> str:
    if row.queue.id is None:
        return ""
    since = row.queue.ready_since
    waited = "" if since is None else f" ({output.since_text(since)})"
    return shown(row.queue.id) + waited


COUNTS: Final = tuple(map(_count, output.STYLES))
COLUMNS: Final = (TYPE, *COUNTS, PAUSED, Column("oldest ready", _oldest))


def stats(
    context: typer.Context, type: OptionalType = None, store: StoreOption = None, as_json: JsonOption = False
) -> None:
    """Count jobs by state.

    Ready jobs could run now, scheduled ones are not due, retrying ones wait for another attempt as their last run has
    crashed. The job that has been ready for longest is shown with the time for which it has been. With --json,
    everything is printed that is counted.
    """
    only = None if type is None else parse_type(type)
    found = program.run(context, store, lambda service: counted(service, only))
    if only is not None and not found:
        raise program.AnswerIsNo(f"there is no type {shown(only)}")
    print_counted(found, as_json)


def print_counted(found: Sequence[CountedType], as_json: bool) -> None:
    """Print the counts of types, as JSON or as a table."""
    output.rows(COLUMNS, found, _form, as_json, NO_TYPES)


async def counted(jobs: JobsService, only: Any = None) -> list[CountedType]:
    """Return the counts of each type, also of types without jobs."""
    counts = await jobs.counts(only)
    found = map(CountedType, counts, counts.values(), await jobs.queue_states(counts))
    return sorted(found, key=lambda row: shown(row.type))


def _form(row: CountedType) -> dict[str, Any]:
    from jobs_service.json_types import plain

    queue = plain(row.queue)
    return {"type": names.name(row.type), "paused": row.paused, **plain(row.counts), "queue": queue}


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
    seconds = parsing.positive_duration(interval, "--interval")
    if once or as_json or not sys.stdout.isatty():
        print_counted(program.run(context, store, counted), as_json)
        return
    try:
        program.run(context, store, lambda jobs: _show_live(jobs, seconds))
    except KeyboardInterrupt:
        raise typer.Exit from None


async def _show_live(jobs: JobsService, seconds: float) -> None:
    import asyncio

    from rich.live import Live
    from rich.text import Text

    with program.cursor_given_back(sys.stdout), Live(console=output.console(), auto_refresh=False) as live:
        while True:
            table = Table(COLUMNS)
            lines = table.lines([*map(table.row, await counted(jobs))])
            live.update(Text.from_ansi("\n".join(lines)), refresh=True)
            await asyncio.sleep(seconds)
