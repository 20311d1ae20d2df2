"""`add`: one job. Floor: command line."""

from __future__ import annotations

from typing import Annotated

import typer

from jobs_service.cli import output, parsing, session
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

ResubmitOption = Annotated[
    bool,
    typer.Option("--resubmit", help="If the job exists: replace it while it waits, run it again once it has run."),
]


def add(
    context: typer.Context,
    type: TypeArgument,
    id: IdArgument,
    data: DataOption = None,
    priority: PriorityOption = None,
    after: InOption = None,
    at: AtOption = None,
    resubmit: ResubmitOption = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add a job. Its type must have an activity timeout: jobs-service types set TYPE SECONDS."""
    names = parse_type(type), parse_id(id)
    value = None if data is None else parsing.data(data)
    rank = 0 if priority is None else parse_priority(priority)
    run_at = parsing.run_at(after, at)
    job = session.run(
        context,
        store,
        lambda jobs: jobs.add(
            *names, value, priority=rank, run_at=run_at, if_exists="resubmit" if resubmit else "error"
        ),
        makes_store=True,
    )
    if as_json:
        output.json_line(output.job_json(job))
    else:
        output.line(f"{output.name(*names)}: {output.state_sentence(job)}")
