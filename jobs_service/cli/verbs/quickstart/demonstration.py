"""Runs the demonstration with a time limit, and cleans up when it is stopped."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from jobs_service.cli import exits, signals
from jobs_service.cli.logging import configure
from jobs_service.cli.verbs.quickstart.story import LIMIT, tell


async def demonstrate(directory: Path) -> None:
    """Run the demonstration on a store in this directory; on a signal, clean up before the end.

    Raises:
        Terminated: SIGTERM or SIGHUP came.
        Refused: the demonstration did not come to its end.
    """
    configure("error")
    task = asyncio.current_task()
    assert task is not None
    received: list[signal.Signals] = []

    def react(number: signal.Signals) -> None:
        received.append(number)
        task.cancel()

    with signals.handled(react, signal.SIGTERM, signal.SIGHUP):
        try:
            async with asyncio.timeout(LIMIT):
                await tell(directory)
        except asyncio.CancelledError:
            if received:
                raise exits.Terminated(128 + received[0]) from None
            raise
        except TimeoutError:
            raise exits.Refused(f"the demonstration did not end within {LIMIT:g} s; is the machine busy?") from None
