"""`list` and `show`: list the jobs of one type or of all types, or show everything about one job."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jobs_service.cli import output, program
from jobs_service.cli.output import Column, Table, table
from jobs_service.cli.parsing import (
    DURATION_HELP,
    IdArgument,
    JsonOption,
    OptionalType,
    StoreOption,
    TypeArgument,
    parse_id,
    parse_type,
)
from jobs_service.cli.program import require_type
from jobs_service.names import printable, priority_text, shown

if TYPE_CHECKING:
    from jobs_service import Job, JobError, JobsService, Progress
    from jobs_service.service.selection import Filter

PAGE = 500
"""Jobs per page. Only one page is in memory at a time."""


def _states() -> list[str]:
    from jobs_service.model.job import MEANT

    return [*MEANT]


StateOption = Annotated[
    str | None,
    typer.Option(
        "--state",
        metavar="STATE",
        autocompletion=_states,
        help="Only jobs that are ready, scheduled, retrying (after a crash), running, succeeded, failed, canceled or "
        "unreadable; pending (ready, scheduled or retrying); finished (in whatever way).",
    ),
]
PrefixOption = Annotated[
    str | None, typer.Option("--prefix", metavar="TEXT", help="Only jobs whose id begins with this.")
]
ErrorOption = Annotated[
    str | None, typer.Option("--error", metavar="CLASS", help="Only jobs whose last error is of this class.")
]
TextOption = Annotated[
    str | None,
    typer.Option("--text", metavar="TEXT", help="Only jobs whose last error's message has this, in any case."),
]
SignatureOption = Annotated[
    str | None,
    typer.Option("--signature", metavar="TEXT", help="Only jobs that failed as this group of `failures --json` says."),
]
WorkerOption = Annotated[
    str | None, typer.Option("--worker", metavar="TEXT", help="Only jobs whose last worker's name, HOST:PID, has this.")
]
OlderOption = Annotated[
    str | None,
    typer.Option("--older", metavar="S", help=f"Only jobs to which nothing has happened for so long: {DURATION_HELP}."),
]
YoungerOption = Annotated[
    str | None,
    typer.Option("--younger", metavar="S", help=f"Only jobs to which something has happened since: {DURATION_HELP}."),
]
AttemptsOption = Annotated[
    int | None, typer.Option("--attempts", metavar="N", min=0, help="Only jobs with so many runs or more.")
]
AddedBeforeOption = Annotated[
    str | None, typer.Option("--added-before", metavar="TIME", help="Only jobs that were added, or retried, before.")
]
AddedAfterOption = Annotated[
    str | None, typer.Option("--added-after", metavar="TIME", help="Only jobs that were added, or retried, since.")
]
DataTestOption = Annotated[
    list[str] | None,
    typer.Option(
        "--data",
        metavar="FIELD=VALUE",
        help="Only jobs with this in their data; FIELD~PART: contains; a.b.0 looks inside. Several times: all hold.",
    ),
]
LimitOption = Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="At most so many jobs.")]


# Lists of jobs


def _run_at(job: Job) -> str:
    return output.time_text(job.run_at) if job.state == "pending" else ""  # else it is the time of a past run


COLUMNS = (
    Column("id", lambda job: shown(job.id)),
    Column("state", output.status_text, status=True),
    Column("priority", lambda job: priority_text(job.priority), right=True, nothing="0"),
    Column("run at", _run_at),
    Column("note, data", lambda job: output.detail_text(job, job.attempts), cut=True),
)


def list_jobs(
    context: typer.Context,
    type: OptionalType = None,
    state: StateOption = None,
    prefix: PrefixOption = None,
    error: ErrorOption = None,
    text: TextOption = None,
    signature: SignatureOption = None,
    worker: WorkerOption = None,
    older: OlderOption = None,
    younger: YoungerOption = None,
    attempts: AttemptsOption = None,
    added_before: AddedBeforeOption = None,
    added_after: AddedAfterOption = None,
    data: DataTestOption = None,
    limit: LimitOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """List jobs, of one type or all.

    Before a job's data stand its attempts, if more than one, and its progress, result or error. A column in
    which all jobs have the usual value is left out. A job of which a part cannot be read is unreadable; its error says
    why. All that is asked for must hold. Nobody finds jobs by fields that are secret.
    """
    wanted = _filter(
        state=state,
        prefix=prefix,
        error=error,
        text=text,
        signature=signature,
        worker=worker,
        older=older,
        younger=younger,
        attempts=attempts,
        added_before=added_before,
        added_after=added_after,
        data=data or None,
    )
    only = None if type is None else parse_type(type)
    print_page = _print_json if as_json else _Printer(with_type=only is None)

    async def body(jobs: JobsService) -> str:
        from jobs_service.service.selection import matching

        found = 0
        async with aclosing(_pages(matching(jobs, only, wanted), limit)) as pages:
            async for page in pages:
                print_page(page)
                found += len(page)
        if found:
            return ""
        if only is not None:
            await require_type(jobs, only)
        return "no jobs"

    said = program.run(context, store, body)
    if said and not as_json:
        output.line(said)


def _filter(**given: Any) -> Filter:
    from jobs_service.service.selection import BadFilter, Filter

    # An empty value, as of an unset variable of the shell, is refused: taken for no filter it would list all jobs.
    try:
        return Filter.of({name: value for name, value in given.items() if value is not None})
    except BadFilter as error:
        raise typer.BadParameter(str(error)) from None


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
    from jobs_service import Job

    print("\n".join([json.dumps(output.as_far_as_readable(Job.to_dict, job)) for job in page]), flush=True)


class _Printer:
    """Prints pages of jobs as one table.

    Args:
        with_type: whether the jobs are of several types.
    """

    def __init__(self, *, with_type: bool) -> None:
        self._table = Table((Column("type", lambda job: shown(job.type)), *COLUMNS) if with_type else COLUMNS)

    def __call__(self, page: list[Job]) -> None:
        """Print the next page."""
        self._table.print([output.as_far_as_readable(self._table.row, job) for job in page])


# One job


HISTORY = (
    Column("time", lambda event: output.time_text(event.time)),
    Column("event", lambda event: event.kind.value),
    Column("detail", lambda event: printable(event.detail), cut=True),
)


def show(
    context: typer.Context, type: TypeArgument, id: IdArgument, store: StoreOption = None, as_json: JsonOption = False
) -> None:
    """Show everything about one job."""
    names = parse_type(type), parse_id(id)

    async def body(jobs: JobsService) -> Job:
        return await output.without(jobs, await jobs.get(*names))

    job = program.run(context, store, body)
    if as_json:
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
