"""Concurrent coroutines; the first failure ends all."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

from jobs_service.replication.errors import ReplicationError


async def run_together(*coroutines: Coroutine[Any, Any, Any], beside: Iterable[Coroutine[Any, Any, Any]] = ()) -> None:
    """Run coroutines until all have ended; the first error cancels the others and is raised itself, not in a group.

    Args:
        coroutines: the coroutines to wait for.
        beside: coroutines that run as long as the others do, and are canceled then.
    """
    try:
        async with asyncio.TaskGroup() as group:
            others = [group.create_task(each) for each in beside]
            await asyncio.gather(*(group.create_task(each) for each in coroutines))
            for other in others:
                other.cancel()
    except BaseExceptionGroup as failed:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            # An error during cancellation is no failure of its own.
            raise asyncio.CancelledError from None
        raise _first(failed) from None


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the most telling error: an unexpected one before one of the replication's own."""
    leaves: list[BaseException] = []
    pending: list[BaseException] = [group]
    while pending:
        each = pending.pop(0)
        if isinstance(each, BaseExceptionGroup):
            pending += each.exceptions
        else:
            leaves.append(each)
    unexpected = [each for each in leaves if not isinstance(each, ReplicationError)]
    return (unexpected or leaves)[0]
