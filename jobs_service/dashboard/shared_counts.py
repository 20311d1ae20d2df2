"""The counts of all types and the last hour's failures, read once for all simultaneous requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from jobs_service.durations import rest_after
from jobs_service.service.outages import LastHour, last_hour

if TYPE_CHECKING:
    from jobs_service import JobsService, JobType
    from jobs_service.model.counts import TypeCounts

T = TypeVar("T")

QUICK: Final = 0.02
"""A read that takes fewer seconds is repeated for each request; slower reads are shared for a while."""


class SharedCounts:
    """Reads the counts of all types.

    Args:
        service: the service.
    """

    def __init__(self, service: JobsService) -> None:
        self._service = service
        self._counts: _Shared[dict[JobType, TypeCounts]] = _Shared(service.counts)
        self._last_hour: _Shared[LastHour] = _Shared(self._read_last_hour)

    async def get(self, age: float = 0.0) -> dict[JobType, TypeCounts]:
        """Return the counts, which may be some tenths of a second old if there are very many types.

        Args:
            age: seconds that they may be old in any case.
        """
        return await self._counts.get(age)

    async def last_hour(self) -> LastHour:
        """Return the failures of the last hour, which may be as old."""
        return await self._last_hour.get()

    async def _read_last_hour(self) -> LastHour:
        return await last_hour(self._service, await self.get())


class _Shared(Generic[T]):
    """A value that is read once for all simultaneous callers if reading it takes long."""

    def __init__(self, read: Callable[[], Awaitable[T]]) -> None:
        self._read = read
        self._found: T | None = None
        self._read_at = self._good_until = 0.0
        self._reading = asyncio.Lock()

    async def get(self, age: float = 0.0) -> T:
        async with self._reading:
            began = time.monotonic()
            if self._found is not None and (began < self._good_until or began - self._read_at < age):
                return self._found
            self._found = found = await self._read()
            self._read_at = ended = time.monotonic()
            took = ended - began
            self._good_until = 0.0 if took < QUICK else ended + rest_after(took)
            return found
