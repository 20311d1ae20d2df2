"""Requests to the store's threads, their answers, and their deadlines."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from jobs_service.errors import StoreError, StoreUnavailable
from jobs_service.store.base import TransactionFunction, Watch
from jobs_service.store.lmdb.state import LmdbTransaction

T = TypeVar("T")


class Request(Generic[T]):
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


class Answer:
    """The result or the error of one request."""

    __slots__ = ("error", "request", "result", "stamp", "transaction")

    def __init__(self, request: Request[Any]) -> None:
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
        self._waiting: deque[Request[Any]] = deque()
        self._answered = loop.create_future()
        self._answered.cancel()
        self._timer: asyncio.TimerHandle | None = None

    def watch_over(self, request: Request[Any]) -> None:
        """Fail the request when its deadline passes."""
        self._waiting.append(request)
        if self._timer is None:
            self._timer = self._loop.call_at(request.deadline, self._expire)

    def withdraw(self, request: Request[Any]) -> None:
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


def failed(requests: Iterable[Request[Any]], error: StoreError) -> list[Answer]:
    """Return answers that fail these requests, each with its own copy of the error."""
    answers = []
    for request in requests:
        request.take()
        answer = Answer(request)
        answer.error = type(error)(str(error))
        answers.append(answer)
    return answers
