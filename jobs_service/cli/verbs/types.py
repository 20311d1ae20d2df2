"""`types`: shows or changes the types of jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from jobs_service import json_forms
from jobs_service.cli import output, session, values
from jobs_service.cli.names import parse_type
from jobs_service.cli.options import JsonOption, StoreOption, TypeArgument, Verb
from jobs_service.cli.tables import Column
from jobs_service.cli.type_checks import change_type
from jobs_service.cli.verbs.stats import COUNTS, NO_TYPES, PAUSED, TYPE
from jobs_service.names import shown
from jobs_service.status import Status

if TYPE_CHECKING:
    from jobs_service import JobsService, TypeCounts


class _Type(NamedTuple):
    type: Any
    timeout: float | None
    paused: bool
    counts: TypeCounts


def _timeout(row: _Type) -> str:
    return "none" if row.timeout is None else f"{row.timeout:g} s"


COLUMNS = (TYPE, Column("timeout", _timeout, right=True), *COUNTS, PAUSED)


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
    output.rows(COLUMNS, session.run(context, store, _read), _form, as_json, NO_TYPES)


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
        output.json_line({"type": json_forms.name(name), "timeout": timeout})
    else:
        output.line(f"type {shown(name)}: activity timeout {timeout:g} s")


def clear_timeout(
    context: typer.Context, type: TypeArgument, store: StoreOption = None, as_json: JsonOption = False
) -> None:
    """Remove a type's activity timeout: its jobs stay, new ones are refused."""
    name = parse_type(type)
    session.run(context, store, lambda jobs: change_type(jobs, name, lambda tx: tx.clear_type_timeout(name)))
    if as_json:
        output.json_line({"type": json_forms.name(name), "timeout": None})
    else:
        output.line(f"type {shown(name)}: no activity timeout any more; its jobs stay, new ones are refused")


async def _read(jobs: JobsService) -> list[_Type]:
    from jobs_service.errors import NoTypeTimeout

    found = []
    for type, counts in (await jobs.counts()).items():
        try:
            timeout: float | None = await jobs.get_type_timeout(type)
        except NoTypeTimeout:  # its jobs remain
            timeout = None
        found.append(_Type(type, timeout, await jobs.paused(type), counts))
    return sorted(found, key=lambda row: shown(row.type))


def _form(row: _Type) -> dict[str, Any]:
    named = {"type": json_forms.name(row.type), "timeout": row.timeout, "paused": row.paused}
    return {**named, **{status.value: getattr(row.counts, status.value) for status in Status}}
