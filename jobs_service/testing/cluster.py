"""A simulated FoundationDB: one cluster, a connection to it for every simulated process. Floor: testing.

It promises what tests/contract asks of a store, and takes every liberty that FoundationDB has beside: transactions that
see a state from before they were asked for, reads and commits that take their time, conflicts for no reason, commits of
which nobody knows whether they happened, answers that come after the caller's time is up, watches that fire late, for
nothing, or are lost. Transaction functions run on the loop and may be suspended at every read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import fdb.tuple

from jobs_service.errors import (
    CommitUnknown,
    StoreError,
    StoreUnavailable,
    TransactionConflict,
    TransactionTooOld,
)
from jobs_service.settings import Settings
from jobs_service.sources import Sources
from jobs_service.store.base import (
    SYSTEM_KEYS,
    Bound,
    KeyValue,
    Limits,
    Snapshot,
    Store,
    TransactionFunction,
    Watch,
    no_coroutine,
)
from jobs_service.store.buffer import CLEAR, STAMPED_VALUE, BufferedTransaction, Reads
from jobs_service.store.versions import Versions, View
from jobs_service.testing.choices import Choices

if TYPE_CHECKING:
    from jobs_service.testing.world import Process

T = TypeVar("T")

FAULTS: Final = {
    "conflict": "a commit fails although nothing it has read was changed",
    "commit_lost": "a commit does not happen, and its outcome is unknown",
    "commit_unknown": "a commit happens, and its outcome is unknown",
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
}
"""The kinds of fault that the cluster itself draws, and what each does."""

_MARKS: Final = SYSTEM_KEYS + b"/jobs_service/commits/"
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
        commits: how many there were.
        quiet_at: the virtual time, in seconds, at which the last delay that was drawn so far is over.
        untimed: the time limits, in seconds, of calls that have no timer because nothing took time when they began.
        calls: how often a transaction function was given to a connection.
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
        self.quiet_at = 0.0
        # What the cluster does belongs to no process, and goes on when one dies.
        self.context = Context()
        self.untimed: dict[asyncio.Timeout, float] = {}
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

    def go_away(self, seconds: float) -> None:
        """Answer nobody for so long."""
        until = self.loop.time() + seconds
        if until > self._back_at:
            self._back_at = until
            self._back.clear()
            self.loop.call_at(until, self._returns, until, context=self.context)
            for timer, limit in self.untimed.items():
                timer.reschedule(self.loop.time() + limit)
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
        for transaction in [each for each in self._transactions if each.process is process]:
            if not transaction.submitted or self.choices.fault("request_lost") is not None:
                transaction.end()
        for group in list(self._watches.values()):
            for watch in [watch for watch, store in group.items() if store.process is process]:
                self._forget(watch)

    # Called by connections

    async def reach(self) -> None:
        """Wait as long as a request takes to get here."""
        while not self._back.is_set():
            await self._back.wait()
        if self.latency:
            await asyncio.sleep(self._latency.uniform(0, self.latency))

    async def read_pause(self) -> None:
        """Suspend a read, or not."""
        fault = self.choices.fault
        if (hard := fault("slow_read")) is not None:
            await asyncio.sleep(self._slow(hard))
        elif fault("suspend") is not None:
            await asyncio.sleep(0)
        if not self._back.is_set():
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
            TransactionConflict: nothing was written; run the function again.
            CommitUnknown: find out whether it happened.
            TransactionTooOld: nothing was written.
        """
        answer: asyncio.Future[None] = self.loop.create_future()
        transaction.submitted = True
        hard = self.choices.fault("slow_commit")
        delay = 0.0 if hard is None else self._slow(hard)
        if self.latency:
            delay += self._latency.uniform(0, self.latency)
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
        if not self._back.is_set():
            self._arrived.append((transaction, answer))
            return
        fault = self.choices.fault
        error: StoreError | None = None
        written: dict[bytes, bytes | None] = {}
        if transaction.too_long or fault("too_old") is not None:
            error = transaction.too_old()
        elif fault("conflict") is not None:
            error = TransactionConflict("not_committed (1020): for no reason")
        elif self.versions.conflict(transaction.version, transaction.conflicts.ranges):
            error = TransactionConflict("not_committed (1020): another transaction changed what this one had read")
        elif fault("commit_lost") is not None:
            error = CommitUnknown("commit_unknown_result (1021): it did not happen")
        else:
            transaction.settle_watches()
            transaction.stamp.value, written = self.versions.apply(transaction.log)
            transaction.commit_version = self.versions.version
            self.commits += 1
            self._took_effect(transaction, written)
            self._wake(written)
            if fault("commit_unknown") is not None:
                error = CommitUnknown("commit_unknown_result (1021): it happened")
            else:
                self._register(transaction, written)
        transaction.end()
        if error is not None:
            # They are the run's whose outcome is an error, even if that run turns out to have committed.
            for watch in transaction.watches:
                self.loop.call_soon(watch.fire, _lost_with_its_transaction(), context=transaction.store.context)
        process = transaction.process
        if process is not None and not process.alive:
            return
        if (hard := fault("slow_answer")) is not None:
            self.loop.call_later(self._slow(hard), _answer, answer, error, context=self.context)
        else:
            _answer(answer, error)

    def _took_effect(self, transaction: SimulatedTransaction, written: dict[bytes, bytes | None]) -> None:
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
        call: number of the call of `transact` or `read` that this is a run of, unique in the cluster.
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
        self.ended = False
        self.conflicts = Reads()
        view = View(cluster.versions, self.version)
        super().__init__(view, store.limits, reads=None if read_only else self.conflicts, read_only=read_only)
        cluster.opened(self)

    @property
    def snapshot(self) -> Snapshot:
        return _SnapshotReads(self, super().snapshot)

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
        await self.store.cluster.read_pause()
        if self.too_long:
            raise self.too_old()

    @property
    def too_long(self) -> bool:
        """Whether it began longer ago than a transaction may."""
        return self.store.cluster.loop.time() - self.began > self.limits.seconds

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
        self._opened = False
        self._calls = 0
        self._marks: list[bytes] = []

    @property
    def is_open(self) -> bool:
        return self._opened

    async def open(self) -> None:
        if self._opened:
            raise StoreError(f"store {self.address} is open already")
        self._idle = asyncio.Event()
        self._idle.set()
        self._opened = True

    async def close(self) -> None:
        if not self._opened:
            return
        self._opened = False
        try:
            await self._idle.wait()
        finally:
            self.cluster.drop_watches(self, f"store {self.address} was closed")

    async def prefix(self) -> bytes:
        packed: bytes = fdb.tuple.pack(("jobs_service",))
        return packed

    async def transact(self, function: TransactionFunction[T], *, abandoned: Callable[[T], None] | None = None) -> T:
        return await self._call(self._transact(function, abandoned))

    async def read(self, function: TransactionFunction[T]) -> T:
        return await self._call(self._read(function))

    async def _call(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for a transaction within its time limit."""
        if not self._opened:
            work.close()
            raise StoreError(f"store {self.address} is not open")
        if asyncio.get_running_loop() is not self.cluster.loop:
            work.close()
            raise StoreError(f"store {self.address} belongs to another event loop; use it there")
        self._enter()
        limit = self._settings.transaction_timeout
        # Where nothing takes time there is no timer to be set; the cluster sets it when it goes away.
        at_once = self.cluster.answers_at_once
        try:
            async with asyncio.timeout(None if at_once else limit) as timer:
                if at_once:
                    self.cluster.untimed[timer] = limit
                return await work
        except TimeoutError as error:
            if not timer.expired():
                raise  # The function's own.
            raise StoreUnavailable(
                f"store {self.address} did not answer within {limit:g} s; a write may still take effect"
            ) from error
        finally:
            if at_once:
                self.cluster.untimed.pop(timer, None)
            self._leave()

    async def _transact(self, function: TransactionFunction[T], abandoned: Callable[[T], None] | None) -> T:
        pause = _FIRST_PAUSE
        self.cluster.calls = call = self.cluster.calls + 1
        mark = _MARKS + self._sources.token(16)
        while True:
            transaction = await self._begin(call, read_only=False)
            try:
                result = await _coroutine(function, transaction)
                if not transaction.log:
                    self.cluster.commit_reads(transaction)
                    return result
                if await self._commit(transaction, call, mark, result, abandoned):
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
        await self.cluster.reach()
        if self.cluster.choices.fault("too_old") is not None:
            raise TransactionTooOld("transaction_too_old (1007): the simulated cluster says so")
        transaction = SimulatedTransaction(self, call, read_only=read_only)
        if (hard := self.cluster.choices.fault("stale")) is not None:
            try:
                await asyncio.sleep(_SLOW * hard)
            except BaseException:
                self._give_up(transaction)
                raise
        return transaction

    async def _commit(
        self,
        transaction: SimulatedTransaction,
        call: int,
        mark: bytes,
        result: T,
        abandoned: Callable[[T], None] | None,
    ) -> bool:
        """Commit, with a mark from which can be found out later whether it happened, and return whether it did.

        Marks of earlier calls, about which nobody will ask any more, are removed with it.

        Raises:
            TransactionTooOld: it did not happen.
        """
        stale = dict.fromkeys(self._marks)
        transaction.log += [(STAMPED_VALUE, mark, b"", b""), *((CLEAR, each, None, None) for each in stale)]
        answer = self.cluster.submit(transaction)
        try:
            await asyncio.shield(answer)
        except TransactionConflict:
            return False
        except CommitUnknown:
            try:
                stamp = await self._find_out(call, mark)
            except BaseException:
                self._missed(transaction, mark, result, abandoned)
                raise
            if stamp is None:
                return False
            transaction.stamp.value = stamp
        except asyncio.CancelledError:
            # It is under way all the same; whoever called has gone, and hears of it otherwise.
            self._enter()
            answer.add_done_callback(lambda done: self._came_late(done, transaction, mark, result, abandoned))
            raise
        self._marks = [*(each for each in self._marks if each not in stale), mark]
        return True

    async def _find_out(self, call: int, mark: bytes) -> bytes | None:
        """Return the versionstamp of a commit whose outcome was unknown, None if it did not happen."""
        while True:
            try:
                transaction = await self._begin(call, read_only=True)
                try:
                    await transaction.pause()
                    return self.cluster.versions.get_at(transaction.version, mark)
                finally:
                    self._give_up(transaction)
            except TransactionTooOld:
                continue

    def _came_late(
        self,
        answer: asyncio.Future[None],
        transaction: SimulatedTransaction,
        mark: bytes,
        result: T,
        abandoned: Callable[[T], None] | None,
    ) -> None:
        answer.exception()  # Nobody else looks at it.
        self._leave()
        self._missed(transaction, mark, result, abandoned)

    def _missed(
        self, transaction: SimulatedTransaction, mark: bytes, result: T, abandoned: Callable[[T], None] | None
    ) -> None:
        """Tell of a commit that happened without its caller being told; on a real cluster, its mark would say so."""
        if transaction.commit_version is not None:
            self._marks.append(mark)
            if abandoned is not None:
                abandoned(result)

    def _give_up(self, transaction: SimulatedTransaction) -> None:
        """End a transaction that does not commit; its watches fail."""
        if not transaction.ended:
            transaction.end()
            for watch in transaction.watches:
                watch.fire(_lost_with_its_transaction())

    def _enter(self) -> None:
        self._calls += 1
        self._idle.clear()

    def _leave(self) -> None:
        self._calls -= 1
        if not self._calls:
            self._idle.set()


def _coroutine(function: TransactionFunction[T], transaction: SimulatedTransaction) -> Coroutine[Any, Any, T]:
    """Begin a run of a transaction function."""
    coroutine: object = function(transaction)
    if not isinstance(coroutine, Coroutine):
        raise no_coroutine(coroutine)
    return coroutine


def _answer(answer: asyncio.Future[None], error: StoreError | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(None)
    else:
        answer.set_exception(error)


def _lost_with_its_transaction() -> StoreError:
    return StoreError("the watch was lost: its transaction did not commit")
