"""Group commit: simultaneous operations of many callers share one transaction.

Every transaction has its price, on a cluster a round trip, so the operations of one turn of the loop run one after the
other on one unit of work: they behave as if each had a transaction of its own. An operation that raises has no effect,
and affects no other. Workers that accept jobs on the same terms share one read of the queue.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Sequence
from operator import attrgetter
from typing import Any, Final, TypeAlias, TypeVar

from jobs_service.batching.accept_turns import AcceptTurns, SharedTerms
from jobs_service.batching.operations import Accepted, Call, ManyOperations, Operation, SharedAccept, SingleOperation
from jobs_service.errors import OTHER_LOOP, RecordDamaged, StoreDamaged, StoreError, StoreFull
from jobs_service.layer import queue
from jobs_service.layer.adaptive_spread import QueueReads, Spreading
from jobs_service.layer.batch_bounds import TOO_MUCH
from jobs_service.layer.entry import Entry
from jobs_service.layer.keyspace import TypeKeys
from jobs_service.layer.unit_of_work import Place, UnitOfWork
from jobs_service.uncancelable import own_task

T = TypeVar("T")

_MOST_OPERATIONS: Final = 500
_MOST_BYTES: Final = 2_000_000
_READ_TOGETHER: Final = 250
"""Jobs that are read together before their operations: a transaction can read so many of the largest records."""

_PLACE_OF: Final = attrgetter("place")
_READS_OF: Final = attrgetter("reads")

_HALVED: Final = (*TOO_MUCH, StoreFull, StoreDamaged)
"""Errors that fewer operations in one transaction may avoid: the damage or excess may come from a single operation."""

_ALONE: Final = 32
"""On a cluster, a caller with at least this many operations gets its own transaction, which commits in parallel with
others, such as the accept of the next jobs."""

Transact: TypeAlias = Callable[[Callable[[UnitOfWork], Awaitable[Any]], Callable[[Any], None]], Awaitable[Any]]


class GroupCommit:
    """Collects the operations of one turn of the loop and runs them in few transactions.

    Args:
        transact: runs a function on a unit of work in a transaction; takes the function, and a callback for a result
            that comes after the call has failed (`abandoned` of Store.transact).
        give_back: called with a job that was accepted for a caller that has gone.
        spreading: the adaptive spread of accepts over each queue.
        overlaps: see Store.
    """

    def __init__(
        self,
        transact: Transact,
        give_back: Callable[[Entry], None],
        spreading: Spreading | None = None,
        *,
        overlaps: bool = False,
    ) -> None:
        self._transact = transact
        self._overlaps = overlaps
        self._give_back = give_back
        self._spreading = Spreading() if spreading is None else spreading
        self._queue: list[Operation] = []
        self._accepts: dict[SharedTerms, SharedAccept] = {}
        self._turns: AcceptTurns[SharedAccept] = AcceptTurns(self._spreading, self._enqueue)
        self._running: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    def open(self) -> None:
        """Take operations from now on, on the running event loop only: its callers share transactions."""
        self._loop = asyncio.get_running_loop()

    def own_loop(self) -> asyncio.AbstractEventLoop:
        """Return the running event loop.

        Raises:
            StoreError: this object takes operations on another loop.
        """
        loop = asyncio.get_running_loop()
        if loop is not self._loop and self._loop is not None:
            raise StoreError(f"the service {OTHER_LOOP}")
        return loop

    def operate(
        self,
        operation: Callable[..., Awaitable[Any]],
        place: Place,
        *arguments: Any,
        size: int = 0,
        reads: bytes | None = None,
    ) -> asyncio.Future[Any]:
        """Run an operation on a job; await the result. An operation that is canceled before its begin is withdrawn.

        If the operation returns an Entry, the result is a JobSnapshot: the job at that moment.

        Args:
            operation: called with a unit of work, the place and the arguments; raises before any change, or not at all.
            place: of the job.
            size: approximate bytes of the written values.
            reads: a key that is read without conflicts, together with the job.
        """
        future: asyncio.Future[Any] = self.own_loop().create_future()
        self._enqueue(SingleOperation(operation, place, arguments, future, size, reads))
        return future

    def operate_all(
        self, calls: Sequence[Call], answer: Callable[[Sequence[Exception | None]], None], *, size: int
    ) -> None:
        """Run operations on many jobs without returning their results; an error of one does not affect the others.

        Args:
            calls: operation, place and arguments of each, as for `operate`.
            answer: called with the error of each call, None for a successful one.
            size: approximate bytes of the written values: no more than a part of a transaction.
        """
        self._enqueue(ManyOperations(calls, answer, size))

    def accept(self, keys: TypeKeys, terms: queue.AcceptTerms, *, watch: bool) -> asyncio.Future[Accepted]:
        """Accept jobs.

        Args:
            keys: of their type.
            terms: select the jobs and their number.
            watch: whether to return a watch if there are no jobs.
        """
        future: asyncio.Future[Accepted] = self.own_loop().create_future()
        key = (keys, terms, watch)
        group = self._accepts.get(key) or self._turns.waiting(key)
        if group is None:
            group = SharedAccept(keys, terms, watch, self._give_back, QueueReads(self._spreading))
            if self._turns.must_wait(keys):
                self._turns.wait(key, group)
            else:
                self._accepts[key] = group
                self._enqueue(group)
        if not group.join(future) and self._accepts.pop(key, None) is None:
            # The accept waits for its turn, but has no room for another caller: begin it. The next caller gets another.
            self._turns.begin(key)
        return future

    def is_crowded(self, keys: TypeKeys) -> bool:
        """Whether accepts of a type have lately collided with accepts of other services."""
        return self._spreading.is_crowded(keys)

    async def drain(self) -> None:
        """Wait until all operations have ended."""
        while self._queue or self._running:
            self._turns.begin_all()
            self._send()
            if self._running:
                await asyncio.wait(self._running)

    def _enqueue(self, operation: Operation) -> None:
        if not self._queue:
            asyncio.get_running_loop().call_soon(self._send)
        self._queue.append(operation)

    def _send(self) -> None:
        """Begin the operations of this turn of the loop, in transactions well within the limits."""
        # Accepts come last, so that they find jobs added by the others. `_begin` relies on that order.
        begun, self._queue = self._queue, []
        self._accepts.clear()
        queue = sorted((each for each in begun if not each.withdrawn() and not self._is_alone(each)), key=_is_accept)
        first = size = 0
        for position, each in enumerate(queue):
            size += each.size
            if position - first == _MOST_OPERATIONS or (size > _MOST_BYTES and position > first):
                self._begin(queue[first:position])
                first, size = position, each.size
        if first < len(queue):
            self._begin(queue[first:])
        for each in begun:
            if self._is_alone(each):
                self._begin([each])

    def _is_alone(self, operation: Operation) -> bool:
        return self._overlaps and isinstance(operation, ManyOperations) and operation.count >= _ALONE

    def _begin(self, batch: list[Operation]) -> None:
        task = own_task(self._run(batch))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        for each in batch[::-1]:
            if not isinstance(each, SharedAccept):
                break  # `_send` has sorted accepts to the end: before this one there are none
            self._turns.begun(each.keys)
            task.add_done_callback(lambda _, keys=each.keys: self._turns.ended(keys))  # type: ignore[misc]

    async def _run(self, batch: list[Operation]) -> None:
        """Run a batch, in one transaction if it fits, and answer each of its operations."""
        while batch:
            try:
                batch = await self._run_front(batch)
            except _HALVED as error:
                if len(batch) > 1:
                    # Halve until only operations that exceed the limits by themselves fail.
                    middle = len(batch) // 2
                    await self._run(batch[:middle])
                    batch = batch[middle:]
                elif not batch[0].halve() and not batch[0].refuse(error):
                    return
            except Exception as error:
                # A copy for each caller: raising an error adds frames to its traceback, and they would all share it.
                for operation in batch:
                    operation.answer(None, copy.copy(error))
                return

    async def _run_front(self, batch: list[Operation]) -> list[Operation]:
        """Run as many of a batch as one transaction holds, and answer them; return the remaining operations."""

        def answer(answers: list[tuple[Any, Exception | None]]) -> None:
            _answer(batch, answers)

        # `answer` is also called if the commit succeeds after this call was given up: by then the callers have gone,
        # and the jobs that were accepted for them are given back.
        answers = await self._transact(lambda unit: _do(unit, batch), answer)
        return [*_answer(batch, answers), *batch[len(answers) :]]


async def _do(unit: UnitOfWork, batch: list[Operation]) -> list[tuple[Any, Exception | None]]:
    """Run operations one after the other, at least one, until the transaction is full; return their answers."""
    answers: list[tuple[Any, Exception | None]] = []
    for first in range(0, len(batch), _READ_TOGETHER):
        if first and unit.is_full:
            break
        following = batch[first : first + _READ_TOGETHER]
        # `filter(None, ...)` leaves out the None of operations without a key or a place; no key and no place is false.
        unit.transaction.snapshot.expect(dict.fromkeys(filter(None, map(_READS_OF, following))))
        await unit.prefetch([*filter(None, map(_PLACE_OF, following))])
        for operation in following:
            if answers and unit.is_full:
                return answers
            if operation.withdrawn():  # its caller was canceled while the store kept the transaction waiting
                answers.append((([], []), None))
                continue
            try:
                result = await operation.run(unit)
                # A copy of the job as it is now: later operations of this transaction may change the entry.
                answers.append((result.seen() if result.__class__ is Entry else result, None))
            except RecordDamaged as error:
                place = operation.place
                answers.append((None, error if place is None else error.of(place[0].type, place[1])))
            except Exception as error:
                answers.append((None, error))
    return answers


def _answer(batch: list[Operation], answers: list[tuple[Any, Exception | None]]) -> list[Operation]:
    """Answer the operations that were run; return the partly done ones, which must run again."""
    done = zip(batch, answers, strict=False)
    return [operation for operation, (result, failure) in done if operation.answer(result, failure)]


def _is_accept(operation: Operation) -> bool:
    return isinstance(operation, SharedAccept)
