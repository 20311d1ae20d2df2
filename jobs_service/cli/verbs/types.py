"""`types`, `pause`, `resume`, `retention` and `redact`: show or change the types of jobs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from jobs_service import names
from jobs_service.cli import output, parsing, program
from jobs_service.cli.output import Column
from jobs_service.cli.parsing import DURATION_HELP, TypeArgument, parse_type, verb, with_options
from jobs_service.cli.program import change_type, require_type
from jobs_service.cli.verbs.stats import COUNTS, NO_TYPES, PAUSED, TYPE
from jobs_service.names import printable, shown

if TYPE_CHECKING:
    from jobs_service import JobsService, JobType, Retention, TypeCounts

FOR_EVER = "forever"

KeepOption = Annotated[
    str | None,
    typer.Option("--keep", metavar="S", help=f"Those that succeeded or were canceled: {DURATION_HELP}, forever."),
]
KeepFailedOption = Annotated[
    str | None, typer.Option("--keep-failed", metavar="S", help=f"Those that failed: {DURATION_HELP}, forever.")
]

PathsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="PATH", help="Such as card.number, **.token, error:message.")
]
NoneOption = Annotated[bool, typer.Option("--none", help="Nothing is secret any more.")]


# Types and their timeouts


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
    app.callback(invoke_without_command=True)(with_options(types))
    verb(app, "set", set_timeout)
    verb(app, "clear", clear_timeout)
    return app


def types(context: typer.Context) -> None:
    """Show or change the types of jobs.

    Shown are their activity timeouts, counts by state, and whether they are paused.

    The activity timeout is the time that a running job may be silent before it counts as lost and becomes pending
    again. A type without one (none) accepts no new jobs.
    """
    if context.invoked_subcommand is not None:
        return
    output.rows(context, COLUMNS, program.run(context, _read), _form, NO_TYPES)


def set_timeout(
    context: typer.Context,
    type: TypeArgument,
    seconds: Annotated[str, typer.Argument(metavar="SECONDS", help="The activity timeout: 60, 10m, 1h30m.")],
) -> None:
    """Set a type's activity timeout; this makes the type, and the store if it does not exist."""
    name = parse_type(type)
    timeout = parsing.positive_duration(seconds, "SECONDS")

    async def body(jobs: JobsService) -> None:
        await jobs.set_type_timeout(name, timeout)

    program.run(context, body, rehearsal=body)
    _tell(context, name, f"activity timeout {timeout:g} s", timeout=timeout)


def clear_timeout(context: typer.Context, type: TypeArgument) -> None:
    """Remove a type's activity timeout: its jobs stay, new ones are refused."""
    name = parse_type(type)
    program.run(context, lambda jobs: change_type(jobs, name, lambda tx: tx.clear_type_timeout(name)))
    _tell(context, name, "no activity timeout any more; its jobs stay, new ones are refused", timeout=None)


def _tell(context: typer.Context, type: JobType, text: str, **form: Any) -> None:
    output.tell(context, {"type": names.name(type), **form}, f"type {shown(type)}: {text}")


async def _read(jobs: JobsService) -> list[_Type]:
    counts = await jobs.counts()
    settings = await jobs.type_settings(counts)
    found = [_Type(type, its.timeout, its.paused, counts[type]) for type, its in zip(counts, settings, strict=True)]
    return sorted(found, key=lambda row: shown(row.type))


def _form(row: _Type) -> dict[str, Any]:
    named = {"type": names.name(row.type), "timeout": row.timeout, "paused": row.paused}
    return {**named, **{status: getattr(row.counts, status) for status in output.STYLES}}


# Pauses


def pause(context: typer.Context, type: TypeArgument) -> None:
    """Let no worker take jobs of a type until it is resumed.

    This holds in all processes, also in those that are started later. Jobs that run go on; new ones may be added.
    """
    name = parse_type(type)
    program.run(context, lambda jobs: change_type(jobs, name, lambda tx: tx.pause(name)))
    _tell(context, name, "paused; jobs that run go on, and no others begin", paused=True)


def resume(context: typer.Context, type: TypeArgument) -> None:
    """Let workers take the jobs of a paused type again."""
    name = parse_type(type)
    program.run(context, lambda jobs: change_type(jobs, name, lambda tx: tx.resume(name)))
    _tell(context, name, "its jobs are taken again", paused=False)


# Retention and secret fields


def retention(
    context: typer.Context, type: TypeArgument, keep: KeepOption = None, keep_failed: KeepFailedOption = None
) -> None:
    """Show or change how long finished jobs of a type are kept.

    A change applies to jobs that finish from now on. Options that are not given change nothing. When a handler's own
    options are changed in its program, they replace these.
    """
    name = parse_type(type)
    changes = {
        option: None if text == FOR_EVER else parsing.duration(text, f"--{option.replace('_', '-')}", FOR_EVER)
        for option, text in (("keep", keep), ("keep_failed", keep_failed))
        if text is not None
    }

    async def body(jobs: JobsService) -> Retention:
        await require_type(jobs, name)
        kept = await jobs.get_retention(name)
        if changes:
            kept = replace(kept, **changes)
            await change_type(
                jobs, name, lambda tx: tx.set_retention(name, keep=kept.keep, keep_failed=kept.keep_failed)
            )
        return kept

    kept = program.run(context, body)
    finished, failed = (
        FOR_EVER if seconds is None else f"for {output.duration_text(seconds)}"
        for seconds in (kept.keep, kept.keep_failed)
    )
    text = f"finished jobs are kept {finished}, failed ones {failed}"
    _tell(context, name, text, keep=kept.keep, keep_failed=kept.keep_failed)


def redact(context: typer.Context, type: TypeArgument, paths: PathsArgument = None, none: NoneOption = False) -> None:
    """Show or set the fields of a type's jobs that are secret.

    Whatever shows jobs hides them.

    A path holds for data and result; with data:, result:, error: or progress: before it for that part. When a handler's
    own option is changed in its program, it replaces these.
    """
    name = parse_type(type)
    if none and paths:
        raise typer.BadParameter("it leaves nothing secret; give no PATH with it", param_hint="--none")
    wanted = [] if none else paths

    async def body(jobs: JobsService) -> tuple[str, ...]:
        await require_type(jobs, name)
        if wanted is not None and (wanted or none):
            await jobs.set_redaction(name, wanted)
        return (await jobs.get_redaction(name)).paths

    found = program.run(context, body)
    _tell(context, name, f"{', '.join(map(printable, found)) or 'nothing'} is secret", redact=[*found])
