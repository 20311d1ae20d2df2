"""Handles signals while a verb runs, and notices the loss of its output's reader."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import stat
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import FrameType
from typing import TextIO, TypeAlias

React: TypeAlias = Callable[[signal.Signals], None]

_SHOW_CURSOR = b"\x1b[?25h\n"


@asynccontextmanager
async def while_read() -> AsyncIterator[None]:
    """End the block when standard output is a pipe that has lost its reader, even while there is nothing to print.

    Raises:
        BrokenPipeError: the pipe has no reader any more.
    """
    try:
        output = sys.stdout.fileno()
        is_pipe = stat.S_ISFIFO(os.fstat(output).st_mode)
    except (OSError, ValueError):  # stdout has no descriptor, as in tests
        is_pipe = False
    if not is_pipe:
        yield
        return
    loop = asyncio.get_running_loop()

    def end() -> None:
        loop.remove_reader(output)
        scope.reschedule(loop.time())

    scope = asyncio.timeout(None)
    try:
        async with scope:
            # The writing end of a pipe never has data to read; it becomes readable when the reading end is closed.
            loop.add_reader(output, end)
            try:
                yield
            finally:
                loop.remove_reader(output)
    except TimeoutError:
        if scope.expired():
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)) from None
        raise


@contextmanager
def cursor_given_back(terminal: TextIO) -> Iterator[None]:
    """While the block hides a terminal's cursor, let SIGTERM show it again before the process ends."""

    def end(number: int, _: FrameType | None) -> None:
        os.write(terminal.fileno(), _SHOW_CURSOR)
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def in_thread(react: React, *signals: signal.Signals) -> Iterator[None]:
    """While the block runs, call `react` in a thread of its own with each of these signals on its arrival.

    The call comes even while the event loop is blocked. Python's own handlers run in the main thread, which does not
    wake up if the system delivers the signal to another thread.
    """
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    thread = threading.Thread(target=_heed, args=(ours, react, frozenset(signals)), name="signals", daemon=True)
    thread.start()
    # Python writes the number of each signal that has a handler to this descriptor at once.
    before_fd = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    before = {number: signal.signal(number, lambda *_: None) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(before_fd)
        theirs.close()
        thread.join()
        ours.close()


def _heed(source: socket.socket, react: React, signals: frozenset[signal.Signals]) -> None:
    while numbers := source.recv(64):
        for number in numbers:
            if number in signals:
                react(signal.Signals(number))
