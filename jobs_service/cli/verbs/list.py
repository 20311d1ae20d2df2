"""`list` and `show`: list the jobs of one type or of all types, or show everything about one job."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from jobs_service.cli import output, program
from jobs_service.cli.output import Column, Table, table
from jobs_service.cli.parsing import IdArgument, OptionalType, TypeArgument, parse_type
from jobs_service.cli.program import require_type
from jobs_service.cli.selecting import on_job, selects
from jobs_service.names import printable, priority_text, shown

if TYPE_CHECKING:
    from jobs_service import Job, JobError, JobId, JobsService, JobType, Progress
    from jobs_service.service.selection import Filter

PAGE = 500
"""Jobs per page. Only one page is in memory at a time."""
MOST_NEWEST = 1000
"""Jobs of `--newest`, which are in memory at once, without `--limit`."""


NewestOption = Annotated[
    bool,
    typer.Option("--newest", help=f"Those with the latest events, the latest first; {MOST_NEWEST} without --limit."),
]
Form: TypeAlias = Literal["id", "wide", "json"] | None
FormOption = Annotated[
    Form,
    typer.Option(
        "-o",
        "--output",
        metavar="id|wide|json",
        help="id: only the ids, one per line; wide: more columns, and nothing is cut; json: an object per line.",
    ),
]
LimitOption = Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="At most so many jobs.")]


# Lists of jobs


def _run_at(job: Job) -> str:
    return output.time_text(job.run_at) if job.state == "pending" else ""  # else it is the time of a past run


def _event_age(at: int) -> Callable[[Job], str]:
    return lambda job: f"{output.since_text(job.history[at].at)} ago" if job.history else ""


def _worker(job: Job) -> str:
    from jobs_service.service.selection import worker_of

    return printable(worker_of(job))


ID = Column("id", lambda job: shown(job.id), whole=True)
STATE = Column("state", output.status_text, status=True)
PRIORITY = Column("priority", lambda job: priority_text(job.priority), right=True, nothing="0")
RUN_AT = Column("run at", _run_at, whole=True)
COLUMNS = (
    *(ID, STATE, PRIORITY, RUN_AT),
    Column("note, data", lambda job: output.detail_text(job, job.attempts), cut=True),
)
WIDE = (
    *(ID, STATE, PRIORITY, RUN_AT),
    Column("attempts", lambda job: str(job.attempts), right=True, nothing="0"),
    Column("first event", _event_age(-1), right=True),
    Column("last event", _event_age(0), right=True),
    Column("worker", _worker),
    Column("note, data", output.detail_text, below=True),
)
TYPE = Column("type", lambda job: shown(job.type), whole=True)


@selects
def list_jobs(
    context: typer.Context,
    type: OptionalType = None,
    *,
    wanted: Filter,
    limit: LimitOption = None,
    newest: NewestOption = False,
    form: FormOption = None,
) -> None:
    """List jobs, of one type or all.

    Before a job's data stand its attempts, if more than one, and its progress, result or error. A column in
    which all jobs have the usual value is left out. A job of which a part cannot be read is unreadable; its error says
    why. All that is asked for must hold. Nobody finds jobs by fields that are secret.
    """
    only = None if type is None else parse_type(type)
    print_page = _printer(form, with_type=only is None)

    async def body(jobs: JobsService) -> str:
        from jobs_service.service import selection

        found = 0
        if newest:
            some = _each(await selection.newest(jobs, only, wanted, limit or MOST_NEWEST))
        else:
            some = selection.matching(jobs, only, wanted)
        async with aclosing(_pages(some, limit)) as pages:
            async for page in pages:
                print_page(page)
                found += len(page)
        if found:
            return ""
        if only is not None:
            await require_type(jobs, only)
        return "no jobs"

    said = program.run(context, body)
    if said and form is None:
        output.line(said)


async def _each(jobs: list[Job]) -> AsyncGenerator[Job, None]:
    for job in jobs:
        yield job


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


def _printer(form: Form, *, with_type: bool) -> Callable[[list[Job]], None]:
    """Return a function that prints the next page."""
    named = (TYPE,) if with_type else ()
    table = Table((*named, *(WIDE if form == "wide" else COLUMNS)))

    def text(job: Job) -> str:
        from jobs_service import Job

        if form == "json":
            return json.dumps(output.as_far_as_readable(Job.to_dict, job))
        return output.GAP.join(column.of(job) for column in (*named, ID))

    def show(page: list[Job]) -> None:
        if form in ("json", "id"):
            print("\n".join(map(text, page)), flush=True)
        else:
            table.print([output.as_far_as_readable(table.row, job) for job in page])

    return show


# One job


HISTORY = (
    Column("time", lambda event: output.time_text(event.time), whole=True),
    Column("event", lambda event: event.kind.value),
    Column("detail", lambda event: printable(event.detail), cut=True),
)


def show(context: typer.Context, type: TypeArgument, id: IdArgument) -> None:
    """Show everything about one job."""

    async def body(jobs: JobsService, type: JobType, id: JobId) -> Job:
        return await output.without(jobs, await jobs.get(type, id))

    job = on_job(context, (type, id), body)
    if output.wants_json(context):
        output.json_line(job.to_dict())
        return
    for label, text in _description(job):
        output.line(f"{label:<10}{text}".rstrip())
    if job.history:
        output.line("")
        table(HISTORY, job.history)


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
        *([("context", printable(_words(job.context)))] if job.context else []),
        ("progress", "-" if progress is None else output.progress_text(progress)),
        *_labeled("data", _json_lines(job.data)),
        *_labeled("result", _json_lines(job.result)),
        *_labeled("error", ["-"] if job.error is None else _error_lines(job.error)),
    ]


def _words(context: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in context.items())


def _labeled(label: str, lines: list[str]) -> list[tuple[str, str]]:
    """Return lines with their labels: only the first line has one."""
    return [(label if at == 0 else "", printable(line)) for at, line in enumerate(lines)]


def _json_lines(value: Any) -> list[str]:
    return json.dumps(value, ensure_ascii=False, indent=2).split("\n")


def _error_lines(error: JobError) -> list[str]:
    return [output.error_text(error), *error.traceback.rstrip().splitlines()]
