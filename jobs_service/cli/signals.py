"""Signals as calls, on the loop or beside it. Floor: command line."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

React: TypeAlias = Callable[[signal.Signals], None]


@contextmanager
def handled(react: React, *signals: signal.Signals) -> Iterator[None]:
    """While the block runs, call `react` with each of these signals that comes, on the running loop."""
    loop = asyncio.get_running_loop()
    for number in signals:
        loop.add_signal_handler(number, react, number)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


@contextmanager
def in_thread(react: React, *signals: signal.Signals) -> Iterator[None]:
    """While the block runs, call `react` with each of these signals that comes, in a thread of its own.

    So it is called also while something blocks the loop: Python's own handlers would wait for the main thread, which
    does not wake up when the system has given the signal to another one.
    """
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    thread = threading.Thread(target=_heed, args=(ours, react, frozenset(signals)), name="signals", daemon=True)
    thread.start()
    # Every signal with a handler, even one that does nothing, is written there at once.
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
