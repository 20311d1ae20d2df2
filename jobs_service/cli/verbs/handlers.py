"""`handlers` and `periodic`: show the handlers of an application with their options, and its periodic jobs."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from jobs_service import names
from jobs_service.cli import output, program
from jobs_service.cli.output import Column
from jobs_service.names import printable, shown
from jobs_service.sources import Sources

if TYPE_CHECKING:
    from jobs_service import Handler, HandlerOptions, JobsService
    from jobs_service.service.handler_registry import Periodic

ApplicationArgument = Annotated[str, typer.Argument(metavar="MODULE:ATTR", help="A JobsService of yours.")]

OptionalApplication = Annotated[
    str | None,
    typer.Argument(metavar="MODULE:ATTR", help="A JobsService of yours: only it knows when its jobs come next."),
]


# Handlers


class _HandlerRow(NamedTuple):
    handler: Handler[Any, Any]
    comes: str | None


def _changed(row: _HandlerRow) -> str:
    from jobs_service import HandlerOptions

    defaults = _options(HandlerOptions())
    given = _options(row.handler.options)
    return " ".join(f"{name}={value}" for name, value in given.items() if value != defaults[name])


HANDLER_COLUMNS = (
    Column("type", lambda row: shown(row.handler.type), whole=True),
    Column("function", lambda row: printable(row.handler.name)),
    Column("comes", lambda row: row.comes or ""),
    Column("options", _changed, cut=True),
)


def handlers(context: typer.Context, application: ApplicationArgument) -> None:
    """Show the handlers of an application with their options.

    Shown are the options that differ from the defaults, after the settings have been applied; with -o json, all.
    """
    from jobs_service.cli.daemon import load

    program.refuse_store(context, "handlers are in a program, not in a store")
    service = load(application)
    service.reload(service.settings)
    comes = {type: periodic.in_words for type, periodic in service.periodic.items()}
    rows = [_HandlerRow(handler, comes.get(handler.type)) for handler in service.handlers.values()]
    output.rows(
        context, HANDLER_COLUMNS, rows, _handler_form, "no handlers; make a function one with @jobs.handler(type)"
    )


def _handler_form(row: _HandlerRow) -> dict[str, Any]:
    handler = row.handler
    return {
        "type": names.name(handler.type),
        "function": handler.name,
        "kind": handler.kind,
        "comes": row.comes,
        "options": _options(handler.options),
    }


def _options(options: HandlerOptions) -> dict[str, Any]:
    """Return options as a JSON object."""
    values = {field.name: getattr(options, field.name) for field in fields(options)}
    return {name: "a function" if callable(value) else value for name, value in values.items()}


# Periodic jobs


class _PeriodicRow(NamedTuple):
    type: Any
    last: float | None
    paused: bool
    comes: str | None = None
    next: float | None = None
    missed: str | None = None


PERIODIC_COLUMNS = (
    Column("type", lambda row: shown(row.type), whole=True),
    Column("comes", lambda row: row.comes or ""),
    Column("last", lambda row: output.time_text(row.last), whole=True),
    Column("next", lambda row: output.time_text(row.next), whole=True),
    Column("missed", lambda row: row.missed or ""),
    Column("paused", lambda row: "yes" * row.paused),
)


def periodic(context: typer.Context, application: OptionalApplication = None) -> None:
    """Show periodic jobs with their last and next tick.

    Without an application, those in the store are shown. For a type that has not ticked yet, the last tick is the time
    when its handler was first run.
    """
    if application is None:
        rows = program.run(context, _ticks)
    else:
        from jobs_service.cli.daemon import load

        program.refuse_store(context, program.own_store(application))
        service = load(application)
        address = service.store.address
        seen = [] if program.missing_store(address) else program.run_at(address, _ticks)
        rows = _scheduled(service.periodic, {shown(row.type): row for row in seen})
    none = "no periodic jobs; make a function's with @jobs.every(period) or @jobs.cron(expression)"
    output.rows(context, PERIODIC_COLUMNS, rows, _periodic_form, none)


async def _ticks(jobs: JobsService) -> list[_PeriodicRow]:
    """Return the periodic types in the store."""
    ticks = await jobs.last_ticks()
    settings = await jobs.type_settings(ticks)
    return [_PeriodicRow(type, last, its.paused) for (type, last), its in zip(ticks.items(), settings, strict=True)]


def _scheduled(registered: dict[Any, Periodic], seen: dict[Any, _PeriodicRow]) -> list[_PeriodicRow]:
    """Return the periodic types of an application, with their last ticks from the store."""
    now = Sources().wall_time()
    rows = []
    for type, periodic in registered.items():
        schedule = periodic.schedule
        row = seen.get(shown(type), _PeriodicRow(type, None, False))
        last = None if periodic.last_tick(row.last) is None else row.last
        rows.append(
            _PeriodicRow(type, last, row.paused, periodic.in_words, schedule.next_after(now), periodic.missed.value)
        )
    return rows


def _periodic_form(row: _PeriodicRow) -> dict[str, Any]:
    from jobs_service.json_types import time

    return {**row._asdict(), "type": names.name(row.type), "last": time(row.last), "next": time(row.next)}
