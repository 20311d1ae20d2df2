"""Workers of one process that wait for jobs of a type. Floor: below the service, above the layer.

Of all that wait for the same jobs only the first in line watches the store; whoever gets a job wakes the next two,
since where one job came there may be more. So an added job costs one look per process, however many workers are idle.
Who was woken and found nothing goes back to their place: those who came first are served first.
"""

from __future__ import annotations

import asyncio
import contextlib
from bisect import bisect
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from operator import itemgetter
from typing import Generic, TypeVar

from jobs_service.errors import StoreError
from jobs_service.layer.queue import EmptyQueue
from jobs_service.store.base import Watch

T = TypeVar("T")


class _Line:
    """Those who wait for the same jobs."""

    __slots__ = ("behind", "entered", "inside", "watch")

    def __init__(self) -> None:
        # What the first in line waits for.
        self.watch: Watch | None = None
        self.entered = 0
        self.inside = 0
        # (how many had entered before, their turn), in that order
        self.behind: deque[tuple[int, asyncio.Future[None]]] = deque()

    def enter(self) -> int:
        """Count one more in line, and return their number."""
        self.entered += 1
        self.inside += 1
        return self.entered

    def wake(self, count: int) -> None:
        """Let the next in line try."""
        while count and self.behind:
            _, turn = self.behind.popleft()
            if not turn.done():
                turn.set_result(None)
                count -= 1


class WaitingWorkers(Generic[T]):
    """All lines of one service."""

    def __init__(self) -> None:
        self._lines: dict[Hashable, _Line] = {}

    async def get(self, key: Hashable, attempt: Callable[[], Awaitable[T | EmptyQueue]]) -> T:
        """Try until an attempt finds something, waiting in between without polling.

        Args:
            key: the same for all who wait for the same jobs.
            attempt: one transaction.
        """
        line = self._lines.setdefault(key, _Line())
        number = line.enter()
        queued = False
        try:
            while True:
                queued = False
                found = await attempt()
                if not isinstance(found, EmptyQueue):
                    line.wake(2)
                    return found
                if line.watch is not None:
                    if found.watch is not None:
                        found.watch.cancel()
                    queued = True
                    await self._queue(line, number)
                elif found.watch is not None:
                    await self._watch(line, found.watch, found.due_in)
        except BaseException:
            # The turn passes on: this one may have been woken for a job that it will not take.
            if not queued:
                line.wake(1)
            raise
        finally:
            line.inside -= 1
            if not line.inside:
                del self._lines[key]

    def wake_all(self) -> None:
        """Let everybody try, who will then find out that the service is closed."""
        for line in self._lines.values():
            if line.watch is not None:
                line.watch.fire()
            line.wake(len(line.behind))

    async def _queue(self, line: _Line, number: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.behind.insert(bisect(line.behind, number, key=itemgetter(0)), (number, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                with contextlib.suppress(ValueError):  # a wake may have passed it over already
                    line.behind.remove((number, turn))
            else:
                line.wake(1)  # canceled as its turn came
            raise

    async def _watch(self, line: _Line, watch: Watch, due_in: float | None) -> None:
        line.watch = watch
        try:
            # In time or not, lost or not: one looks again.
            with contextlib.suppress(TimeoutError, StoreError):
                async with asyncio.timeout(due_in):
                    await watch.wait()
        finally:
            line.watch = None
            watch.cancel()
