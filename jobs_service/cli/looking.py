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
    from jobs_service import Job, JobError, JobsService, Progress

PAGE = 500
"""Jobs that are laid out as one table: listing needs memory for one page, however many jobs there are."""

OptionalType = Annotated[str | None, typer.Argument(metavar="[TYPE]", help="Only jobs of this type.")]
StateOption = Annotated[
    Literal["pending", "running", "finished"] | None, typer.Option("--state", help="Only jobs in this state.")
]
LimitOption = Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="At most so many jobs.")]

HISTORY = (output.Column("time"), output.Column("event"), output.Column("detail", cut=True))
COLUMNS = (
    output.Column("id"),
    output.Column("state"),
    output.Column("priority", right=True),
    output.Column("run at"),
    output.Column("note, data", cut=True),
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

    The state of a finished job that did not succeed is shown as failed or canceled. A note before
    its data tells how often a job has run, if more than once, and its progress, result or error.
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
    if job.history:
        output.line("")
        output.table(
            HISTORY,
            [[output.time_text(event.time), event.kind.value, printable(event.detail)] for event in job.history],
        )


def _description(job: Job) -> list[tuple[str, str]]:
    progress: Progress | None = job.progress
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
        ("attempts", str(job.attempts)),
        ("progress", "-" if progress is None else output.progress_text(progress)),
        *_labeled("data", _json_lines(job.data)),
        *_labeled("result", _json_lines(job.result)),
        *_labeled("error", ["-"] if job.error is None else _error_lines(job.error)),
    ]


def _labeled(label: str, lines: list[str]) -> list[tuple[str, str]]:
    """Return the lines, the first of them with the label."""
    return [(label if at == 0 else "", printable(line)) for at, line in enumerate(lines)]


def _json_lines(value: Any) -> list[str]:
    return json.dumps(value, ensure_ascii=False, indent=2).split("\n")


def _error_lines(error: JobError) -> list[str]:
    return [output.error_text(error), *error.traceback.rstrip().splitlines()]


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
            output.told_text(job, job.attempts),
        ]
        for job in page
    ]
    output.table(columns, rows, heading=heading)
