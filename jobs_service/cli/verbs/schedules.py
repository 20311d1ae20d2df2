"""`schedules`: show and change the schedules that are kept in the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from jobs_service.cli import output, parsing, program
from jobs_service.cli.output import Column
from jobs_service.cli.parsing import DURATION_HELP, TypeArgument, parse_type, verb, with_options
from jobs_service.names import printable, shown

if TYPE_CHECKING:
    from jobs_service import JobsService, StoredSchedule

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

    _told(context, program.run(context, body, rehearsal=body))


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

    _told(context, program.run(context, body))


async def _shown(jobs: JobsService, found: StoredSchedule) -> StoredSchedule:
    from jobs_service.service.schedules import without_secrets

    return await without_secrets(jobs, found)


def _told(context: typer.Context, found: StoredSchedule) -> None:
    upcoming = "paused" if found.paused else f"next at {output.time_text(found.next)}"
    output.tell(context, found.to_dict(), f"schedule {printable(found.name)}: {_comes(found)}, {upcoming}")
