"""Progress bars on stderr, shown only on a terminal."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

Advance: TypeAlias = Callable[[int, int], None]
"""Called with the bytes read since the last call, and the number of jobs added so far."""


@contextmanager
def progress(source: os.stat_result) -> Iterator[Advance]:
    """Show the progress through a source while the block runs.

    Args:
        source: its `os.fstat` result; the size of a pipe is unknown.
    """
    if not sys.stderr.isatty():
        yield lambda size, added: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from jobs_service.cli.signals import cursor_given_back

    total = source.st_size if stat.S_ISREG(source.st_mode) else None
    columns = [TextColumn("{task.fields[added]} jobs added"), BarColumn()]
    if total is not None:
        columns += [TaskProgressColumn(), TimeRemainingColumn()]
    with cursor_given_back(sys.stderr), Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total, added=0)
        yield lambda size, added: bar.update(task, advance=size, added=added)
