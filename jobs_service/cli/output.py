"""How verbs say what a job is: lines for people, JSON lines for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from datetime import UTC
from typing import TYPE_CHECKING, Any

from jobs_service.cli.names import compact, printable, priority_json, shown
from jobs_service.cli.tables import GAP, Column, painted, paints, table, width

if TYPE_CHECKING:
    from datetime import datetime

    from jobs_service import Job, JobError, JobEvent, Progress
    from jobs_service.runner.schedule import Schedule


def line(text: str) -> None:
    """Print one line that is already printable, at once."""
    print(text, flush=True)


def styled_line(text: str, word: str) -> None:
    """Print one line that is already printable, at once; on a terminal in the colour of what a job does."""
    line(painted(text, word) if sys.stdout.isatty() and paints() else text)


def json_line(value: Any) -> None:
    """Print one JSON object on one line of ASCII, at once."""
    print(json.dumps(value), flush=True)


def rows(
    columns: Sequence[Column],
    found: Sequence[dict[str, Any]],
    cells: Callable[[dict[str, Any]], Sequence[str]],
    as_json: bool,
    nothing: str,
) -> None:
    """Print rows: a line of JSON for each, or a table for people.

    Args:
        columns: of the table.
        found: the rows, as JSON has them.
        cells: returns those of a row, as the table has them.
        as_json: whether lines of JSON are wanted.
        nothing: what people are told where there are none.
    """
    if as_json:
        for row in found:
            json_line(row)
    elif found:
        table(columns, [cells(row) for row in found])
    else:
        line(nothing)


def job_json(job: Job) -> dict[str, Any]:
    """Return a job as `--json` prints it."""
    return {
        "type": shown(job.type),
        "id": shown(job.id),
        "state": job.state.value,
        "outcome": job.outcome.value if job.outcome else None,
        "data": job.data,
        "priority": priority_json(job.priority),
        "run_at": timestamp(job.run_at),
        "resubmit": job.resubmit,
        "cancel": job.cancel,
        "seq": job.seq.hex() if job.seq else None,
        "attempts": job.attempts,
        **_told(job),
        "history": history_json(job),
        "status": status_text(job),
    }


def history_json(job: Job) -> list[dict[str, Any]]:
    """Return what happened to a job, as `--json` prints it."""
    return [{"kind": event.kind.value, "at": timestamp(event.time), "detail": event.detail} for event in job.history]


def event_json(event: Job | JobEvent) -> dict[str, Any]:
    """Return an event as `--json` prints it, or what of a job is like one."""
    return {
        "type": shown(event.type),
        "id": shown(event.id),
        "state": event.state.value,
        "outcome": event.outcome.value if event.outcome else None,
        "data": event.data,
        "seq": event.seq.hex() if event.seq else None,
        **_told(event),
        "status": status_text(event),
        "attempts": event.attempts,
        "run_at": timestamp(event.run_at),
    }


def _told(job: Job | JobEvent) -> dict[str, Any]:
    """Return what a job's worker has said of it, as `--json` prints it."""
    progress: Progress | None = job.progress
    error = job.error
    return {
        "progress": None if progress is None else progress_json(progress),
        "result": job.result,
        "error": None
        if error is None
        else {"type": error.type, "message": error.message, "traceback": error.traceback},
    }


def progress_json(progress: Progress) -> dict[str, Any]:
    """Return how far a job has come, as `--json` prints it."""
    return {"done": progress.done, "total": progress.total, "message": progress.message}


def status_text(job: Job | JobEvent) -> str:
    """Return what a job does, in a word of the vocabulary; of an event perhaps that it was removed."""
    from jobs_service.sources import Sources
    from jobs_service.status import status_of

    return "removed" if job.state == "removed" else status_of(job, Sources().wall_time()).value


def progress_text(progress: Progress) -> str:
    """Return how far a job has come, on one line."""
    total = "" if progress.total is None else f"/{progress.total:g}"
    return printable(f"{progress.done:g}{total} {progress.message}".rstrip())


def error_text(error: JobError) -> str:
    """Return an error on one line."""
    return printable(f"{error.type}: {error.message}".replace("\n", " "))


def note_text(job: Job | JobEvent) -> str:
    """Return what is worth knowing of a job in its state, on one line: its progress, its result or its error."""
    progress: Progress | None = job.progress
    if job.state == "running" and progress is not None:
        return progress_text(progress)
    if job.outcome == "succeeded":
        return data_text(job.result)
    return "" if job.error is None or job.outcome == "canceled" else error_text(job.error)


def told_text(job: Job | JobEvent, attempts: int = 1) -> str:
    """Return what is to be said of a job beside its state, on one line: a note, and its data."""
    tried = f"attempt {attempts}" if attempts > 1 else ""
    return GAP.join(filter(None, (tried, note_text(job), data_text(job.data))))


def status_sentence(job: Job) -> str:
    """Return what becomes of a job that somebody added or resubmitted."""
    if job.resubmit:
        return "running; it runs again when it has finished"
    if job.run_at is not None and status_text(job) == "scheduled":
        return f"{status_text(job)}, not before {time_text(job.run_at)}"
    return status_text(job)


def timestamp(time: datetime | None) -> str | None:
    """Return an aware UTC time in ISO 8601 with microseconds."""
    return None if time is None else time.isoformat(timespec="microseconds").replace("+00:00", "Z")


def time_text(time: datetime | None) -> str:
    """Return an aware time for people: ISO 8601 in UTC, to the second."""
    return "" if time is None else time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def duration_text(seconds: float) -> str:
    """Return a duration for people, in its two greatest units: 1d03h, 12m05s, 3.2s."""
    if seconds < 59.95:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d{hours:02}h"
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s"


def period_text(seconds: float) -> str:
    """Return a duration as it is typed: 1d, 1h30m, 2.5s."""
    text = ""
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        number, seconds = divmod(seconds, size)
        text += f"{number:.0f}{unit}" if number else ""
    return text + f"{seconds:g}s" if seconds or not text else text


def schedule_text(schedule: Schedule) -> str:
    """Return when the jobs of a periodic type come, in words."""
    from jobs_service.runner.schedule import Cron, Every

    if isinstance(schedule, Every):
        return f"every {period_text(schedule.seconds)}"
    return f"{schedule.expression} {schedule.timezone}" if isinstance(schedule, Cron) else str(schedule)


def data_text(data: Any) -> str:
    """Return a job's data for people, on one line."""
    return "" if data is None else compact(data)


def many(number: int, noun: str) -> str:
    """Return a number of things."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def name(type: Any, id: Any) -> str:
    """Return how a sentence calls a job."""
    return f"job {shown(id)} of type {shown(type)}"


def console(*, stderr: bool = False) -> Any:
    """Return a rich console that prints nothing but what it is given, without guessing at its meaning."""
    from rich.console import Console

    return Console(
        stderr=stderr, width=None if sys.stdout.isatty() else width(), highlight=False, markup=False, emoji=False
    )
