"""Signals as calls on the loop. Floor: command line."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def handled(react: Callable[[signal.Signals], None], *signals: signal.Signals) -> Iterator[None]:
    """While the block runs, call `react` with each of these signals that comes, on the running loop."""
    loop = asyncio.get_running_loop()
    for number in signals:
        loop.add_signal_handler(number, react, number)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
