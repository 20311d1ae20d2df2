"""`list` and `show`: what is in the store. Floor: command line."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from jobs_service.cli import output, session
from jobs_service.cli.existing import require_type
from jobs_service.cli.names import parse_id, parse_type, printable, priority_text, shown
from jobs_service.cli.options import IdArgument, JsonOption, OptionalType, StoreOption, TypeArgument
from jobs_service.cli.tables import Column, Table, table

if TYPE_CHECKING:
    from jobs_service import Job, JobError, JobsService, Progress

PAGE = 500
"""Jobs that are laid out as one table: listing needs memory for one page, however many jobs there are."""

StateOption = Annotated[
    Literal["ready", "scheduled", "running", "succeeded", "failed", "canceled", "unreadable", "pending", "finished"]
    | None,
    typer.Option(
        "--state",
        metavar="STATE",
        help="Only jobs that are ready, scheduled, running, succeeded, failed, canceled or unreadable; "
        "pending (ready or scheduled); finished (in whatever way).",
    ),
]
LimitOption = Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="At most so many jobs.")]

HISTORY = (Column("time"), Column("event"), Column("detail", cut=True))
COLUMNS = (
    Column("id"),
    Column("state", status=True),
    Column("priority", right=True, nothing="0"),
    Column("run at"),
    Column("note, data", cut=True),
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

    A note before a job's data tells how often it has run, if more than once, and its progress, result or error. A
    column in which no job says anything is left out.
    """
    only = None if type is None else parse_type(type)
    print_page = _print_json if as_json else _Printer(with_type=only is None)

    async def body(jobs: JobsService) -> str:
        found = 0
        async with aclosing(_pages(jobs.list(only, state=state), limit)) as pages:
            async for page in pages:
                print_page(page)
                found += len(page)
        if found:
            return ""
        if only is not None:
            await require_type(jobs, only)
        return "no jobs"

    said = session.run(context, store, body)
    if said and not as_json:
        output.line(said)


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
        table(
            HISTORY,
            [[output.time_text(event.time), event.kind.value, printable(event.detail)] for event in job.history],
        )


def _description(job: Job) -> list[tuple[str, str]]:
    progress: Progress | None = job.progress
    return [
        ("type", shown(job.type)),
        ("id", shown(job.id)),
        ("state", output.status_text(job)),
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


async def _pages(jobs: AsyncGenerator[Job, None], limit: int | None) -> AsyncGenerator[list[Job], None]:
    page: list[Job] = []
    left = limit
    async with aclosing(jobs):
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


def _print_json(page: list[Job]) -> None:
    print("\n".join([json.dumps(output.job_json(job)) for job in page]), flush=True)


class _Printer:
    """Prints pages of jobs as one table.

    Args:
        with_type: whether the jobs are of several types.
    """

    def __init__(self, *, with_type: bool) -> None:
        self._with_type = with_type
        self._table = Table((Column("type"), *COLUMNS) if with_type else COLUMNS)

    def __call__(self, page: list[Job]) -> None:
        """Print the next page."""
        self._table.print([self._cells(job) for job in page])

    def _cells(self, job: Job) -> list[str]:
        return [
            *([shown(job.type)] * self._with_type),
            shown(job.id),
            output.status_text(job),
            priority_text(job.priority),
            output.time_text(job.run_at) if job.state == "pending" else "",  # else the time of a run that has been
            output.told_text(job, job.attempts),
        ]
