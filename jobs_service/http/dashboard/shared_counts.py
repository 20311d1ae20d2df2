"""The counts of all types, read once for all who look at the same time where that takes long."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from jobs_service import JobsService, JobType
    from jobs_service.model.counts import TypeCounts

QUICK: Final = 0.02
"""Seconds that a read may take to be done anew for everybody."""
SHARE: Final = 5
"""Reads that take longer take at most one part in so many of the time."""


class SharedCounts:
    """Reads the counts of all types.

    Args:
        service: of the types.
    """

    def __init__(self, service: JobsService) -> None:
        self._service = service
        self._found: dict[JobType, TypeCounts] = {}
        self._good_until = 0.0
        self._reading = asyncio.Lock()

    async def get(self) -> dict[JobType, TypeCounts]:
        """Return the counts, which may be some tenths of a second old where there are very many types."""
        if time.monotonic() < self._good_until:
            return self._found
        async with self._reading:
            if time.monotonic() < self._good_until:  # somebody else has read them meanwhile
                return self._found
            begun = time.monotonic()
            self._found = await self._service.counts()
            took = time.monotonic() - begun
            self._good_until = 0.0 if took < QUICK else begun + took * SHARE
            return self._found
