"""The cap over all handlers of one runner: how many jobs of all types may run at the same time. Floor: runner."""

from __future__ import annotations

import asyncio


class SlotLimit:
    """So many places; who finds none waits in line.

    Args:
        limit: how many; None for as many as the handlers have slots.
    """

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.taken = 0
        self._line: dict[object, asyncio.Future[None]] = {}

    @property
    def is_full(self) -> bool:
        """Whether no place is left."""
        return self.limit is not None and self.taken >= self.limit

    async def take(self, who: object, most: int) -> int:
        """Take up to so many places, at least one; who waits longest for it gets the first that is given back.

        Args:
            who: takes them; does so once at a time.
            most: at least 1.
        """
        got = 0
        if self.is_full:
            await self._turn(who)
            got = 1
        more = most - got if self.limit is None else min(most - got, self.limit - self.taken)
        self.taken += more
        return got + more

    def give_back(self, count: int) -> None:
        """Give places back: one to each who waits, as far as they go."""
        self.taken -= count
        while self._line and not self.is_full:
            turn = self._line.pop(next(iter(self._line)))
            if not turn.done():
                self.taken += 1
                turn.set_result(None)

    def put_last(self, who: object) -> None:
        """Have one who may be waiting let all others go first."""
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
