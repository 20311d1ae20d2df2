"""Prints the sentences of the demonstration beside a clock, in colour on a terminal."""

from __future__ import annotations

import asyncio
import sys
import textwrap

from jobs_service.cli import output
from jobs_service.cli.tables import width

INDENT = 9


class Narrator:
    """Prints sentences with the seconds since it was made, which must be on a running event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._begin = self._loop.time()

    def title(self, text: str) -> None:
        """Print a heading."""
        self._print(text, "bold")

    def plain(self, text: str = "") -> None:
        """Print a line as it is."""
        self._print(text, "")

    def tell(self, text: str, style: str = "") -> None:
        """Print a sentence with the time."""
        clock = f"{self._loop.time() - self._begin:5.1f} s"
        lines = textwrap.wrap(text, width() - INDENT, break_long_words=False, break_on_hyphens=False)
        for at, line in enumerate(lines):
            self._print(f"{'' if at else clock:<{INDENT}}{line}", style)

    def _print(self, text: str, style: str) -> None:
        if sys.stdout.isatty():
            output.console().print(text, style=style or None, soft_wrap=True)
        else:
            output.line(text)
