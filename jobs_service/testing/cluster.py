"""A simulated FoundationDB: one cluster, a connection to it for every simulated process. Floor: testing.

It promises what tests/contract asks of a store, and takes every liberty that FoundationDB has beside: transactions that
see a state from before they were asked for, reads and commits that take their time, conflicts for no reason, commits of
which nobody knows whether they happened, commits that happen after their caller was told that its time is up, answers
that come after the caller's time is up, watches that fire late, for nothing, or are lost. Transaction functions run on
the loop and may be suspended at every read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast

import fdb.tuple

from jobs_service.errors import StoreError, StoreUnavailable, TransactionTooOld
from jobs_service.settings import Settings
from jobs_service.sources import Sources
from jobs_service.store.base import (
    SYSTEM_KEYS,
    Bound,
    KeyValue,
    Limits,
    Snapshot,
    Store,
    Transaction,
    TransactionFunction,
    Watch,
    no_coroutine,
)
from jobs_service.store.calls import Calls, open_loop
from jobs_service.store.commit_marks import HAPPENED, LIFETIME, Mark, Marks
from jobs_service.store.fdb.errors import (
    COMMIT_UNKNOWN_RESULT,
    NOT_COMMITTED,
    TRANSACTION_TIMED_OUT,
    TRANSACTION_TOO_OLD,
    error_of,
    may_have_committed,
)
from jobs_service.store.mvcc import Versions, View
from jobs_service.store.read_your_writes import BufferedTransaction, Reads
from jobs_service.store.write_log import CLEAR, STAMPED_VALUE
from jobs_service.testing.choices import Choices

if TYPE_CHECKING:
    from jobs_service.testing.world import Process

T = TypeVar("T")

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
"""The kinds of fault that the cluster itself draws, and what each does."""

_MARKS: Final = SYSTEM_KEYS + b"/jobs_service/commits/"
_LOST: Final = 0.25
_AT_ONCE: Final = 0.6
"""Of the commits whose time is up so many are lost, and so many are lost or happen at once."""
_SHORT_LIMIT: Final = 0.02
_FIRST_PAUSE: Final = 0.002
_LONGEST_PAUSE: Final = 0.5
_SLOW: Final = 2.0
_VERY_SLOW: Final = 15.0
_LATE: Final = 5.0
_WATCH_LIFE: Final = 60.0


class Observer(Protocol):
    """Told of every run of a transaction function that took effect: for checks."""

    def ended(self, transaction: SimulatedTransaction) -> None:
        """Called at the very moment of the commit, in commit order, before anybody is told.

        One that only reads has no commit version, and saw the state of its read version.
        """


class ClientError(Exception):
    """What the client library of FoundationDB would raise.

    Attributes:
        code: as the library numbers its errors.
        description: what it says.
    """

    def __init__(self, code: int, description: str) -> None:
        super().__init__(f"{description} ({code})")
        self.code = code
        self.description = description


class Handle:
    """A handle of the cluster; its options hold for all transactions that are made with it.

    Attributes:
        time_limit: seconds that a transaction may take; None for no limit.
        sees_own_writes: whether reads by snapshot see what the transaction itself has written.
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
        latency: seconds that a request to the cluster takes at most, drawn anew for each.
        observers: told of commits.
        commits: how many there were of transaction functions.
        connections: those that are open, the latest last.
        mark_lifetime: versions after which a connection removes the marks of others.
        quiet_at: the virtual time, in seconds, at which the last delay that was drawn so far is over.
        untimed: the timers of calls that are not set because nothing took time when the calls began.
        calls: how often a transaction function was given to a connection.
        on_too_large: called, in the context of whoever runs it, for a transaction that is refused for its size.
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
        # What the cluster does belongs to no process, and goes on when one dies.
        self.context = Context()
        self.untimed: dict[_Timer, None] = {}
        self._back_at = 0.0
        self._back = asyncio.Event()
        self._back.set()
        self._latency = choices.stream("latency")
        self._watches: dict[bytes, dict[Watch, SimulatedStore]] = {}
        self._transactions: dict[SimulatedTransaction, None] = {}
        self._arrived: list[tuple[SimulatedTransaction, asyncio.Future[None]]] = []

    @property
    def idle(self) -> bool:
        """Whether it holds nothing for anybody: no open transaction, no watch, no past state."""
        return not self._transactions and not self._watches and not self.versions.kept

    @property
    def answers_at_once(self) -> bool:
        """Whether nothing takes time just now."""
        return not (self.latency or self._back_at or self.choices.rates)

    @property
    def takes_time(self) -> bool:
        """Whether a request takes time to get here just now."""
        return bool(self.latency or self._back_at)

    def shared_handle(self, process: Process | None) -> Handle:
        """Return the handle that everybody in a process gets who opens the cluster as an application does."""
        return self._handles.setdefault(process, Handle())

    def go_away(self, seconds: float) -> None:
        """Answer nobody for so long."""
        until = self.loop.time() + seconds
        if until > self._back_at:
            self._back_at = until
            self._back.clear()
            self.loop.call_at(until, self._returns, until, context=self.context)
            for timer in self.untimed:
                timer.start()
            self.untimed.clear()

    def come_back(self) -> None:
        """Answer again at once, also those who wait."""
        self._back_at = 0.0
        self._back.set()
        arrived, self._arrived = self._arrived, []
        for transaction, answer in arrived:
            self.loop.call_soon(self._commit, transaction, answer, context=self.context)

    def _returns(self, until: float) -> None:
        if until == self._back_at:
            self.come_back()

    def disconnect(self, process: Process) -> None:
        """Forget what a dead process had open; a commit that is under way may or may not happen."""
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
        """Wait as long as a request takes to get here."""
        while self._back_at:
            await self._back.wait()
        if self.latency:
            await asyncio.sleep(self._latency.uniform(0, self.latency))

    async def read_pause(self) -> None:
        """Suspend a read, or not."""
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
        """Keep what the transaction sees until it ends."""
        self._transactions[transaction] = None

    def closed(self, transaction: SimulatedTransaction) -> None:
        """Forget an ended transaction."""
        self._transactions.pop(transaction, None)
        self.versions.leave(transaction.version)

    def submit(self, transaction: SimulatedTransaction) -> asyncio.Future[None]:
        """Send a commit on its way, and return the future of its answer.

        Raises from the future:
            ClientError: what the client library would raise.
        """
        answer: asyncio.Future[None] = self.loop.create_future()
        transaction.submitted = True
        hard = self.choices.fault("slow_commit")
        delay = 0.0 if hard is None else self._slow(hard)
        if self.latency:
            delay += self._latency.uniform(0, self.latency)
        if (hard := self.choices.fault("commit_timed_out")) is not None or transaction.is_overdue:
            transaction.timed_out = True
            self.loop.call_soon(_answer, answer, _timed_out(), context=self.context)
            hard = hard or 0.0
            if hard >= _AT_ONCE:
                delay += self._slow((hard - _AT_ONCE) / (1 - _AT_ONCE))
            elif hard < _LOST:
                self.loop.call_later(delay, transaction.end, context=self.context)
                return answer
        if delay > 0:
            self.loop.call_later(delay, self._commit, transaction, answer, context=self.context)
        else:
            self.loop.call_soon(self._commit, transaction, answer, context=self.context)
        return answer

    def commit_reads(self, transaction: SimulatedTransaction) -> None:
        """End a transaction that has written nothing: that takes no request, but for its watches."""
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
            error = _timed_out()
        if error is not None:
            # They are the run's whose outcome is an error, even if that run turns out to have committed.
            for watch in transaction.watches:
                self.loop.call_soon(watch.fire, _lost_with_its_transaction(), context=transaction.store.context)
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
        """Return seconds of delay: most are short, and one in fifty is longer than anybody waits."""
        delay = _VERY_SLOW if hard > 0.98 else _SLOW * hard
        self.quiet_at = max(self.quiet_at, self.loop.time() + delay)
        return delay

    # Watches

    def _register(self, transaction: SimulatedTransaction, written: dict[bytes, bytes | None]) -> None:
        for watch in transaction.watches:
            if transaction.process is not None and not transaction.process.alive:
                continue  # Its commit came through, but nobody is there any more.
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
        """Fire the watches on these keys that expect another value than there is."""
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
        """Tell of a watch that has not been canceled on the way, and has not been told of."""
        if watch in self._watches.get(watch.key, {}):
            self._forget(watch)
            watch.fire(error)

    def _forget(self, watch: Watch) -> None:
        group = self._watches.get(watch.key)
        if group is not None:
            group.pop(watch, None)
            if not group:
                del self._watches[watch.key]


class SimulatedTransaction(BufferedTransaction):
    """One run of a transaction function.

    Attributes:
        store: the connection that it was begun on.
        process: the process of that connection.
        version: the version that it reads.
        began: the virtual time, in seconds, of that version.
        commit_version: the version that its writes made; None when it has written nothing, or not committed.
        written: what it wrote, once it has committed: keys, and what each holds now.
        journal: for whoever wants to note something of this run.
        call: number of the call of `transact` or `read` that this is a run of, unique in the cluster; 0 when the
            connection itself has begun it.
        timed_out: whether its commit was told that its time is up.
        blocking: whether its reads are answered at once, as they are for plain code that waits for each.
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
        self.conflicts = Reads()
        self._snapshot_reads: Snapshot | None = None
        view = View(cluster.versions, self.version)
        super().__init__(view, store.limits, reads=None if read_only else self.conflicts, read_only=read_only)
        cluster.opened(self)

    @property
    def is_housekeeping(self) -> bool:
        """Whether it runs no transaction function, and is of the connection's own concern only."""
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
        """Wait for the cluster as every read does."""
        store = self.store
        if not self.blocking:
            await store.cluster.read_pause()
        took = store.cluster.loop.time() - self.began
        if took > self.limits.seconds:
            raise self.too_old()
        if store.handle.time_limit is not None and self.is_overdue:
            raise error_of(_timed_out().code, _timed_out().description)

    @property
    def too_long(self) -> bool:
        """Whether it began longer ago than a transaction may."""
        return self.store.cluster.loop.time() - self.began > self.limits.seconds

    @property
    def is_overdue(self) -> bool:
        """Whether it began longer ago than its handle allows."""
        limit = self.store.handle.time_limit
        return limit is not None and self.store.cluster.loop.time() - self.began > limit

    def too_old(self) -> TransactionTooOld:
        """Return the error for a transaction that is too old, or is said to be."""
        return TransactionTooOld(
            f"transaction_too_old (1007): the simulated cluster keeps {self.limits.seconds:g} s of the past"
        )

    def end(self) -> None:
        """Let go of the version that it reads. Idempotent."""
        if not self.ended:
            self.ended = True
            super().end()
            self.store.cluster.closed(self)

    __hash__ = object.__hash__


class _SnapshotReads(Snapshot):
    """The transaction's reads without read conflicts; they take their time as well."""

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


class _Timer:
    """The time limit of a call: what asyncio.timeout does, for very many calls that never need it.

    Args:
        loop: the simulated one.
        limit: seconds that the present task has.
        waiting: where the timer waits to be set; None to set it now.
    """

    __slots__ = ("_cancelling", "_expired", "_handle", "_limit", "_loop", "_task", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: float, waiting: dict[_Timer, None] | None) -> None:
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
        """Set it: from now on the call has so many seconds."""
        self._handle = self._loop.call_at(self._loop.time() + self._limit, self._expire)

    def end(self) -> None:
        """Have it expire no more."""
        if self._handle is not None:
            self._handle.cancel()
        elif self._expired:
            self._task.uncancel()
        elif self._waiting is not None:
            self._waiting.pop(self, None)

    def has_cancelled(self) -> bool:
        """Whether it is the timer, and nobody else, that has cancelled the task; asked once, when it was."""
        expired, self._expired = self._expired, False
        return expired and self._task.uncancel() <= self._cancelling

    def _expire(self) -> None:
        self._expired = True
        self._handle = None
        self._task.cancel()


class SimulatedStore(Store):
    """One process's connection to the cluster.

    Args:
        cluster: what it is connected to.
        process: whose connection it is; None for the world's own.
        settings: transaction_timeout.
        sources: jitter of the pause between two runs of a function.
        context: what its watches fire in; None for the cluster's.
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
        self._opened = False
        self._calls = Calls()
        self._marks = Marks(_MARKS, sources.token)
        self._behind: set[asyncio.Task[None]] = set()

    @property
    def is_open(self) -> bool:
        return self._opened

    async def open(self) -> None:
        if self._opened:
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
        self._opened = True

    async def close(self) -> None:
        if not self._opened:
            return
        self._opened = False
        self.cluster.connections.remove(self)
        canceled = False
        while self._calls.number:
            try:
                await self._calls.ended()
            except asyncio.CancelledError:
                canceled = True  # As the other stores it is closed all the same, and leaves no commit under way behind.
        self.cluster.drop_watches(self, f"store {self.address} was closed")
        if canceled:
            raise asyncio.CancelledError

    async def prefix(self) -> bytes:
        packed: bytes = fdb.tuple.pack(("jobs_service",))
        return packed

    async def transact(self, function: TransactionFunction[T], *, abandoned: Callable[[T], None] | None = None) -> T:
        return await self._call(self._transact(function, abandoned))

    async def read(self, function: TransactionFunction[T]) -> T:
        return await self._call(self._read(function))

    def adopt(self, transaction: object) -> Transaction:
        """Return the transaction that a function given to this store's `transact` has got, for plain code in it."""
        if not isinstance(transaction, SimulatedTransaction) or transaction.store is not self or transaction.submitted:
            raise StoreError(f"store {self.address}: within() takes the transaction of a function that transact runs")
        transaction.blocking = True
        return transaction

    async def _call(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for a transaction within its time limit."""
        try:
            open_loop(self.address, self._opened, self.cluster.loop)
        except StoreError:
            work.close()
            raise
        self._calls.enter()
        limit = self._settings.transaction_timeout
        # Where nothing takes time there is no timer to be set; the cluster sets it when it goes away.
        at_once = self.cluster.answers_at_once
        timer = _Timer(self.cluster.loop, limit, self.cluster.untimed if at_once else None)
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
        pause = _FIRST_PAUSE
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
            await asyncio.sleep(self._sources.uniform(0, pause))
            pause = min(2 * pause, _LONGEST_PAUSE)

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
                await asyncio.sleep(_SLOW * hard)
            except BaseException:
                self._give_up(transaction)
                raise
        return transaction

    async def _commit(
        self, transaction: SimulatedTransaction, result: T, abandoned: Callable[[T], None] | None
    ) -> bool:
        """Commit, and return whether that happened.

        Raises:
            StoreError: it did not happen; or, if StoreUnavailable, nobody can find out.
        """
        mark = self._marks.new()
        transaction.conflicts.add(mark.key, mark.key + b"\x00")
        transaction.log.append((STAMPED_VALUE, mark.key, b"", HAPPENED))
        transaction.log += [(CLEAR, each, None, None) for each in mark.removed]
        answer = self.cluster.submit(transaction)
        try:
            return await self._outcome(transaction, answer, mark)
        except asyncio.CancelledError:
            # It is under way all the same; whoever called has gone, and hears of it otherwise.
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
                return False
            transaction.stamp.value = stamp
        self._marks.committed(mark)
        return True

    async def _find_out(self, mark: Mark, began: int) -> bytes | None:
        """Return the versionstamp of a commit whose outcome was unknown; None if it did not happen, and never will."""
        pause = _FIRST_PAUSE
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
                pause = min(2 * pause, _LONGEST_PAUSE)

    async def _submit_own(self, transaction: SimulatedTransaction) -> None:
        """Commit a transaction of the connection's own.

        Raises:
            ClientError: it did not happen, or nobody knows.
        """
        answer = self.cluster.submit(transaction)
        answer.add_done_callback(asyncio.Future.exception)  # Also if nobody waits any more.
        await asyncio.shield(answer)

    async def _come_late(
        self,
        transaction: SimulatedTransaction,
        answer: asyncio.Future[None],
        mark: Mark,
        result: T,
        abandoned: Callable[[T], None] | None,
    ) -> None:
        """Find out what became of a commit whose caller has gone, and tell of it if it happened."""
        try:
            if await self._outcome(transaction, answer, mark) and abandoned is not None:
                abandoned(result)
        except StoreError:
            pass
        finally:
            self._calls.leave()

    async def _sweep(self) -> None:
        """Remove the marks that are old, as a store does that is open for long."""
        try:
            transaction = await self._begin(0, read_only=False)
            try:
                await transaction.pause()
                pairs = self.cluster.versions.scan_at(transaction.version, _MARKS, self._marks.end, False)
                for key in self._marks.stale(pairs, transaction.version)[0]:
                    transaction.conflicts.add(key, key + b"\x00")
                    transaction.log.append((CLEAR, key, None, None))
                if transaction.log:
                    await self._submit_own(transaction)
            finally:
                if not transaction.submitted:
                    self._give_up(transaction)
        except (ClientError, StoreError):
            pass  # Then another one does it.

    def _give_up(self, transaction: SimulatedTransaction) -> None:
        """End a transaction that does not commit; its watches fail."""
        if not transaction.ended:
            transaction.end()
            for watch in transaction.watches:
                watch.fire(_lost_with_its_transaction())


def _coroutine(function: TransactionFunction[T], transaction: SimulatedTransaction) -> Coroutine[Any, Any, T]:
    """Begin a run of a transaction function."""
    coroutine: object = function(transaction)
    if coroutine.__class__ is not CoroutineType and not isinstance(coroutine, Coroutine):
        raise no_coroutine(coroutine)
    return cast("Coroutine[Any, Any, T]", coroutine)


def _answer(answer: asyncio.Future[None], error: ClientError | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(None)
    else:
        answer.set_exception(error)


def _timed_out() -> ClientError:
    return ClientError(TRANSACTION_TIMED_OUT, "Operation aborted because the transaction timed out")


def _lost_with_its_transaction() -> StoreError:
    return StoreError("the watch was lost: its transaction did not commit")
