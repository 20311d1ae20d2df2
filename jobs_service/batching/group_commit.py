"""Group commit of operations: what many callers ask for at the same time shares one transaction. Floor: actors.

Every transaction has its price, on a cluster a round trip, so the operations of one turn of the loop are run one after
the other on one unit of work: they behave as if each had a transaction of its own. One that raises leaves no trace and
concerns no other. Workers that accept jobs on the same terms share one look at the queue.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Sequence
from operator import attrgetter
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from jobs_service.batching.accept_turns import LookKey, Turns
from jobs_service.errors import RecordDamaged, StoreFull
from jobs_service.layer import queue
from jobs_service.layer.adaptive_spread import QueueReads, Spreading
from jobs_service.layer.batch_bounds import TOO_MUCH
from jobs_service.layer.keyspace import TypeKeys
from jobs_service.layer.queue import EmptyQueue
from jobs_service.layer.unit_of_work import Entry, Place, UnitOfWork

T = TypeVar("T")

_MOST_OPERATIONS: Final = 500
_MOST_JOBS: Final = 1000
_MOST_BYTES: Final = 2_000_000
_READ_TOGETHER: Final = 250
"""Jobs that are read at once before they are touched: as many large records are not too much for one transaction."""

_PLACE_OF: Final = attrgetter("place")
_READS_OF: Final = attrgetter("reads")

_TOO_MUCH: Final = (*TOO_MUCH, StoreFull)
"""What fewer operations in one transaction may not meet."""

_ALONE: Final = 32
"""Operations of one caller from which on, on a cluster, they have a transaction of their own: it commits while others
go on, such as that which accepts the next jobs."""

Accepted: TypeAlias = list[Entry] | EmptyQueue
"""What an accept comes back with: jobs, or what is to be waited for when there are none.

Of several who come back without jobs together, only the first gets the watch. Nobody gets one when there may be more
in the queue: they look again. Whoever did not ask for a watch gets an empty list when there is nothing.
"""

Transact: TypeAlias = Callable[[Callable[[UnitOfWork], Awaitable[Any]], Callable[[Any], None]], Awaitable[Any]]


Call: TypeAlias = tuple[Callable[..., Awaitable[Any]], Place, tuple[Any, ...]]
"""An operation on a job, the job's place, and the other arguments."""


class _Operation(Protocol):
    """Something to do on a unit of work, and whom to tell."""

    size: int
    place: Place | None
    reads: bytes | None

    def withdrawn(self) -> bool:
        """Whether nobody waits for it any more."""

    def run(self, unit: UnitOfWork) -> Awaitable[Any]:
        """Do it."""

    def answer(self, result: Any, failure: Exception | None) -> bool:
        """Tell what became of it; return whether it was done only in part, and is to be run once more."""

    def halve(self) -> bool:
        """Do only half as much in one transaction from now on; return False when there is nothing to halve."""


class _Single:
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


class _Many:
    """What one caller asks of many jobs: as if each were asked alone, and answered together."""

    __slots__ = ("_answer", "_calls", "_met", "_most", "count", "place", "reads", "size")

    def __init__(self, calls: Sequence[Call], answer: Callable[[Sequence[Exception | None]], None], size: int) -> None:
        self._calls = calls
        self.count = len(calls)
        self._answer = answer
        self._most = self.count
        # What those have met that are done.
        self._met: list[Exception | None] = []
        self.place: Place | None = None
        self.reads: bytes | None = None
        self.size = size

    def withdrawn(self) -> bool:
        return False

    async def run(self, unit: UnitOfWork) -> list[Exception | None]:
        """Return what each of the calls met that are left, as far as the transaction holds them."""
        calls = self._calls[len(self._met) :][: self._most]
        await unit.prefetch([place for _, place, _ in calls])
        met: list[Exception | None] = []
        for operation, place, arguments in calls:
            if met and unit.is_full:
                break
            try:
                await operation(unit, place, *arguments)
                met.append(None)
            except Exception as error:
                met.append(error)
        return met

    def answer(self, result: Any, failure: Exception | None) -> bool:
        if len(self._met) == self.count:  # too late: its caller was told something else
            if result is not None and len(result) == self.count:
                self._answer(result)
            return False
        self._met += [failure] * (self.count - len(self._met)) if result is None else result
        if len(self._met) < self.count:
            return True
        self._answer(self._met)
        return False

    def halve(self) -> bool:
        most = min(self._most, self.count - len(self._met))
        self._most = max(most // 2, 1)
        return most > 1


class _Accepts:
    """The accepts of all who ask for jobs on the same terms."""

    def __init__(
        self,
        keys: TypeKeys,
        terms: queue.AcceptTerms,
        watch: bool,
        give_back: Callable[[Entry], None],
        looks: QueueReads,
    ) -> None:
        self.size = 0
        self.place: Place | None = None
        self.reads: bytes | None = None
        self.keys = keys
        self._looks = looks
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
        """Return the jobs, and what those come back with who go without."""
        keys, looks = self.keys, self._looks
        limit, spread = min(self._terms.limit * len(self._callers), self._most), self._terms.spread
        looks.begin()
        if spread == queue.ADAPTIVE:
            spread = looks.spread(keys, limit)
        # Nobody learns of the jobs that come in meanwhile: as if those had come just after this look.
        terms = self._terms._replace(limit=limit, spread=spread, open_end=True)
        taken, more = await queue.accept(unit, keys, terms)
        looks.took(keys, spread, [entry.id for entry in taken])
        if len(taken) == terms.limit:
            # Where that was all that a transaction holds, there may be more.
            return taken, EmptyQueue(None, None) if limit == self._most else []
        # A watch does not fire for what its own transaction adds.
        if more or (self._watch and unit.woke(keys)):
            return taken, EmptyQueue(None, 0.0 if more is queue.More.DUE else None)
        if not self._watch:
            return taken, []
        return taken, await queue.wait_for_more(unit, keys, self._terms.max_priority)

    def halve(self) -> bool:
        most = min(self._most, self._terms.limit * len(self._callers))
        self._most = max(most // 2, 1)
        return most > 1

    def answer(self, result: Any, failure: Exception | None) -> bool:
        self._looks.end()
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
                # The caller has gone since: what was accepted for it must not stay locked.
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


class GroupCommit:
    """Collects the operations of one turn of the loop and runs them in few transactions.

    Args:
        transact: runs a function on a unit of work in a transaction; takes the function, and what is to be called with
            its result when that comes after the call has failed (`abandoned` of Store.transact).
        give_back: called with a job that was accepted for somebody who has gone.
        spreading: what is learnt of the queues.
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
        self._queue: list[_Operation] = []
        self._accepts: dict[LookKey, _Accepts] = {}
        self._turns: Turns[_Accepts] = Turns(self._spreading, self._enqueue)
        self._running: set[asyncio.Task[None]] = set()

    def operate(
        self,
        operation: Callable[..., Awaitable[Any]],
        place: Place,
        *arguments: Any,
        size: int = 0,
        reads: bytes | None = None,
    ) -> asyncio.Future[Any]:
        """Run an operation on a job; await the result. One that is canceled before it has begun is withdrawn.

        The result of one that returns an Entry is a Seen: what the job was just then.

        Args:
            operation: called with a unit of work, the place and the arguments; raises before it changes anything, or
                not at all.
            place: of the job that it touches.
            size: bytes of the values that it writes, about.
            reads: the key that it reads beside the job, without conflicts: both are asked for together.
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._enqueue(_Single(operation, place, arguments, future, size, reads))
        return future

    def operate_all(
        self, calls: Sequence[Call], answer: Callable[[Sequence[Exception | None]], None], *, size: int
    ) -> None:
        """Run operations on many jobs, whose results nobody asks for; each that raises concerns no other.

        Args:
            calls: what `operate` takes for each.
            answer: called with what each has raised, None for nothing.
            size: bytes of the values that they write, about: no more than a part of a transaction.
        """
        self._enqueue(_Many(calls, answer, size))

    def accept(self, keys: TypeKeys, terms: queue.AcceptTerms, *, watch: bool) -> asyncio.Future[Accepted]:
        """Accept jobs.

        Args:
            keys: of their type.
            terms: which ones, and how many.
            watch: whether to come back with a watch when there are none.
        """
        future: asyncio.Future[Accepted] = asyncio.get_running_loop().create_future()
        key = (keys, terms, watch)
        group = self._accepts.get(key) or self._turns.waiting(key)
        if group is None:
            group = _Accepts(keys, terms, watch, self._give_back, QueueReads(self._spreading))
            if self._turns.must_wait(keys):
                self._turns.wait(key, group)
            else:
                self._accepts[key] = group
                self._enqueue(group)
        if not group.join(future) and self._accepts.pop(key, None) is None:
            self._turns.begin(key)
        return future

    def is_crowded(self, keys: TypeKeys) -> bool:
        """Whether those who accept jobs of a type have collided with others of late."""
        return self._spreading.is_crowded(keys)

    async def drain(self) -> None:
        """Return when every operation that was begun has ended."""
        while self._queue or self._running:
            self._turns.begin_all()
            self._send()
            if self._running:
                await asyncio.wait(self._running)

    def _enqueue(self, operation: _Operation) -> None:
        if not self._queue:
            asyncio.get_running_loop().call_soon(self._send)
        self._queue.append(operation)

    def _send(self) -> None:
        """Begin what has come together, in transactions well within the limits."""
        # Accepts come last, and find what the others add.
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

    def _is_alone(self, operation: _Operation) -> bool:
        return self._overlaps and isinstance(operation, _Many) and operation.count >= _ALONE

    def _begin(self, batch: list[_Operation]) -> None:
        task = asyncio.get_running_loop().create_task(self._run(batch))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        for each in batch[::-1]:
            if not isinstance(each, _Accepts):
                break
            self._turns.begun(each.keys)
            task.add_done_callback(lambda _, keys=each.keys: self._turns.ended(keys))  # type: ignore[misc]

    async def _run(self, batch: list[_Operation]) -> None:
        """Run a batch, in one transaction if it fits, and answer each of its operations."""
        while batch:
            try:
                batch = await self._run_front(batch)
            except _TOO_MUCH as error:
                if len(batch) > 1:
                    # In the end, alone, only those fail that ask for too much.
                    middle = len(batch) // 2
                    await self._run(batch[:middle])
                    batch = batch[middle:]
                elif not batch[0].halve():
                    batch[0].answer(None, error)
                    return
            except Exception as error:
                # Each caller gets an error of its own: raising one adds to its traceback.
                for operation in batch:
                    operation.answer(None, copy.copy(error))
                return

    async def _run_front(self, batch: list[_Operation]) -> list[_Operation]:
        """Run as many of a batch in one transaction as it holds, and answer them; return what is left to do."""

        def answer(answers: list[tuple[Any, Exception | None]]) -> None:
            _answer(batch, answers)

        # An answer that comes too late still tells which jobs are to be given back.
        answers = await self._transact(lambda unit: _do(unit, batch), answer)
        return [*_answer(batch, answers), *batch[len(answers) :]]


async def _do(unit: UnitOfWork, batch: list[_Operation]) -> list[tuple[Any, Exception | None]]:
    """Run operations one after the other, at least one, as far as the transaction holds them; return their answers."""
    answers: list[tuple[Any, Exception | None]] = []
    for first in range(0, len(batch), _READ_TOGETHER):
        if first and unit.is_full:
            break
        following = batch[first : first + _READ_TOGETHER]
        # What is None is left out: no key and no place is false.
        unit.transaction.snapshot.expect(dict.fromkeys(filter(None, map(_READS_OF, following))))
        await unit.prefetch([*filter(None, map(_PLACE_OF, following))])
        for operation in following:
            if answers and unit.is_full:
                return answers
            if operation.withdrawn():  # while the store kept it waiting
                answers.append((([], []), None))
                continue
            try:
                result = await operation.run(unit)
                # What comes after it in this transaction is not its caller's business.
                answers.append((result.seen() if result.__class__ is Entry else result, None))
            except RecordDamaged as error:
                place = operation.place
                answers.append((None, error if place is None else error.of(place[0].type, place[1])))
            except Exception as error:
                answers.append((None, error))
    return answers


def _answer(batch: list[_Operation], answers: list[tuple[Any, Exception | None]]) -> list[_Operation]:
    """Answer the operations that were run; return those of them that were done only in part."""
    done = zip(batch, answers, strict=False)
    return [operation for operation, (result, failure) in done if operation.answer(result, failure)]


def _is_accept(operation: _Operation) -> bool:
    return isinstance(operation, _Accepts)
