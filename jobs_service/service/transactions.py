"""One transaction over the application's own data and its jobs: `transact` begins one, `within` joins one."""

from __future__ import annotations

import asyncio
import copy
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Final, Self, TypeAlias, TypeVar

from jobs_service import job_context, tracing
from jobs_service.actors.context import Context, StoreAccess, running_code
from jobs_service.durations import Duration
from jobs_service.errors import CommitUnknown, JobsError, StoreUnavailable, WorkerConflict, a_kind_of, shown
from jobs_service.layer.keyspace import Keyspace, TypeKeys
from jobs_service.layer.queue import QueueReads, Spreading
from jobs_service.layer.record import Entry
from jobs_service.layer.transaction import JobTransaction, PlainJobTransaction
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.model import Job, JobType, RunningJob, Worker
from jobs_service.model.enqueueing import Enqueueable
from jobs_service.service.acceptor import AbandonedJobs
from jobs_service.service.lifecycle import ServiceTree
from jobs_service.sources import Sources
from jobs_service.store.base import Transaction, drive, no_coroutine
from jobs_service.store.sync_transaction import HeldBack, PlainTransaction

T = TypeVar("T")

_TouchedTypes: TypeAlias = dict[TypeKeys, bool]
"""Types that a transaction touched: True if it changed the timeout, False if it may have made the type."""


_MOST_AT_ONCE: Final = 256
"""Limit of simultaneous transactions: a store commits many of them together, so that more at once are no faster."""
_FIRST_AT_ONCE: Final = 16
_QUICK: Final = 0.15
_SLOW: Final = 0.4
"""Shares of the time limit: a transaction that takes less lets one more be at once, one that takes longer one less."""


class _Places:
    """The places of running transactions: a transaction that finds none free waits for one, in order.

    There are as many as the store answers well within the time limit of each, which begins with its place: an embedded
    store runs functions one after the other, and with too many slow ones the last would be refused.

    Args:
        seconds: time limit of a transaction; a waiter of about that age is refused when the store does not answer.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._number = self._free = _FIRST_AT_ONCE
        self._waiting: deque[tuple[asyncio.Future[None], float]] = deque()

    async def take(self) -> float:
        """Wait for a place, and return the time; the caller must give it back."""
        loop = asyncio.get_running_loop()
        if self._free > 0:
            self._free -= 1
            return loop.time()
        place = loop.create_future()
        self._waiting.append((place, loop.time()))
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._add(1)
            raise
        return loop.time()

    def give_back(self, since: float) -> None:
        """Pass a place that was taken at a time to the oldest waiter, or free it."""
        took = asyncio.get_running_loop().time() - since
        more = 0
        if took < _QUICK * self._seconds:
            more = int(self._number < _MOST_AT_ONCE)
        elif took > _SLOW * self._seconds:
            more = -int(self._number > 1)
        self._number += more
        self._add(1 + more)

    def _add(self, places: int) -> None:
        self._free += places
        while self._free > 0 and self._waiting:
            place, _ = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                self._free -= 1

    def refuse(self, error: StoreUnavailable) -> None:
        """Refuse waiters that have waited for about a whole time limit, because the store does not answer."""
        since = asyncio.get_running_loop().time() - 0.9 * self._seconds
        while self._waiting and self._waiting[0][1] <= since:
            place, _ = self._waiting.popleft()
            if not place.done():
                place.set_exception(copy.copy(error))


class Transactions:
    """Runs the application's transaction functions.

    Args:
        context, access, tree, abandoned: of the service.
        spreading: the service's adaptive spread of each queue.
        handlers: of this program, by type, as packed.
    """

    def __init__(
        self,
        context: Context,
        access: StoreAccess,
        tree: ServiceTree,
        abandoned: AbandonedJobs,
        spreading: Spreading,
        handlers: Mapping[bytes, Enqueueable[Any, Any]],
    ) -> None:
        self.handlers = handlers
        self.tree = tree
        self.make_ready = context.settings.pending_batch
        self._context = context
        self._access = access
        self._abandoned = abandoned
        self._spreading = spreading
        self._places = _Places(context.settings.transaction_timeout)

    async def transact(self, worker: Worker, function: Callable[[JobTransaction], Awaitable[T]]) -> T:
        """Run a function in a transaction; see JobsService.transact.

        Args:
            worker: the Worker of jobs that the function accepts.
            function: takes the JobTransaction.
        """
        if not callable(function):
            raise JobsError(f"{shown(function)}: {a_kind_of(function)}; transact takes a function of a transaction")

        reads = QueueReads(self._spreading)
        accepted: list[Entry] = []
        touched: _TouchedTypes = {}
        ending: list[RunningJob] = []

        # The function may run on another thread, which has no context of the caller.
        trace, context = tracing.current(), job_context.current()

        def forget_ends() -> None:
            for job in ending:
                assert job._worker is not None
                job._worker._ending(job, False)
            ending.clear()

        async def work(unit: UnitOfWork) -> T:
            here = running_code()
            unit.trace, unit.context = trace, context
            self._access.inside.add(here)
            reads.begin()
            touched.clear()
            forget_ends()  # of a run that has not been committed
            tx = _ServiceTransaction(unit, self, worker, reads, touched, ending)
            try:
                run = function(tx)
                if not hasattr(run, "__await__"):
                    raise no_coroutine(run)
                return await run
            finally:
                accepted[:] = tx._end()
                self._access.inside.discard(here)

        def committed() -> None:
            for keys, changed in touched.items():
                if changed:
                    self.tree.timeout_set_or_cleared(keys)
                else:
                    self.tree.enqueued_for(keys)

        def abandoned(_: T) -> None:
            committed()
            for entry in accepted:
                self._abandoned.give_back(entry)

        self._access.check_open()
        since = await self._places.take()
        try:
            self._access.check_open()  # it may have been closed while this waited
            result = await self._context.transact(work, abandoned)
        except (StoreUnavailable, CommitUnknown, WorkerConflict) as error:  # a job's end may be in the store
            if isinstance(error, StoreUnavailable):
                self._places.refuse(
                    StoreUnavailable(
                        f"store {self._context.store.address} did not answer the transactions before this one, which "
                        "has not begun; try again later"
                    )
                )
            raise
        except Exception:
            forget_ends()
            raise
        finally:
            self._places.give_back(since)
        reads.end()
        committed()
        return result


class _ServiceTransaction(JobTransaction):
    """A transaction of a service: it records changed types, and its running jobs can call the service.

    Args:
        unit, worker, reads: as for every JobTransaction.
        transactions: of the service.
        touched: gets the types whose timeout the transaction changed, and the types that it may have made by
            enqueueing; valid after the commit.
        ending: gets the running jobs that the transaction has ended; the runner keeps an account of them.
    """

    def __init__(
        self,
        unit: UnitOfWork,
        transactions: Transactions,
        worker: Worker,
        reads: QueueReads,
        touched: _TouchedTypes,
        ending: list[RunningJob],
    ) -> None:
        super().__init__(unit, worker, transactions.make_ready, reads)
        self._transactions = transactions
        self._touched = touched
        self._ended_here = ending

    def _ending(self, job: RunningJob) -> None:
        super()._ending(job)
        if job._worker is not None:
            self._ended_here.append(job)

    async def set_type_timeout(self, type: JobType, seconds: Duration) -> None:
        await super().set_type_timeout(type, seconds)
        self._touched[self._keys(type)] = True

    async def clear_type_timeout(self, type: JobType) -> None:
        await super().clear_type_timeout(type)
        self._touched[self._keys(type)] = True

    async def enqueue(self, handler: Any, *args: Any, **how: Any) -> Job:
        job = await super().enqueue(handler, *args, **how)
        if not self._transactions.tree.is_known(job.type):
            self._touched.setdefault(self._keys(job.type), False)
        return job

    async def enqueue_many(self, handler: Any, jobs: Iterable[Any], **how: Any) -> list[Job]:
        added = await super().enqueue_many(handler, jobs, **how)
        if added and not self._transactions.tree.is_known(added[0].type):
            self._touched.setdefault(self._keys(added[0].type), False)
        return added

    def _handlers(self) -> Mapping[bytes, Enqueueable[Any, Any]]:
        return self._transactions.handlers


# Within the application's own transaction


_MOST_MOVES: Final = 0x8000
"""Moves of jobs after which the next block counts from zero again: more than fit into a transaction, and half of the
number range, so that every block has room for its own moves."""


class WithinTransaction(PlainJobTransaction):
    """The operations of JobTransaction as plain methods, over a transaction of the application: see JobsService.within.

    Arguments, results and errors are those of JobTransaction's coroutines. Every read blocks the calling thread.
    A block is entered once, and used by one thread at a time, not always the same.

    Attributes:
        kv: the transaction, for the application's own keys.
    """

    def __init__(self, blocks: Blocks, application: object, transaction: Transaction, keyspace: Keyspace) -> None:
        self._blocks = blocks
        self._application = application
        self._transaction = transaction
        self._keyspace = keyspace
        self._held = HeldBack(transaction)
        self._unit: _BlockUnit | None = None
        self._jobs: JobTransaction | None = None

    def __enter__(self) -> Self:
        if self._unit is not None:
            raise JobsError("this block was entered before; call jobs.within(tr) for each block")
        blocks = self._blocks
        self._unit = _BlockUnit(self._held, self._keyspace, blocks.sources, blocks.enter(self._application))
        self._jobs = JobTransaction(self._unit, blocks.worker, blocks.make_ready)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._operations()
        unit = self._unit
        assert unit is not None
        self._jobs = None
        try:
            if kind is None:
                drive(unit.settle())
                unit.flush()
                self._held.hand_over()
        finally:
            self._blocks.leave(self._application, unit.moves)

    @property
    def kv(self) -> PlainTransaction:
        """The transaction itself: your own keys, in FoundationDB's vocabulary; written at once, not at the end."""
        return PlainTransaction(self._entered)

    def _operations(self) -> JobTransaction:
        if self._jobs is None:
            raise JobsError(
                "this block is not entered yet: write `with jobs.within(tr) as tx:`"
                if self._unit is None
                else "this block has ended; call jobs.within(tr) for another one"
            )
        return self._jobs

    def _entered(self) -> Transaction:
        self._operations()
        return self._transaction


class Blocks:
    """The blocks of one service: at most one at a time on each of the application's transactions.

    A job's place in the queue contains the number of its move within the transaction. A later block on the same
    transaction continues the count of the earlier block, so that no two jobs get the same place. This also holds when a
    retry loop begins the transaction again in between.

    Args:
        sources: wall-clock time and randomness.
        worker: the Worker of jobs that are accepted in a block.
        make_ready: most due jobs that one accept makes ready.
        check_open: raises when the service admits no operations.
    """

    def __init__(self, sources: Sources, worker: Worker, make_ready: int, check_open: Callable[[], None]) -> None:
        self.sources = sources
        self.worker = worker
        self.make_ready = make_ready
        self._check_open = check_open
        self._moves: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()
        self._open: weakref.WeakSet[object] = weakref.WeakSet()

    def enter(self, application: object) -> int:
        """Note the begin of a block on a transaction; return the number at which its count of moves begins.

        Raises:
            JobsError: another block has not ended yet.
            ServiceClosed: the service has been left since the block was made.
        """
        self._check_open()
        if application in self._open:
            raise JobsError("a block on this transaction is open already: hand its `tx` on, or end it first")
        self._open.add(application)
        return self._moves.get(application, 0) % _MOST_MOVES

    def leave(self, application: object, moves: int) -> None:
        """Note the end of a block.

        Args:
            application: its transaction.
            moves: number of moves on the transaction, earlier blocks included.
        """
        self._open.discard(application)
        self._moves[application] = moves


class _BlockUnit(UnitOfWork):
    """A unit of work that continues the earlier block's count of moves."""

    __slots__ = ()
    sweeps = False

    def __init__(self, transaction: Transaction, keyspace: Keyspace, sources: Sources, moves: int) -> None:
        super().__init__(transaction, keyspace, sources)
        self._orders = moves

    @property
    def moves(self) -> int:
        """The number of moves, earlier blocks included."""
        return self._orders
