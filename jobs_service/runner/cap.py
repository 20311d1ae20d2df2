"""The cap over all handlers of one runner: how many jobs of all types may run at the same time. Floor: runner."""

from __future__ import annotations

import asyncio
from collections import deque


class Cap:
    """So many places; who finds none waits in line.

    Args:
        limit: how many; None for as many as the handlers have slots.
    """

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.taken = 0
        self._line: deque[asyncio.Future[None]] = deque()

    @property
    def is_full(self) -> bool:
        """Whether no place is left."""
        return self.limit is not None and self.taken >= self.limit

    def take(self, most: int) -> int:
        """Take up to so many places; return how many."""
        got = most if self.limit is None else max(min(most, self.limit - self.taken), 0)
        self.taken += got
        return got

    def give_back(self, count: int) -> None:
        """Give places back, and wake the first in line."""
        self.taken -= count
        self._wake_next()

    async def wait(self) -> None:
        """Wait until there may be a place; who waits longest is woken first."""
        while self.is_full:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._line.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.cancelled():
                    self._line.remove(turn)
                else:
                    self._wake_next()
                raise

    def wake_all(self) -> None:
        """Have everybody look again."""
        while self._line:
            turn = self._line.popleft()
            if not turn.done():
                turn.set_result(None)

    def _wake_next(self) -> None:
        while self._line and not self.is_full:
            turn = self._line.popleft()
            if not turn.done():
                turn.set_result(None)
                return
