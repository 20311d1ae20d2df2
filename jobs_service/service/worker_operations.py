"""A service's operations for workers: accepting jobs, and transactions over jobs and the application's own data."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from jobs_service.actors.context import Context
from jobs_service.arguments import Spread, check_timeout
from jobs_service.durations import Duration
from jobs_service.layer.queue import terms
from jobs_service.layer.transaction import JobTransaction
from jobs_service.model import JobType, Priority, RunAt, RunningJob, Worker
from jobs_service.service.acceptor import Acceptor
from jobs_service.service.store_access import StoreAccess
from jobs_service.service.sync_transaction import Blocks, WithinTransaction
from jobs_service.service.transactions import Transactions

T = TypeVar("T")


class WorkerOperations:
    """The part of JobsService for workers."""

    _acceptor: Acceptor
    _access: StoreAccess
    _blocks: Blocks
    _context: Context
    _transactions: Transactions
    _worker: Worker

    async def accept(
        self,
        type: JobType,
        *,
        max_priority: Priority | None = None,
        due_by: RunAt | None = None,
        timeout: Duration | None = None,
        spread: Spread = 1,
    ) -> RunningJob | None:
        """Take the due job at the front of the queue: the caller is its only legitimate worker from then on.

        Args:
            type: of the job.
            max_priority: only jobs up to and including this priority.
            due_by: only jobs due by then (an aware datetime or seconds since the epoch); None for now. Of the jobs due
                later than now, the first 16,000 by time are considered. Ready jobs stand in the order in which they
                became ready: an accept skips up to 16,000 jobs that are due after `due_by`, and a later accept finds
                the jobs behind them.
            timeout: how long to wait for a job; None for ever, 0 not at all. Scheduled jobs that come due meanwhile are
                put into the queue by their times, 100 at once (`pending_batch`). A caller that does not wait gets None
                after ten such batches without a job on its terms, and finds more the next time.
            spread: begin at random among so many jobs at the front, so that many workers rarely collide. 1 keeps the
                order; "adaptive" gives up the order only as far as this service's workers collide with others on the
                queue.

        Returns:
            The running job, None if none came in time.

        Raises:
            InvalidJob: an invalid argument.
            StoreError: the store failed.
        """
        jobs = await self.accept_many(type, 1, max_priority=max_priority, due_by=due_by, timeout=timeout, spread=spread)
        return jobs[0] if jobs else None

    async def accept_many(
        self,
        type: JobType,
        limit: int,
        *,
        max_priority: Priority | None = None,
        due_by: RunAt | None = None,
        timeout: Duration | None = None,
        spread: Spread = 1,
    ) -> list[RunningJob]:
        """Take up to `limit` jobs from the front of the queue in one transaction, at least one unless time runs out.

        Arguments and errors are those of `accept`; an empty list means that none came in time.
        """
        keys = self._access.keys(type)
        settings, sources = self._context.settings, self._context.sources
        wanted = terms(limit, max_priority, due_by, spread, settings.pending_batch, sources.worker)
        return await self._acceptor.accept(keys, wanted, check_timeout(timeout))

    async def transact(self, function: Callable[[JobTransaction], Awaitable[T]]) -> T:
        """Run a function in one transaction: its reads and writes, of jobs and other keys, take effect together or not
        at all.

        Args:
            function: takes a JobTransaction; may be run more than once, must have no other effects, and awaits nothing
                else.

        Returns:
            The function's return value in the run that committed.

        Raises:
            Exception: any error of the function; nothing was written.
            StoreError: the function awaited something else, or the store failed.
        """
        return await self._transactions.transact(self._worker, function)

    def within(self, transaction: object) -> WithinTransaction:
        """Return a block over a transaction that the application drives itself, in plain code:

            @fdb.transactional
            def place_order(tr, order):
                tr[b"orders/42"] = order
                with jobs.within(tr) as tx:
                    tx.add("email", "receipt-42", {"order": 42})

        `tx` has the operations of JobTransaction as plain methods. They behave as if done one after the other; their
        writes are handed to the transaction at the end of the block, none of them if the block raises, and take effect
        when the application commits. `tx.kv`, like the transaction itself, is written at once. A job that one block has
        changed cannot be read by a later block on the same transaction (accessed_unreadable), so keep related
        operations in one block; blocks are not nested.

        Every read blocks the calling thread. Any thread will do, but on the loop's own thread a read blocks the whole
        loop.

        A running job from `tx.accept` belongs to the caller once the application has committed. Its own methods are
        coroutines of this service, for its loop; plain code passes it to another block: `tx.update(job)`,
        `tx.finish(job)`, `tx.release(job)`. The `seq` of jobs from a block may stay None. The service supervises a type
        that is made in a block after `type_check_period` at the latest.

        Unlike `transact`, a block does not handle commits of unknown outcome. The application's retry loop runs the
        block again, with new ids and locks, and the block does not recognize its earlier effects: `add` may raise
        JobExists for its own job (`if_exists="ignore"` accepts that), `enqueue` without an id may add a second job,
        `finish` may raise WorkerConflict for a job that it has finished, and a job that was accepted twice may stay
        locked until its type's timeout. Where that matters, use `transact`.

        Args:
            transaction: an fdb.Transaction of the store's cluster; on a memory: store the result of its begin().

        Raises:
            ServiceClosed: the service is not open, at this call or at the entry of the block.
            StoreError: the transaction is not one of this store, or a function of `transact` called this.
        """
        self._access.check_open()
        return WithinTransaction(
            self._blocks, transaction, self._context.store.adopt(transaction), self._context.keyspace
        )
