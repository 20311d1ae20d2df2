"""The memory store: one process, one event loop, gone on exit; for tests and simulations.

Optimistic concurrency as in FoundationDB: a transaction reads the state of its beginning, and its commit fails if
another transaction has written one of its reads in between. The loop runs other tasks between the two, so that code
meets conflicts.
"""

from __future__ import annotations

import asyncio
import heapq
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, TypeVar

from sortedcontainers import SortedDict

from jobs_service.errors import CommitUnknown, StoreError, StoreUnavailable, TransactionConflict, a_kind_of, shown
from jobs_service.settings import Settings
from jobs_service.sources import Sources
from jobs_service.store.base import (
    Calls,
    CommitTimes,
    Counters,
    KeyValue,
    Limits,
    Store,
    Transaction,
    TransactionFunction,
    Watch,
    drive,
    open_loop,
    ran_too_long,
    transaction_ended,
)
from jobs_service.store.overlay import CLEAR_RANGE, BufferedTransaction, ReadRanges, Write, outcome

_BEFORE_END: Final = (True, False)
_version_of: Callable[[tuple[int, Any]], int] = itemgetter(0)

T = TypeVar("T")

_FIRST_PAUSE: Final = 0.0005
_LONGEST_PAUSE: Final = 0.05


# Data


class Versions:
    """An ordered map of bytes that keeps past states while transactions read them.

    It holds the newest state, and, for each key written since the begin of the oldest open transaction, the earlier
    values. The same lists have the last write of each key, which suffices to find conflicts.
    """

    def __init__(self) -> None:
        self.version = 0
        self._values: SortedDict[bytes, bytes] = SortedDict()
        # key -> (version of a commit that wrote it, value before that), oldest first
        self._before: SortedDict[bytes, list[tuple[int, bytes | None]]] = SortedDict()
        # (version of a commit, keys that it wrote) and (version, begin, end of a range that it cleared), oldest first
        self._commits: deque[tuple[int, list[bytes]]] = deque()
        self._cleared: deque[tuple[int, bytes, bytes]] = deque()
        # version -> how many open transactions read it, oldest first
        self._readers: OrderedDict[int, int] = OrderedDict()

    @property
    def kept(self) -> int:
        """Number of past values, commits and cleared ranges kept for open transactions."""
        return sum(map(len, self._before.values())) + len(self._commits) + len(self._cleared)

    def enter(self) -> int:
        """Begin to read the newest version, and return its number; its state is kept until `leave`."""
        self._readers[self.version] = self._readers.get(self.version, 0) + 1
        return self.version

    def leave(self, version: int) -> None:
        """End one reading of a version."""
        if self._readers[version] > 1:
            self._readers[version] -= 1
            return
        del self._readers[version]
        oldest = next(iter(self._readers), self.version)
        if self._commits and self._commits[0][0] <= oldest:
            self._drop_until(oldest)

    def get(self, key: bytes) -> bytes | None:
        """Return a key's newest value."""
        return self._values.get(key)

    def get_at(self, version: int, key: bytes) -> bytes | None:
        """Return a key's value in an entered version."""
        before = self._before.get(key)
        if before is not None and before[-1][0] > version:
            return before[bisect_right(before, version, key=_version_of)][1]
        return self._values.get(key)

    def scan_at(self, version: int, begin: bytes, end: bytes, reverse: bool) -> Iterator[KeyValue]:
        """Yield the pairs from begin up to, not including, end, in an entered version."""
        values = self._values
        keys = values.irange(begin, end, _BEFORE_END, reverse)
        if version == self.version:
            for key in keys:
                yield key, values[key]
            return
        changed = self._before.irange(begin, end, _BEFORE_END, reverse)
        for key, _ in groupby(heapq.merge(keys, changed, reverse=reverse)):
            value = self.get_at(version, key)
            if value is not None:
                yield key, value

    def conflict(self, version: int, ranges: list[tuple[bytes, bytes]]) -> bool:
        """Return whether a key in one of the ranges was written after this entered version."""
        if version == self.version:
            return False
        before = self._before
        for begin, end in ranges:
            if end == begin + b"\x00":
                if begin in before and before[begin][-1][0] > version:
                    return True
            elif any(before[key][-1][0] > version for key in before.irange(begin, end, _BEFORE_END)):
                return True
        for cleared, low, high in reversed(self._cleared):
            if cleared <= version:
                break
            if any(begin < high and low < end for begin, end in ranges):
                return True
        return False

    def apply(self, log: list[Write]) -> tuple[bytes, dict[bytes, bytes | None]]:
        """Make the next version by a transaction's writes; return its stamp, and the new value of each written key."""
        stamp = (self.version + 1).to_bytes(8, "big") + b"\x00\x00"
        written = outcome(log, stamp, self._values.get, self._keys_in)
        self.version += 1
        if self._readers:
            self._keep(written, log)
        values = self._values
        for key, value in written.items():
            if value is not None:
                values[key] = value
            elif key in values:
                del values[key]
        return stamp, written

    def _keys_in(self, begin: bytes, end: bytes) -> Iterator[bytes]:
        return iter(self._values.irange(begin, end, _BEFORE_END))

    def _keep(self, written: dict[bytes, bytes | None], log: list[Write]) -> None:
        """Keep the keys' values from before this version."""
        for key in written:
            entry = (self.version, self._values.get(key))
            if key in self._before:
                self._before[key].append(entry)
            else:
                self._before[key] = [entry]
        self._commits.append((self.version, list(written)))
        for operation, begin, end, _ in log:
            if operation == CLEAR_RANGE:
                self._cleared.append((self.version, begin, end))

    def _drop_until(self, oldest: int) -> None:
        """Drop the values that only versions before the oldest reader's would need."""
        if oldest == self.version:
            self._commits.clear()
            self._cleared.clear()
            self._before.clear()
            return
        stale: set[bytes] = set()
        while self._commits and self._commits[0][0] <= oldest:
            stale.update(self._commits.popleft()[1])
        while self._cleared and self._cleared[0][0] <= oldest:
            self._cleared.popleft()
        for key in stale:
            before = self._before[key]
            del before[: bisect_right(before, oldest, key=_version_of)]
            if not before:
                del self._before[key]


class View:
    """The state of a transaction: one entered version."""

    __slots__ = ("_version", "_versions")

    def __init__(self, versions: Versions, version: int) -> None:
        self._versions = versions
        self._version = version

    def get(self, key: bytes) -> bytes | None:
        return self._versions.get_at(self._version, key)

    def scan(self, begin: bytes, end: bytes, reverse: bool) -> Iterator[KeyValue]:
        return self._versions.scan_at(self._version, begin, end, reverse)


# Transactions


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
        self.conflicts = ReadRanges()
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


# The store


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
        self.commit_times = CommitTimes()
        self._counters = Counters()
        # A mapping, not a set: watches fire in the order in which they were made, so that runs can be repeated.
        self._watches: dict[bytes, dict[Watch, None]] = {}

    async def open(self) -> None:
        if self.is_open:
            raise StoreError(f"store {self.address} is open already")
        self._loop = asyncio.get_running_loop()
        self._calls = Calls()
        self.is_open = True

    async def close(self) -> None:
        if not self.is_open:
            return
        self.is_open = False
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
        open_loop(self.address, self.is_open, self._loop)
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
            if not self.is_open:
                watch.fire(StoreError(f"store {self.address} was closed"))
                continue
            if watch.key in written:
                watch.baseline = written[watch.key]
            self._watches.setdefault(watch.key, {})[watch] = None
            watch.attach(self._forget)
            self._wake(watch.key)

    # One call

    def _enter(self) -> asyncio.AbstractEventLoop:
        loop = open_loop(self.address, self.is_open, self._loop)
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
