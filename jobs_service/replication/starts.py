"""Runs that begin at the same time are spread a little: they would all ask the same servers at once."""

from __future__ import annotations

import asyncio
import random
from typing import Final

LONGEST: Final = 5.0
"""Seconds that a run waits at most before it begins: CouchDB's number."""

FOR_EACH: Final = 0.025
"""Seconds that are added to what a run waits at most, for each other one that is about to begin."""


class Starts:
    """The runs of a service that are about to begin."""

    def __init__(self) -> None:
        self._waiting = 0

    def longest_wait(self) -> float:
        """Return how many seconds the next run waits at most: none when it is alone."""
        return min(LONGEST, FOR_EACH * self._waiting)

    async def wait(self) -> None:
        """Return when a run may begin."""
        seconds = random.uniform(0, self.longest_wait())
        self._waiting += 1
        try:
            await asyncio.sleep(seconds)
        finally:
            self._waiting -= 1
