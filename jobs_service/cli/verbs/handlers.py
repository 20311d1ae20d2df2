"""`handlers`: shows the registered handlers of an application with their options."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jobs_service.cli import output, session
from jobs_service.cli.options import JsonOption
from jobs_service.cli.tables import Column
from jobs_service.names import printable, shown

if TYPE_CHECKING:
    from jobs_service import Handler, HandlerOptions
    from jobs_service.service.handler_registry import Periodic

ApplicationArgument = Annotated[str, typer.Argument(metavar="MODULE:ATTR", help="A JobsService of yours.")]

COLUMNS = (Column("type"), Column("function"), Column("comes"), Column("options", cut=True))


def handlers(context: typer.Context, application: ApplicationArgument, as_json: JsonOption = False) -> None:
    """Show the handlers of an application with their options.

    Shown are the options that differ from the defaults, after the settings have been applied; with --json, all.
    """
    from jobs_service.cli.application import load

    session.refuse_store(context, "handlers are in a program, not in a store")
    service = load(application)
    service.reload(service.settings)
    periodic = service.periodic
    rows = [_row(handler, periodic.get(handler.type)) for handler in service.handlers.values()]
    output.rows(COLUMNS, rows, _cells, as_json, "no handlers; make a function one with @jobs.handler(type)")


def _row(handler: Handler[Any, Any], periodic: Periodic | None) -> dict[str, Any]:
    return {
        "type": shown(handler.type),
        "function": handler.name,
        "kind": handler.kind,
        "comes": None if periodic is None else periodic.in_words,
        "options": _options(handler.options),
    }


def _options(options: HandlerOptions) -> dict[str, Any]:
    """Return options as a JSON object."""
    values = {field.name: getattr(options, field.name) for field in fields(options)}
    return {name: "a function" if callable(value) else value for name, value in values.items()}


def _cells(row: dict[str, Any]) -> list[str]:
    from jobs_service import HandlerOptions

    defaults = _options(HandlerOptions())
    changed = [f"{name}={value}" for name, value in row["options"].items() if value != defaults[name]]
    return [row["type"], printable(row["function"]), row["comes"] or "", " ".join(changed)]
