"""Actors with several duties: one that meets damage in the store's file is put off, and is in the way of no other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from jobs_service.actors.context import Context, log
from jobs_service.errors import StoreDamaged, StoreError
from jobs_service.supervision import Actor

T = TypeVar("T")

DAMAGED_PAUSE: Final = 60.0
"""Seconds for which a duty is put off that has met damage in the store's file, which does not pass by itself."""


class DutifulActor(Actor):
    """An actor that does what is due in turns, part by part.

    Args:
        name: for people.
        context: the service's.
        fields: for the log.
    """

    def __init__(self, name: str, context: Context, **fields: Any) -> None:
        super().__init__(name)
        self._context = context
        self._log = log.bind(**fields)
        self._fields = fields

    async def init(self) -> None:
        """Prepare; see Actor."""
        self._time = asyncio.get_running_loop().time

    async def _tried(self, duty: Awaitable[object], at: str | None = None) -> bool:
        """Do a duty, and return True; False where it has met damage in the store's file.

        Args:
            duty: to be done; it makes its transactions by `_retried`.
            at: the attribute with the loop's time at which the duty is due next; None if it has none.
        """
        try:
            await duty
        except StoreDamaged as error:
            self._log.warning("store_retry", error=str(error), pause=DAMAGED_PAUSE)
            if at is not None:
                setattr(self, at, self._time() + DAMAGED_PAUSE)
            return False
        return True

    async def _retried(self, operation: Callable[[], Awaitable[T]], unless: tuple[type[StoreError], ...] = ()) -> T:
        """Do an operation as Context.retried does, but raise StoreDamaged."""
        return await self._context.retried(operation, unless=(*unless, StoreDamaged), **self._fields)
