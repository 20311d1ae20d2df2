"""The time limit of a call to the simulated cluster."""

from __future__ import annotations

import asyncio


class Timer:
    """The time limit of a call, like asyncio.timeout, but cheaper for the many calls that never reach it.

    Args:
        loop: the simulated loop.
        limit: seconds for the current task.
        waiting: collects timers that need not be set yet; None to set this one now.
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
        """Set the timer; the call's time begins now."""
        self._handle = self._loop.call_at(self._loop.time() + self._limit, self._expire)

    def end(self) -> None:
        """Remove the timer, because its call has ended."""
        if self._handle is not None:
            self._handle.cancel()
        elif self._expired:
            self._task.uncancel()
        elif self._waiting is not None:
            self._waiting.pop(self, None)

    def has_cancelled(self) -> bool:
        """Return whether the timer alone has cancelled the task; called once, after a cancellation."""
        expired, self._expired = self._expired, False
        return expired and self._task.uncancel() <= self._cancelling

    def _expire(self) -> None:
        self._expired = True
        self._handle = None
        self._task.cancel()
