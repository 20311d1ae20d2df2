"""The FoundationDB store: transactions run on the loop, their futures completed by callbacks.

The hot path uses no thread: a transaction function is suspended at an unanswered read, and resumed when the client has
the answer. The effects of a call happen at most once: every transaction that writes leaves a mark. If the client does
not know whether a commit happened, the store looks for the mark before it runs the function again (`commit_marks`).

The module has more than 600 lines because the store is one class: each call passes all of its parts, which are
directory, transaction, commit and watches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

import fdb

from jobs_service.errors import DirectoryMoved, StoreError, StoreUnavailable, TransactionConflict, kind_of
from jobs_service.log import EventLog
from jobs_service.settings import Settings
from jobs_service.sources import Sources
from jobs_service.store.base import (
    OFFSET_BYTES,
    STAMP_BYTES,
    Calls,
    CommitTimes,
    Limits,
    Store,
    Transaction,
    TransactionFunction,
    Watch,
    drive,
    in_background,
    no_coroutine,
    not_open,
    open_loop,
    ran_too_long,
    stray_await,
)
from jobs_service.store.commit_marks import HAPPENED, Mark, Marks
from jobs_service.store.fdb.client import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    MOST_RETRIES,
    TRANSACTION_TIMED_OUT,
    Attempts,
    Bridge,
    ClusterCounters,
    Network,
    may_have_committed,
    translated,
)
from jobs_service.store.fdb.diagnosis import (
    CONNECTION_STRING,
    ClusterFile,
    FileWatch,
    Reason,
    default_cluster_file,
    read_cluster_file,
    why_silent,
)
from jobs_service.store.fdb.directory import DIRECTORY, METADATA_VERSION, Location, address_of, is_still_there, look_up
from jobs_service.store.fdb.sweeper import MarkSweeper
from jobs_service.store.fdb.transaction import FdbTransaction, Until
from jobs_service.store.fdb.watches import SLACK, FdbWatches
from jobs_service.uncancelable import outlast, own_task

log = EventLog("jobs_service.store")

T = TypeVar("T")

_MARKS: Final = b"\xfe"
"""Follows the directory's prefix; no tuple begins with it."""

_SILENT: Final = 1.0
"""Seconds without a first answer before the store looks for the reason."""

_LAST_WORDS: Final = 1000
"""Milliseconds that closing waits for the removal of the store's marks."""

_MOST_WATCHES: Final = 1_000_000

_THREADS: Final = 3
"""One for the watches, one for the directory layer, whose calls block, one for finding out why nothing answers."""


class FdbStore(Store):
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
        self.commit_times = CommitTimes()
        self._cluster_file = cluster_file
        self._directory = directory
        self._settings = settings
        self._sources = sources
        self._counters = ClusterCounters()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._database: Any = None
        self._cluster: ClusterFile | None = None
        # Why the cluster is silent, as far as it is known; and whether a search for the reason is under way.
        self._silence: Reason | None = None
        self._explaining = False

        # Set by `open`.
        self._executor: ThreadPoolExecutor
        self._network: Network
        self._bridge: Bridge
        self._file: FileWatch
        self._watches: FdbWatches
        self._calls: Calls
        self._background: set[asyncio.Task[None]]
        self._looking: asyncio.Future[Reason | None] | None
        self._sweeper: MarkSweeper
        # Held by the one call that looks the directory up for all.
        self._finding: asyncio.Lock
        # Where the directory was found; None before the cluster's first answer.
        self._location: Location | None
        self._prefix: bytes | None
        # What the store's user was told.
        self._promised_prefix: bytes | None
        # The marks of this store's commits; None until the directory has been found.
        self._marks: Marks | None

    # Opening and closing

    async def open(self) -> None:
        if self.is_open:
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
        self._promised_prefix = None
        self._location = None
        self._marks = None
        self.is_open = True
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
        if not self.is_open:
            return
        log.debug("store_closed", store=self.address, **self.metrics())
        self.is_open = False
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

    def _is_own_process(self) -> bool:
        try:
            self._network.check()
        except StoreError:
            return False
        return True

    def _usable(self) -> asyncio.AbstractEventLoop:
        if self.is_open:
            self._network.check()
        return open_loop(self.address, self.is_open, self._loop)

    def _run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work without a waiting caller; closing the store waits for it."""
        task = own_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _end_background(self) -> None:
        """Wait for the work in the background, and cancel it after a transaction's time limit."""
        if not self._background:
            return
        await asyncio.wait(set(self._background), timeout=self._settings.transaction_timeout)
        for task in set(self._background):
            task.cancel()
        if self._background:
            await asyncio.wait(set(self._background))

    @property
    def conflicts(self) -> int:
        """Number of commits that failed because other transactions had written keys that they had read."""
        return self._counters.conflicts

    def metrics(self) -> dict[str, int]:
        counts = self._counters.as_dict()
        if self.is_open:
            counts |= {
                "watches": self._watches.number,
                "watches_polled": self._watches.polled,
                "marks": 0 if self._marks is None else self._marks.made,
            }
        return counts

    @property
    def marks(self) -> Marks | None:
        """The marks of this store's commits; None until the directory is found."""
        return self._marks

    # Calls

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
        if not self.is_open or loop is None:
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
        if not self.is_open:
            raise not_open(self.address)
        self._network.check()
        if not isinstance(transaction, fdb.impl.Transaction):
            raise StoreError(
                f"within() needs an fdb.Transaction, not {kind_of(transaction)}; "
                "an fdb.Database is made one by @fdb.transactional"
            )
        return FdbTransaction(transaction, self.limits, blocking=True)

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

    def _attempts(self) -> Attempts:
        return Attempts(MOST_RETRIES, self.pause, self._count_retry)

    def _count_retry(self) -> None:
        self._counters.retries += 1

    async def pause(self, longest: float) -> None:
        """Wait for a random part of so many seconds."""
        await asyncio.sleep(self._sources.uniform(0, longest))

    # One call

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

    def _end_run(self, transaction: FdbTransaction, live: bool) -> None:
        """End a run. A `live` run's commit or watches go on."""
        transaction.end()
        for watch in transaction.watches:
            watch.fire(StoreError("the watch was lost: its transaction did not commit"))
        if not live:
            self._network.cancel(transaction.native)

    # Commits that happen at most once

    async def _commit(
        self, transaction: FdbTransaction, result: T, abandoned: Callable[[T], None] | None
    ) -> StoreError | None:
        """Commit; return None on success, else the failure of a commit whose function may run again.

        Raises:
            StoreError: the commit did not happen and never will; or, if StoreUnavailable, its outcome stays unknown.
        """
        assert self._marks is not None
        mark = self._marks.new()
        self._leave_mark(mark, transaction.native)
        assert self._loop is not None
        began = self._loop.time()
        commit = self._submit(transaction)
        try:
            failure = await self._outcome(transaction, commit, mark)
            if failure is None:
                self.commit_times.add(self._loop.time() - began)
            return failure
        except asyncio.CancelledError:
            # The commit goes on without its caller, who learns of it by `abandoned`.
            self._run_in_background(self._come_late(transaction, commit, mark, result, abandoned))
            raise

    def _leave_mark(self, mark: Mark, native: Any) -> None:
        """Add a mark, and the removal of old ones, to a transaction."""
        # A tombstone under this key conflicts with the commit, which can then not happen any more. The client ignores
        # read conflicts on keys that the transaction has written already, so this comes first.
        native.add_read_conflict_key(mark.key)
        native.set_versionstamped_value(mark.key, bytes(STAMP_BYTES) + HAPPENED + bytes(OFFSET_BYTES))
        for key in mark.removed:
            native.clear(key)

    def _submit(self, transaction: FdbTransaction) -> tuple[Any, Any]:
        """Send a commit, and return the futures of its outcome and its versionstamp."""
        stamp = transaction.native.get_versionstamp()
        return transaction.native.commit(), stamp

    async def _outcome(self, transaction: FdbTransaction, commit: tuple[Any, Any], mark: Mark) -> StoreError | None:
        """Wait for a commit; return None on success, else its failure: then it may be retried."""
        assert self._marks is not None
        committed, stamp = commit
        try:
            await self._bridge.until(committed)
            committed.wait()
        except fdb.FDBError as error:
            failure = translated(error)
            if may_have_committed(error.code):
                return await self._unknown_outcome(transaction, mark, failure)
            self._marks.not_committed(mark)
            if isinstance(failure, TransactionConflict):
                self._counters.conflicts += 1
            if not failure.retryable:
                raise failure from None
            return failure
        try:
            await self._bridge.until(stamp)
            transaction.stamp.value = stamp.value
        except fdb.FDBError as error:
            # The commit has happened. The mark has its versionstamp.
            return await self._unknown_outcome(transaction, mark, translated(error))
        self._counters.commits += 1
        self._marks.committed(mark)
        return None

    async def _unknown_outcome(self, transaction: FdbTransaction, mark: Mark, failure: StoreError) -> StoreError | None:
        """Resolve a commit of unknown outcome: return None if it happened, else its error."""
        assert self._marks is not None
        self._counters.unknown_commits += 1
        try:
            stamp = await self._find_out(mark, transaction.version.wait())
        except StoreError:
            self._marks.not_committed(mark)
            raise
        log.warning("commit_unknown", store=self.address, happened=stamp is not None, error=str(failure))
        if stamp is None:
            self._marks.prevented(mark)
            if not failure.retryable:
                raise failure
            return failure
        self._counters.unknown_commits_happened += 1
        self._counters.commits += 1
        self._marks.committed(mark)
        transaction.stamp.value = stamp
        return None

    async def _find_out(self, mark: Mark, began: int) -> bytes | None:
        """Return the versionstamp of a commit with an unknown outcome; None if it did not happen and never will.

        Args:
            mark: the commit's mark.
            began: the read version of its transaction.

        Raises:
            StoreUnavailable: the outcome stays unknown.
        """
        assert self._marks is not None
        pause = FIRST_PAUSE
        while True:
            native = self._database.create_transaction()
            try:
                version, value = native.get_read_version(), native.get(mark.key)
                await self._bridge.until(value)
                await self._bridge.until(version)
                stamp = self._marks.stamp_of(value.value, began, version.wait())
                if stamp is not None:
                    return stamp
                # A tombstone. Once it is written, a commit that is still under way conflicts with it.
                native.set_versionstamped_value(mark.key, bytes(STAMP_BYTES + OFFSET_BYTES))
                done = native.commit()
                await self._bridge.until(done)
                done.wait()
                return None
            except fdb.FDBError as error:
                failure = translated(error)
                if not failure.retryable and not may_have_committed(error.code):
                    raise StoreUnavailable(
                        f"store {self.address}: nobody can find out whether a commit happened: {failure}; "
                        "the write may have taken effect"
                    ) from None
            finally:
                self._network.cancel(native)
            await self.pause(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _come_late(
        self,
        transaction: FdbTransaction,
        commit: tuple[Any, Any],
        mark: Mark,
        result: T,
        abandoned: Callable[[T], None] | None,
    ) -> None:
        """Wait for a commit whose caller has gone, and call `abandoned` if it happened."""
        try:
            failure = await self._outcome(transaction, commit, mark)
        except StoreError as error:
            failure = error
        if failure is None and abandoned is not None:
            abandoned(result)

    async def _remove_marks(self) -> None:
        """Remove the marks of commits with a known outcome. If that fails, a sweeper removes them later."""
        keys = self._marks.take_settled() if self._marks is not None else []
        if not keys:
            return
        native = self._database.create_transaction()
        try:
            native.options.set_timeout(_LAST_WORDS)
            for key in keys:
                native.clear(key)
            await self._bridge.until(native.commit())
        except fdb.FDBError:
            pass
        finally:
            self._network.cancel(native)

    # The directory

    async def _locate(self) -> bytes:
        """Return the directory's prefix; look it up if it is unknown."""
        if self._prefix is None:
            async with self._finding:
                if self._prefix is None:
                    await self._look_up()
        assert self._prefix is not None
        return self._prefix

    async def _look_up(self) -> None:
        assert self._loop is not None
        native = self._database.create_transaction()
        limit = self._settings.transaction_timeout
        native.options.set_timeout(int(limit * 1000))
        looking = self._loop.run_in_executor(self._executor, look_up, native, self._directory)
        # Retrieve the error, so that asyncio does not complain if nobody waits any more.
        looking.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            if self._location is None:
                await self._explain_silence(looking)
            found = await looking
        except fdb.FDBError as error:
            if error.code == TRANSACTION_TIMED_OUT and self._silence is not None:
                raise StoreUnavailable(
                    f"store {self.address} did not answer within {limit:g} s: {self._silence}; try again later"
                ) from None
            raise translated(error) from None
        except StoreError as error:
            self._network.cancel(native)
            raise type(error)(f"store {self.address}: {error}") from None
        except asyncio.CancelledError:
            self._network.cancel(native)
            raise
        self._silence = None
        self._counters.directory_lookups += 1
        self._location = found
        if found.prefix != self._prefix:
            self._prefix = found.prefix
            self._marks = Marks(found.prefix + _MARKS, self._sources.token)

    async def _check_directory(self, native: Any, metadata: Any, expected: bytes | None) -> None:
        """Check that a transaction sees the directory in the place that the store's user expects.

        Raises:
            DirectoryMoved: the directory is elsewhere now.
        """
        await self._bridge.until(metadata)
        if self._prefix is not None and not self._is_found_at(metadata.value):
            await self._find_again(native, metadata.value)
        if expected is not None and expected != self._prefix:
            raise DirectoryMoved(
                f"store {self.address}: the directory {'/'.join(self._directory)} was moved or removed and there is a "
                "new one; nothing was written"
            )

    def _is_found_at(self, metadata: bytes | None) -> bool:
        return self._location is None or self._location.metadata == metadata

    async def _find_again(self, native: Any, metadata: bytes | None) -> None:
        """Find the directory in the state of a transaction with another metadata version."""
        location = self._location
        assert location is not None
        if await is_still_there(native, location, self._bridge.until):
            # Transactions overlap. The newest state counts: older ones are seldom seen again.
            if (metadata or b"") > (location.metadata or b"") and self._location is location:
                self._location = replace(location, metadata=metadata)
            return
        async with self._finding:
            if not self._is_found_at(metadata):
                await self._look_up()

    # The reason of silence

    async def _explain_silence(self, looking: asyncio.Future[Location]) -> None:
        """Wait for the cluster's first answer; if it is late, find out why.

        Raises:
            StoreUnavailable: it will never come.
        """
        assert self._loop is not None
        await asyncio.wait([looking], timeout=_SILENT)
        if looking.done() or self._cluster is None:
            return
        self._silence = await self._reason(self._cluster)
        if self._silence is not None and self._silence.lasting and not looking.done():
            raise StoreUnavailable(self._silence.text)

    def _explain_later(self) -> None:
        """Find the reason of the silence in the background: the error of the next failing call names it."""
        if self._location is not None and self._cluster is not None and not self._explaining and self.is_open:
            self._explaining = True
            self._run_in_background(self._explain(self._cluster))

    async def _explain(self, cluster: ClusterFile) -> None:
        try:
            self._silence = await self._reason(cluster)
        finally:
            self._explaining = False

    async def _reason(self, cluster: ClusterFile) -> Reason | None:
        """Return the reason of the silence, which takes seconds to find.

        The search outlives a canceled caller, and later callers share it: it may take longer than each of them waits.
        """
        assert self._loop is not None
        if self._looking is None:
            self._looking = self._loop.run_in_executor(self._executor, why_silent, self._database, cluster)
            self._looking.add_done_callback(self._looked)
        return await asyncio.shield(self._looking)

    def _looked(self, looking: asyncio.Future[Reason | None]) -> None:
        self._looking = None
        looking.exception()  # Retrieved, so that asyncio does not complain if nobody waits for it.

    async def _compare_file(self) -> None:
        """Log an error if the cluster file names another cluster than the one in use: the client does not notice it."""
        native = self._database.create_transaction()
        try:
            used = native.get(CONNECTION_STRING)
            await self._bridge.until(used)
            other = self._file.differing(bytes(used.value or b"").decode())
        except fdb.FDBError:
            return
        finally:
            self._network.cancel(native)
        if other is not None:
            log.error(
                "cluster_file_changed",
                store=self.address,
                file=self._file.path,
                names=other.text,
                used=bytes(used.value or b"").decode(),
            )

    # Watches

    async def _arm(self, transaction: FdbTransaction) -> None:
        """Make the watches of a transaction without writes."""
        watches = transaction.watches
        if not watches:
            return
        if self._watches.full:
            baselines = await self._baselines(transaction)
            for watch, baseline in zip(watches, baselines, strict=True):
                watch.baseline = baseline
                self._watches.add_polled(watch)
        else:
            await self._make_watches(transaction.native, watches)
        transaction.watches = []

    async def _make_watches(self, native: Any, watches: Sequence[Watch]) -> None:
        """Make watches in a transaction without writes, and end it."""
        with self._watches.making(len(watches)):
            futures = [native.watch(watch.key) for watch in watches]
            done = native.commit()
            await self._bridge.until(done)
            done.wait()
        for watch, future in zip(watches, futures, strict=True):
            self._watches.add(watch, future)

    async def _baselines(self, transaction: FdbTransaction) -> list[bytes | None]:
        """Return the watched keys' values at the end of a transaction; None also for keys that await a versionstamp."""
        baselines: list[bytes | None] = []
        if not transaction.watches:
            return baselines
        unreadable = transaction.unreadable()
        for watch in transaction.watches:
            if unreadable is not None and watch.key in unreadable:
                baselines.append(None)
                continue
            value = transaction.native.snapshot.get(watch.key)
            await self._bridge.until(value)
            baselines.append(value.value)
        return baselines

    def _watch_in_background(self, transaction: FdbTransaction, baselines: list[bytes | None]) -> None:
        """Make the watches of a committed transaction.

        They cannot be made within it: a watch is a read, so the transaction would conflict with others over it.
        """
        watches, transaction.watches = transaction.watches, []
        if not watches:
            return
        for watch, baseline in zip(watches, baselines, strict=True):
            watch.baseline = transaction.stamped_value(watch.key) if baseline is None else baseline
        self._run_in_background(self._watch_since(watches))

    async def _watch_since(self, watches: list[Watch]) -> None:
        """Fire the watches whose keys have changed since, and make the others; if that fails, fail them all."""
        try:
            await self._try_to_watch(watches)
            return
        except StoreError as error:
            failure = error
        except asyncio.CancelledError:
            failure = StoreError(f"store {self.address} was closed")
        for watch in watches:
            watch.fire(StoreError(f"the watch was lost: {failure}"))

    async def _try_to_watch(self, watches: list[Watch]) -> None:
        attempts = self._attempts()
        while True:
            native = self._database.create_transaction()
            try:
                futures = [native.get(watch.key) for watch in watches]
                for future in futures:
                    await self._bridge.until(future)
                same = [watch for watch, future in zip(watches, futures, strict=True) if watch.baseline == future.value]
                if self._watches.full:
                    for watch in same:
                        self._watches.add_polled(watch)
                else:
                    await self._make_watches(native, same)
                for watch in watches:
                    if watch not in same:
                        watch.fire()
                return
            except fdb.FDBError as error:
                failure = translated(error)
            finally:
                self._network.cancel(native)
            await attempts.again(failure)

    async def _values_of(self, keys: list[bytes]) -> list[bytes | None]:
        return await self.read(lambda transaction: transaction.get_many(keys))

    def _watch_lost(self, failure: StoreError) -> None:
        self._counters.watches_lost += 1
        log.debug("watch_lost", store=self.address, error=str(failure))
