"""Transactions that take effect one after the other: each is begun while the one before it commits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, TypeAlias, TypeVar

from jobs_service.layer.batch_bounds import Batch, Pace
from jobs_service.layer.unit_of_work import UnitOfWork

T = TypeVar("T")
Job = TypeVar("Job")

Operation: TypeAlias = Callable[[UnitOfWork], Awaitable[T]]
Transact: TypeAlias = Callable[[Operation[T]], Coroutine[Any, Any, T]]
TransactAfter: TypeAlias = Callable[[asyncio.Future[Any], Operation[T]], Coroutine[Any, Any, T]]


async def in_order(
    operations: Iterable[Operation[T]], transact: Transact[T], transact_after: TransactAfter[T]
) -> list[T]:
    """Run each operation in a transaction of its own; when one fails, those before it have taken effect, none after it.

    Args:
        operations: read as they are run, never further than two ahead.
        transact: runs one in a transaction.
        transact_after: the same, when another call has taken effect; see Store.transact_after.

    Returns:
        Their results, in their order.

    Raises:
        BaseException: what the first that failed has raised, or the iterable.
    """
    given = _Given(operations)
    first, second = given.next(), given.next()
    results: list[T] = []
    if first is not None and second is not None:
        results = await _overlapped(chain((first, second), given), transact, transact_after)
    elif first is not None:
        # Alone, without the turns of the loop that a task costs: its caller is told before others act on what it did.
        results = [await transact(first)]
    if given.failure is not None:
        raise given.failure
    return results


async def in_parts(
    batches: Iterable[Sequence[Job]],
    work: Callable[[UnitOfWork, Sequence[Job]], Awaitable[list[T]]],
    transact: Transact[list[T]],
    most: int,
) -> list[T]:
    """Do something with many jobs that may exist already, one transaction after the other; return all results in order.

    How large the records are that are rewritten is known only when they were read. So each transaction takes as many
    jobs from the front of its batch as it can hold; half as many when the store says that it was too much all the same.

    Args:
        batches: as many jobs as one transaction takes at most, by what is known of them beforehand.
        work: does it with the first of these jobs, at least one; returns a result for each of those.
        transact: runs an operation in a transaction.
        most: jobs of one batch.
    """
    results: list[T] = []
    pace = Pace(Batch(most))
    for batch in batches:
        done = 0
        while done < len(batch):
            part = batch[done:]
            found = await pace.fitting(
                lambda size, part=part: transact(lambda unit: work(unit, part[:size]))  # type: ignore[misc]
            )
            results += found
            done += len(found)
    return results


class _Given(Iterator[Operation[T]]):
    """The operations that an iterable gives before it fails, if it does.

    Attributes:
        failure: what it has raised.
    """

    def __init__(self, operations: Iterable[Operation[T]]) -> None:
        self._operations = iter(operations)
        self.failure: BaseException | None = None

    def __next__(self) -> Operation[T]:
        try:
            return next(self._operations)
        except StopIteration:
            raise
        except BaseException as error:
            self.failure, self._operations = error, iter(())
            raise StopIteration from error

    def next(self) -> Operation[T] | None:
        """Return the next one, None when there are no more."""
        return next(self, None)


async def _overlapped(
    operations: Iterator[Operation[T]], transact: Transact[T], transact_after: TransactAfter[T]
) -> list[T]:
    loop = asyncio.get_running_loop()
    results: list[T] = []
    # One that commits, and one behind it whose function runs meanwhile.
    under_way: list[asyncio.Task[T]] = []
    try:
        while True:
            operation = next(operations, None)
            if operation is not None:
                call = transact_after(under_way[0], operation) if under_way else transact(operation)
                under_way.append(loop.create_task(call))
            if not under_way:
                return results
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
