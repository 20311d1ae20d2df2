"""Prints tables page by page: fitted to the width of a terminal, uncut and without colours elsewhere.

A table may have any number of rows, so rows are printed as they arrive and are not kept. A line takes some
microseconds; rich, which also prints tables, needs all rows at once and takes much longer.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

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


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    Attributes:
        name: its heading.
        of: returns its value, printable text, of an item.
        right: whether its values are aligned to the right.
        cut: whether its values may be cut to a terminal's width; possible for the last column only.
        nothing: its usual value: the column is left out if all rows have it.
        status: whether its values are statuses of jobs, which are coloured.
        whole: whether its values are folded after all others, because people type them.
    """

    name: str
    of: Callable[[Any], str]
    right: bool = False
    cut: bool = False
    nothing: str = ""
    status: bool = False
    whole: bool = False


class Table:
    """A table that is printed page by page.

    Args:
        columns: its columns. A value is cut only if its column allows it, because people copy values; on a narrow
            terminal values are folded. A column other than the first is left out if it has only usual values.
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
        columns = [self._columns[place] for place in places]
        wanted = [[row[place] for place in places] for row in rows]
        widths = self._fitted(places, wanted)
        if heading:
            for line in _row([column.name.upper() for column in columns], columns, widths, paint=False):
                yield f"{_BOLD}{line}{_END}" if self._terminal else line
        for row in wanted:
            if columns[-1].cut and self._terminal:
                row[-1] = cut(row[-1], widths[-1])
            yield from _row(row, columns, widths, paint=self._paints)

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
        # Names longer than the terminal's width are folded, never cut.
        whole = {at for at, place in enumerate(places) if self._columns[place].whole}
        while sum(widths) > room and max(widths) > 1:
            foldable = [at for at, columns in enumerate(widths) if at not in whole and columns > 1] or range(
                len(widths)
            )
            widths[max(foldable, key=lambda at: (widths[at], at))] -= 1  # the last of the widest: it may be cut
        return widths


def table(columns: Sequence[Column], items: Sequence[Any]) -> None:
    """Print items as a table; see Table."""
    printed = Table(columns)
    printed.print([*map(printed.row, items)])


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
