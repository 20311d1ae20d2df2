"""`handlers`: shows the registered handlers of an application with their options."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from jobs_service import json_forms
from jobs_service.cli import output, session
from jobs_service.cli.options import JsonOption
from jobs_service.cli.tables import Column
from jobs_service.names import printable, shown

if TYPE_CHECKING:
    from jobs_service import Handler, HandlerOptions

ApplicationArgument = Annotated[str, typer.Argument(metavar="MODULE:ATTR", help="A JobsService of yours.")]


class _Row(NamedTuple):
    handler: Handler[Any, Any]
    comes: str | None


def _changed(row: _Row) -> str:
    from jobs_service import HandlerOptions

    defaults = _options(HandlerOptions())
    given = _options(row.handler.options)
    return " ".join(f"{name}={value}" for name, value in given.items() if value != defaults[name])


COLUMNS = (
    Column("type", lambda row: shown(row.handler.type)),
    Column("function", lambda row: printable(row.handler.name)),
    Column("comes", lambda row: row.comes or ""),
    Column("options", _changed, cut=True),
)


def handlers(context: typer.Context, application: ApplicationArgument, as_json: JsonOption = False) -> None:
    """Show the handlers of an application with their options.

    Shown are the options that differ from the defaults, after the settings have been applied; with --json, all.
    """
    from jobs_service.cli.application import load
    from jobs_service.runner.schedule import in_words

    session.refuse_store(context, "handlers are in a program, not in a store")
    service = load(application)
    service.reload(service.settings)
    comes = {type: in_words(periodic.schedule) for type, periodic in service.periodic.items()}
    rows = [_Row(handler, comes.get(handler.type)) for handler in service.handlers.values()]
    output.rows(COLUMNS, rows, _form, as_json, "no handlers; make a function one with @jobs.handler(type)")


def _form(row: _Row) -> dict[str, Any]:
    handler = row.handler
    return {
        "type": json_forms.name(handler.type),
        "function": handler.name,
        "kind": handler.kind,
        "comes": row.comes,
        "options": _options(handler.options),
    }


def _options(options: HandlerOptions) -> dict[str, Any]:
    """Return options as a JSON object."""
    values = {field.name: getattr(options, field.name) for field in fields(options)}
    return {name: "a function" if callable(value) else value for name, value in values.items()}
