"""Signals as calls on the loop. Floor: command line."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
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
def once(loop: asyncio.AbstractEventLoop, react: React, *signals: signal.Signals) -> Iterator[None]:
    """While the block runs, call `react` on a loop with the first of these signals; a second one ends the process.

    It does so at once, also while something blocks the loop, and when that is closed.
    """
    came = False

    def heed(number: int, _frame: FrameType | None) -> None:
        nonlocal came
        if came or loop.is_closed():
            os._exit(128 + number)
        came = True
        loop.call_soon_threadsafe(react, signal.Signals(number))

    with _replaced(heed, signals):
        yield


@contextmanager
def each_time(loop: asyncio.AbstractEventLoop, react: React, *signals: signal.Signals) -> Iterator[None]:
    """While the block runs, call `react` on a loop with each of these signals that comes."""

    def heed(number: int, _frame: FrameType | None) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(react, signal.Signals(number))

    with _replaced(heed, signals):
        yield


@contextmanager
def _replaced(heed: Callable[[int, FrameType | None], None], signals: tuple[signal.Signals, ...]) -> Iterator[None]:
    before = {number: signal.signal(number, heed) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
