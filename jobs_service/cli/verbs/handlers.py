"""`handlers`, `periodic`, `schedules`: show handlers with their options, periodic jobs, and schedules of the store."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from jobs_service import names
from jobs_service.cli import output, parsing, program
from jobs_service.cli.output import Column
from jobs_service.cli.parsing import DURATION_HELP, TypeArgument, parse_type, verb, with_options
from jobs_service.names import printable, shown
from jobs_service.sources import Sources

if TYPE_CHECKING:
    from jobs_service import Handler, HandlerOptions, JobsService, StoredSchedule
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


# Schedules in the store


NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Of the schedule.")]
DataOption = Annotated[
    str | None, typer.Option("--data", metavar="JSON|@FILE|-", help="The jobs' JSON value; - reads standard input.")
]
EveryOption = Annotated[
    str | None, typer.Option("--every", metavar="S", help=f"Time between two ticks: {DURATION_HELP}.")
]
CronOption = Annotated[
    str | None, typer.Option("--cron", metavar="EXPRESSION", help="Instead: '0 3 * * MON-FRI', @daily.")
]
TimezoneOption = Annotated[
    str, typer.Option("--timezone", metavar="NAME", help="Of the expression's times: Europe/Berlin.")
]
MissedOption = Annotated[
    str, typer.Option("--missed", metavar="HOW", help="What happens to missed ticks: once, skip or all.")
]
OverlapOption = Annotated[bool, typer.Option("--overlap", help="Add a job although the last one has not finished.")]


def _comes(found: StoredSchedule) -> str:
    from jobs_service import durations

    return f"{found.cron} {found.timezone}" if found.every is None else f"every {durations.typed(found.every)}"


COLUMNS = (
    Column("name", lambda found: printable(found.name), whole=True),
    Column("type", lambda found: shown(found.type)),
    Column("comes", _comes),
    Column("last", lambda found: output.time_text(found.last)),
    Column("next", lambda found: output.time_text(found.next)),
    Column("missed", lambda found: found.missed, nothing="once"),
    Column("paused", lambda found: "yes" * found.paused),
)


def schedules_app() -> typer.Typer:
    """Return the verb with its sub-verbs."""
    app = typer.Typer(rich_markup_mode=None)
    app.callback(invoke_without_command=True)(with_options(schedules))
    verb(app, "set", set_schedule)
    verb(app, "pause", pause)
    verb(app, "resume", resume)
    verb(app, "remove", remove)
    return app


def schedules(context: typer.Context) -> None:
    """Show or change the schedules in the store.

    Schedules in the code of applications are others: jobs-service periodic shows these.
    """
    if context.invoked_subcommand is not None:
        return

    async def body(jobs: JobsService) -> list[StoredSchedule]:
        return [await _shown(jobs, each) for each in await jobs.schedules.list()]

    none = "no schedules in the store; jobs-service schedules set NAME TYPE --every S makes one"
    output.rows(context, COLUMNS, program.run(context, body), lambda found: found.to_dict(), none)


def set_schedule(
    context: typer.Context,
    name: NameArgument,
    type: TypeArgument,
    data: DataOption = None,
    every: EveryOption = None,
    cron: CronOption = None,
    timezone: TimezoneOption = "UTC",
    missed: MissedOption = "once",
    overlap: OverlapOption = False,
) -> None:
    """Make a schedule that adds jobs of a type, or change it."""
    named = parse_type(type)
    value = None if data is None else parsing.data(data)
    period = None if every is None else parsing.positive_duration(every, "--every")

    async def body(jobs: JobsService) -> StoredSchedule:
        times: dict[str, Any] = {"every": period, "cron": cron, "timezone": timezone}
        return await _shown(jobs, await jobs.schedules.set(name, named, value, **times, missed=missed, overlap=overlap))

    _print(context, program.run(context, body, rehearsal=body))


def pause(context: typer.Context, name: NameArgument) -> None:
    """Hold up the ticks of a schedule until it is resumed."""
    _change(context, name, "pause")


def resume(context: typer.Context, name: NameArgument) -> None:
    """Let a schedule tick again."""
    _change(context, name, "resume")


def remove(context: typer.Context, name: NameArgument) -> None:
    """Remove a schedule; the jobs that it has added stay."""
    program.run(context, lambda jobs: jobs.schedules.remove(name))
    output.tell(context, {"name": name, "removed": True}, f"schedule {printable(name)}: removed; its jobs stay")


def _change(context: typer.Context, name: str, action: str) -> None:
    async def body(jobs: JobsService) -> StoredSchedule:
        return await _shown(jobs, await getattr(jobs.schedules, action)(name))

    _print(context, program.run(context, body))


async def _shown(jobs: JobsService, found: StoredSchedule) -> StoredSchedule:
    from jobs_service.service.schedules import without_secrets

    return await without_secrets(jobs, found)


def _print(context: typer.Context, found: StoredSchedule) -> None:
    upcoming = "paused" if found.paused else f"next at {output.time_text(found.next)}"
    output.tell(context, found.to_dict(), f"schedule {printable(found.name)}: {_comes(found)}, {upcoming}")
