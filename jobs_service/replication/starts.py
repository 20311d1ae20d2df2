"""Random delays before runs: runs that begin together would all ask the same servers at once."""

from __future__ import annotations

import asyncio
import random
from typing import Final

LONGEST: Final = 5.0
"""Longest delay of a run before it begins, in seconds: CouchDB's number."""

FOR_EACH: Final = 0.025
"""Seconds that each other waiting run adds to the longest delay."""


class Starts:
    """The runs of a service that are about to begin."""

    def __init__(self) -> None:
        self._waiting = 0

    def longest_wait(self) -> float:
        """Return the longest delay of the next run in seconds: 0 when it is alone."""
        return min(LONGEST, FOR_EACH * self._waiting)

    async def wait(self) -> None:
        """Wait until a run may begin."""
        seconds = random.uniform(0, self.longest_wait())
        self._waiting += 1
        try:
            await asyncio.sleep(seconds)
        finally:
            self._waiting -= 1
