"""Workers of one process that wait in line for jobs of a type.

Only the first worker of each line watches the store. A worker that gets a job wakes the next two, because there may be
more jobs. So an added job costs one read of the queue per process, however many workers are idle. A worker that was
woken in vain returns to its place in line: first come, first served.
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
    """The workers that wait for the same jobs."""

    __slots__ = ("behind", "entered", "inside", "watch")

    def __init__(self) -> None:
        # The watch of the first in line.
        self.watch: Watch | None = None
        # How many workers have ever entered the line, and how many are in it now.
        self.entered = 0
        self.inside = 0
        # (number, turn) of each of the others, by number
        self.behind: deque[tuple[int, asyncio.Future[None]]] = deque()

    def enter(self) -> int:
        """Add a worker to the line, and return its number."""
        self.entered += 1
        self.inside += 1
        return self.entered

    def wake(self, count: int) -> None:
        """Have the next workers in line try.

        Args:
            count: number of workers.
        """
        while count and self.behind:
            _, turn = self.behind.popleft()
            if not turn.done():
                turn.set_result(None)
                count -= 1


class WaitingWorkers(Generic[T]):
    """All lines of one service: one for each pair of a type and accept terms."""

    def __init__(self) -> None:
        self._lines: dict[Hashable, _Line] = {}

    async def get(self, key: Hashable, attempt: Callable[[], Awaitable[T | EmptyQueue]]) -> T:
        """Repeat an attempt until it finds jobs; wait without polling in between.

        Args:
            key: of the line; the same for all workers that wait for the same jobs.
            attempt: tries to accept in one transaction.

        Returns:
            The result of the successful attempt.
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
            # Another worker gets the turn: this one may have been woken for a job that it will not take now.
            if not queued:
                line.wake(1)
            raise
        finally:
            line.inside -= 1
            if not line.inside:
                del self._lines[key]

    def wake_all(self) -> None:
        """Have all workers try, to learn that the service is closed."""
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
                with contextlib.suppress(ValueError):  # a wake that came after the cancellation has removed it already
                    line.behind.remove((number, turn))
            else:
                line.wake(1)  # canceled as its turn came
            raise

    async def _watch(self, line: _Line, watch: Watch, due_in: float | None) -> None:
        line.watch = watch
        try:
            # The queue has changed, a scheduled job is due, or the watch was lost: in any case the next step is to try.
            with contextlib.suppress(TimeoutError, StoreError):
                async with asyncio.timeout(due_in):
                    await watch.wait()
        finally:
            line.watch = None
            watch.cancel()
