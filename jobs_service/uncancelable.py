"""Waits that survive cancellation of the caller, for work that must complete.

The cancellation is not lost: the caller raises it when the wait is over. Tasks for such work are hidden from code that
cancels all tasks of the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


def own_task(work: Coroutine[Any, Any, T], *, name: str | None = None) -> asyncio.Task[T]:
    """Begin a task that only its owner cancels: `asyncio.all_tasks()` does not list it.

    A program that ends cancels all tasks, as `asyncio.run` does. The service receives that in the tasks that have
    entered it and that run its handlers, and then shuts down in order: the tasks needed for that must not be canceled.

    Args:
        work: the task's coroutine. Its owner waits for its end.
        name: for people.
    """
    task = asyncio.get_running_loop().create_task(work, name=name)
    asyncio._unregister_task(task)
    return task


async def through_cancellation(work: Coroutine[Any, Any, None]) -> None:
    """Complete some work even if the caller is canceled meanwhile; then raise the cancellation.

    Args:
        work: the coroutine, run in a task of its own.

    Raises:
        CancelledError: the caller was canceled meanwhile.
        Exception: raised by `work`, unless the caller was canceled.
    """
    task = own_task(work)

    async def wait() -> None:
        with contextlib.suppress(Exception):  # the work's own, which has ended with it
            await asyncio.shield(task)

    canceled = await wait_until(task.done, wait)
    if canceled is not None:
        raise canceled from None if task.cancelled() else task.exception()
    task.result()


async def outlast(futures: Iterable[asyncio.Future[Any]], seconds: float = math.inf) -> asyncio.CancelledError | None:
    """Wait until futures are done, through cancellations of the caller.

    Args:
        futures: to wait for.
        seconds: the longest wait.

    Returns:
        The caller's last cancellation, for it to raise; None if there was none.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    left = [*futures]

    def is_over() -> bool:
        left[:] = [future for future in left if not future.done()]
        return not left or loop.time() >= deadline

    def wait() -> Awaitable[object]:
        return asyncio.wait(left, timeout=deadline - loop.time() if deadline < math.inf else None)

    return await wait_until(is_over, wait)


async def wait_until(
    is_over: Callable[[], bool], wait: Callable[[], Awaitable[object]]
) -> asyncio.CancelledError | None:
    """Wait until a condition holds, through cancellations of the caller.

    Args:
        is_over: the condition.
        wait: waits for a change of it; called again after each change and each cancellation.

    Returns:
        The caller's last cancellation, for it to raise; None if there was none.
    """
    canceled = None
    with contextlib.ExitStack() as shield:
        while not is_over():
            try:
                await wait()
            except asyncio.CancelledError as error:
                if canceled is None and (anyio := sys.modules.get("anyio")) is not None:
                    # A canceled scope of anyio cancels its tasks in each turn of the loop. Without that module
                    # there is no such scope.
                    shield.enter_context(anyio.CancelScope(shield=True))
                canceled = error
    return canceled
