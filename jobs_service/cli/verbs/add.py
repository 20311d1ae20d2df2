"""`add`: adds one job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from jobs_service.cli import output, secrets, session, values
from jobs_service.cli.names import parse_id, parse_priority, parse_type
from jobs_service.cli.options import (
    AtOption,
    DataOption,
    InOption,
    JsonOption,
    NewTypeOption,
    PriorityOption,
    StoreOption,
    TypeArgument,
)
from jobs_service.cli.type_checks import ensure_type
from jobs_service.names import shown

if TYPE_CHECKING:
    from jobs_service import Job, JobsService, JobTransaction

ResubmitOption = Annotated[
    bool,
    typer.Option("--resubmit", help="If the job exists: replace it while it waits, run it again once it has run."),
]


OptionalId = Annotated[
    str | None,
    typer.Argument(
        metavar="ID", help="Names the job within its type. Without it the job gets a random one, which is printed."
    ),
]


def add(
    context: typer.Context,
    type: TypeArgument,
    id: OptionalId = None,
    data: DataOption = None,
    priority: PriorityOption = None,
    after: InOption = None,
    at: AtOption = None,
    resubmit: ResubmitOption = False,
    timeout: NewTypeOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add a job; without an id, print the one that it gets.

    Its type must have an activity timeout: give it with --timeout, or once with jobs-service types set TYPE SECONDS.
    """
    if id is None and resubmit:
        raise typer.BadParameter("it is about a job that exists; name its ID", param_hint="--resubmit")
    names = parse_type(type), _random_id() if id is None else parse_id(id)
    value = None if data is None else values.data(data)
    rank = 0 if priority is None else parse_priority(priority)
    run_at = values.run_at(after, at)
    seconds = None if timeout is None else values.positive_duration(timeout, "--timeout")

    async def body(jobs: JobsService) -> Job:
        async def work(tx: JobTransaction) -> Job:
            if seconds is not None:
                await ensure_type(tx, names[0], seconds)
            return await tx.add(
                *names, value, priority=rank, run_at=run_at, if_exists="resubmit" if resubmit else "error"
            )

        return await secrets.without_in_changed(jobs, await jobs.transact(work))

    job = session.run(context, store, body, rehearsal=body)
    if as_json:
        output.json_line(job.to_dict())
    elif id is None:
        output.line(shown(job.id))
    else:
        output.line(f"{output.name(*names)}: {output.status_sentence(job)}")


def _random_id() -> str:
    from jobs_service.sources import Sources

    return Sources().token(16).hex()
