"""`redact`: shows or sets the secret fields of a type's jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from jobs_service import json_forms
from jobs_service.cli import output, session
from jobs_service.cli.names import parse_type
from jobs_service.cli.options import JsonOption, StoreOption, TypeArgument
from jobs_service.cli.type_checks import require_type
from jobs_service.names import printable, shown

if TYPE_CHECKING:
    from jobs_service import JobsService

PathsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="PATH", help="Such as card.number, **.token, error:message."),
]
NoneOption = Annotated[bool, typer.Option("--none", help="Nothing is secret any more.")]


def redact(
    context: typer.Context,
    type: TypeArgument,
    paths: PathsArgument = None,
    none: NoneOption = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
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

    found = session.run(context, store, body)
    if as_json:
        output.json_line({"type": json_forms.name(name), "redact": [*found]})
    else:
        output.line(f"type {shown(name)}: {', '.join(map(printable, found)) or 'nothing'} is secret")
