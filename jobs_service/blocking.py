"""Calls from threads to an event loop: each runs a coroutine on the loop, and blocks its thread until the result."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, TypeVar

from jobs_service.errors import JobsError, ServiceClosed

T = TypeVar("T")

_LONGEST_GATHERING: Final = 0.02
"""Most seconds for which the loop waits for further calls after it has answered several."""
_LONGEST_PAUSE: Final = 0.002
"""It waits no longer when there was none for so many seconds."""
_LOOK: Final = 1.0
"""Seconds between two looks of a waiting thread whether the loop is still there; nobody tells it when it ends."""


class LoopCalls:
    """The calls of threads to one event loop. Calls of many threads wake it once.

    The answers of one turn of the loop wake one thread, which wakes the next one. If all were woken at once, each of
    them would wait for Python's lock, and look after it every 5 ms: with 200 threads a call took five times as long.
    Meanwhile the loop begins nothing: threads that were answered together often call again, and are best answered
    together again, with one commit of the store for all.

    Args:
        loop: the loop.
        undo: called on the loop with the result of a call whose thread has gone before it got it.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, undo: Callable[[Any], Coroutine[Any, Any, None]] | None = None
    ) -> None:
        self.loop = loop
        self.undo = undo
        self._new: deque[_Call | _Operation] = deque()
        self._is_woken = False
        self._ended: deque[_Call | _Operation] = deque()
        self._is_answering = False
        # While threads are being woken: the timer that ends the wait for their calls; how many threads that are; how
        # many calls there were when the loop looked last; and the time when it begins them in any case.
        self._gathering: asyncio.TimerHandle | None = None
        self._answered = self._seen = 0
        self._latest = 0.0
        self._flights: dict[Callable[[Any], object], _Flight] = {}
        self._pid = os.getpid()

    def call(
        self,
        function: Callable[..., Coroutine[Any, Any, T]],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> T:
        """Run a coroutine function on the loop, in this thread's context, and return its result.

        An exception in this thread while it waits, such as KeyboardInterrupt, cancels the call, and is raised when the
        call has ended; a second one is raised at once.

        Raises:
            JobsError: the caller is the loop's thread, and would wait for itself.
            ServiceClosed: the loop has ended.
        """
        return self._result(_Call(self, function, args, kwargs or {}))  # type: ignore[no-any-return]

    def operate(
        self, prepare: Callable[[_Operation], T], begin: Callable[[T], object], *, one_after_the_other: bool
    ) -> Any:
        """Have a short operation run that needs no task of its own, and return its result.

        Args:
            prepare: called in this thread with the answer, which the operation is to be given; returns the operation.
            begin: called with it on the loop.
            one_after_the_other: whether operations with an equal `begin` wait until those that have begun were
                answered, because they would have to wait for the store anyway; then they begin together.

        Raises:
            As `call`; and what `prepare` raises.
        """
        call = _Operation(self, begin, one_after_the_other)
        call.operation = prepare(call)
        return self._result(call)

    def _result(self, call: _Call | _Operation) -> Any:
        if running_loop() is self.loop:
            raise JobsError(
                "a plain call was used on the event loop, which it waits for; use it in another thread, or `await` the "
                "operation of the asyncio interface"
            )
        try:
            self._new.append(call)
            all_have_called_again = len(self._new) >= self._answered and not self._ended
            if not self._is_woken and (self._gathering is None or all_have_called_again):
                self._wake_loop()
            self._until_ended(call)
            if call.error is not None:
                raise call.error
            return call.result
        except BaseException as error:
            if call.error is not error:
                self._abandon(call)
            raise
        finally:
            call.error = None  # it has this frame in its traceback

    def _until_ended(self, call: _Call | _Operation) -> None:
        try:
            while not call.woken.acquire(timeout=_LOOK) and not call.has_ended:
                self._look()
        finally:
            self._wake_next()

    def _look(self) -> None:
        if os.getpid() != self._pid:
            raise ServiceClosed("this belongs to the process before its fork: get it anew from the service")
        if self.loop.is_closed():
            raise _loop_ended()
        if self._new:  # a thread may have died just before it would have woken the loop
            self._wake_loop()

    def _abandon(self, call: _Call | _Operation) -> None:
        with contextlib.suppress(ServiceClosed):
            self._tell(call.cancel)
            self._until_ended(call)

    def _tell(self, callback: Callable[[], object]) -> None:
        try:
            self.loop.call_soon_threadsafe(callback)
        except RuntimeError:  # it is closed
            raise _loop_ended() from None

    def answer(self, call: _Call | _Operation) -> None:
        """Wake the thread of a call that has ended, in its turn."""
        call.has_ended = True
        if self._is_answering:
            self._ended.append(call)
        else:
            self._is_answering = True
            call.woken.release()
            self.loop.call_soon(self._answer_others)

    def _answer_others(self) -> None:
        self._is_answering = False
        if not self._ended:
            self._begin_flights()
            return
        if self._gathering is None:
            self._answered, self._seen = len(self._ended) + 1, len(self._new)
            self._latest = self.loop.time() + _LONGEST_GATHERING
            self._gathering = self.loop.call_later(_LONGEST_PAUSE, self._look_for_calls)
        self._wake_next()

    def _look_for_calls(self) -> None:
        count = len(self._new)
        if count > self._seen and self.loop.time() < self._latest:
            self._seen = count
            self._gathering = self.loop.call_later(_LONGEST_PAUSE, self._look_for_calls)
        else:
            self._begin_all()

    def _wake_next(self) -> None:
        # Should a thread die before it does this, the others look for themselves after a while.
        with contextlib.suppress(IndexError):
            self._ended.popleft().woken.release()

    def _wake_loop(self) -> None:
        self._is_woken = True
        try:
            self._tell(self._begin_all)
        except BaseException:  # such as KeyboardInterrupt: the next call wakes it
            self._is_woken = False
            raise

    def _begin_all(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        # Now: a call that comes from here on either sees this and wakes the loop, or is in the queue already.
        self._is_woken = False
        new = self._new
        while new:
            call = new.popleft()
            if not call.has_ended:
                call.begin()
        self._begin_flights()

    def flight(self, start: Callable[[Any], object]) -> _Flight:
        """Return where operations wait until those before them are over."""
        return self._flights.setdefault(start, _Flight())

    def _begin_flights(self) -> None:
        if self._flights and self._gathering is None:
            for start, flight in [*self._flights.items()]:
                if not flight.under_way and not flight.take_off():
                    del self._flights[start]


class _Call:
    """One call. Everything but waiting is done on the loop."""

    __slots__ = (
        "args",
        "calls",
        "context",
        "error",
        "function",
        "has_ended",
        "is_abandoned",
        "kwargs",
        "result",
        "task",
        "woken",
    )

    def __init__(
        self,
        calls: LoopCalls,
        function: Callable[..., Coroutine[Any, Any, Any]],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> None:
        self.calls = calls
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self.context = contextvars.copy_context()
        self.result: Any = None
        self.error: BaseException | None = None
        self.task: asyncio.Task[None] | None = None
        self.is_abandoned = self.has_ended = False
        self.woken = threading.Lock()
        self.woken.acquire()

    def begin(self) -> None:
        self.task = self.calls.loop.create_task(self.run(), context=self.context)

    async def run(self) -> None:
        try:
            self.result = await self.function(*self.args, **self.kwargs)
            if self.is_abandoned:
                await self._undo()
        except asyncio.CancelledError as error:
            self.error = error if self.is_abandoned else _loop_ended()
        except BaseException as error:
            self.error = error
        finally:
            self.calls.answer(self)

    def cancel(self) -> None:
        """End it: nobody waits for its result any more."""
        self.is_abandoned = True
        if self.task is None:
            self.calls.answer(self)
        elif not self.task.done():
            self.task.add_done_callback(self._ended)  # one that is canceled before its first step runs nothing
            self.task.cancel()
        elif self.error is None:
            self.task = self.calls.loop.create_task(self._undo())

    def _ended(self, _: asyncio.Task[None]) -> None:
        if not self.has_ended:
            self.calls.answer(self)

    async def _undo(self) -> None:
        if self.calls.undo is not None:
            await self.calls.undo(self.result)


class _Operation:
    """A call without a task: where the result of an operation goes, as to a future."""

    __slots__ = (
        "calls",
        "error",
        "flight",
        "has_ended",
        "one_after_the_other",
        "operation",
        "result",
        "start",
        "woken",
    )

    def __init__(self, calls: LoopCalls, start: Callable[[Any], object], one_after_the_other: bool) -> None:
        self.calls = calls
        self.start = start
        self.one_after_the_other = one_after_the_other
        self.operation: Any = None
        self.flight: _Flight | None = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.has_ended = False
        self.woken = threading.Lock()
        self.woken.acquire()

    def begin(self) -> None:
        if self.one_after_the_other:
            self.flight = self.calls.flight(self.start)
            self.flight.waiting.append(self)
        else:
            self.take_off()

    def take_off(self) -> None:
        try:
            self.start(self.operation)
        except Exception as error:
            self.set_exception(error)

    def done(self) -> bool:
        return self.has_ended

    def set_result(self, result: Any) -> None:
        self.result = result
        self._land()

    def set_exception(self, error: Exception) -> None:
        self.error = error
        self._land()

    def cancel(self) -> None:
        """End it: nobody waits for its result any more."""
        if not self.has_ended:
            self._land()

    def _land(self) -> None:
        if self.flight is not None:
            self.flight.under_way.discard(self)
        self.calls.answer(self)


class _Flight:
    """Operations that have begun together, and those that will begin when these are over."""

    __slots__ = ("under_way", "waiting")

    def __init__(self) -> None:
        self.under_way: set[_Operation] = set()
        self.waiting: list[_Operation] = []

    def take_off(self) -> bool:
        """Begin all that wait; return whether there were any."""
        waiting, self.waiting = self.waiting, []
        self.under_way.update(waiting)
        for each in waiting:
            if each.has_ended:  # it was canceled
                self.under_way.discard(each)
            else:
                each.take_off()
        return bool(waiting)


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the running event loop of this thread; None if there is none."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _loop_ended() -> ServiceClosed:
    return ServiceClosed("the service was closed, or its event loop has ended, before the operation had")
