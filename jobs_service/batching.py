"""Operations of many callers in few transactions, and how such transactions follow each other.

Every transaction has its price, on a cluster a round trip. So the operations of one turn of the loop run one after the
other on one unit of work (group commit): they behave as if each had a transaction of its own. An operation that raises
has no effect, and affects no other. Workers that accept jobs on the same terms share one read of the queue.

The module has more than 600 lines because operations and turns of accepts have no use without the group commit.
`in_order` and `in_parts` are beside it, for one caller with more jobs than one transaction holds.
"""

from __future__ import annotations

import asyncio
import copy
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from jobs_service.arguments import ADAPTIVE
from jobs_service.errors import OTHER_LOOP, RecordDamaged, StoreDamaged, StoreError, StoreFull
from jobs_service.layer import queue
from jobs_service.layer.batch_bounds import TOO_MUCH, Batch, Pace
from jobs_service.layer.keyspace import Place, TypeKeys
from jobs_service.layer.queue import AcceptTerms, EmptyQueue, QueueReads, Spreading
from jobs_service.layer.record import Entry
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.uncancelable import own_task

T = TypeVar("T")
Job = TypeVar("Job")

Accepted: TypeAlias = list[Entry] | EmptyQueue
"""The result of an accept: jobs, or a watch to wait on if there are none.

If several callers get no jobs together, only the first gets the watch. If the queue may have more jobs, no caller gets
a watch, and all accept again. A caller that wants no watch gets an empty list if there are no jobs.
"""

Call: TypeAlias = tuple[Callable[..., Awaitable[Any]], Place, tuple[Any, ...]]
"""An operation on a job, the job's place, and the other arguments."""

SharedTerms: TypeAlias = tuple[TypeKeys, AcceptTerms, bool]
"""The common key of workers that share an accept: the type, the terms, and whether they want a watch."""

Transact: TypeAlias = Callable[[Callable[[UnitOfWork], Awaitable[Any]], Callable[[Any], None]], Awaitable[Any]]
PipelinedOperation: TypeAlias = Callable[[UnitOfWork], Awaitable[T]]
PipelinedTransact: TypeAlias = Callable[[PipelinedOperation[T]], Coroutine[Any, Any, T]]
TransactAfter: TypeAlias = Callable[[asyncio.Future[Any], PipelinedOperation[T]], Coroutine[Any, Any, T]]

_MOST_JOBS: Final = 1000
_MOST_OPERATIONS: Final = 500
_MOST_BYTES: Final = 2_000_000
_READ_TOGETHER: Final = 250
"""Jobs that are read together before their operations: a transaction can read so many of the largest records."""

_LONGEST_WAIT: Final = 0.1
"""Seconds after which an accept no longer waits for the end of the previous one, which the store may delay."""

_ALONE: Final = 32
"""On a cluster, a caller with at least this many operations gets its own transaction, which commits in parallel with
others, such as the accept of the next jobs."""

_HALVED: Final = (*TOO_MUCH, StoreFull, StoreDamaged)
"""Errors that fewer operations in one transaction may avoid: the damage or excess may come from a single operation."""

_PLACE_OF: Final = attrgetter("place")
_READS_OF: Final = attrgetter("reads")


# Operations


class Operation(Protocol):
    """Work on a unit of work: it answers its callers, and can be split into smaller parts if it has any."""

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


class Answer(Protocol):
    """Where the result of an operation goes: a future, or the call of a thread. All of it is called on the loop."""

    def done(self) -> bool:
        """Whether it has a result already, or nobody waits for one any more."""

    def set_result(self, result: Any, /) -> None:
        """Give the result."""

    def set_exception(self, error: Exception, /) -> None:
        """Give the error instead."""


class SingleOperation:
    """One caller's operation on one job; see GroupCommit.operate."""

    __slots__ = ("_arguments", "_future", "_operation", "place", "reads", "size")

    def __init__(
        self,
        operation: Callable[..., Awaitable[Any]],
        place: Place,
        arguments: tuple[Any, ...],
        future: Answer,
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
        if len(self._errors) == self.count:  # answered already: with a failure, if the commit happened only later
            if result is not None and len(result) == self.count:
                self._answer(result)
            return False
        self._errors += [failure] * (self.count - len(self._errors)) if result is None else result
        self._most = min(self.count, 2 * self._most)
        return self._answer_at_end()

    def _answer_at_end(self) -> bool:
        """Answer the caller if no calls are left; return whether some are."""
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
        return self._answer_at_end()


class SharedAccept:
    """One read of the queue for all workers that ask for jobs on the same terms."""

    def __init__(
        self,
        keys: TypeKeys,
        terms: AcceptTerms,
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


# Turns of accepts


class AcceptTurns:
    """The accepts of one process that wait for their turn: while workers collide, those at one queue take turns.

    Workers that ask for jobs while an accept is under way share the next one: fewer transactions, more jobs in each.

    Args:
        spreading: tells the queues at which accepts take turns.
        begin: called with an accept at its turn.
    """

    def __init__(self, spreading: Spreading, begin: Callable[[SharedAccept], None]) -> None:
        self._spreading = spreading
        self._begin = begin
        self._under_way: Counter[TypeKeys] = Counter()
        self._waiting: dict[SharedTerms, SharedAccept] = {}
        self._timers: dict[TypeKeys, asyncio.TimerHandle] = {}

    def must_wait(self, keys: TypeKeys) -> bool:
        """Whether an accept of the type must wait for another one."""
        return keys in self._under_way and self._spreading.takes_turns(keys)

    def waiting(self, key: SharedTerms) -> SharedAccept | None:
        """Return the waiting accept, None if none waits."""
        return self._waiting.get(key)

    def wait(self, key: SharedTerms, accept: SharedAccept) -> None:
        """Have an accept wait for its turn."""
        self._waiting[key] = accept
        if key[0] not in self._timers:
            loop = asyncio.get_running_loop()
            self._timers[key[0]] = loop.call_later(_LONGEST_WAIT, self._have_turn, key[0])

    def begin(self, key: SharedTerms) -> None:
        """Begin a waiting accept."""
        self._begin(self._waiting.pop(key))

    def begin_all(self) -> None:
        """Begin all waiting accepts."""
        for keys in [*self._timers]:
            self._have_turn(keys)

    def begun(self, keys: TypeKeys) -> None:
        """Note the begin of an accept of the type."""
        self._under_way[keys] += 1

    def ended(self, keys: TypeKeys) -> None:
        """Note the end of an accept of the type; after the last one begin the waiting accepts."""
        self._under_way[keys] -= 1
        if not self._under_way[keys]:
            del self._under_way[keys]
            self._have_turn(keys)

    def _have_turn(self, keys: TypeKeys) -> None:
        timer = self._timers.pop(keys, None)
        if timer is not None:
            timer.cancel()
            for key in [key for key in self._waiting if key[0] == keys]:
                self.begin(key)


# Group commit


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
        self._turns = AcceptTurns(self._spreading, self.begin)
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
        self.begin(SingleOperation(operation, place, arguments, future, size, reads))
        return future

    def begin(self, operation: Operation) -> None:
        """Run an operation in the next transaction; called on the loop."""
        if not self._queue:
            asyncio.get_running_loop().call_soon(self._send)
        self._queue.append(operation)

    def operate_all(
        self, calls: Sequence[Call], answer: Callable[[Sequence[Exception | None]], None], *, size: int
    ) -> None:
        """Run operations on many jobs without returning their results; an error of one does not affect the others.

        Args:
            calls: operation, place and arguments of each, as for `operate`.
            answer: called with the error of each call, None for a successful one.
            size: approximate bytes of the written values: no more than a part of a transaction.
        """
        self.begin(ManyOperations(calls, answer, size))

    def accept(self, keys: TypeKeys, terms: AcceptTerms, *, watch: bool) -> asyncio.Future[Accepted]:
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
                self.begin(group)
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


# Transactions in order: each begins while the previous one commits


async def in_order(
    operations: Iterable[PipelinedOperation[T]], transact: PipelinedTransact[T], transact_after: TransactAfter[T]
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
    first, second = next(given, None), next(given, None)
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
    transact: PipelinedTransact[list[T]],
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


class _Given(Iterator[PipelinedOperation[T]]):
    """The operations of an iterable, up to its failure if there is one.

    Attributes:
        failure: the iterable's exception.
    """

    def __init__(self, operations: Iterable[PipelinedOperation[T]]) -> None:
        self._operations = iter(operations)
        self.failure: BaseException | None = None

    def __next__(self) -> PipelinedOperation[T]:
        try:
            return next(self._operations)
        except StopIteration:
            raise
        except BaseException as error:
            self.failure, self._operations = error, iter(())
            raise StopIteration from error


async def _overlapped(
    operations: Iterator[PipelinedOperation[T]], transact: PipelinedTransact[T], transact_after: TransactAfter[T]
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
