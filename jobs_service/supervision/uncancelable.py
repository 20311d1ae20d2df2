"""Work that goes on to its end although its caller is canceled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def through_cancellation(work: Coroutine[Any, Any, None]) -> None:
    """Do something to its end, also when the caller is canceled meanwhile; then raise the cancellation.

    Args:
        work: what to do, in a task of its own.

    Raises:
        CancelledError: the caller was canceled meanwhile.
        Exception: what `work` raised, unless the caller was canceled.
    """
    task = asyncio.get_running_loop().create_task(work)
    canceled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            canceled = error
    if canceled is not None:
        raise canceled
    task.result()
