"""The services that use one store in one process: the first opens it, the last closes it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jobs_service.store.base import Store


class Tenants:
    """Counts the services that use a store, and closes it after the last; a store opened by the application stays open.

    Args:
        store: the store.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._count = 0
        self._is_kept = False
        # A service that comes during another one's opening or closing waits for its end.
        self._changing = asyncio.Lock()

    async def enter(self) -> None:
        """Add a service, and open the store if it is not open.

        Raises:
            StoreError: the store cannot be opened.
        """
        async with self._changing:
            if not self._count:
                self._is_kept = self._store.is_open
            if not self._store.is_open:
                await self._store.open()
            self._count += 1

    async def leave(self) -> bool:
        """Remove a service; return whether the store was closed."""
        async with self._changing:
            self._count -= 1
            if self._count or self._is_kept:
                return False
            await self._store.close()
            return True
