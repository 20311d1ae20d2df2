"""The quickstart's frame: its time limit, and what happens when somebody stops it."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from jobs_service.cli import exits, signals
from jobs_service.cli.logging import configure
from jobs_service.cli.verbs.quickstart.story import LIMIT, tell


async def demonstrate(directory: Path) -> None:
    """Tell the story on a store in this directory; when a signal asks for the end, put things in order first.

    Raises:
        Terminated: SIGTERM or SIGHUP came.
        exits.Refused: the story did not come to its end.
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
