"""Calls of a handler's function: a coroutine step by step, with the time of each step, or a plain function in its own
thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Final

from jobs_service.errors import JobsError

BLOCKED: Final = 1.0
"""Seconds of one step after which the log reports a handler that blocks the loop."""


class Steps:
    """An awaitable coroutine that reports each long step: nothing else ran on the loop meanwhile.

    Args:
        coroutine: the handler's coroutine.
        blocked: called with the duration of a long step, in seconds.

    Attributes:
        cut: whether the last cancellation came from outside, while the coroutine waited. A timeout of the coroutine's
            own counts as well, until it takes its cancellation back.
        began: start of the last step, in seconds of the loop's clock.
    """

    __slots__ = ("_blocked", "_coroutine", "began", "cut")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], blocked: Callable[[float], None]) -> None:
        self._coroutine = coroutine
        self._blocked = blocked
        self.cut = False
        self.began = 0.0

    def __await__(self) -> Generator[Any, Any, Any]:
        coroutine = self._coroutine
        time = asyncio.get_running_loop().time
        task = asyncio.current_task()
        assert task is not None
        cancelling = task.cancelling
        error: BaseException | None = None
        while True:
            self.began = began = time()
            try:
                waits_for = coroutine.send(None) if error is None else coroutine.throw(error)
            except StopIteration as stop:
                return stop.value
            except GeneratorExit as raised:
                if isinstance(error, GeneratorExit):  # the loop is gone
                    raise
                raise _raised(raised) from raised
            finally:
                took = time() - began
                if took >= BLOCKED:
                    self._blocked(took)
            error = None
            cancelled_before = cancelling()
            try:
                yield waits_for
            except BaseException as thrown:
                error = thrown
                if isinstance(thrown, asyncio.CancelledError):
                    self.cut = cancelling() > cancelled_before


async def in_thread(function: Callable[[], Any], canceled: Callable[[], None]) -> Any:
    """Run a function in a daemon thread, wait for its end, and return its result.

    A thread cannot be ended, so a cancellation of the caller with a message, as the runner's, does not end the wait. A
    cancellation without a message comes from the end of the loop, which must not wait for a function that may never
    return.

    Args:
        function: the function; it runs in a copy of the caller's context.
        canceled: called for each cancellation of the caller.

    Raises:
        CancelledError: the loop ends.
        BaseException: the function's exception.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
    context = contextvars.copy_context()

    def tell(result: Any, error: BaseException | None) -> None:
        if not ended.done():
            ended.set_result((result, error))

    def work() -> None:
        result, error = None, None
        try:
            result = context.run(function)
        except BaseException as raised:  # SystemExit ends a thread in silence
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile
            loop.call_soon_threadsafe(tell, result, error)

    # A daemon thread: a function that never returns must not keep the program from ending.
    threading.Thread(target=work, name="jobs_service handler", daemon=True).start()
    while not ended.done():
        try:
            await asyncio.shield(ended)
        except asyncio.CancelledError as cancellation:
            canceled()
            if not cancellation.args:
                raise
    result, failure = ended.result()
    if isinstance(failure, GeneratorExit):
        raise _raised(failure) from failure
    if failure is not None:
        raise failure
    return result


def _raised(error: GeneratorExit) -> RuntimeError:
    """Return the error for a handler that raised GeneratorExit, which tells a coroutine that it is being closed."""
    return RuntimeError(f"the handler raised {type(error).__name__}")


def from_thread(loop: asyncio.AbstractEventLoop, work: Callable[[], Awaitable[Any]]) -> Any:
    """Run an operation on the loop, and wait for its result; call it from another thread than the loop's.

    Raises:
        JobsError: the caller is the loop's thread, and would wait for itself.
    """
    if _running_loop() is loop:
        raise JobsError(
            "a plain function's job was used on the event loop, which it waits for; use it in its own thread"
        )

    async def do() -> Any:
        return await work()

    return asyncio.run_coroutine_threadsafe(do(), loop).result()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
