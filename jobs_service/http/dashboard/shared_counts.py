"""The counts of all types, read once for all who look at the same time where that takes long."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from jobs_service.actors.context import rest_after

if TYPE_CHECKING:
    from jobs_service import JobsService, JobType
    from jobs_service.model.counts import TypeCounts

QUICK: Final = 0.02
"""Seconds that a read may take to be done anew for everybody; others are shared for a while."""


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
            began = time.monotonic()
            self._found = await self._service.counts()
            ended = time.monotonic()
            took = ended - began
            self._good_until = 0.0 if took < QUICK else ended + rest_after(took)
            return self._found
