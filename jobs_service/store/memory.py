"""The memory store: one process, one event loop, gone on exit; for tests and simulations.

Optimistic concurrency as in FoundationDB: a transaction reads the state of its beginning, and its commit fails if
another transaction has written one of its reads in between. The loop runs other tasks between the two, so that code
meets conflicts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from jobs_service.errors import (
    CommitUnknown,
    StoreError,
    StoreUnavailable,
    TransactionConflict,
    a_kind_of,
    shown,
)
from jobs_service.settings import Settings
from jobs_service.sources import Sources
from jobs_service.store.base import Limits, Store, Transaction, TransactionFunction, Watch
from jobs_service.store.calls import Calls, open_loop
from jobs_service.store.checks import transaction_ended
from jobs_service.store.counters import CommitTimes, Counters
from jobs_service.store.driving import drive, ran_too_long
from jobs_service.store.mvcc import Versions, View
from jobs_service.store.read_your_writes import BufferedTransaction, Reads
from jobs_service.store.write_log import Write

T = TypeVar("T")

_FIRST_PAUSE: Final = 0.0005
_LONGEST_PAUSE: Final = 0.05


class Faults:
    """Disturbs the transactions of a memory store, for tests and simulations: see `MemoryStore.faults`.

    This class does nothing; subclasses override its methods. Every method may wait (a call whose time limit passes
    meanwhile ends with StoreUnavailable) and may raise: TransactionConflict and CommitUnknown make the function run
    again if the commit has not happened (not before the begin), any other error goes to the caller.
    """

    async def before_begin(self) -> None:
        """Called before every run of a function, in transact() and read()."""

    async def before_commit(self, transaction: MemoryTransaction) -> None:
        """Called after a run in transact(): an exception raised here prevents the commit."""

    async def after_commit(self, transaction: MemoryTransaction) -> None:
        """Called after the commit: raise CommitUnknown to hide its outcome from the caller."""


class MemoryTransaction(BufferedTransaction):
    """A transaction that can conflict. The caller must call `commit` or `end`: until then the store keeps its state.

    Args:
        store: its store.
        read_only: whether writes are refused.

    Attributes:
        version: the commit version of its state.
        conflicts: begin and end of the ranges that it has read.
        committed: whether its commit has happened.
    """

    __slots__ = ("__weakref__", "_store", "committed", "conflicts", "version")

    def __init__(self, store: MemoryStore, *, read_only: bool = False) -> None:
        self._store: MemoryStore | None = store
        self.version = store.versions.enter()
        self.conflicts = Reads()
        self.committed = False
        view = View(store.versions, self.version)
        super().__init__(view, store.limits, reads=None if read_only else self.conflicts, read_only=read_only)

    def belongs_to(self, store: MemoryStore) -> bool:
        """Whether it is open, and on this store."""
        return self._store is store

    def commit(self) -> None:
        """Commit and end the transaction. A transaction without writes cannot fail.

        Raises:
            TransactionConflict: another transaction has since written one of its reads; nothing was written.
            StoreError: the transaction has ended already.
        """
        store, log = self._store, self.log
        if store is None:
            raise transaction_ended()
        try:
            self.settle_watches()
            if log and store.versions.conflict(self.version, self.conflicts.ranges):
                raise TransactionConflict(
                    "not_committed (1020): another transaction changed what this one had read; run it again"
                )
            self.committed = True
        finally:
            self.end()
        store.apply(self, log)

    def end(self) -> None:
        """End the transaction; without a commit, nothing was written and its watches fail. Idempotent."""
        if self._store is None:
            return
        self._store.versions.leave(self.version)
        self._store = None
        super().end()
        if not self.committed:
            for watch in self.watches:
                watch.fire(StoreError("the watch was lost: its transaction did not commit"))


class _LentTransaction(MemoryTransaction):
    """A transaction that its caller must end. If forgotten, the store releases its state with the object."""

    __slots__ = ()

    def __del__(self) -> None:
        self.end()


class MemoryStore(Store):
    """The memory store. Its data last as long as the object, also over `close` and another `open`.

    Args:
        settings: transaction_timeout.
        sources: jitter of the pause between two runs of a function.

    Attributes:
        versions: the keys and values.
        faults: None, or an object that disturbs transactions; tests and simulations may set it at any time.
    """

    def __init__(self, *, settings: Settings, sources: Sources) -> None:
        self.address = "memory:"
        self.limits = Limits()
        self.versions = Versions()
        self.faults: Faults | None = None
        self._settings = settings
        self._sources = sources
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opened = False
        self.commit_times = CommitTimes()
        self._counters = Counters()
        # A mapping, not a set: watches fire in the order in which they were made, so that runs can be repeated.
        self._watches: dict[bytes, dict[Watch, None]] = {}

    @property
    def is_open(self) -> bool:
        return self._opened

    async def open(self) -> None:
        if self._opened:
            raise StoreError(f"store {self.address} is open already")
        self._loop = asyncio.get_running_loop()
        self._calls = Calls()
        self._opened = True

    async def close(self) -> None:
        if not self._opened:
            return
        self._opened = False
        try:
            # Every call ends within its time limit.
            await self._calls.ended()
        finally:
            self.lose_watches(f"store {self.address} was closed")

    async def transact(self, function: TransactionFunction[T], *, abandoned: Callable[[T], None] | None = None) -> T:
        # The commit is one step, after which the caller goes on without waiting: a cancellation comes before it, and
        # nothing is written, or after the answer. So `abandoned` is called only when a fault holds the answer back.
        loop = self._enter()
        try:
            deadline = loop.time() + self._settings.transaction_timeout
            pause = _FIRST_PAUSE
            while True:
                if self.faults is not None:
                    await self._within(deadline, self.faults.before_begin())
                transaction = MemoryTransaction(self)
                self._counters.transactions += 1
                try:
                    result = self._run(function, transaction, loop)
                    # It stands for the network: other transactions commit meanwhile.
                    await asyncio.sleep(0)
                    failure = await self._commit(transaction, deadline, loop.time)
                    if failure is None:
                        return result
                except BaseException:
                    if transaction.committed and abandoned is not None:
                        abandoned(result)
                    raise
                finally:
                    transaction.end()
                if loop.time() >= deadline:
                    raise StoreUnavailable(
                        f"store {self.address}: a transaction did not get through within "
                        f"{self._settings.transaction_timeout:g} s: {failure}"
                    ) from failure
                self._counters.retries += 1
                await asyncio.sleep(self._sources.uniform(0, pause))
                pause = min(2 * pause, _LONGEST_PAUSE)
        finally:
            self._calls.leave()

    async def read(self, function: TransactionFunction[T]) -> T:
        loop = self._enter()
        try:
            await asyncio.sleep(0)
            if self.faults is not None:
                deadline = loop.time() + self._settings.transaction_timeout
                await self._within(deadline, self.faults.before_begin())
            transaction = MemoryTransaction(self, read_only=True)
            self._counters.transactions += 1
            try:
                result = self._run(function, transaction, loop)
                transaction.commit()
                return result
            finally:
                transaction.end()
        finally:
            self._calls.leave()

    def metrics(self) -> dict[str, int]:
        return {**self._counters.as_dict(), "watches": sum(map(len, self._watches.values()))}

    def begin(self) -> MemoryTransaction:
        """Begin a transaction that the caller ends: for `JobsService.within`, and for tests."""
        open_loop(self.address, self._opened, self._loop)
        return _LentTransaction(self)

    def adopt(self, transaction: object) -> Transaction:
        """Return a transaction of `begin`, which needs no wrapping."""
        if not isinstance(transaction, MemoryTransaction):
            raise StoreError(
                f"{shown(transaction)}: {a_kind_of(transaction)}; on a memory: store within() takes what its begin() "
                "returned"
            )
        if not transaction.belongs_to(self):
            raise StoreError("this transaction has ended, or another memory: store began it; begin() one on this store")
        return transaction

    def lose_watches(self, why: str) -> None:
        """Fail all watches; on a cluster that can happen at any time."""
        watches = [watch for group in self._watches.values() for watch in group]
        self._watches.clear()
        for watch in watches:
            watch.fire(StoreError(why))

    def apply(self, transaction: MemoryTransaction, log: list[Write]) -> None:
        """Write the log of a transaction without conflicts, and fire the watches of its changes."""
        written: dict[bytes, bytes | None] = {}
        if log:
            transaction.stamp.value, written = self.versions.apply(log)
        if self._watches:
            for key in written:
                self._wake(key)
        for watch in transaction.watches:
            if not self._opened:
                watch.fire(StoreError(f"store {self.address} was closed"))
                continue
            if watch.key in written:
                watch.baseline = written[watch.key]
            self._watches.setdefault(watch.key, {})[watch] = None
            watch.attach(self._forget)
            self._wake(watch.key)

    # One call

    def _enter(self) -> asyncio.AbstractEventLoop:
        loop = open_loop(self.address, self._opened, self._loop)
        self._calls.enter()
        return loop

    def _run(self, function: TransactionFunction[T], own: MemoryTransaction, loop: asyncio.AbstractEventLoop) -> T:
        began = loop.time()
        result = drive(function(own))
        took = loop.time() - began
        if took > self.limits.seconds:
            raise ran_too_long(took, self.limits)
        return result

    async def _commit(
        self, transaction: MemoryTransaction, deadline: float, time: Callable[[], float]
    ) -> StoreError | None:
        """Commit; return None on success, else the error. The store knows the outcome, whatever the faults pretend."""
        writes = bool(transaction.log)
        began = time()
        try:
            if self.faults is not None:
                await self._within(deadline, self.faults.before_commit(transaction))
            transaction.commit()
            if writes:
                self._counters.commits += 1
                self.commit_times.add(time() - began)
            if self.faults is not None:
                await self._within(deadline, self.faults.after_commit(transaction))
        except (TransactionConflict, CommitUnknown) as error:
            if not transaction.committed and isinstance(error, TransactionConflict):
                self._counters.conflicts += 1
            return None if transaction.committed else error
        return None

    async def _within(self, deadline: float, fault: Coroutine[Any, Any, None]) -> None:
        try:
            async with asyncio.timeout_at(deadline):
                await fault
        except TimeoutError as error:
            raise StoreUnavailable(
                f"store {self.address} did not answer within {self._settings.transaction_timeout:g} s; try again later"
            ) from error

    # Watches

    def _wake(self, key: bytes) -> None:
        """Fire the watches on a key whose baseline differs from its value."""
        group = self._watches.get(key)
        if group is None:
            return
        value = self.versions.get(key)
        for watch in [watch for watch in group if watch.baseline != value]:
            self._forget(watch)
            watch.fire()

    def _forget(self, watch: Watch) -> None:
        group = self._watches.get(watch.key)
        if group is not None:
            group.pop(watch, None)
            if not group:
                del self._watches[watch.key]
