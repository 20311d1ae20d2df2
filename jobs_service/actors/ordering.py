"""Transactions that take effect one after the other: each is begun while the one before it commits. Floor: actors."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from jobs_service.actors.context import Context
from jobs_service.layer.unit import Unit

T = TypeVar("T")


async def in_order(context: Context, operations: Iterable[Callable[[Unit], Awaitable[T]]]) -> list[T]:
    """Run each operation in a transaction of its own; when one fails, those before it have taken effect, none after it.

    Args:
        context: whose store they are for.
        operations: read as they are run, never further than one ahead.

    Returns:
        Their results, in their order.

    Raises:
        BaseException: what the first that failed has raised, or the iterable.
    """
    loop = asyncio.get_running_loop()
    remaining = iter(operations)
    failure: BaseException | None = None
    results: list[T] = []
    # One that commits, and one behind it whose function runs meanwhile.
    under_way: list[asyncio.Task[T]] = []
    try:
        while True:
            try:
                operation = next(remaining, None)
            except BaseException as error:  # what it gave before counts all the same
                operation, failure, remaining = None, error, iter(())
            if operation is not None:
                call = context.transact_after(under_way[0], operation) if under_way else context.transact(operation)
                under_way.append(loop.create_task(call))
            if not under_way:
                break
            if operation is None or len(under_way) > 1:
                # Shielded, as whoever comes after it waits for it: so both go on in the same turn of the loop.
                results.append(await asyncio.shield(under_way[0]))
                del under_way[0]
            # The next one is asked for, which may take a while, when those under way have been sent on theirs.
            await asyncio.sleep(0)
    finally:
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
    if failure is not None:
        raise failure
    return results
