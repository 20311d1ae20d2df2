"""The time limit of a call to the simulated cluster."""

from __future__ import annotations

import asyncio


class Timer:
    """The time limit of a call: what asyncio.timeout does, for very many calls that never need it.

    Args:
        loop: the simulated one.
        limit: seconds that the present task has.
        waiting: where the timer waits to be set; None to set it now.
    """

    __slots__ = ("_cancelling", "_expired", "_handle", "_limit", "_loop", "_task", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: float, waiting: dict[Timer, None] | None) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._loop = loop
        self._limit = limit
        self._task = task
        self._cancelling = task.cancelling()
        self._expired = False
        self._handle: asyncio.TimerHandle | None = None
        self._waiting = waiting
        if waiting is None:
            self.start()
        else:
            waiting[self] = None

    def start(self) -> None:
        """Set it: from now on the call has so many seconds."""
        self._handle = self._loop.call_at(self._loop.time() + self._limit, self._expire)

    def end(self) -> None:
        """Have it expire no more."""
        if self._handle is not None:
            self._handle.cancel()
        elif self._expired:
            self._task.uncancel()
        elif self._waiting is not None:
            self._waiting.pop(self, None)

    def has_cancelled(self) -> bool:
        """Whether it is the timer, and nobody else, that has cancelled the task; asked once, when it was."""
        expired, self._expired = self._expired, False
        return expired and self._task.uncancel() <= self._cancelling

    def _expire(self) -> None:
        self._expired = True
        self._handle = None
        self._task.cancel()
