"""The FoundationDB store: transactions run on the loop, their futures completed by callbacks.

The hot path uses no thread: a transaction function is suspended at an unanswered read, and resumed when the client has
the answer. The effects of a call happen at most once: every transaction that writes leaves a mark. If the client does
not know whether a commit happened, the store looks for the mark before it runs the function again (`commit_marks`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

import fdb

from jobs_service.errors import (
    StoreError,
    StoreUnavailable,
    kind_of,
)
from jobs_service.log import EventLog
from jobs_service.settings import Settings
from jobs_service.sources import Sources
from jobs_service.store.background_priority import in_background
from jobs_service.store.base import (
    OFFSET_BYTES,
    Limits,
    Store,
    Transaction,
    TransactionFunction,
)
from jobs_service.store.calls import Calls, not_open, open_loop
from jobs_service.store.counters import CommitTimes
from jobs_service.store.driving import drive, no_coroutine, ran_too_long, stray_await
from jobs_service.store.fdb.attempts import Attempts
from jobs_service.store.fdb.client import Bridge, Network, translated
from jobs_service.store.fdb.cluster_file import (
    Cluster,
    FileWatch,
    default_cluster_file,
    read_cluster_file,
)
from jobs_service.store.fdb.committer import Committer
from jobs_service.store.fdb.counters import ClusterCounters
from jobs_service.store.fdb.diagnosis import Reason
from jobs_service.store.fdb.directory import (
    DIRECTORY,
    METADATA_VERSION,
    address_of,
)
from jobs_service.store.fdb.locator import Locator
from jobs_service.store.fdb.sweeper import MarkSweeper
from jobs_service.store.fdb.transaction import FdbTransaction, Until
from jobs_service.store.fdb.watch_maker import WatchMaker
from jobs_service.store.fdb.watches import SLACK, FdbWatches
from jobs_service.uncancelable import outlast, own_task

T = TypeVar("T")

log = EventLog("jobs_service.store")

_MOST_WATCHES: Final = 1_000_000
# One for the watches, one for the directory layer, whose calls block, one for finding out why nothing answers.
_THREADS: Final = 3


class FdbStore(Committer, Locator, WatchMaker, Store):
    """A FoundationDB cluster.

    Args:
        cluster_file: its path; empty for the client library's default.
        settings: transaction_timeout, fdb_library, fdb_max_watches, fdb_watch_poll.
        sources: names of marks, jitter of pauses.
        directory: the path of the directory that has the jobs' keys.
    """

    overlaps = True
    serves_threads = True

    def __init__(
        self, cluster_file: str, *, settings: Settings, sources: Sources, directory: tuple[str, ...] = DIRECTORY
    ) -> None:
        self.address = address_of(cluster_file, directory)
        # The offset of a versionstamp stands behind the key or value, and the client counts it.
        self.limits = Limits(key=Limits.key - OFFSET_BYTES, value=Limits.value - OFFSET_BYTES)
        self._counters = ClusterCounters()
        self.commit_times = CommitTimes()
        self._cluster_file = cluster_file
        self._directory = directory
        self._settings = settings
        self._sources = sources
        self._opened = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._database: Any = None
        self._cluster: Cluster | None = None
        self._silence: Reason | None = None
        self._explaining = False

    @property
    def is_open(self) -> bool:
        return self._opened

    @property
    def conflicts(self) -> int:
        """Number of commits that failed because other transactions had written keys that they had read."""
        return self._counters.conflicts

    def metrics(self) -> dict[str, int]:
        counts = self._counters.as_dict()
        if self._opened:
            counts |= {
                "watches": self._watches.number,
                "watches_polled": self._watches.polled,
                "marks": 0 if self._marks is None else self._marks.made,
            }
        return counts

    async def open(self) -> None:
        if self._opened:
            raise StoreError(f"store {self.address} is open already")
        Network.check_process()
        self._loop = loop = asyncio.get_running_loop()
        self._executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="fdb-store")
        try:
            self._network = await loop.run_in_executor(self._executor, self._connect)
        except BaseException:
            self._executor.shutdown()
            raise
        self._bridge = Bridge(self._network, loop)
        self._watches = FdbWatches(
            self._network,
            loop,
            self._executor,
            limit=self._settings.fdb_max_watches,
            poll=self._settings.fdb_watch_poll,
            values_of=self._values_of,
            lost=self._watch_lost,
        )
        self._calls = Calls()
        self._background = set()
        self._looking = None
        self._finding = asyncio.Lock()
        self._prefix = None
        self._promised_prefix: bytes | None = None
        self._location = None
        self._marks = None
        self._opened = True
        self._sweeper = MarkSweeper(self, self._sources)
        self._sweeper.start()

    def _connect(self) -> Network:
        """Start the client and make the database's handle, which connects at its first use; runs in a thread."""
        file = self._cluster_file or default_cluster_file()
        # If no file is named, and none exists, the client's error describes the problem.
        self._cluster = read_cluster_file(file) if self._cluster_file or Path(file).exists() else None
        self._file = FileWatch(file)
        network = Network.started(self._settings.fdb_library)
        try:
            self._database = network.new_database(self._cluster_file)
            self._database.options.set_max_watches(min(self._settings.fdb_max_watches + SLACK, _MOST_WATCHES))
        except fdb.FDBError as error:
            raise StoreError(f"store {self.address} cannot be opened: {translated(error)}") from None
        return network

    async def close(self) -> None:
        if not self._opened:
            return
        log.debug("store_closed", store=self.address, **self.metrics())
        self._opened = False
        if not self._is_own_process():
            return
        ending = own_task(self._end())
        canceled = await outlast([ending])
        ending.result()
        if canceled is not None:
            raise canceled

    async def _end(self) -> None:
        """Wait for the calls and the work in the background, then release everything."""
        await self._sweeper.stop()
        await self._calls.ended()
        await self._end_background()
        await self._watches.close(f"store {self.address} was closed")
        await self._remove_marks()
        # A search for the reason of silence ends by itself; waiting for it would block the loop for seconds.
        self._executor.shutdown(wait=self._looking is None)
        self._database = None

    async def prefix(self) -> bytes:
        found = await self._call(self._locate())
        self._promised_prefix = found
        return found

    async def transact(self, function: TransactionFunction[T], *, abandoned: Callable[[T], None] | None = None) -> T:
        attempts = self._attempts()
        work = self._repeat(function, attempts, read_only=False, abandoned=abandoned)
        return await self._call(work, attempts)

    async def transact_after(self, before: asyncio.Future[Any], function: TransactionFunction[T]) -> T:
        attempts = self._attempts()
        work = self._repeat(function, attempts, read_only=False, before=before)
        return await self._call(work, attempts)

    def transact_in_thread(self, function: TransactionFunction[T], answered: Callable[[T], object]) -> None:
        loop = self._loop
        if not self._opened or loop is None:
            raise not_open(self.address)
        self._network.check()
        native = self._database.create_transaction()
        try:
            native.options.set_timeout(int(1000 * self._settings.transaction_timeout))
            while True:
                try:
                    self._choose_options(native)
                    result = drive(function(FdbTransaction(native, self.limits, blocking=True)))
                    native.commit().wait()
                    break
                except fdb.FDBError as error:
                    native.on_error(error).wait()  # raises what does not pass
        except fdb.FDBError as error:
            raise translated(error) from None
        loop.call_soon_threadsafe(answered, result)

    async def read(self, function: TransactionFunction[T]) -> T:
        attempts = self._attempts()
        return await self._call(self._repeat(function, attempts, read_only=True), attempts)

    def adopt(self, transaction: object) -> Transaction:
        if not self._opened:
            raise not_open(self.address)
        self._network.check()
        if not isinstance(transaction, fdb.impl.Transaction):
            raise StoreError(
                f"within() needs an fdb.Transaction, not {kind_of(transaction)}; "
                "an fdb.Database is made one by @fdb.transactional"
            )
        return FdbTransaction(transaction, self.limits, blocking=True)

    # One call

    def _is_own_process(self) -> bool:
        try:
            self._network.check()
        except StoreError:
            return False
        return True

    def _usable(self) -> asyncio.AbstractEventLoop:
        if self._opened:
            self._network.check()
        return open_loop(self.address, self._opened, self._loop)

    async def _call(self, work: Coroutine[Any, Any, T], attempts: Attempts | None = None) -> T:
        """Await a transaction within its time limit."""
        try:
            self._usable()
        except StoreError:
            work.close()
            raise
        self._calls.enter()
        limit = self._settings.transaction_timeout
        try:
            async with asyncio.timeout(limit) as timer:
                result = await work
            self._silence = None
            return result
        except TimeoutError as error:
            if not timer.expired():
                raise  # The function's own.
            self._explain_later()
            failure = self._silence if attempts is None or attempts.failure is None else attempts.failure
            last = "" if failure is None else f": {failure}"
            is_committing = attempts is not None and attempts.is_committing
            otherwise = "a write may still take effect" if is_committing else "try again later"
            raise StoreUnavailable(
                f"store {self.address} did not answer within {limit:g} s{last}; {otherwise}"
            ) from error
        finally:
            self._calls.leave()

    async def _repeat(
        self,
        function: TransactionFunction[T],
        attempts: Attempts,
        *,
        read_only: bool,
        abandoned: Callable[[T], None] | None = None,
        before: asyncio.Future[Any] | None = None,
    ) -> T:
        """Run the function until its reads are valid, or its writes committed; commit after the call `before`."""
        if self._prefix is None and not read_only:
            await self._locate()
        expected = self._promised_prefix
        assert self._loop is not None
        while True:
            began = self._loop.time()
            transaction, metadata = self._begin(read_only=read_only)
            live = False
            try:
                result = await self._run(function, transaction, attempts)
                if before is not None:
                    attempts.waited(await self._until_done(before))
                failure = transaction.broken
                if failure is None:
                    await self._check_directory(transaction.native, metadata, expected)
                    if read_only or not transaction.writes:
                        await self._arm(transaction)
                        live = True
                        return result
                    baselines = await self._baselines(transaction)
                    live = True
                    attempts.is_committing = True
                    failure = await self._commit(transaction, result, abandoned)
                    attempts.is_committing = False
                    if failure is None:
                        self._watch_in_background(transaction, baselines)
                        return result
            except StoreError as error:
                if error is not transaction.broken:
                    raise
                failure = error
            except fdb.FDBError as error:
                failure = translated(error)
            finally:
                self._end_run(transaction, live)
            await attempts.again(failure, (self._loop.time() - began) / self.limits.seconds)

    async def _until_done(self, before: asyncio.Future[Any]) -> float:
        """Wait for the end of another call, and return the seconds of the wait."""
        assert self._loop is not None
        began = self._loop.time()
        await asyncio.shield(before)
        return self._loop.time() - began

    def _begin(self, *, read_only: bool) -> tuple[FdbTransaction, Any]:
        """Return a new transaction, and the future of the metadata version that it sees."""
        self._counters.transactions += 1
        if self._loop is not None and self._file.is_due(self._loop.time()):
            self._run_in_background(self._compare_file())
        native = self._database.create_transaction()
        self._choose_options(native)
        # It comes with the read version, without a request to a storage server.
        metadata = native.snapshot.get(METADATA_VERSION)
        # Requested now, because that is not possible any more when the commit has failed.
        version = None if read_only else native.get_read_version()
        return FdbTransaction(native, self.limits, read_only=read_only, version=version), metadata

    def _choose_options(self, native: Any) -> None:
        if in_background():
            native.options.set_priority_batch()
        if self._settings.fdb_tag:
            native.options.set_tag(self._settings.fdb_tag)

    def _end_run(self, transaction: FdbTransaction, live: bool) -> None:
        """End a run. A `live` run's commit or watches go on."""
        transaction.end()
        for watch in transaction.watches:
            watch.fire(StoreError("the watch was lost: its transaction did not commit"))
        if not live:
            self._network.cancel(transaction.native)

    async def _run(self, function: TransactionFunction[T], transaction: FdbTransaction, attempts: Attempts) -> T:
        """Run the function once, with all its reads."""
        assert self._loop is not None
        began = self._loop.time()
        coroutine: object = function(transaction)
        if not isinstance(coroutine, Coroutine):
            raise no_coroutine(coroutine)
        result: T = await self._drive(coroutine, attempts)
        took = self._loop.time() - began
        if took > self.limits.seconds:
            transaction.broken = ran_too_long(took, self.limits)
        return result

    async def _drive(self, coroutine: Coroutine[Any, Any, T], attempts: Attempts) -> T:
        """Run a coroutine that awaits only futures of the client."""
        assert self._loop is not None
        time = self._loop.time
        try:
            awaited = coroutine.send(None)
            while awaited.__class__ is Until:
                began = time()
                try:
                    await self._bridge.until(awaited.future)
                except BaseException as error:
                    awaited = coroutine.throw(error)
                else:
                    attempts.waited(time() - began)
                    awaited = coroutine.send(None)
        except StopIteration as stop:
            result: T = stop.value
            return result
        raise stray_await(coroutine, awaited)

    # Callbacks of the watches

    async def _values_of(self, keys: list[bytes]) -> list[bytes | None]:
        return await self.read(lambda transaction: transaction.get_many(keys))

    def _watch_lost(self, failure: StoreError) -> None:
        self._counters.watches_lost += 1
        log.debug("watch_lost", store=self.address, error=str(failure))
