"""The terminal of a person: questions, typed keys, a live bar, a live screen. Elsewhere nothing of it appears."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, Self, TextIO

import typer

from jobs_service.cli import output, program
from jobs_service.names import printable

if TYPE_CHECKING:
    import asyncio

    from jobs_service import Job, JobEvent

_SHOW_CURSOR = b"\x1b[?25h\n"


def confirm(question: str, yes: bool) -> None:
    """Ask a question with the answers yes and no.

    Args:
        question: the question, printable.
        yes: the verb's `--yes`: whether not to ask.

    Raises:
        AnswerIsNo: the answer is no.
        Refused: nobody is there to answer.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise program.Refused(f"{question} Nobody is here to answer; --yes does")
    if not typer.confirm(question, err=True):
        raise program.AnswerIsNo("nothing was done")


@contextmanager
def cursor_given_back(terminal: TextIO) -> Iterator[None]:
    """While the block hides a terminal's cursor or reads its keys, let SIGTERM undo this before the process ends."""
    modes = _modes()

    def end(number: int, _: FrameType | None) -> None:
        os.write(terminal.fileno(), _SHOW_CURSOR)
        _set(modes)
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        _set(modes)


def _modes() -> list[Any] | None:
    """Return the modes of standard input; None if it is no terminal."""
    import termios

    return termios.tcgetattr(sys.stdin.fileno()) if sys.stdin.isatty() else None


def _set(modes: list[Any] | None) -> None:
    import termios

    if modes is not None:
        with suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, modes)


@contextmanager
def keys() -> Iterator[asyncio.Queue[str]]:
    """While the block runs, put each key that a person types into a queue, without Enter; none where nobody types.

    It belongs into a block of `cursor_given_back`.
    """
    import asyncio
    import tty

    typed: asyncio.Queue[str] = asyncio.Queue()
    if not sys.stdin.isatty():
        yield typed
        return
    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()
    tty.setcbreak(descriptor)

    def read() -> None:
        found = os.read(descriptor, 64)
        if not found:  # the terminal is gone
            loop.remove_reader(descriptor)
        for key in found.decode(errors="replace"):
            typed.put_nowait(key)

    loop.add_reader(descriptor, read)
    try:
        yield typed
    finally:
        loop.remove_reader(descriptor)


class Bar:
    """One live line at the foot of a terminal, from the first `show` on: words, a bar, figures, the time so far.

    Args:
        terminal: standard error or standard output. Where it is no terminal, nothing is shown.
    """

    def __init__(self, terminal: TextIO | None = None) -> None:
        self._terminal = sys.stderr if terminal is None else terminal
        self._shown = ExitStack()
        self._progress: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._shown.close()

    def show(self, words: str, done: float | None = None, total: float | None = None) -> None:
        """Show how far something is.

        Args:
            words: printable.
            done, total: None if unknown.
        """
        if not self._terminal.isatty():
            return
        if self._progress is None:
            self._start()
        figures = "" if done is None else f"{done:,.0f}" if not total else f"{min(done / total, 1):.0%}"
        self._progress.update(0, description=words, completed=done or 0, total=total, figures=figures)

    def show_job(self, event: Job | JobEvent) -> None:
        """Show how far a job is, from its start on."""
        said = event.progress
        if said is not None:
            self.show(printable(said.message) or output.status_text(event), said.done, said.total)
        elif event.state == "running" or self._progress is not None:
            self.show(output.status_text(event))

    def _start(self) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        words, figures = TextColumn("{task.description}", markup=False), TextColumn("{task.fields[figures]}")
        console = output.console(stderr=self._terminal is sys.stderr)
        bar = Progress(words, BarColumn(), figures, TimeElapsedColumn(), console=console, transient=True)
        self._shown.enter_context(cursor_given_back(self._terminal))
        self._progress = self._shown.enter_context(bar)
        self._progress.add_task("", figures="")
