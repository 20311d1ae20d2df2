"""`list` and `show`: what is in the store. Floor: command line."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from jobs_service.cli import output, session
from jobs_service.cli.names import parse_id, parse_type, printable, priority_text, shown
from jobs_service.cli.options import IdArgument, JsonOption, StoreOption, TypeArgument

if TYPE_CHECKING:
    from jobs_service import Job, JobsService

PAGE = 500
"""Jobs that are laid out as one table: listing needs memory for one page, however many jobs there are."""

OptionalType = Annotated[str | None, typer.Argument(metavar="[TYPE]", help="Only jobs of this type.")]
StateOption = Annotated[
    Literal["pending", "running", "finished"] | None, typer.Option("--state", help="Only jobs in this state.")
]
LimitOption = Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="At most so many jobs.")]

COLUMNS = (
    output.Column("id"),
    output.Column("state"),
    output.Column("priority", right=True),
    output.Column("run at"),
    output.Column("data", cut=True),
)


def list_jobs(
    context: typer.Context,
    type: OptionalType = None,
    state: StateOption = None,
    limit: LimitOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """List jobs, of one type or all.

    The state of a finished job that did not succeed is shown as failed or canceled.
    """
    only = None if type is None else parse_type(type)
    print_page = _print_json if as_json else _print_table

    async def body(jobs: JobsService) -> int:
        from jobs_service import JobState

        found = 0
        wanted = None if state is None else JobState(state)
        async with aclosing(_pages(jobs.list(only, state=wanted), limit)) as pages:
            async for page in pages:
                print_page(page, with_type=only is None, heading=not found)
                found += len(page)
        return found

    if not session.run(context, store, body) and not as_json:
        output.line("no jobs")


def show(
    context: typer.Context, type: TypeArgument, id: IdArgument, store: StoreOption = None, as_json: JsonOption = False
) -> None:
    """Show everything about one job."""
    names = parse_type(type), parse_id(id)
    job = session.run(context, store, lambda jobs: jobs.get(*names))
    if as_json:
        output.json_line(output.job_json(job))
        return
    for label, text in _description(job):
        output.line(f"{label:<10}{text}".rstrip())


def _description(job: Job) -> list[tuple[str, str]]:
    data = [printable(line) for line in json.dumps(job.data, ensure_ascii=False, indent=2).split("\n")]
    return [
        ("type", shown(job.type)),
        ("id", shown(job.id)),
        ("state", job.state.value),
        ("outcome", job.outcome.value if job.outcome else "-"),
        ("priority", priority_text(job.priority)),
        ("run at", output.time_text(job.run_at) or "at once"),
        ("resubmit", "yes" if job.resubmit else "no"),
        ("cancel", "yes" if job.cancel else "no"),
        ("seq", job.seq.hex() if job.seq else "-"),
        ("data", data[0]),
        *(("", line) for line in data[1:]),
    ]


async def _pages(jobs: AsyncIterator[Job], limit: int | None) -> AsyncGenerator[list[Job], None]:
    page: list[Job] = []
    left = limit
    async for job in jobs:
        page.append(job)
        if left is not None:
            left -= 1
            if not left:
                break
        if len(page) == PAGE:
            yield page
            page = []
    if page:
        yield page


def _print_json(page: list[Job], **_layout: Any) -> None:
    for job in page:
        print(json.dumps(output.job_json(job)))


def _print_table(page: list[Job], *, with_type: bool, heading: bool) -> None:
    columns = (output.Column("type"), *COLUMNS) if with_type else COLUMNS
    rows = [
        [
            *([shown(job.type)] * with_type),
            shown(job.id),
            output.state_text(job),
            priority_text(job.priority),
            output.time_text(job.run_at),
            output.data_text(job.data),
        ]
        for job in page
    ]
    output.table(columns, rows, heading=heading)
