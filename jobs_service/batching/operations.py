"""The three kinds of work in a group commit: an operation on one job, operations on many jobs, a shared accept.

Each class runs on a unit of work, answers its callers, and can be split into smaller parts if it has any.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol, TypeAlias

from jobs_service.arguments import ADAPTIVE
from jobs_service.layer import queue
from jobs_service.layer.adaptive_spread import QueueReads
from jobs_service.layer.entry import Entry
from jobs_service.layer.keyspace import TypeKeys
from jobs_service.layer.queue import EmptyQueue
from jobs_service.layer.unit_of_work import Place, UnitOfWork

_MOST_JOBS: Final = 1000
Accepted: TypeAlias = list[Entry] | EmptyQueue
"""The result of an accept: jobs, or a watch to wait on if there are none.

If several callers get no jobs together, only the first gets the watch. If the queue may have more jobs, no caller gets
a watch, and all accept again. A caller that wants no watch gets an empty list if there are no jobs.
"""
Call: TypeAlias = tuple[Callable[..., Awaitable[Any]], Place, tuple[Any, ...]]
"""An operation on a job, the job's place, and the other arguments."""


class Operation(Protocol):
    """Work on a unit of work, with its caller."""

    size: int
    place: Place | None
    reads: bytes | None

    def withdrawn(self) -> bool:
        """Whether no caller waits for the result any more."""

    def run(self, unit: UnitOfWork) -> Awaitable[Any]:
        """Do the work."""

    def answer(self, result: Any, failure: Exception | None) -> bool:
        """Answer the caller; return whether the work was done only in part, and must run once more."""

    def halve(self) -> bool:
        """Do only half as much per transaction from now on; return False if the work cannot be halved."""

    def refuse(self, error: Exception) -> bool:
        """Answer the remaining work, or its first part, with an error of its own; return whether a rest must run."""


class SingleOperation:
    """One caller's operation on one job."""

    __slots__ = ("_arguments", "_future", "_operation", "place", "reads", "size")

    def __init__(
        self,
        operation: Callable[..., Awaitable[Any]],
        place: Place,
        arguments: tuple[Any, ...],
        future: asyncio.Future[Any],
        size: int,
        reads: bytes | None,
    ) -> None:
        self._operation = operation
        self.reads = reads
        self._arguments = arguments
        self._future = future
        self.place: Place | None = place
        self.size = size

    def withdrawn(self) -> bool:
        return self._future.done()

    def run(self, unit: UnitOfWork) -> Awaitable[Any]:
        return self._operation(unit, self.place, *self._arguments)

    def answer(self, result: Any, failure: Exception | None) -> bool:
        future = self._future
        if not future.done():
            if failure is None:
                future.set_result(result)
            else:
                future.set_exception(failure)
        return False

    def halve(self) -> bool:
        return False

    def refuse(self, error: Exception) -> bool:
        return self.answer(None, error)


class ManyOperations:
    """One caller's operations on many jobs: each is done independently, and all are answered together."""

    __slots__ = ("_answer", "_calls", "_errors", "_most", "count", "place", "reads", "size")

    def __init__(self, calls: Sequence[Call], answer: Callable[[Sequence[Exception | None]], None], size: int) -> None:
        self._calls = calls
        self.count = len(calls)
        self._answer = answer
        self._most = self.count
        # The errors of finished calls, None for successful ones.
        self._errors: list[Exception | None] = []
        self.place: Place | None = None
        self.reads: bytes | None = None
        self.size = size

    def withdrawn(self) -> bool:
        return False

    async def run(self, unit: UnitOfWork) -> list[Exception | None]:
        """Run remaining calls until the transaction is full; return the error of each, None for a successful one."""
        calls = self._calls[len(self._errors) :][: self._most]
        await unit.prefetch([place for _, place, _ in calls])
        errors: list[Exception | None] = []
        for operation, place, arguments in calls:
            if errors and unit.is_full:
                break
            try:
                await operation(unit, place, *arguments)
                errors.append(None)
            except Exception as error:
                errors.append(error)
        return errors

    def answer(self, result: Any, failure: Exception | None) -> bool:
        if len(self._errors) == self.count:  # too late: its caller was answered already
            if result is not None and len(result) == self.count:
                self._answer(result)
            return False
        self._errors += [failure] * (self.count - len(self._errors)) if result is None else result
        self._most = min(self.count, 2 * self._most)
        return self._is_left()

    def _is_left(self) -> bool:
        if len(self._errors) < self.count:
            return True
        self._answer(self._errors)
        return False

    def halve(self) -> bool:
        most = min(self._most, self.count - len(self._errors))
        self._most = max(most // 2, 1)
        return most > 1

    def refuse(self, error: Exception) -> bool:
        self._errors.append(error)  # of one call: the others are done as if they were alone
        return self._is_left()


class SharedAccept:
    """One read of the queue for all workers that ask for jobs on the same terms."""

    def __init__(
        self,
        keys: TypeKeys,
        terms: queue.AcceptTerms,
        watch: bool,
        give_back: Callable[[Entry], None],
        queue_reads: QueueReads,
    ) -> None:
        self.size = 0
        self.place: Place | None = None
        self.reads: bytes | None = None
        self.keys = keys
        self._queue_reads = queue_reads
        self._terms = terms
        self._watch = watch
        self._give_back = give_back
        self._most = _MOST_JOBS + terms.limit
        self._callers: list[asyncio.Future[Accepted]] = []

    def join(self, future: asyncio.Future[Accepted]) -> bool:
        """Add a caller; return whether there is room for one more."""
        self._callers.append(future)
        return (len(self._callers) + 1) * self._terms.limit <= _MOST_JOBS

    def withdrawn(self) -> bool:
        self._callers = [future for future in self._callers if not future.done()]
        return not self._callers

    async def run(self, unit: UnitOfWork) -> tuple[list[Entry], Accepted]:
        """Return the jobs for all callers, and the result for callers without a job."""
        keys, queue_reads = self.keys, self._queue_reads
        limit, spread = min(self._terms.limit * len(self._callers), self._most), self._terms.spread
        queue_reads.begin()
        if spread == ADAPTIVE:
            spread = queue_reads.spread(keys, limit)
        # An open end: a job that is added meanwhile behind the last one taken is no conflict. It counts as added just
        # after this transaction, whose callers cannot tell the difference.
        terms = self._terms._replace(limit=limit, spread=spread, open_end=True)
        taken, more = await queue.accept(unit, keys, terms)
        queue_reads.took(keys, spread, [entry.id for entry in taken])
        if len(taken) == terms.limit:
            # If the transaction could not hold more, there may be more in the queue: the others accept again at once.
            return taken, EmptyQueue(None, None) if limit == self._most else []
        # No watch if this transaction itself adds jobs to the queue: a watch does not fire for its own transaction.
        if more.at_once or (self._watch and unit.woke(keys)):
            return taken, EmptyQueue(None, 0.0 if more is queue.More.DUE else None)
        if not self._watch:
            return taken, []
        is_cut = more is queue.More.BEHIND
        return taken, await queue.wait_for_more(unit, keys, terms.max_priority, terms.due_by, is_cut=is_cut)

    def halve(self) -> bool:
        most = min(self._most, self._terms.limit * len(self._callers))
        self._most = max(most // 2, 1)
        return most > 1

    def refuse(self, error: Exception) -> bool:
        return self.answer(None, error)

    def answer(self, result: Any, failure: Exception | None) -> bool:
        self._queue_reads.end()
        if failure is not None:
            for future in self._callers:
                if not future.done():
                    future.set_exception(copy.copy(failure))
            return False
        limit = self._terms.limit
        taken, left = result
        for position, future in enumerate(self._callers):
            share = taken[position * limit : (position + 1) * limit]
            if future.done():
                # The caller has gone. Without this release its jobs would stay locked until the type's timeout.
                for entry in share:
                    self._give_back(entry)
            elif share:
                future.set_result(share)
            else:
                future.set_result(left)
                if left:
                    left = EmptyQueue(None, left.due_in)
        if left and left.watch is not None:
            left.watch.cancel()
        return False
