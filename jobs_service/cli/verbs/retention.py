"""`retention`: shows or changes the retention of a type's finished jobs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from jobs_service import json_forms
from jobs_service.cli import output, session, values
from jobs_service.cli.names import parse_type
from jobs_service.cli.options import DURATION_HELP, JsonOption, StoreOption, TypeArgument
from jobs_service.cli.type_checks import change_type, require_type
from jobs_service.names import shown

if TYPE_CHECKING:
    from jobs_service import JobsService, Retention

FOR_EVER = "forever"

KeepOption = Annotated[
    str | None,
    typer.Option("--keep", metavar="S", help=f"Those that succeeded or were canceled: {DURATION_HELP}, forever."),
]
KeepFailedOption = Annotated[
    str | None, typer.Option("--keep-failed", metavar="S", help=f"Those that failed: {DURATION_HELP}, forever.")
]


def retention(
    context: typer.Context,
    type: TypeArgument,
    keep: KeepOption = None,
    keep_failed: KeepFailedOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show or change how long finished jobs of a type are kept.

    A change applies to jobs that finish from now on. Options that are not given change nothing. When a handler's own
    options are changed in its program, they replace these.
    """
    name = parse_type(type)
    changes = {
        option: None if text == FOR_EVER else values.duration(text, f"--{option.replace('_', '-')}", FOR_EVER)
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

    kept = session.run(context, store, body)
    if as_json:
        from jobs_service.json_types import plain

        output.json_line({"type": json_forms.name(name), **plain(kept)})
        return
    finished, failed = (
        FOR_EVER if seconds is None else f"for {output.duration_text(seconds)}"
        for seconds in (kept.keep, kept.keep_failed)
    )
    output.line(f"type {shown(name)}: finished jobs are kept {finished}, failed ones {failed}")
