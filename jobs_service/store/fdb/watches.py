"""Watches of FoundationDB, bridged into the loop through one thread, however many there are.

The client's thread only records the fired watches; the bridge's thread hands all of them to the loop at once. The
client takes a limited number of watches; further ones are polled, many in one transaction.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Executor
from queue import Empty, SimpleQueue
from typing import Any, Final

import fdb

from jobs_service.errors import StoreError
from jobs_service.log import EventLog
from jobs_service.store.base import Watch
from jobs_service.store.fdb.client import Network, translated

log = EventLog("jobs_service.store")

SLACK: Final = 1000
"""Watches of the client beyond the store's limit: fired and canceled ones count for a while longer."""

_TOO_MANY_WATCHES: Final = 1032
_REFUSED: Final = 10.0
"""Seconds without new watches of the client after it has refused one."""

_MOST_POLLED: Final = 1000
"""Watches that one transaction polls: with hundreds of thousands of keys it would always be too old."""

_ORPHANED: Final = 1.0
"""Seconds between two checks for a closed loop."""


class FdbWatches:
    """The watches of one store.

    Args:
        network: the client.
        loop: the loop on which they fire.
        executor: lends the bridge its thread, until `close`.
        limit: most watches of the client; others are polled.
        poll: seconds between two polls.
        values_of: returns the current values of keys.
        lost: called with the client's error when the client gives up a watch.
    """

    def __init__(
        self,
        network: Network,
        loop: asyncio.AbstractEventLoop,
        executor: Executor,
        *,
        limit: int,
        poll: float,
        values_of: Callable[[list[bytes]], Awaitable[list[bytes | None]]],
        lost: Callable[[StoreError], None],
    ) -> None:
        self._network = network
        self._loop = loop
        self._limit = limit
        self._poll = poll
        self._values_of = values_of
        self._on_lost = lost
        self._lost: dict[Watch, asyncio.TimerHandle] = {}
        self._refused_at: float | None = None
        self._closed = False
        self._making = 0
        self._native: dict[int, tuple[Watch, Any]] = {}
        self._numbers: dict[Watch, int] = {}
        self._polled: dict[Watch, None] = {}
        self._poller: asyncio.Task[None] | None = None
        self._fired: SimpleQueue[int | None] = SimpleQueue()
        self._executor = executor
        self._bridge = loop.run_in_executor(executor, self._carry)

    @property
    def full(self) -> bool:
        """Whether the client has as many watches as allowed, including watches that are being made."""
        return len(self._native) + self._making >= self._limit or self._refuses()

    @property
    def number(self) -> int:
        """Number of living watches."""
        return len(self._native) + len(self._polled)

    @property
    def polled(self) -> int:
        """Number of polled watches, beyond the client's limit."""
        return len(self._polled)

    def _refuses(self) -> bool:
        """Whether the client has recently refused a watch: other code of the process has used up its limit."""
        return self._refused_at is not None and self._loop.time() < self._refused_at + _REFUSED

    @contextlib.contextmanager
    def making(self, count: int) -> Iterator[None]:
        """Count so many watches as the client's while they are being made."""
        self._making += count
        try:
            yield
        finally:
            self._making -= count

    def add(self, watch: Watch, future: Any) -> None:
        """Keep a watch made by the client."""
        if self._closed:
            self._network.cancel(future)
            watch.fire(StoreError("the watch was lost: its store was closed"))
            return
        number = self._network.notify(future, self._fired.put)
        self._native[number] = (watch, future)
        self._numbers[watch] = number
        watch.attach(self._forget)

    def add_polled(self, watch: Watch) -> None:
        """Poll a watch beyond the client's limit; its baseline is the value that its transaction saw or left."""
        self._polled[watch] = None
        watch.attach(self._forget)
        if self._poller is None:
            self._poller = self._loop.create_task(self._keep_polling())

    async def close(self, why: str) -> None:
        """Fail all watches and give the thread back."""
        self._closed = True
        watches = [watch for watch, _ in self._native.values()] + [*self._polled, *self._lost]
        for watch in watches:
            self._forget(watch)
            watch.fire(StoreError(why))
        self._fired.put(None)
        if self._poller is not None:
            self._poller.cancel()
            await asyncio.wait([self._poller])
        await asyncio.shield(self._bridge)

    def _forget(self, watch: Watch) -> None:
        number = self._numbers.pop(watch, None)
        if number is not None:
            _, future = self._native.pop(number)
            self._network.cancel(future)
        self._polled.pop(watch, None)
        timer = self._lost.pop(watch, None)
        if timer is not None:
            timer.cancel()

    # The bridge

    def _carry(self) -> None:
        """Hand fired watches to the loop, as many as are ready at a time, until None comes; in the bridge's thread."""
        while True:
            try:
                numbers = [self._fired.get(timeout=_ORPHANED)]
            except Empty:
                # Otherwise a program that ends without closing its store would wait for this thread for ever.
                if self._loop.is_closed() or not self._takes_work():
                    return
                continue
            while not self._fired.empty():
                numbers.append(self._fired.get())
            try:
                self._loop.call_soon_threadsafe(self._deliver, [each for each in numbers if each is not None])
            except RuntimeError:  # The loop was closed before the store.
                return
            if None in numbers:
                return

    def _takes_work(self) -> bool:
        """Whether the executor takes work; it refuses work at the interpreter's end."""
        try:
            self._executor.submit(bool)
        except RuntimeError:
            return False
        return True

    def _deliver(self, numbers: list[int]) -> None:
        for number in numbers:
            # One that was canceled is not there any more.
            native = self._native.pop(number, None)
            if native is None:
                continue
            watch, future = native
            del self._numbers[watch]
            try:
                future.wait()
                watch.fire()
            except fdb.FDBError as error:
                self._lose(watch, error)

    def _lose(self, watch: Watch, error: Any) -> None:
        """Fail a watch that the client has given up, after a pause.

        Its waiter makes another watch. Without a pause, watches that are lost at once would keep it busy.
        """
        if error.code == _TOO_MANY_WATCHES:
            self._refused_at = self._loop.time()
        failure = translated(error)
        self._on_lost(failure)
        self._lost[watch] = self._loop.call_later(self._poll, self._fire_lost, watch, failure)

    def _fire_lost(self, watch: Watch, failure: StoreError) -> None:
        del self._lost[watch]
        watch.fire(StoreError(f"the watch was lost: {failure}"))

    # Watches beyond the client's limit

    async def _keep_polling(self) -> None:
        while self._polled:
            await asyncio.sleep(self._poll)
            watches = list(self._polled)
            try:
                for start in range(0, len(watches), _MOST_POLLED):
                    await self._look_at(watches[start : start + _MOST_POLLED])
            except StoreError:
                pass  # The next poll tries again. Waiters meet the store's trouble themselves.
            except Exception:
                # Whatever it was: all waiters depend on the next poll.
                log.exception("watch_poll_failed")
        self._poller = None

    async def _look_at(self, watches: list[Watch]) -> None:
        """Fire the polled watches whose keys have another value."""
        values = await self._values_of([watch.key for watch in watches])
        for watch, value in zip(watches, values, strict=True):
            if watch in self._polled and value != watch.baseline:
                del self._polled[watch]
                watch.fire()
