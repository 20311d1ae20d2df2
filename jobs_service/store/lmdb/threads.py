"""The parts of the embedded store's threads: requests to them, with answers and deadlines, and their memory map."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Generic, TypeVar

import lmdb

from jobs_service.errors import StoreError, StoreUnavailable
from jobs_service.store.base import TransactionFunction, Watch
from jobs_service.store.lmdb.shared import SharedEnvironment
from jobs_service.store.lmdb.transaction import LmdbTransaction

T = TypeVar("T")

_MOST_TRIES: Final = 100


# Requests


class ThreadCall(Generic[T]):
    """One call of transact or read, passed to a thread.

    Attributes:
        is_answered: whether the thread has sent the answer, which the loop may not have processed yet.
    """

    __slots__ = ("abandoned", "claim", "deadline", "function", "future", "is_answered", "watches")

    def __init__(
        self,
        function: TransactionFunction[T],
        future: asyncio.Future[T],
        deadline: float,
        abandoned: Callable[[T], None] | None,
    ) -> None:
        self.function = function
        self.future = future
        self.deadline = deadline
        self.abandoned = abandoned
        self.watches: list[Watch] = []
        self.is_answered = False
        # Popping from a list is atomic, so it decides without a lock who owns the request: the thread that runs it, or
        # the caller that withdraws it.
        self.claim = [True]

    def take(self) -> bool:
        """Claim the request; only the first attempt succeeds."""
        try:
            return self.claim.pop()
        except IndexError:
            return False

    def withdraw(self, answered: asyncio.Future[Any]) -> bool:
        """Claim the request so that no thread runs it; return whether the claim was in time.

        Its references are dropped, because it may stay in the queue for hours while another process holds the lock.

        Args:
            answered: a done future, in place of the request's own.
        """
        if not self.take():
            return False
        self.function = _nothing
        self.abandoned = None
        self.future = answered
        return True


async def _nothing(transaction: Any) -> Any:
    """The function of a withdrawn request; it never runs."""


class ThreadAnswer:
    """The result or the error of one request."""

    __slots__ = ("error", "request", "result", "stamp", "transaction")

    def __init__(self, request: ThreadCall[Any]) -> None:
        self.request = request
        self.result: Any = None
        self.error: BaseException | None = None
        self.transaction: LmdbTransaction | None = None
        self.stamp: bytes | None = None


class Deadlines:
    """Fails requests that are not answered in time, with one timer for all of them.

    Args:
        loop: the store's loop.
        seconds: time limit of a request.
        what: name of the store in the error.
        begun: the error's addition for a request that a thread has begun.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, what: str, begun: str = "") -> None:
        self._loop = loop
        self._seconds = seconds
        self._what = what
        self._begun = begun
        self._waiting: deque[ThreadCall[Any]] = deque()
        self._answered = loop.create_future()
        self._answered.cancel()
        self._timer: asyncio.TimerHandle | None = None

    def watch_over(self, request: ThreadCall[Any]) -> None:
        """Fail the request when its deadline passes."""
        self._waiting.append(request)
        if self._timer is None:
            self._timer = self._loop.call_at(request.deadline, self._expire)

    def withdraw(self, request: ThreadCall[Any]) -> None:
        """Withdraw a request whose caller has gone, if no thread has begun it."""
        request.withdraw(self._answered)

    def forget_answered(self) -> None:
        """Drop the answered requests at the front."""
        waiting = self._waiting
        while waiting and waiting[0].future.done():
            waiting.popleft()

    def stop(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        self.forget_answered()
        while self._waiting and self._waiting[0].deadline <= now:
            request = self._waiting.popleft()
            future = request.future
            if future.done() or request.is_answered:
                continue
            begun = "" if request.withdraw(self._answered) else self._begun
            future.set_exception(
                StoreUnavailable(
                    f"{self._what} did not answer within {self._seconds:g} s{begun}. Another process may hold its "
                    "write lock, or the disk is slow; try again later"
                )
            )
        self.forget_answered()
        if self._waiting:
            self._timer = self._loop.call_at(self._waiting[0].deadline, self._expire)


def failed(requests: Iterable[ThreadCall[Any]], error: StoreError) -> list[ThreadAnswer]:
    """Return answers that fail these requests, each with its own copy of the error."""
    answers = []
    for request in requests:
        request.take()
        answer = ThreadAnswer(request)
        answer.error = type(error)(str(error))
        answers.append(answer)
    return answers


# The memory map


class MemoryMap:
    """The map of one environment, for all threads with transactions.

    A process whose map is too small for the store gets MDB_MAP_RESIZED from each new transaction. It may take over the
    other's size, but LMDB unmaps the file for that: no thread of the process may be in a transaction then.

    Args:
        environment: the store's environment.
        grown: called with the new size in bytes after growth, on the thread that met the old one.
        failed: called with the error if it could not grow: then the environment must not be used any more.
    """

    def __init__(
        self,
        environment: SharedEnvironment,
        grown: Callable[[int], object],
        failed: Callable[[lmdb.Error], Exception],
    ) -> None:
        self._environment = environment
        self._uses = environment.uses
        self._grown = grown
        self._failed = failed
        self.end = self._uses.end

    def begin(self, *, write: bool = False) -> lmdb.Transaction[bytes]:
        """Begin a transaction; the caller calls `end` after its end.

        Raises:
            lmdb.Error: the begin failed; do not call `end`.
        """
        uses = self._uses
        for _ in range(_MOST_TRIES):
            with uses.counting:
                if uses.failure is not None:
                    raise self._failed(uses.failure)
                uses.number += 1
            try:
                return self._environment.begin(write=write)
            except lmdb.MapResizedError:
                self.end()
                self._grow()
            except BaseException:
                self.end()
                raise
        raise lmdb.MapResizedError(f"it was grown {_MOST_TRIES} times meanwhile")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the map unchanged, and as large as the store is now, while the block runs."""
        transaction = self.begin()
        transaction.abort()
        try:
            yield
        finally:
            self.end()

    def _grow(self) -> None:
        with self._uses.counting:
            self._uses.until_unused()
            before = self._environment.info()["map_size"]
            try:
                self._environment.set_mapsize(0)
            except lmdb.Error as error:
                self._uses.failure = error
                raise self._failed(error) from error
            size = self._environment.info()["map_size"]
        if size > before:
            self._grown(size)
