"""`remove` and `resubmit`: remove a job, or have it run again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from jobs_service import names
from jobs_service.cli import output, parsing, program
from jobs_service.cli.parsing import (
    DURATION_HELP,
    AtOption,
    DataOption,
    IdArgument,
    InOption,
    JsonOption,
    PriorityOption,
    StoreOption,
    TypeArgument,
    parse_id,
    parse_priority,
    parse_type,
)

if TYPE_CHECKING:
    from jobs_service import Job, JobsService

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
    name = parse_type(type), parse_id(id)
    if force and wait is not None:
        raise typer.BadParameter("give one of them", param_hint="--force and --wait")
    seconds = None if wait is None else parsing.duration(wait, "--wait")

    async def body(jobs: JobsService) -> str:
        if seconds is None:
            return (await jobs.remove(*name, force=force)).value
        try:
            await jobs.stop_and_remove(*name, timeout=seconds)
        except TimeoutError:
            raise program.AnswerIsNo(
                f"{output.name(*name)} still runs after {seconds:g} s; it is canceled, and stays until it is finished"
            ) from None
        return "removed"

    removal = program.run(context, store, body)
    if as_json:
        output.json_line({"type": names.name(name[0]), "id": names.name(name[1]), "removal": removal})
    elif removal == "removed":
        output.line(f"{output.name(*name)}: removed")
    else:
        output.line(f"{output.name(*name)}: running; its worker is asked to finish it")


def resubmit(
    context: typer.Context,
    type: TypeArgument,
    id: IdArgument,
    data: DataOption = None,
    priority: PriorityOption = None,
    after: InOption = None,
    at: AtOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a job again.

    A finished job is pending at once, a running one when it has finished. Options that are not given change nothing.
    """
    name = parse_type(type), parse_id(id)
    changes: dict[str, Any] = {}
    if data is not None:
        changes["data"] = parsing.data(data)
    if priority is not None:
        changes["priority"] = parse_priority(priority)
    run_at = parsing.run_at(after, at)
    if run_at is not None:
        changes["run_at"] = run_at

    async def body(jobs: JobsService) -> Job:
        return await output.without_in_changed(jobs, await jobs.resubmit(*name, **changes))

    job = program.run(context, store, body)
    if as_json:
        output.json_line(job.to_dict())
    else:
        output.line(f"{output.name(*name)}: {output.status_sentence(job)}")
