"""`types`: shows or changes the types of jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from jobs_service.cli import output, session, values
from jobs_service.cli.names import parse_type
from jobs_service.cli.options import JsonOption, StoreOption, TypeArgument, Verb
from jobs_service.cli.tables import Column, table
from jobs_service.cli.tally import STATUS_COLUMNS, Tally
from jobs_service.cli.type_checks import change_type
from jobs_service.names import shown
from jobs_service.status import Status

if TYPE_CHECKING:
    from jobs_service import JobsService

COLUMNS = (
    Column("type"),
    Column("timeout", right=True),
    *STATUS_COLUMNS,
    Column("paused", nothing="no"),
)


def types_app() -> typer.Typer:
    """Return the verb with its sub-verbs `set` and `clear`."""
    app = typer.Typer(rich_markup_mode=None)
    app.callback(invoke_without_command=True)(types)
    app.command("set", cls=Verb)(set_timeout)
    app.command("clear", cls=Verb)(clear_timeout)
    return app


def types(context: typer.Context, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Show or change the types of jobs.

    Shown are their activity timeouts, counts by state, and whether they are paused.

    The activity timeout is the time that a running job may be silent before it counts as lost and becomes pending
    again. A type without one (none) accepts no new jobs.
    """
    if context.invoked_subcommand is not None:
        context.obj = session.GlobalOptions(session.chosen_store(context, store))
        return
    counts = session.run(context, store, _count)
    if as_json:
        for count in counts:
            output.json_line(count.as_json())
    elif counts:
        table(COLUMNS, [count.as_row() for count in counts])
    else:
        output.line("no types; jobs-service types set TYPE SECONDS makes one")


def set_timeout(
    context: typer.Context,
    type: TypeArgument,
    seconds: Annotated[str, typer.Argument(metavar="SECONDS", help="The activity timeout: 60, 10m, 1h30m.")],
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set a type's activity timeout; this makes the type, and the store if it does not exist."""
    name = parse_type(type)
    timeout = values.positive_duration(seconds, "SECONDS")

    async def body(jobs: JobsService) -> None:
        await jobs.set_type_timeout(name, timeout)

    session.run(context, store, body, rehearsal=body)
    if as_json:
        output.json_line({"type": shown(name), "timeout": timeout})
    else:
        output.line(f"type {shown(name)}: activity timeout {timeout:g} s")


def clear_timeout(
    context: typer.Context, type: TypeArgument, store: StoreOption = None, as_json: JsonOption = False
) -> None:
    """Remove a type's activity timeout: its jobs stay, new ones are refused."""
    name = parse_type(type)
    session.run(context, store, lambda jobs: change_type(jobs, name, lambda tx: tx.clear_type_timeout(name)))
    if as_json:
        output.json_line({"type": shown(name), "timeout": None})
    else:
        output.line(f"type {shown(name)}: no activity timeout any more; its jobs stay, new ones are refused")


class _TypeSummary:
    """A type with its timeout, and its jobs counted by status."""

    def __init__(self, type: Any, timeout: float | None) -> None:
        self.type = type
        self.timeout = timeout
        self.paused = False
        self.tally = Tally()

    def as_row(self) -> list[str]:
        """Return the cells for COLUMNS."""
        timeout = "none" if self.timeout is None else f"{self.timeout:g} s"
        counts = [str(self.tally.jobs[status]) for status in Status]
        return [shown(self.type), timeout, *counts, "yes" if self.paused else "no"]

    def as_json(self) -> dict[str, Any]:
        """Return the object for `--json`."""
        counts = self.tally.counts()
        ends = {end: counts.pop(end) for end in ("succeeded", "failed", "canceled")}
        more = {"finished": sum(ends.values()), "paused": self.paused, **ends}
        return {"type": shown(self.type), "timeout": self.timeout, **counts, **more}


async def _count(jobs: JobsService) -> list[_TypeSummary]:
    from jobs_service.errors import NoTypeTimeout

    counts: dict[str, _TypeSummary] = {}
    for type, counted in (await jobs.counts()).items():
        try:
            timeout: float | None = await jobs.get_type_timeout(type)
        except NoTypeTimeout:  # its jobs remain
            timeout = None
        count = counts[shown(type)] = _TypeSummary(type, timeout)
        count.tally.take(counted)
    for count in counts.values():
        count.paused = await jobs.paused(count.type)
    return [counts[key] for key in sorted(counts)]
