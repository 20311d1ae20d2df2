"""Watches of FoundationDB, bridged into the loop through one thread, however many there are. Floor: store.

The client's thread only notes which watch has fired; the bridge's thread hands all that have to the loop at once. The
client takes a limited number of watches; those beyond it are looked at now and then, all in one transaction.
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
"""Watches that the client may have beyond our limit: those that have fired or were canceled count a while longer."""

_TOO_MANY_WATCHES: Final = 1032
_REFUSED: Final = 10.0
"""Seconds for which no more watches are asked of the client when it has refused one."""

_ORPHANED: Final = 1.0
"""Seconds between two looks whether the loop is still there."""


class FdbWatches:
    """The watches of one store.

    Args:
        network: the client.
        loop: the loop that they fire on.
        executor: lends the bridge its thread, until `close`.
        limit: watches of the client at most; others are polled.
        poll: seconds between two looks at those.
        look: returns the present values of keys.
        lost: called when the client has given a watch up, with its error.
    """

    def __init__(
        self,
        network: Network,
        loop: asyncio.AbstractEventLoop,
        executor: Executor,
        *,
        limit: int,
        poll: float,
        look: Callable[[list[bytes]], Awaitable[list[bytes | None]]],
        lost: Callable[[StoreError], None],
    ) -> None:
        self._network = network
        self._loop = loop
        self._limit = limit
        self._poll = poll
        self._look = look
        self._tell_lost = lost
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
        """Whether the client is to have no more of them, those included that are being made."""
        return len(self._native) + self._making >= self._limit or self._refuses()

    @property
    def number(self) -> int:
        """How many are alive."""
        return len(self._native) + len(self._polled)

    @property
    def polled(self) -> int:
        """How many of them the client has no place for."""
        return len(self._polled)

    def _refuses(self) -> bool:
        """Whether the client has refused a watch a short while ago: others in the process have its places."""
        return self._refused_at is not None and self._loop.time() < self._refused_at + _REFUSED

    @contextlib.contextmanager
    def making(self, count: int) -> Iterator[None]:
        """Count so many as the client's until they are added, or have come to nothing."""
        self._making += count
        try:
            yield
        finally:
            self._making -= count

    def add(self, watch: Watch, future: Any) -> None:
        """Keep a watch that the client has made."""
        if self._closed:
            self._network.cancel(future)
            watch.fire(StoreError("the watch was lost: its store was closed"))
            return
        number = self._network.tell(future, self._fired.put)
        self._native[number] = (watch, future)
        self._numbers[watch] = number
        watch.attach(self._forget)

    def add_polled(self, watch: Watch) -> None:
        """Keep a watch that the client has no place for; its baseline is what its transaction saw or left."""
        self._polled[watch] = None
        watch.attach(self._forget)
        if self._poller is None:
            self._poller = self._loop.create_task(self._keep_looking())

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
        """Hand fired watches to the loop, all that there are at a time, until None comes; in the bridge's thread."""
        while True:
            try:
                numbers = [self._fired.get(timeout=_ORPHANED)]
            except Empty:
                # A program that ends without closing its store must not wait for this thread for ever.
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
        """Whether the executor still does, which it does not when the interpreter ends."""
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
        """Tell whoever waits that the client has given a watch up, but not at once.

        Whoever is told asks for another one; if that is lost again at once, all would do nothing else.
        """
        if error.code == _TOO_MANY_WATCHES:
            self._refused_at = self._loop.time()
        failure = translated(error)
        self._tell_lost(failure)
        self._lost[watch] = self._loop.call_later(self._poll, self._fire_lost, watch, failure)

    def _fire_lost(self, watch: Watch, failure: StoreError) -> None:
        del self._lost[watch]
        watch.fire(StoreError(f"the watch was lost: {failure}"))

    # Those beyond the client's limit

    async def _keep_looking(self) -> None:
        while self._polled:
            await asyncio.sleep(self._poll)
            watches = list(self._polled)
            try:
                values = await self._look([watch.key for watch in watches])
            except StoreError:
                continue  # They are looked at again; whoever waits meets the store's trouble itself.
            except Exception:
                # Whatever it was: all who wait depend on the next look.
                log.exception("watch_poll_failed")
                continue
            for watch, value in zip(watches, values, strict=True):
                if watch in self._polled and value != watch.baseline:
                    del self._polled[watch]
                    watch.fire()
        self._poller = None
