"""Formats and prints jobs, events, times and durations: lines for people, JSON lines for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from jobs_service.cli.tables import GAP, Column, painted, paints, table, width
from jobs_service.names import compact, printable, shown

if TYPE_CHECKING:
    from jobs_service import Job, JobError, JobEvent, Progress

T = TypeVar("T")


def line(text: str) -> None:
    """Print one line, which must be printable, and flush."""
    print(text, flush=True)


def styled_line(text: str, word: str) -> None:
    """Print one line, which must be printable, and flush; a terminal shows it in the colour of a status."""
    line(painted(text, word) if sys.stdout.isatty() and paints() else text)


def json_line(value: Any) -> None:
    """Print a JSON object on one line of ASCII, and flush."""
    print(json.dumps(value), flush=True)


def rows(
    columns: Sequence[Column], found: Sequence[T], form: Callable[[T], dict[str, Any]], as_json: bool, nothing: str
) -> None:
    """Print items: as one line of JSON each, or as a table for people.

    Args:
        columns: columns of the table.
        found: the items.
        form: returns the JSON object of an item.
        as_json: whether to print JSON.
        nothing: the sentence for people if there are no items.
    """
    if as_json:
        for item in found:
            json_line(form(item))
    elif found:
        table(columns, found)
    else:
        line(nothing)


def as_far_as_readable(show: Callable[[Any], T], job: Job | JobEvent) -> T:
    """Return the result of `show` for one of many jobs; a job with a damaged part is replaced by an unreadable one.

    So a single damaged job does not end a list.
    """
    from jobs_service.errors import RecordDamaged

    try:
        return show(job)
    except RecordDamaged as error:
        from jobs_service.service.answers import unreadable

        return show(unreadable(job, error))


def status_text(job: Job | JobEvent) -> str:
    """Return the status of a job or an event in one word; an event may be "removed"."""
    from jobs_service.sources import Sources
    from jobs_service.status import status_of

    return "removed" if job.state == "removed" else status_of(job, Sources().wall_time()).value


def progress_text(progress: Progress) -> str:
    """Return a job's progress on one line."""
    total = "" if progress.total is None else f"/{progress.total:g}"
    return printable(f"{progress.done:g}{total} {progress.message}".rstrip())


def error_text(error: JobError) -> str:
    """Return an error on one line."""
    return printable(f"{error.type}: {error.message}".replace("\n", " "))


def note_text(job: Job | JobEvent) -> str:
    """Return a note about a job on one line: its progress while it runs, else its result or error."""
    progress: Progress | None = job.progress
    if job.state == "running" and progress is not None:
        return progress_text(progress)
    if job.outcome == "succeeded":
        return data_text(job.result)
    return "" if job.error is None or job.outcome == "canceled" else error_text(job.error)


def detail_text(job: Job | JobEvent, attempts: int = 1) -> str:
    """Return attempts, note and data of a job on one line, for display beside its status."""
    tried = f"attempt {attempts}" if attempts > 1 else ""
    return GAP.join(filter(None, (tried, note_text(job), data_text(job.data))))


def status_sentence(job: Job) -> str:
    """Return the status of a job that was just added or resubmitted, as part of a sentence."""
    if job.resubmit:
        return "running; it runs again when it has finished"
    if job.run_at is not None and status_text(job) == "scheduled":
        return f"{status_text(job)}, not before {time_text(job.run_at)}"
    return status_text(job)


def time_text(time: datetime | float | None) -> str:
    """Return an aware time, or seconds since the epoch, for people: ISO 8601 in UTC, to the second."""
    if isinstance(time, float):
        try:
            time = datetime.fromtimestamp(time, UTC)
        except (ValueError, OverflowError, OSError):  # outside the calendar
            return ""
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


def data_text(data: Any) -> str:
    """Return a job's data for people, on one line."""
    return "" if data is None else compact(data)


def many(number: int, noun: str) -> str:
    """Return a number with a noun, in the plural unless it is 1."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def name(type: Any, id: Any) -> str:
    """Return a job's name for a sentence."""
    return f"job {shown(id)} of type {shown(type)}"


def console(*, stderr: bool = False) -> Any:
    """Return a rich console that prints text as it is: no markup, emoji or highlighting."""
    from rich.console import Console

    return Console(
        stderr=stderr, width=None if sys.stdout.isatty() else width(), highlight=False, markup=False, emoji=False
    )
