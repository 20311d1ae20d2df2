"""`remove`: removes a job, at once or after its worker has finished it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from jobs_service import json_forms
from jobs_service.cli import exits, output, session, values
from jobs_service.cli.names import parse_id, parse_type
from jobs_service.cli.options import DURATION_HELP, IdArgument, JsonOption, StoreOption, TypeArgument

if TYPE_CHECKING:
    from jobs_service import JobsService

ForceOption = Annotated[bool, typer.Option("--force", help="Remove it even while it runs; its worker is refused.")]
WaitOption = Annotated[
    str | None,
    typer.Option(
        "--wait",
        metavar="S",
        help=f"If it runs, wait so long for its worker to finish, then remove it: {DURATION_HELP}.",
    ),
]


def remove(
    context: typer.Context,
    type: TypeArgument,
    id: IdArgument,
    force: ForceOption = False,
    wait: WaitOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove a job. The worker of a running one is asked to finish it, and the job stays until then."""
    names = parse_type(type), parse_id(id)
    if force and wait is not None:
        raise typer.BadParameter("give one of them", param_hint="--force and --wait")
    seconds = None if wait is None else values.duration(wait, "--wait")

    async def body(jobs: JobsService) -> str:
        if seconds is None:
            return (await jobs.remove(*names, force=force)).value
        try:
            await jobs.stop_and_remove(*names, timeout=seconds)
        except TimeoutError:
            raise exits.AnswerIsNo(
                f"{output.name(*names)} still runs after {seconds:g} s; it is canceled, and stays until it is finished"
            ) from None
        return "removed"

    removal = session.run(context, store, body)
    if as_json:
        output.json_line({"type": json_forms.name(names[0]), "id": json_forms.name(names[1]), "removal": removal})
    elif removal == "removed":
        output.line(f"{output.name(*names)}: removed")
    else:
        output.line(f"{output.name(*names)}: running; its worker is asked to finish it")
