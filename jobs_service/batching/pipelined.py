"""Pipelined transactions, which take effect in order: each begins while the previous one commits."""

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
    """Run each operation in a transaction of its own; after a failure only the earlier ones have taken effect.

    Args:
        operations: read while they run, at most two ahead.
        transact: runs an operation in a transaction.
        transact_after: the same, but commits only after another call has taken effect; see Store.transact_after.

    Returns:
        Their results, in their order.

    Raises:
        BaseException: the error of the first failed operation, or of the iterable.
    """
    given = _Given(operations)
    first, second = given.next(), given.next()
    results: list[T] = []
    if first is not None and second is not None:
        results = await _overlapped(chain((first, second), given), transact, transact_after)
    elif first is not None:
        # A single operation, without the loop turns of a task: the caller is told before others act on its effects.
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
    """Write many jobs that may exist already, one transaction after the other; return all results in order.

    The sizes of the rewritten records are known only after reading them. So each transaction takes as many jobs from
    the front of its batch as it can hold; half as many if the store refuses the transaction as too large all the same.

    Args:
        batches: jobs for one transaction each, by the sizes known beforehand.
        work: writes the first jobs of a batch, at least one; returns a result for each written job.
        transact: runs an operation in a transaction.
        most: largest number of jobs in a batch.
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
    """The operations of an iterable, up to its failure if there is one.

    Attributes:
        failure: the iterable's exception.
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
        """Return the next operation, None at the end."""
        return next(self, None)


async def _overlapped(
    operations: Iterator[Operation[T]], transact: Transact[T], transact_after: TransactAfter[T]
) -> list[T]:
    loop = asyncio.get_running_loop()
    results: list[T] = []
    # A committing transaction, and the next one, whose function runs meanwhile.
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
                # Shielded, because the next transaction waits for it: so both go on in the same turn of the loop.
                results.append(await asyncio.shield(under_way[0]))
                del under_way[0]
            # Send the running transactions on their way before reading the next operation, which may take a while.
            await asyncio.sleep(0)
    finally:
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
