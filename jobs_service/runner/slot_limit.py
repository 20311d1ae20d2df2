"""The limit over all handlers of one runner: the most jobs of all types that run at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class SlotLimit:
    """Counts the taken slots; worker pools that find none free wait in line.

    Args:
        limit: the number of slots; None for the sum of the handlers' slots.

    Attributes:
        limit: as given.
        taken: number of taken slots.
        is_closed: whether takers get no slot, even if slots are free.
        on_change: called whenever slots are given back; None for no callback.
    """

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.taken = 0
        self.is_closed = False
        self.on_change: Callable[[], object] | None = None
        self._line: dict[object, asyncio.Future[None]] = {}

    @property
    def is_full(self) -> bool:
        """Whether no slot is left."""
        return self.is_closed or (self.limit is not None and self.taken >= self.limit)

    async def take(self, who: object, most: int) -> int:
        """Take up to so many slots, at least one; the longest waiting taker gets the first free slot.

        Args:
            who: the taker, any object; it must not wait twice at the same time.
            most: at least 1.

        Returns:
            The number of taken slots.
        """
        got = 0
        if self.is_full:
            await self._turn(who)
            got = 1
        more = most - got if self.limit is None else min(most - got, self.limit - self.taken)
        self.taken += more
        return got + more

    def close(self, closed: bool) -> None:
        """Refuse slots to all takers from now on, or serve them again; taken slots stay taken."""
        self.is_closed = closed
        self.give_back(0)

    def give_back(self, count: int) -> None:
        """Give slots back: each waiting taker gets one, in the order of the line."""
        self.taken -= count
        if self.on_change is not None:
            self.on_change()
        while self._line and not self.is_full:
            turn = self._line.pop(next(iter(self._line)))
            if not turn.done():
                self.taken += 1
                turn.set_result(None)

    def put_last(self, who: object) -> None:
        """Move a taker to the end of the line, if it waits there."""
        turn = self._line.pop(who, None)
        if turn is not None:
            self._line[who] = turn

    async def _turn(self, who: object) -> None:
        turn = self._line[who] = asyncio.get_running_loop().create_future()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._line.pop(who, None)
            else:
                self.give_back(1)  # canceled as its turn came
            raise
