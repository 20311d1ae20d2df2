"""How verbs print: tables for people, plain text when nobody is at a terminal, JSON lines. Floor: command line."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jobs_service.cli.names import compact, printable, priority_json, shown

if TYPE_CHECKING:
    from datetime import datetime

    from rich.table import Table

    from jobs_service import Job, JobError, JobEvent, Progress

GAP = "  "
LEAST_CUT = 16
"""Columns that a value which may be cut gets at least."""

STYLES = {"pending": "yellow", "running": "cyan", "finished": "green", "failed": "red", "canceled": "magenta"}


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    Attributes:
        name: its heading.
        right: whether its values are aligned to the right.
        cut: whether its values may be cut to the terminal's width; only the last column may.
    """

    name: str
    right: bool = False
    cut: bool = False


def width() -> int:
    """Return how many characters a line has: the terminal's, 80 without one; the variable COLUMNS overrides both."""
    return shutil.get_terminal_size((80, 24)).columns


def line(text: str) -> None:
    """Print one line that is already printable, at once."""
    print(text, flush=True)


def styled_line(text: str, state: str) -> None:
    """Print one line that is already printable, at once; on a terminal in the colour of a job's state."""
    if sys.stdout.isatty():
        console().print(text, style=STYLES.get(state), soft_wrap=True)
    else:
        line(text)


def json_line(value: Any) -> None:
    """Print one JSON object on one line of ASCII, at once."""
    print(json.dumps(value), flush=True)


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]], *, heading: bool = True) -> None:
    """Print a table, or one page of it.

    Args:
        columns: what is not marked as cut is never cut, so that it can be copied; on a narrow terminal it is folded.
        rows: printable text.
        heading: whether the columns' names come first.
    """
    if sys.stdout.isatty():
        console().print(decorated(columns, rows, heading=heading))
    else:
        _print_plain(columns, rows, heading)


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
        "history": [
            {"kind": event.kind.value, "at": timestamp(event.time), "detail": event.detail} for event in job.history
        ],
    }


def event_json(event: JobEvent) -> dict[str, Any]:
    """Return an event as `--json` prints it."""
    return {
        "type": shown(event.type),
        "id": shown(event.id),
        "state": event.state.value,
        "outcome": event.outcome.value if event.outcome else None,
        "data": event.data,
        "seq": event.seq.hex() if event.seq else None,
        **_told(event),
    }


def _told(job: Job | JobEvent) -> dict[str, Any]:
    """Return what a job's worker has said of it, as `--json` prints it."""
    progress: Progress | None = job.progress
    error = job.error
    return {
        "progress": None
        if progress is None
        else {"done": progress.done, "total": progress.total, "message": progress.message},
        "result": job.result,
        "error": None
        if error is None
        else {"type": error.type, "message": error.message, "traceback": error.traceback},
    }


def state_text(job: Job | JobEvent) -> str:
    """Return a job's state in a word, or how it ended when it did not succeed."""
    if job.outcome and job.outcome != "succeeded":
        return job.outcome.value
    return job.state.value


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


def state_sentence(job: Job) -> str:
    """Return what becomes of a job that somebody added or resubmitted."""
    if job.resubmit:
        return "running; it runs again when it has finished"
    if job.run_at is not None:
        return f"pending, not before {time_text(job.run_at)}"
    return state_text(job)


def timestamp(time: datetime | None) -> str | None:
    """Return an aware UTC time in ISO 8601 with microseconds."""
    return None if time is None else time.isoformat(timespec="microseconds").replace("+00:00", "Z")


def time_text(time: datetime | None) -> str:
    """Return an aware UTC time for people, to the second."""
    return "" if time is None else time.strftime("%Y-%m-%d %H:%M:%SZ")


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


def name(type: Any, id: Any) -> str:
    """Return how a sentence calls a job."""
    return f"job {shown(id)} of type {shown(type)}"


def cut(text: str, columns: int) -> str:
    """Return the text in at most so many columns of a terminal."""
    if len(text) <= columns and text.isascii():
        return text
    from rich.cells import cell_len, set_cell_size

    return text if cell_len(text) <= columns else set_cell_size(text, columns - 1).rstrip() + "…"


def _print_plain(columns: Sequence[Column], rows: Sequence[Sequence[str]], heading: bool) -> None:
    lines = [[column.name.upper() for column in columns]] * heading + [list(row) for row in rows]
    widths = _widths(columns, lines)
    for row in lines:
        if columns[-1].cut:
            row[-1] = cut(row[-1], widths[-1])
        cells = (_aligned(cell, column, size) for cell, column, size in zip(row, columns, widths, strict=True))
        print(GAP.join(cells).rstrip())
    sys.stdout.flush()


def _widths(columns: Sequence[Column], lines: Sequence[Sequence[str]]) -> list[int]:
    """Return the columns' widths: what their cells take, but for the one that may be cut."""
    from rich.cells import cell_len

    widths = [max((cell_len(row[at]) for row in lines), default=0) for at in range(len(columns))]
    if columns[-1].cut:
        room = width() - sum(widths[:-1]) - len(GAP) * (len(columns) - 1)
        widths[-1] = min(widths[-1], max(LEAST_CUT, room))
    return widths


def _aligned(cell: str, column: Column, size: int) -> str:
    from rich.cells import cell_len

    padding = " " * (size - cell_len(cell))
    return padding + cell if column.right else cell + padding


def decorated(columns: Sequence[Column], rows: Sequence[Sequence[str]], *, heading: bool = True) -> Table:
    """Return a table for a terminal; see `table`."""
    from rich.table import Table
    from rich.text import Text

    widths = _widths(columns, [[column.name for column in columns], *rows])
    # Names that are too long for the terminal are folded, never cut.
    while sum(widths) + len(GAP) * (len(widths) - 1) > width() and max(widths) > 1:
        widths[widths.index(max(widths))] -= 1
    laid_out = Table(box=None, show_header=heading, header_style="bold", pad_edge=False, padding=(0, len(GAP), 0, 0))
    for column, size in zip(columns, widths, strict=True):
        laid_out.add_column(
            column.name.upper(),
            width=size,
            justify="right" if column.right else "left",
            no_wrap=column.cut,
            overflow="ellipsis" if column.cut else "fold",
        )
    for row in rows:
        laid_out.add_row(*(Text(cell, STYLES.get(cell, "")) for cell in row))
    return laid_out


def console(*, stderr: bool = False) -> Any:
    """Return a rich console that prints nothing but what it is given, without guessing at its meaning."""
    from rich.console import Console

    return Console(
        stderr=stderr, width=None if sys.stdout.isatty() else width(), highlight=False, markup=False, emoji=False
    )
