"""`resubmit`: runs a job again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from jobs_service.cli import output, secrets, session, values
from jobs_service.cli.names import parse_id, parse_priority, parse_type
from jobs_service.cli.options import (
    AtOption,
    DataOption,
    IdArgument,
    InOption,
    JsonOption,
    PriorityOption,
    StoreOption,
    TypeArgument,
)

if TYPE_CHECKING:
    from jobs_service import Job, JobsService


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
    names = parse_type(type), parse_id(id)
    changes: dict[str, Any] = {}
    if data is not None:
        changes["data"] = values.data(data)
    if priority is not None:
        changes["priority"] = parse_priority(priority)
    run_at = values.run_at(after, at)
    if run_at is not None:
        changes["run_at"] = run_at

    async def body(jobs: JobsService) -> Job:
        return await secrets.without_in_changed(jobs, await jobs.resubmit(*names, **changes))

    job = session.run(context, store, body)
    if as_json:
        output.json_line(job.to_dict())
    else:
        output.line(f"{output.name(*names)}: {output.status_sentence(job)}")
