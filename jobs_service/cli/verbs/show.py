"""`show`: shows everything about one job."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import typer

from jobs_service.cli import output, secrets, session
from jobs_service.cli.names import parse_id, parse_type
from jobs_service.cli.options import IdArgument, JsonOption, StoreOption, TypeArgument
from jobs_service.cli.tables import Column, table
from jobs_service.names import printable, priority_text, shown

if TYPE_CHECKING:
    from jobs_service import Job, JobError, JobsService, Progress

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
        return await secrets.without(jobs, await jobs.get(*names))

    job = session.run(context, store, body)
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
        ("progress", "-" if progress is None else output.progress_text(progress)),
        *_labeled("data", _json_lines(job.data)),
        *_labeled("result", _json_lines(job.result)),
        *_labeled("error", ["-"] if job.error is None else _error_lines(job.error)),
    ]


def _labeled(label: str, lines: list[str]) -> list[tuple[str, str]]:
    """Return lines with their labels: only the first line has one."""
    return [(label if at == 0 else "", printable(line)) for at, line in enumerate(lines)]


def _json_lines(value: Any) -> list[str]:
    return json.dumps(value, ensure_ascii=False, indent=2).split("\n")


def _error_lines(error: JobError) -> list[str]:
    return [output.error_text(error), *error.traceback.rstrip().splitlines()]
