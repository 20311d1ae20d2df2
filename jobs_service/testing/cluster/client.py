"""The client of the simulated cluster: the store of one simulated process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from jobs_service.errors import StoreError, StoreUnavailable, TransactionConflict, TransactionTooOld
from jobs_service.settings import Settings
from jobs_service.sources import Sources
from jobs_service.store.base import SYSTEM_KEYS, Calls, Store, Transaction, TransactionFunction, no_coroutine, open_loop
from jobs_service.store.commit_marks import HAPPENED, Mark, Marks
from jobs_service.store.fdb.client import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    MOST_RETRIES,
    Attempts,
    error_of,
    may_have_committed,
)
from jobs_service.store.overlay import CLEAR, STAMPED_VALUE
from jobs_service.testing.cluster.cluster import (
    SLOW,
    ClientError,
    Cluster,
    Handle,
    SimulatedTransaction,
    lost_with_its_transaction,
)
from jobs_service.uncancelable import wait_until

if TYPE_CHECKING:
    from jobs_service.testing.world import Process

T = TypeVar("T")

_MARKS: Final = SYSTEM_KEYS + b"/jobs_service/commits/"
_SHORT_LIMIT: Final = 0.02


# Time limits


class Timer:
    """The time limit of a call, like asyncio.timeout, but cheaper for the many calls that never reach it.

    Args:
        loop: the simulated loop.
        limit: seconds for the current task.
        waiting: collects timers that need not be set yet; None to set this one now.
    """

    __slots__ = ("_cancelling", "_expired", "_handle", "_limit", "_loop", "_task", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: float, waiting: dict[Timer, None] | None) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._loop = loop
        self._limit = limit
        self._task = task
        self._cancelling = task.cancelling()
        self._expired = False
        self._handle: asyncio.TimerHandle | None = None
        self._waiting = waiting
        if waiting is None:
            self.start()
        else:
            waiting[self] = None

    def start(self) -> None:
        """Set the timer; the call's time begins now."""
        self._handle = self._loop.call_at(self._loop.time() + self._limit, self._expire)

    def end(self) -> None:
        """Remove the timer, because its call has ended."""
        if self._handle is not None:
            self._handle.cancel()
        elif self._expired:
            self._task.uncancel()
        elif self._waiting is not None:
            self._waiting.pop(self, None)

    def has_cancelled(self) -> bool:
        """Return whether the timer alone has cancelled the task; called once, after a cancellation."""
        expired, self._expired = self._expired, False
        return expired and self._task.uncancel() <= self._cancelling

    def _expire(self) -> None:
        self._expired = True
        self._handle = None
        self._task.cancel()


# The store


class SimulatedStore(Store):
    """One process's connection to the cluster.

    Args:
        cluster: to connect to.
        process: the connection's owner; None for the world itself.
        settings: transaction_timeout.
        sources: jitter of the pause between two runs of a function.
        context: of the callbacks of its watches; None for the cluster's.
    """

    overlaps = True

    def __init__(
        self,
        cluster: Cluster,
        process: Process | None,
        *,
        settings: Settings,
        sources: Sources,
        context: Context | None = None,
    ) -> None:
        self.address = "simulated:"
        self.limits = cluster.limits
        self.cluster = cluster
        self.process = process
        self.context = context or cluster.context
        self._settings = settings
        self._sources = sources
        self.handle = Handle()
        self._calls = Calls()
        self._marks = Marks(_MARKS, sources.token)
        self._behind: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        if self.is_open:
            raise StoreError(f"store {self.address} is open already")
        self._calls = Calls()
        self.handle = Handle()
        self._marks = Marks(_MARKS, self._sources.token, lifetime=self.cluster.mark_lifetime)
        if self.cluster.connections and self.cluster.choices.fault("clone") is not None:
            self._marks = self.cluster.connections[-1]._marks.cloned(self._sources.token)
        if self.cluster.choices.fault("options") is not None:
            options = self.cluster.shared_handle(self.process)
            options.time_limit, options.sees_own_writes = _SHORT_LIMIT, False
        self.cluster.connections.append(self)
        self.is_open = True

    async def close(self) -> None:
        if not self.is_open:
            return
        self.is_open = False
        self.cluster.connections.remove(self)
        # Leave no commit under way, not even from a canceled caller.
        canceled = await wait_until(lambda: not self._calls.number, self._calls.ended)
        self.cluster.drop_watches(self, f"store {self.address} was closed")
        if canceled is not None:
            raise canceled

    async def transact(self, function: TransactionFunction[T], *, abandoned: Callable[[T], None] | None = None) -> T:
        return await self._call(self._transact(function, abandoned))

    async def read(self, function: TransactionFunction[T]) -> T:
        return await self._call(self._read(function))

    def adopt(self, transaction: object) -> Transaction:
        """Return the transaction of a function that `transact` runs, for plain code in that function."""
        if not isinstance(transaction, SimulatedTransaction) or transaction.store is not self or transaction.submitted:
            raise StoreError(f"store {self.address}: within() takes the transaction of a function that transact runs")
        transaction.blocking = True
        return transaction

    async def _call(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for a transaction within its time limit."""
        try:
            open_loop(self.address, self.is_open, self.cluster.loop)
        except StoreError:
            work.close()
            raise
        self._calls.enter()
        limit = self._settings.transaction_timeout
        # While all answers are immediate, the timer need not be set; the cluster sets it when it goes away.
        at_once = self.cluster.answers_at_once
        timer = Timer(self.cluster.loop, limit, self.cluster.untimed if at_once else None)
        try:
            return await work
        except asyncio.CancelledError as error:
            if not timer.has_cancelled():
                raise
            raise StoreUnavailable(
                f"store {self.address} did not answer within {limit:g} s; a write may still take effect"
            ) from error
        finally:
            timer.end()
            self._calls.leave()

    async def _transact(self, function: TransactionFunction[T], abandoned: Callable[[T], None] | None) -> T:
        attempts = Attempts(MOST_RETRIES, self._pause, lambda: None)
        self.cluster.calls = call = self.cluster.calls + 1
        if self.cluster.choices.fault("sweep") is not None:
            await self._sweep()
        while True:
            transaction = await self._begin(call, read_only=False)
            try:
                result = await _coroutine(function, transaction)
                if not transaction.log:
                    self.cluster.commit_reads(transaction)
                    return result
                if await self._commit(transaction, result, abandoned):
                    return result
            finally:
                if not transaction.submitted:
                    self._give_up(transaction)
            await attempts.again(TransactionConflict("not_committed (1020): the simulated cluster says so"))

    async def _pause(self, longest: float) -> None:
        await asyncio.sleep(self._sources.uniform(0, longest))

    async def _read(self, function: TransactionFunction[T]) -> T:
        self.cluster.calls = call = self.cluster.calls + 1
        transaction = await self._begin(call, read_only=True)
        try:
            result = await _coroutine(function, transaction)
            self.cluster.commit_reads(transaction)
            return result
        finally:
            self._give_up(transaction)

    async def _begin(self, call: int, *, read_only: bool) -> SimulatedTransaction:
        cluster = self.cluster
        if cluster.takes_time:
            await cluster.reach()
        if cluster.choices.fault("too_old") is not None:
            raise TransactionTooOld("transaction_too_old (1007): the simulated cluster says so")
        transaction = SimulatedTransaction(self, call, read_only=read_only)
        if (hard := cluster.choices.fault("stale")) is not None:
            try:
                await asyncio.sleep(SLOW * hard)
            except BaseException:
                self._give_up(transaction)
                raise
        return transaction

    async def _commit(
        self, transaction: SimulatedTransaction, result: T, abandoned: Callable[[T], None] | None
    ) -> bool:
        """Commit, and return whether the commit happened.

        Raises:
            StoreError: the commit did not happen; or, if StoreUnavailable, its outcome stays unknown.
        """
        mark = self._marks.new()
        transaction.conflicts.add(mark.key, mark.key + b"\x00")
        transaction.log.append((STAMPED_VALUE, mark.key, b"", HAPPENED))
        transaction.log += [(CLEAR, each, None, None) for each in mark.removed]
        answer = self.cluster.submit(transaction)
        try:
            return await self._outcome(transaction, answer, mark)
        except asyncio.CancelledError:
            # The commit goes on without its caller, and reports to `abandoned`.
            self._calls.enter()
            late = self._come_late(transaction, answer, mark, result, abandoned)
            task = asyncio.get_running_loop().create_task(late, name="a late commit")
            self._behind.add(task)
            task.add_done_callback(self._behind.discard)
            raise

    async def _outcome(self, transaction: SimulatedTransaction, answer: asyncio.Future[None], mark: Mark) -> bool:
        """Wait for the answer to a commit, and return whether it happened."""
        try:
            await asyncio.shield(answer)
        except ClientError as error:
            failure = error_of(error.code, error.description)
            if not may_have_committed(error.code):
                self._marks.not_committed(mark)
                if not failure.retryable or isinstance(failure, TransactionTooOld):
                    raise failure from None
                return False
            try:
                stamp = await self._find_out(mark, transaction.version)
            except StoreError:
                self._marks.not_committed(mark)
                raise
            if stamp is None:
                self._marks.prevented(mark)
                # The commit may never reach the cluster, which would otherwise fail the watches.
                _lose(transaction)
                return False
            transaction.stamp.value = stamp
        self._marks.committed(mark)
        return True

    async def _find_out(self, mark: Mark, began: int) -> bytes | None:
        """Return the versionstamp of a commit whose outcome is unknown; None if it did not happen and never will."""
        pause = FIRST_PAUSE
        while True:
            try:
                transaction = await self._begin(0, read_only=False)
                try:
                    await transaction.pause()
                    value = self.cluster.versions.get_at(transaction.version, mark.key)
                    stamp = self._marks.stamp_of(value, began, transaction.version)
                    if stamp is not None:
                        return stamp
                    transaction.conflicts.add(mark.key, mark.key + b"\x00")
                    transaction.log.append((STAMPED_VALUE, mark.key, b"", b""))
                    await self._submit_own(transaction)
                    return None
                finally:
                    if not transaction.submitted:
                        self._give_up(transaction)
            except (ClientError, TransactionTooOld):
                await asyncio.sleep(self._sources.uniform(0, pause))
                pause = min(2 * pause, LONGEST_PAUSE)

    async def _submit_own(self, transaction: SimulatedTransaction) -> None:
        """Commit a transaction of the connection's own.

        Raises:
            ClientError: the commit did not happen, or its outcome is unknown.
        """
        answer = self.cluster.submit(transaction)
        answer.add_done_callback(asyncio.Future.exception)  # Even without a waiting caller.
        await asyncio.shield(answer)

    async def _come_late(
        self,
        transaction: SimulatedTransaction,
        answer: asyncio.Future[None],
        mark: Mark,
        result: T,
        abandoned: Callable[[T], None] | None,
    ) -> None:
        """Wait for a commit whose caller has gone, and call `abandoned` if it happened."""
        try:
            if await self._outcome(transaction, answer, mark) and abandoned is not None:
                abandoned(result)
        except StoreError:
            pass
        finally:
            self._calls.leave()

    async def _sweep(self) -> None:
        """Remove old marks, like a store that has been open for long."""
        try:
            transaction = await self._begin(0, read_only=False)
            try:
                await transaction.pause()
                pairs = self.cluster.versions.scan_at(transaction.version, _MARKS, self._marks.end, False)
                for key in self._marks.stale(pairs, transaction.version):
                    transaction.conflicts.add(key, key + b"\x00")
                    transaction.log.append((CLEAR, key, None, None))
                if transaction.log:
                    await self._submit_own(transaction)
            finally:
                if not transaction.submitted:
                    self._give_up(transaction)
        except (ClientError, StoreError):
            pass  # Another transaction will do it.

    def _give_up(self, transaction: SimulatedTransaction) -> None:
        """End a transaction that does not commit; its watches fail."""
        if not transaction.ended:
            transaction.end()
            _lose(transaction)


def _lose(transaction: SimulatedTransaction) -> None:
    """Fail the watches of a transaction that does not commit."""
    for watch in transaction.watches:
        watch.fire(lost_with_its_transaction())


def _coroutine(function: TransactionFunction[T], transaction: SimulatedTransaction) -> Coroutine[Any, Any, T]:
    """Begin a run of a transaction function."""
    coroutine: object = function(transaction)
    if coroutine.__class__ is not CoroutineType and not isinstance(coroutine, Coroutine):
        raise no_coroutine(coroutine)
    return cast("Coroutine[Any, Any, T]", coroutine)
