"""The simulated cluster: keys and values, transactions, watches; its faults, and the times of its answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final, Protocol

from jobs_service.errors import StoreError, TransactionTooOld
from jobs_service.store.base import Bound, KeyValue, Limits, Snapshot, Watch
from jobs_service.store.commit_marks import LIFETIME
from jobs_service.store.fdb.client import (
    COMMIT_UNKNOWN_RESULT,
    NOT_COMMITTED,
    TRANSACTION_TIMED_OUT,
    TRANSACTION_TOO_OLD,
    error_of,
)
from jobs_service.store.memory import Versions, View
from jobs_service.store.overlay import BufferedTransaction, ReadRanges
from jobs_service.testing.loop import Choices

if TYPE_CHECKING:
    from jobs_service.testing.cluster.client import SimulatedStore, Timer
    from jobs_service.testing.world import Process

FAULTS: Final = {
    "conflict": "a commit fails although nothing it has read was changed",
    "commit_lost": "a commit does not happen, and its outcome is unknown",
    "commit_unknown": "a commit happens, and its outcome is unknown",
    "commit_timed_out": "a commit is told that its time is up; it happens all the same, at once or later, or does not",
    "too_old": "a transaction is told that it is too old",
    "stale": "a transaction sees a state of some time ago, but none from before it was begun",
    "suspend": "a transaction function is suspended at a read while others run",
    "slow_read": "a read takes up to 2 s, rarely longer than a transaction may",
    "slow_commit": "a commit takes up to 2 s to happen, rarely longer than its caller waits",
    "slow_answer": "a commit has happened up to 2 s before its caller is told, rarely longer than the caller waits",
    "request_lost": "a commit that was under way when its process died does not happen",
    "watch_late": "a watch fires up to 5 s late",
    "watch_spurious": "a watch fires for nothing",
    "watch_lost": "a watch is lost within a minute, mostly soon, with an error",
    "clone": "a process that opens its connection is a clone of another: it has the same memory",
    "options": "an application sets a short time limit and other options on its own handle of the cluster",
    "sweep": "a connection removes the marks that are old",
}
"""The kinds of fault that the cluster draws, with a description of each."""

SLOW: Final = 2.0
"""The longest delay of slow requests in seconds, apart from rare ones that exceed every time limit."""

_LOST: Final = 0.25
_AT_ONCE: Final = 0.6
"""Among commits that exceed their time limit: the lost share, and the share that is lost or happens at once."""
_VERY_SLOW: Final = 15.0
_LATE: Final = 5.0
_WATCH_LIFE: Final = 60.0


# Errors in answers


class ClientError(Exception):
    """An error as FoundationDB's client library would raise it.

    Attributes:
        code: the library's number of the error.
        description: the library's text.
    """

    def __init__(self, code: int, description: str) -> None:
        super().__init__(f"{description} ({code})")
        self.code = code
        self.description = description


def timed_out() -> ClientError:
    """Return the error for a transaction that exceeds its time limit."""
    return ClientError(TRANSACTION_TIMED_OUT, "Operation aborted because the transaction timed out")


def lost_with_its_transaction() -> StoreError:
    """Return the error for a watch of a transaction that did not commit."""
    return StoreError("the watch was lost: its transaction did not commit")


# Transactions


class SimulatedTransaction(BufferedTransaction):
    """One run of a transaction function.

    Attributes:
        store: its connection.
        process: the process of the connection.
        version: the version that it reads.
        began: the virtual time of this version, in seconds.
        commit_version: the version of its writes; None without writes or before a commit.
        written: after a commit, the new value of each written key.
        journal: a list for the notes of observers about this run.
        call: number of its call of `transact` or `read`, unique in the cluster; 0 for a transaction of the connection
            itself.
        timed_out: whether the answer to its commit was the error for its time limit.
        blocking: whether its reads are answered at once, as for plain code that waits for each.
    """

    def __init__(self, store: SimulatedStore, call: int, *, read_only: bool) -> None:
        cluster = store.cluster
        self.store = store
        self.process = store.process
        self.version = cluster.versions.enter()
        self.began = cluster.loop.time()
        self.commit_version: int | None = None
        self.written: dict[bytes, bytes | None] = {}
        self.journal: list[Any] = []
        self.call = call
        self.submitted = False
        self.timed_out = False
        self.blocking = False
        self.ended = False
        self.conflicts = ReadRanges()
        self._snapshot_reads: Snapshot | None = None
        view = View(cluster.versions, self.version)
        super().__init__(view, store.limits, reads=None if read_only else self.conflicts, read_only=read_only)
        cluster.opened(self)

    def block(self, whether: bool) -> None:
        self.blocking = whether

    @property
    def is_housekeeping(self) -> bool:
        """Whether the transaction is the connection's own, without a transaction function."""
        return not self.call

    @property
    def snapshot(self) -> Snapshot:
        if self.store.handle.sees_own_writes:
            if self._snapshot_reads is None:
                self._snapshot_reads = _SnapshotReads(self, super().snapshot)
            return self._snapshot_reads
        before = BufferedTransaction(View(self.store.cluster.versions, self.version), self.limits, read_only=True)
        return _SnapshotReads(self, before.snapshot)

    async def get(self, key: bytes) -> bytes | None:
        await self.pause()
        return await super().get(key)

    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        await self.pause()
        return await super().get_many(keys)

    async def get_range(self, begin: Bound, end: Bound, *, limit: int = 0, reverse: bool = False) -> list[KeyValue]:
        await self.pause()
        return await super().get_range(begin, end, limit=limit, reverse=reverse)

    async def pause(self) -> None:
        """Wait for the cluster, like every read."""
        store = self.store
        if not self.blocking:
            await store.cluster.read_pause()
        took = store.cluster.loop.time() - self.began
        if took > self.limits.seconds:
            raise self.too_old()
        if store.handle.time_limit is not None and self.is_overdue:
            raise error_of(timed_out().code, timed_out().description)

    @property
    def too_long(self) -> bool:
        """Whether the transaction exceeds the lifetime of transactions."""
        return self.store.cluster.loop.time() - self.began > self.limits.seconds

    @property
    def is_overdue(self) -> bool:
        """Whether the transaction exceeds the time limit of its handle."""
        limit = self.store.handle.time_limit
        return limit is not None and self.store.cluster.loop.time() - self.began > limit

    def too_old(self) -> TransactionTooOld:
        """Return the error for a transaction that is too old, by the clock or by a fault."""
        return TransactionTooOld(
            f"transaction_too_old (1007): the simulated cluster keeps {self.limits.seconds:g} s of the past"
        )

    def _too_large(self) -> StoreError:
        self.store.cluster.on_too_large(self)
        return super()._too_large()

    def end(self) -> None:
        """Release the read version. Idempotent."""
        if not self.ended:
            self.ended = True
            super().end()
            self.store.cluster.closed(self)

    __hash__ = object.__hash__


class _SnapshotReads(Snapshot):
    """The transaction's reads without read conflicts, with the same pauses."""

    __slots__ = ("_reads", "_transaction")

    def __init__(self, transaction: SimulatedTransaction, reads: Snapshot) -> None:
        self._transaction = transaction
        self._reads = reads

    async def get(self, key: bytes) -> bytes | None:
        await self._transaction.pause()
        return await self._reads.get(key)

    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        await self._transaction.pause()
        return await self._reads.get_many(keys)

    async def get_range(self, begin: Bound, end: Bound, *, limit: int = 0, reverse: bool = False) -> list[KeyValue]:
        await self._transaction.pause()
        return await self._reads.get_range(begin, end, limit=limit, reverse=reverse)


# The cluster


class Observer(Protocol):
    """Called for every effective run of a transaction function; for checks."""

    def ended(self, transaction: SimulatedTransaction) -> None:
        """Called at the moment of the commit, in commit order, before its caller gets the answer.

        A read-only transaction has no commit version; it saw the state of its read version.
        """


class Handle:
    """A handle of the cluster; its options apply to all its transactions.

    Attributes:
        time_limit: seconds that a transaction may take; None for no limit.
        sees_own_writes: whether snapshot reads see the transaction's own writes.
    """

    def __init__(self) -> None:
        self.time_limit: float | None = None
        self.sees_own_writes = True


class Cluster:
    """The keys and values, the watches, and the weather.

    Args:
        loop: the simulated one.
        choices: draws the faults.
        limits: of transactions.

    Attributes:
        versions: the keys and values.
        latency: longest time of a request to the cluster in seconds; drawn anew for each request.
        observers: called for commits.
        commits: number of commits of transaction functions.
        connections: the open connections, the latest last.
        mark_lifetime: versions after which a connection removes the marks of others.
        quiet_at: the virtual time, in seconds, at the end of the last delay drawn so far.
        untimed: timers that are not set, because all answers were immediate at the begin of their calls.
        calls: number of calls of `transact` and `read`, on all connections.
        on_too_large: called for a transaction that is refused for its size, in the context of its process.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, choices: Choices, *, limits: Limits | None = None) -> None:
        self.loop = loop
        self.choices = choices
        self.limits = limits or Limits()
        self.versions = Versions()
        self.latency = 0.0
        self.observers: list[Observer] = []
        self.commits = 0
        self.calls = 0
        self.connections: list[SimulatedStore] = []
        self.mark_lifetime = LIFETIME
        self.on_too_large: Callable[[SimulatedTransaction], object] = lambda transaction: None
        self._handles: dict[Process | None, Handle] = {}
        self.quiet_at = 0.0
        # The cluster's own callbacks belong to no process, and outlive all processes.
        self.context = Context()
        self.untimed: dict[Timer, None] = {}
        self._back_at = 0.0
        self._back = asyncio.Event()
        self._back.set()
        self._latency = choices.stream("latency")
        self._watches: dict[bytes, dict[Watch, SimulatedStore]] = {}
        self._transactions: dict[SimulatedTransaction, None] = {}
        self._arrived: list[tuple[SimulatedTransaction, asyncio.Future[None]]] = []

    @property
    def idle(self) -> bool:
        """Whether the cluster keeps no open transaction, no watch, and no past state."""
        return not self._transactions and not self._watches and not self.versions.kept

    @property
    def answers_at_once(self) -> bool:
        """Whether all answers are immediate now."""
        return not (self.latency or self._back_at or self.choices.rates)

    @property
    def takes_time(self) -> bool:
        """Whether requests take time to arrive now."""
        return bool(self.latency or self._back_at)

    def shared_handle(self, process: Process | None) -> Handle:
        """Return the handle that all code in a process shares if it opens the cluster like an application."""
        return self._handles.setdefault(process, Handle())

    def go_away(self, seconds: float) -> None:
        """Answer no request for so many seconds."""
        until = self.loop.time() + seconds
        if until > self._back_at:
            self._back_at = until
            self._back.clear()
            self.loop.call_at(until, self._returns, until, context=self.context)
            for timer in self.untimed:
                timer.start()
            self.untimed.clear()

    def come_back(self) -> None:
        """Answer requests again, including waiting ones."""
        self._back_at = 0.0
        self._back.set()
        arrived, self._arrived = self._arrived, []
        for transaction, answer in arrived:
            self.loop.call_soon(self._commit, transaction, answer, context=self.context)

    def _returns(self, until: float) -> None:
        if until == self._back_at:
            self.come_back()

    def disconnect(self, process: Process) -> None:
        """Close the connections and transactions of a dead process; a commit under way may or may not happen."""
        self._handles.pop(process, None)
        self.connections = [each for each in self.connections if each.process is not process]
        for transaction in [each for each in self._transactions if each.process is process]:
            if not transaction.submitted or self.choices.fault("request_lost") is not None:
                transaction.end()
        for group in list(self._watches.values()):
            for watch in [watch for watch, store in group.items() if store.process is process]:
                self._forget(watch)

    # Called by connections

    async def reach(self) -> None:
        """Wait for the arrival of a request."""
        while self._back_at:
            await self._back.wait()
        if self.latency:
            await asyncio.sleep(self._latency.uniform(0, self.latency))

    async def read_pause(self) -> None:
        """Delay a read, or suspend it, if a fault hits."""
        if not (self.choices.rates or self._back_at):
            return
        fault = self.choices.fault
        if (hard := fault("slow_read")) is not None:
            await asyncio.sleep(self._slow(hard))
        elif fault("suspend") is not None:
            await asyncio.sleep(0)
        if self._back_at:
            await self.reach()

    def opened(self, transaction: SimulatedTransaction) -> None:
        """Keep the transaction's read version until its end."""
        self._transactions[transaction] = None

    def closed(self, transaction: SimulatedTransaction) -> None:
        """Forget an ended transaction."""
        self._transactions.pop(transaction, None)
        self.versions.leave(transaction.version)

    def submit(self, transaction: SimulatedTransaction) -> asyncio.Future[None]:
        """Send a commit on its way, and return the future of its answer.

        Raises from the future:
            ClientError: as the client library would raise it.
        """
        answer: asyncio.Future[None] = self.loop.create_future()
        transaction.submitted = True
        hard = self.choices.fault("slow_commit")
        delay = 0.0 if hard is None else self._slow(hard)
        if self.latency:
            delay += self._latency.uniform(0, self.latency)
        if (hard := self.choices.fault("commit_timed_out")) is not None or transaction.is_overdue:
            transaction.timed_out = True
            self.loop.call_soon(_answer, answer, timed_out(), context=self.context)
            hard = hard or 0.0
            if hard >= _AT_ONCE:
                delay += self._slow((hard - _AT_ONCE) / (1 - _AT_ONCE))
                self.quiet_at = max(self.quiet_at, self.loop.time() + delay)  # it may have been slow before
            elif hard < _LOST:
                self.loop.call_later(delay, transaction.end, context=self.context)
                return answer
        if delay > 0:
            self.loop.call_later(delay, self._commit, transaction, answer, context=self.context)
        else:
            self.loop.call_soon(self._commit, transaction, answer, context=self.context)
        return answer

    def commit_reads(self, transaction: SimulatedTransaction) -> None:
        """End a transaction without writes, which takes no request except for its watches."""
        transaction.settle_watches()
        self._took_effect(transaction, {})
        self._register(transaction, {})
        transaction.end()

    def drop_watches(self, store: SimulatedStore, why: str) -> None:
        """Fail the watches of a connection."""
        for group in list(self._watches.values()):
            for watch in [watch for watch, owner in group.items() if owner is store]:
                self._forget(watch)
                watch.fire(StoreError(why))

    # Commits

    def _commit(self, transaction: SimulatedTransaction, answer: asyncio.Future[None]) -> None:
        if transaction.ended:
            return  # Its process has died.
        if self._back_at:
            self._arrived.append((transaction, answer))
            return
        fault = self.choices.fault
        error: ClientError | None = None
        written: dict[bytes, bytes | None] = {}
        if transaction.too_long or fault("too_old") is not None:
            error = ClientError(TRANSACTION_TOO_OLD, str(transaction.too_old()))
        elif fault("conflict") is not None:
            error = ClientError(NOT_COMMITTED, "Not committed for no reason")
        elif self.versions.conflict(transaction.version, transaction.conflicts.ranges):
            error = ClientError(NOT_COMMITTED, "Another transaction changed what this one had read")
        elif fault("commit_lost") is not None:
            error = ClientError(COMMIT_UNKNOWN_RESULT, "The outcome is unknown: it did not happen")
        else:
            transaction.settle_watches()
            transaction.stamp.value, written = self.versions.apply(transaction.log)
            transaction.commit_version = self.versions.version
            self._took_effect(transaction, written)
            self._wake(written)
            if fault("commit_unknown") is not None:
                error = ClientError(COMMIT_UNKNOWN_RESULT, "The outcome is unknown: it happened")
            elif not transaction.timed_out:
                self._register(transaction, written)
        transaction.end()
        if transaction.timed_out:
            error = timed_out()
        if error is not None:
            # The outcome of this run is an error, so its watches fail, even if it turns out to have committed.
            for watch in transaction.watches:
                self.loop.call_soon(watch.fire, lost_with_its_transaction(), context=transaction.store.context)
        process = transaction.process
        if process is not None and not process.alive:
            return
        if not transaction.timed_out and (hard := fault("slow_answer")) is not None:
            self.loop.call_later(self._slow(hard), _answer, answer, error, context=self.context)
        else:
            _answer(answer, error)

    def _took_effect(self, transaction: SimulatedTransaction, written: dict[bytes, bytes | None]) -> None:
        if transaction.is_housekeeping:
            return
        if transaction.commit_version is not None:
            self.commits += 1
        if self.observers:
            transaction.written = written
            for observer in self.observers:
                observer.ended(transaction)

    def _slow(self, hard: float) -> float:
        """Return seconds of delay: most are short, one in fifty exceeds every time limit."""
        delay = _VERY_SLOW if hard > 0.98 else SLOW * hard
        self.quiet_at = max(self.quiet_at, self.loop.time() + delay)
        return delay

    # Watches

    def _register(self, transaction: SimulatedTransaction, written: dict[bytes, bytes | None]) -> None:
        for watch in transaction.watches:
            if transaction.process is not None and not transaction.process.alive:
                continue  # The commit succeeded, but its process is dead.
            if not transaction.store.is_open:
                watch.fire(StoreError("the watch was lost: its connection was closed"))
                continue
            if watch.key in written:
                watch.baseline = written[watch.key]
            self._watches.setdefault(watch.key, {})[watch] = transaction.store
            watch.attach(self._forget)
            if (hard := self.choices.fault("watch_lost")) is not None:
                self.loop.call_later(_WATCH_LIFE * hard**3, self._lose, watch, context=self.context)
            if (hard := self.choices.fault("watch_spurious")) is not None:
                self.loop.call_later(_LATE * hard, self._fire, watch, None, context=self.context)
        if transaction.watches:
            self._wake(dict.fromkeys(watch.key for watch in transaction.watches))
        transaction.watches = []

    def _wake(self, keys: dict[bytes, Any]) -> None:
        """Fire the watches on these keys that expect another value than the present one."""
        for key in keys:
            group = self._watches.get(key)
            if group is None:
                continue
            value = self.versions.get(key)
            for watch in [watch for watch in group if watch.baseline != value]:
                if (hard := self.choices.fault("watch_late")) is not None:
                    self.loop.call_later(_LATE * hard, self._fire, watch, None, context=self.context)
                else:
                    self._fire(watch, None)

    def _lose(self, watch: Watch) -> None:
        self._fire(watch, StoreError("the watch was lost: the connection to the simulated cluster broke"))

    def _fire(self, watch: Watch, error: StoreError | None) -> None:
        store = self._watches.get(watch.key, {}).get(watch)
        if store is not None:
            self.loop.call_soon(self._deliver, watch, error, context=store.context)

    def _deliver(self, watch: Watch, error: StoreError | None) -> None:
        """Fire a watch, unless it was canceled or fired meanwhile."""
        if watch in self._watches.get(watch.key, {}):
            self._forget(watch)
            watch.fire(error)

    def _forget(self, watch: Watch) -> None:
        group = self._watches.get(watch.key)
        if group is not None:
            group.pop(watch, None)
            if not group:
                del self._watches[watch.key]


def _answer(answer: asyncio.Future[None], error: ClientError | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(None)
    else:
        answer.set_exception(error)
