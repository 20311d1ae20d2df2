"""Waits that a cancellation of the caller does not cut short, for work that must go on to its end.

The cancellation is not lost: the caller raises it when the wait is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any


async def through_cancellation(work: Coroutine[Any, Any, None]) -> None:
    """Do something to its end, also when the caller is canceled meanwhile; then raise the cancellation.

    Args:
        work: what to do, in a task of its own.

    Raises:
        CancelledError: the caller was canceled meanwhile.
        Exception: raised by `work`, unless the caller was canceled.
    """
    task = asyncio.get_running_loop().create_task(work)

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
    while not is_over():
        try:
            await wait()
        except asyncio.CancelledError as error:
            canceled = error
    return canceled
