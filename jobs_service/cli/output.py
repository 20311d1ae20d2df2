"""Prints jobs, events, times and durations: tables and lines for people, JSON lines for programs.

Secret fields are taken out before.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar, cast

from jobs_service.names import compact, printable, shown
from jobs_service.sources import Sources

if TYPE_CHECKING:
    import typer

    from jobs_service import Job, JobError, JobEvent, JobsService, Progress
    from jobs_service.model.process import OutboxInfo
    from jobs_service.redaction import Redaction

    Shown = TypeVar("Shown", bound=Job | JobEvent)


GAP: Final = "  "
LEAST_CUT: Final = 16
"""Least width of a cut value, in columns of the terminal."""

STYLES: Final = {
    "ready": "yellow",
    "scheduled": "blue",
    "retrying": "orange",
    "running": "cyan",
    "succeeded": "green",
    "failed": "red",
    "canceled": "magenta",
    "unreadable": "red",
}
"""The colours of all statuses, which are here in their order: `model.job.Status` takes long to import."""
_CODES: Final = {
    "blue": "34",
    "cyan": "36",
    "green": "32",
    "magenta": "35",
    "orange": "38;5;208",
    "red": "31",
    "yellow": "33",
}
_BOLD: Final = "\x1b[1m"
_END: Final = "\x1b[0m"

T = TypeVar("T")

Json: TypeAlias = Literal["json"] | None
"""The value of `-o`: whether to print JSON."""

# Tables


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    Attributes:
        name: its heading.
        of: returns its value, printable text, of an item.
        right: whether its values are aligned to the right, as numbers, and never folded.
        cut: whether its values may be cut to a terminal's width; possible for the last column only.
        nothing: its usual value: the column is left out if all rows have it.
        status: whether its values are statuses of jobs, which are coloured.
        whole: whether its values are never folded, because people copy and type them: rather, a line is too long. Those
            of types, ids and times are not.
        below: whether a terminal shows its values below their rows, in full width; possible for the last column only.
    """

    name: str
    of: Callable[[Any], str]
    right: bool = False
    cut: bool = False
    nothing: str = ""
    status: bool = False
    whole: bool = False
    below: bool = False


class Table:
    """A table that is printed page by page.

    Args:
        columns: its columns. A value is cut only if its column allows it, because people copy values; on a narrow
            terminal values are folded, unless their column forbids it. A column other than the first is left out if it
            has only usual values.
    """

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._used: set[int] = set()
        self._widths = [len(column.name) for column in columns]
        self._terminal = sys.stdout.isatty()
        self._paints = self._terminal and paints()

    def print(self, rows: Sequence[Sequence[str]]) -> None:
        """Print the next rows, of printable text. The heading comes first, and again when a page has more columns."""
        for line in self.lines(rows):
            print(line)
        sys.stdout.flush()

    def row(self, item: Any) -> list[str]:
        """Return the values of an item."""
        return [column.of(item) for column in self._columns]

    def lines(self, rows: Sequence[Sequence[str]]) -> Iterator[str]:
        """Yield the lines of the next rows."""
        used = self._used | _in_use(self._columns, rows)
        heading, self._used = used != self._used, used
        places = sorted(used)
        under = places.pop() if self._terminal and self._columns[places[-1]].below else None
        columns = [self._columns[place] for place in places]
        wanted = [[row[place] for place in places] for row in rows]
        widths = self._fitted(places, wanted)
        if heading:
            for line in _row([column.name.upper() for column in columns], columns, widths, paint=False):
                yield f"{_BOLD}{line}{_END}" if self._terminal else line
        for row, whole in zip(wanted, rows, strict=True):
            if columns[-1].cut and self._terminal:
                row[-1] = cut(row[-1], widths[-1])
            yield from _row(row, columns, widths, paint=self._paints)
            if under is not None:
                yield from (GAP * 2 + part for part in _wrapped(whole[under], width() - 2 * len(GAP)))

    def _fitted(self, places: Sequence[int], rows: Sequence[Sequence[str]]) -> list[int]:
        """Return the widths of columns: the widths of their cells, reduced to fit the terminal."""
        for at, place in enumerate(places):
            self._widths[place] = max([self._widths[place], *(cells(row[at]) for row in rows)])
        widths = [self._widths[place] for place in places]
        if not self._terminal:
            return widths
        room = width() - len(GAP) * (len(widths) - 1)
        if self._columns[places[-1]].cut:
            widths[-1] = min(widths[-1], max(LEAST_CUT, room - sum(widths[:-1])))
        columns = [self._columns[place] for place in places]
        foldable = [at for at, column in enumerate(columns) if not (column.whole or column.status or column.right)]
        while sum(widths) > room and (wide := [at for at in foldable if widths[at] > len(columns[at].name)]):
            widths[max(wide, key=lambda at: (widths[at], at))] -= 1  # the last of the widest: it may be cut
        return widths


def table(columns: Sequence[Column], items: Sequence[Any]) -> None:
    """Print items as a table; see Table."""
    printed = Table(columns)
    printed.print([*map(printed.row, items)])


def rows(
    context: typer.Context,
    columns: Sequence[Column],
    found: Sequence[T],
    form: Callable[[T], dict[str, Any]],
    nothing: str,
) -> None:
    """Print items: as one line of JSON each, or as a table for people.

    Args:
        context: the verb's context, which has its `-o`.
        columns: columns of the table.
        found: the items.
        form: returns the JSON object of an item.
        nothing: the sentence for people if there are no items.
    """
    if wants_json(context):
        for item in found:
            json_line(form(item))
    elif found:
        table(columns, found)
    else:
        line(nothing)


def _in_use(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> set[int]:
    return {
        at for at, column in enumerate(columns) if at == 0 or any(row[at] not in ("", column.nothing) for row in rows)
    }


def _row(row: Sequence[str], columns: Sequence[Column], widths: Sequence[int], *, paint: bool) -> Iterator[str]:
    """Yield the lines of one row: several if a value is folded."""
    if all(cells(cell) <= size for cell, size in zip(row, widths, strict=True)):
        yield _line(row, columns, widths, paint=paint)
        return
    folded = [_folded(cell, size) for cell, size in zip(row, widths, strict=True)]
    for at in range(max(map(len, folded))):
        yield _line([lines[at] if at < len(lines) else "" for lines in folded], columns, widths, paint=paint)


def _line(row: Sequence[str], columns: Sequence[Column], widths: Sequence[int], *, paint: bool) -> str:
    parts = []
    for cell, column, size in zip(row, columns, widths, strict=True):
        padding = " " * (size - cells(cell))
        text = painted(cell, cell) if paint and column.status else cell
        parts.append(padding + text if column.right else text + padding)
    return GAP.join(parts).rstrip()


def _wrapped(text: str, columns: int) -> list[str]:
    """Return a text in lines of a width; only words that are longer than a line are broken."""
    if cells(text) != len(text):
        return _folded(text, columns)
    return textwrap.wrap(text, columns, break_on_hyphens=False)


def _folded(text: str, columns: int) -> list[str]:
    lines, used = [""], 0
    for char in text:
        size = cells(char)
        if lines[-1] and used + size > columns:
            lines.append("")
            used = 0
        lines[-1] += char
        used += size
    return lines


# Lines and the terminal


def line(text: str) -> None:
    """Print one line, which must be printable, and flush."""
    print(text, flush=True)


def tell(context: typer.Context, form: Any, text: str) -> None:
    """Print what a verb has done: a JSON value with `-o json`, or a line for people."""
    if wants_json(context):
        json_line(form)
    else:
        line(text)


def wants_json(context: typer.Context) -> bool:
    """Whether the verb was given `-o json`."""
    return bool(context.params["as_json"])


def styled_line(text: str, word: str) -> None:
    """Print one line, which must be printable, and flush; a terminal shows it in the colour of a status."""
    line(painted(text, word) if sys.stdout.isatty() and paints() else text)


def json_line(value: Any) -> None:
    """Print a JSON object on one line of ASCII, and flush."""
    print(json.dumps(value), flush=True)


def width() -> int:
    """Return the width of the terminal in characters; the variable COLUMNS overrides it."""
    return shutil.get_terminal_size((80, 24)).columns


def paints() -> bool:
    """Return whether to print colours on a terminal: https://no-color.org."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def cells(text: str) -> int:
    """Return the width of a text in columns of a terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def cut(text: str, columns: int) -> str:
    """Return a text cut to a width in columns of a terminal."""
    if cells(text) <= columns:
        return text
    from rich.cells import set_cell_size

    return set_cell_size(text, columns - 1).rstrip() + "…"


def painted(text: str, word: str) -> str:
    """Return a text in the colour of a status, for a terminal."""
    style = STYLES.get(word)
    return text if style is None else f"\x1b[{_CODES[style]}m{text}{_END}"


def console(*, stderr: bool = False) -> Any:
    """Return a rich console that prints text as it is: no markup, emoji or highlighting."""
    from rich.console import Console

    return Console(
        stderr=stderr, width=None if sys.stdout.isatty() else width(), highlight=False, markup=False, emoji=False
    )


# Jobs and values as texts


def as_far_as_readable(show: Callable[[Any], T], job: Job | JobEvent) -> T:
    """Return the result of `show` for one of many jobs; a job with a damaged part is replaced by an unreadable one.

    So a single damaged job does not end a list.
    """
    from jobs_service.errors import RecordDamaged

    try:
        return show(job)
    except RecordDamaged as error:
        from jobs_service.service.queries import unreadable

        return show(unreadable(job, error))


def status_text(job: Job | JobEvent) -> str:
    """Return the status of a job or an event in one word; an event may be "removed"."""
    from jobs_service.model.job import status_of

    return "removed" if job.state == "removed" else status_of(job, Sources().wall_time()).value


def progress_text(progress: Progress) -> str:
    """Return a job's progress on one line."""
    total = "" if progress.total is None else f"/{progress.total:g}"
    return printable(f"{progress.done:g}{total} {progress.message}".rstrip())


def error_text(error: JobError) -> str:
    """Return an error on one line."""
    return printable(f"{error.type}: {error.message}".replace("\n", " "))


def note_text(job: Job | JobEvent) -> str:
    """Return a note about a job on one line: its progress while it runs, why it was stopped, its result or error."""
    progress: Progress | None = job.progress
    newest = next(iter(getattr(job, "history", ())), None)  # an event has none
    if job.state == "pending" and newest is not None and newest.kind == "stopped":
        return printable(newest.detail.replace("\n", " "))
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


def since_text(moment: float) -> str:
    """Return the time since a moment, in seconds since the epoch; other processes' clocks may be ahead."""
    return duration_text(max(Sources().wall_time() - moment, 0.0))


def data_text(data: Any) -> str:
    """Return a job's data for people, on one line."""
    return "" if data is None else compact(data)


def many(number: int, noun: str) -> str:
    """Return a number with a noun, in the plural unless it is 1."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def outbox_text(outbox: OutboxInfo) -> str:
    """Return the state of an outbox for people: its lag, and why nothing is moved if it stands still."""
    since = "" if outbox.oldest is None else f", the oldest for {duration_text(outbox.oldest)}"
    aside = f" ({outbox.set_aside} set aside)" if outbox.set_aside else ""
    error = f": nothing is moved: {printable(outbox.error)}" if outbox.error else ""
    return f"outbox {printable(outbox.name)}: {many(outbox.rows, 'row')}{since}{aside}{error}"


def name(type: Any, id: Any) -> str:
    """Return a job's name for a sentence."""
    return f"job {shown(id)} of type {shown(type)}"


# Secret fields


async def without(jobs: JobsService, what: Shown) -> Shown:
    """Return a job or an event without its secret fields."""
    return _by(await jobs.get_redaction(what.type), what)


async def without_in_changed(jobs: JobsService, what: Shown) -> Shown:
    """Return a changed job, or its end, without its secret fields, even if the store has failed since."""
    from jobs_service.service.queries import rules_of_changed

    return _by(await rules_of_changed(jobs, what.type), what)


async def without_in_all(jobs: JobsService, page: Iterable[Job]) -> list[Job]:
    """Return some jobs without their secret fields, by one read per type."""
    from jobs_service.service.queries import redactor

    found = [*page]
    return [*map(await redactor(found, jobs.get_redaction), found)]


def _by(rules: Redaction, what: Shown) -> Shown:
    from jobs_service import JobEvent

    return cast("Shown", rules.event(what) if isinstance(what, JobEvent) else rules.job(what))
