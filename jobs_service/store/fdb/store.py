"""The FoundationDB store: transactions run on the loop, their futures completed by callbacks. Floor: store.

No thread is held on the hot path: a transaction function is suspended at a read that is not there yet, and resumed
when the client says that it is. What a call does happens at most once: every transaction that writes leaves a mark, and
where the client does not know whether a commit happened, the mark is looked for before the function is run again
(`marks`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

import fdb

from jobs_service.errors import (
    OTHER_LOOP,
    DirectoryMoved,
    StoreError,
    StoreUnavailable,
    TransactionConflict,
    kind_of,
    shown,
)
from jobs_service.log import EventLog
from jobs_service.settings import Settings
from jobs_service.sources import Sources
from jobs_service.store.background_priority import in_background
from jobs_service.store.base import (
    STAMP_BYTES,
    Limits,
    Store,
    Transaction,
    TransactionFunction,
    Watch,
    foreign_await,
    no_coroutine,
)
from jobs_service.store.commit_marks import HAPPENED, Mark, Marks
from jobs_service.store.fdb.attempts import FIRST_PAUSE, LONGEST_PAUSE, Attempts
from jobs_service.store.fdb.client import Bridge, Network, translated
from jobs_service.store.fdb.cluster_file import (
    CONNECTION_STRING,
    Cluster,
    FileWatch,
    default_cluster_file,
    read_cluster_file,
)
from jobs_service.store.fdb.counters import Counters
from jobs_service.store.fdb.diagnosis import Reason, why_silent
from jobs_service.store.fdb.directory import (
    DIRECTORY,
    METADATA_VERSION,
    Location,
    address_of,
    is_still_there,
    look_up,
)
from jobs_service.store.fdb.errors import TRANSACTION_TIMED_OUT, may_have_committed
from jobs_service.store.fdb.sweeper import MarkSweeper
from jobs_service.store.fdb.transaction import FdbTransaction, Until
from jobs_service.store.fdb.watches import SLACK, FdbWatches

T = TypeVar("T")

log = EventLog("jobs_service.store")

_MARKS: Final = b"\xfe"
"""Follows the directory's prefix; no tuple begins with it."""
_OFFSET_BYTES: Final = 4
_LAST_WORDS: Final = 1000
"""Milliseconds that closing waits for the removal of its marks."""
_MOST_WATCHES: Final = 1_000_000
# One for the watches, one for the directory layer, whose calls block, one for finding out why nothing answers.
_THREADS: Final = 3
_SILENT: Final = 1.0
"""Seconds without a first answer after which it is looked for the reason."""


class FdbStore(Store):
    """A FoundationDB cluster.

    Args:
        cluster_file: its path; empty for the one that the client library takes by default.
        settings: transaction_timeout, transaction_retries, fdb_library, fdb_max_watches, fdb_watch_poll.
        sources: names of marks, jitter of pauses.
        directory: the path of the directory that has the jobs' keys.
    """

    overlaps = True

    def __init__(
        self, cluster_file: str, *, settings: Settings, sources: Sources, directory: tuple[str, ...] = DIRECTORY
    ) -> None:
        self.address = address_of(cluster_file, directory)
        # Where a versionstamp goes is said in 4 bytes behind the key or value, and the client counts them.
        self.limits = Limits(key=Limits.key - _OFFSET_BYTES, value=Limits.value - _OFFSET_BYTES)
        self._counters = Counters()
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
        """How many commits failed so far because others had written what they had read."""
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
            look=self._look,
            lost=self._watch_lost,
        )
        self._calls = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._behind: set[asyncio.Task[None]] = set()
        self._looking: asyncio.Future[Reason | None] | None = None
        self._finding = asyncio.Lock()
        self._prefix: bytes | None = None
        self._told: bytes | None = None
        self._location: Location | None = None
        self._marks: Marks | None = None
        self._opened = True
        self._sweeper = MarkSweeper(self, self._sources)
        self._sweeper.start()

    def _connect(self) -> Network:
        """Start the client and make the database's handle, which connects when it is used; in a thread."""
        file = self._cluster_file or default_cluster_file()
        # Without a name it is the client who says what is wrong.
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
        ending = asyncio.get_running_loop().create_task(self._end())
        canceled = False
        while not ending.done():
            try:
                await asyncio.shield(ending)
            except asyncio.CancelledError:
                canceled = True
        ending.result()
        if canceled:
            raise asyncio.CancelledError

    async def _end(self) -> None:
        """Let calls end, find out what is left to be found out, and let go of everything."""
        await self._sweeper.stop()
        await self._idle.wait()
        if self._behind:
            await asyncio.wait(set(self._behind), timeout=self._settings.transaction_timeout)
            for task in set(self._behind):
                task.cancel()
            if self._behind:
                await asyncio.wait(set(self._behind))
        await self._watches.close(f"store {self.address} was closed")
        await self._remove_marks()
        # Who looks for a reason just now ends by themselves: the loop must not stand still as long.
        self._executor.shutdown(wait=self._looking is None)
        self._database = None

    async def prefix(self) -> bytes:
        found = await self._call(self._locate())
        self._told = found
        return found

    async def transact(self, function: TransactionFunction[T], *, abandoned: Callable[[T], None] | None = None) -> T:
        attempts = self._attempts()
        work = self._repeat(function, attempts, read_only=False, abandoned=abandoned)
        return await self._call(work, attempts, "a write may still take effect")

    async def transact_after(self, before: asyncio.Future[Any], function: TransactionFunction[T]) -> T:
        attempts = self._attempts()
        work = self._repeat(function, attempts, read_only=False, before=before)
        return await self._call(work, attempts, "a write may still take effect")

    async def read(self, function: TransactionFunction[T]) -> T:
        attempts = self._attempts()
        return await self._call(self._repeat(function, attempts, read_only=True), attempts)

    def adopt(self, transaction: object) -> Transaction:
        self._check_usable()
        # What an object says of its class may be a lie.
        if not issubclass(type(transaction), _native_class()):
            raise StoreError(
                f"within() needs an fdb.Transaction, not {kind_of(transaction)}; "
                "an fdb.Database is made one by @fdb.transactional"
            )
        return FdbTransaction(transaction, self.limits, blocking=True)

    async def pause(self, longest: float) -> None:
        """Wait for a random part of so many seconds."""
        await asyncio.sleep(self._sources.uniform(0, longest))

    # One call

    def _is_own_process(self) -> bool:
        try:
            self._network.check()
        except StoreError:
            return False
        return True

    def _check_usable(self) -> None:
        if not self._opened:
            raise StoreError(f"store {self.address} is not open")
        self._network.check()

    def _attempts(self) -> Attempts:
        return Attempts(self._settings.transaction_retries, self.pause, self._count_retry)

    def _count_retry(self) -> None:
        self._counters.retries += 1

    async def _call(
        self, work: Coroutine[Any, Any, T], attempts: Attempts | None = None, otherwise: str = "try again later"
    ) -> T:
        """Wait for a transaction within its time limit; the error for that says what may be otherwise."""
        try:
            self._check_usable()
            if asyncio.get_running_loop() is not self._loop:
                raise StoreError(f"store {self.address} {OTHER_LOOP}")
        except StoreError:
            work.close()
            raise
        self._enter()
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
            raise StoreUnavailable(
                f"store {self.address} did not answer within {limit:g} s{last}; {otherwise}"
            ) from error
        finally:
            self._leave()

    def _explain_later(self) -> None:
        """Have it looked for the reason why nothing answers; whoever fails next can tell it."""
        if self._location is not None and self._cluster is not None and not self._explaining and self._opened:
            self._explaining = True
            self._do_behind(self._explain(self._cluster))

    async def _explain(self, cluster: Cluster) -> None:
        try:
            self._silence = await self._reason(cluster)
        finally:
            self._explaining = False

    async def _reason(self, cluster: Cluster) -> Reason | None:
        """Return why nothing answers. Whoever asks may go; it is looked for to its end, which takes seconds.

        Others who ask meanwhile get the same answer: the look may take longer than each of them waits.
        """
        assert self._loop is not None
        if self._looking is None:
            self._looking = self._loop.run_in_executor(self._executor, why_silent, self._database, cluster)
            self._looking.add_done_callback(self._looked)
        return await asyncio.shield(self._looking)

    def _looked(self, looking: asyncio.Future[Reason | None]) -> None:
        self._looking = None
        looking.exception()  # Also if nobody waits any more.

    def _enter(self) -> None:
        self._calls += 1
        self._idle.clear()

    def _leave(self) -> None:
        self._calls -= 1
        if not self._calls:
            self._idle.set()

    async def _repeat(
        self,
        function: TransactionFunction[T],
        attempts: Attempts,
        *,
        read_only: bool,
        abandoned: Callable[[T], None] | None = None,
        before: asyncio.Future[Any] | None = None,
    ) -> T:
        """Run the function until it has been read, or committed, which waits until another call has ended."""
        if self._prefix is None and not read_only:
            await self._locate()
        told = self._told
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
                    await self._check_directory(transaction.native, metadata, told)
                    if read_only or not transaction.writes:
                        await self._arm(transaction)
                        live = True
                        return result
                    baselines = await self._baselines(transaction)
                    live = True
                    failure = await self._commit(transaction, result, abandoned)
                    if failure is None:
                        self._watch_behind(transaction, baselines)
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
        """Wait for another call to end, and return how many seconds that took."""
        assert self._loop is not None
        began = self._loop.time()
        await asyncio.shield(before)
        return self._loop.time() - began

    def _begin(self, *, read_only: bool) -> tuple[FdbTransaction, Any]:
        """Return a new transaction, and the future of the metadata version that it sees."""
        self._counters.transactions += 1
        if self._loop is not None and self._file.is_due(self._loop.time()):
            self._do_behind(self._compare_file())
        native = self._database.create_transaction()
        self._choose_options(native)
        # It comes with the read version: no storage server is asked.
        metadata = native.snapshot.get(METADATA_VERSION)
        # Asked for now, because it cannot be asked for any more when the commit has failed.
        version = None if read_only else native.get_read_version()
        return FdbTransaction(native, self.limits, read_only=read_only, version=version), metadata

    def _choose_options(self, native: Any) -> None:
        if in_background():
            native.options.set_priority_batch()
        if self._settings.fdb_tag:
            native.options.set_tag(self._settings.fdb_tag)

    def _end_run(self, transaction: FdbTransaction, live: bool) -> None:
        """End a run; `live` if its commit, or its watches, are to go on."""
        transaction.end()
        for watch in transaction.watches:
            watch.fire(StoreError("the watch was lost: its transaction did not commit"))
        if not live:
            self._network.cancel(transaction.native)

    async def _run(self, function: TransactionFunction[T], transaction: FdbTransaction, attempts: Attempts) -> T:
        """Run the function once, and wait for what it reads."""
        assert self._loop is not None
        began = self._loop.time()
        coroutine: object = function(transaction)
        if not isinstance(coroutine, Coroutine):
            raise no_coroutine(coroutine)
        result: T = await self._drive(coroutine, attempts)
        took = self._loop.time() - began
        if took > self.limits.seconds:
            transaction.broken = transaction.too_long(took)
        return result

    async def _drive(self, coroutine: Coroutine[Any, Any, T], attempts: Attempts) -> T:
        """Run a coroutine that waits for nothing but futures of the client."""
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
        # It may await something else while it unwinds, or fail; what it did first is what must be told.
        with contextlib.suppress(Exception):
            coroutine.close()
        raise foreign_await(shown(awaited, 150) if awaited is not None else "a bare yield, such as asyncio.sleep(0)")

    # Commits

    async def _commit(
        self, transaction: FdbTransaction, result: T, abandoned: Callable[[T], None] | None
    ) -> StoreError | None:
        """Commit; return why that did not happen and the function may be run again, None if it did.

        Raises:
            StoreError: it did not happen, and never will; or, if StoreUnavailable, nobody can find out.
        """
        assert self._marks is not None
        mark = self._marks.new()
        self._leave_mark(mark, transaction.native)
        commit = self._submit(transaction)
        try:
            return await self._outcome(transaction, commit, mark)
        except asyncio.CancelledError:
            # It is under way all the same; whoever called has gone, and hears of it otherwise.
            self._do_behind(self._come_late(transaction, commit, mark, result, abandoned))
            raise

    def _leave_mark(self, mark: Mark, native: Any) -> None:
        """Have a mark written with a transaction, and old ones removed."""
        # Whoever finds out what became of the commit writes here, and it can happen no more. The client ignores such a
        # claim on what the transaction has written already, so it comes first.
        native.add_read_conflict_key(mark.key)
        native.set_versionstamped_value(mark.key, bytes(STAMP_BYTES) + HAPPENED + bytes(_OFFSET_BYTES))
        for key in mark.removed:
            native.clear(key)

    def _submit(self, transaction: FdbTransaction) -> tuple[Any, Any]:
        """Send a commit on its way, and return the futures of its outcome and its versionstamp."""
        stamp = transaction.native.get_versionstamp()
        return transaction.native.commit(), stamp

    async def _outcome(self, transaction: FdbTransaction, commit: tuple[Any, Any], mark: Mark) -> StoreError | None:
        """Return why a commit did not happen and may be tried again, None if it did."""
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
            # It has happened, and the mark tells when.
            return await self._unknown_outcome(transaction, mark, translated(error))
        self._counters.commits += 1
        self._marks.committed(mark)
        return None

    async def _unknown_outcome(self, transaction: FdbTransaction, mark: Mark, failure: StoreError) -> StoreError | None:
        """Return the error of a commit of unknown outcome if it did not happen, None if it did."""
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
        """Return the versionstamp of a commit whose outcome was unknown; None if it did not happen, and never will.

        Args:
            mark: of the commit.
            began: the version that its transaction has read.

        Raises:
            StoreUnavailable: nobody can find out.
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
                # A tombstone: once it is written, a commit that is still under way conflicts with it.
                native.set_versionstamped_value(mark.key, bytes(STAMP_BYTES + _OFFSET_BYTES))
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
        """Find out what became of a commit whose caller has gone, and tell of it if it happened."""
        try:
            failure = await self._outcome(transaction, commit, mark)
        except StoreError as error:
            failure = error
        if failure is None and abandoned is not None:
            abandoned(result)

    def _do_behind(self, work: Coroutine[Any, Any, None]) -> None:
        """Do what no caller waits for; `close` does."""
        assert self._loop is not None
        task = self._loop.create_task(work)
        self._behind.add(task)
        task.add_done_callback(self._behind.discard)

    async def _remove_marks(self) -> None:
        """Remove the marks of commits whose outcome is known. If that fails, they go when they are old."""
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

    @property
    def marks(self) -> Marks | None:
        """The marks of this store's commits; None as long as the directory was not looked for."""
        return self._marks

    # The directory

    async def _locate(self) -> bytes:
        """Return the directory's prefix, looking for it when that is not known."""
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
        # Also if nobody waits any more when it fails.
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

    async def _explain_silence(self, looking: asyncio.Future[Location]) -> None:
        """Wait for a first answer, and look for the reason when it does not come soon.

        Raises:
            StoreUnavailable: it will not come, whatever time passes.
        """
        assert self._loop is not None
        await asyncio.wait([looking], timeout=_SILENT)
        if looking.done() or self._cluster is None:
            return
        self._silence = await self._reason(self._cluster)
        if self._silence is not None and self._silence.lasting and not looking.done():
            raise StoreUnavailable(self._silence.text)

    async def _compare_file(self) -> None:
        """Tell whether the cluster file names another cluster than the one that is used; the client does not."""
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

    async def _check_directory(self, native: Any, metadata: Any, told: bytes | None) -> None:
        """See that the directory is where the caller was told that it is, in the state that a transaction sees."""
        await self._bridge.until(metadata)
        if self._prefix is not None and not self._is_found_at(metadata.value):
            await self._find_again(native, metadata.value)
        if told is not None and told != self._prefix:
            raise DirectoryMoved(
                f"store {self.address}: the directory {'/'.join(self._directory)} was moved or removed and there is a "
                "new one; nothing was written"
            )

    def _is_found_at(self, metadata: bytes | None) -> bool:
        return self._location is None or self._location.metadata == metadata

    async def _find_again(self, native: Any, metadata: bytes | None) -> None:
        """Find the directory in the state that a transaction sees, whose metadata version is another one."""
        location = self._location
        assert location is not None
        if await is_still_there(native, location, self._bridge.until):
            # Of transactions that overlap the newest one counts: the others' states are seldom seen again.
            if (metadata or b"") > (location.metadata or b"") and self._location is location:
                self._location = replace(location, metadata=metadata)
            return
        async with self._finding:
            if not self._is_found_at(metadata):
                await self._look_up()

    # Watches

    async def _arm(self, transaction: FdbTransaction) -> None:
        """Make the watches of a transaction that has written nothing."""
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
        """Watch from the state that a transaction sees, which has written nothing, and end it."""
        with self._watches.making(len(watches)):
            futures = [native.watch(watch.key) for watch in watches]
            done = native.commit()
            await self._bridge.until(done)
            done.wait()
        for watch, future in zip(watches, futures, strict=True):
            self._watches.add(watch, future)

    async def _baselines(self, transaction: FdbTransaction) -> list[bytes | None]:
        """Return what the watched keys hold at the end of a transaction, None also for what gets a versionstamp."""
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

    def _watch_behind(self, transaction: FdbTransaction, baselines: list[bytes | None]) -> None:
        """Make the watches of a transaction that has committed.

        They are not made within it: there, a watch is a read, and the transaction would conflict with others for it.
        """
        watches, transaction.watches = transaction.watches, []
        if not watches:
            return
        for watch, baseline in zip(watches, baselines, strict=True):
            watch.baseline = transaction.stamped_value(watch.key) if baseline is None else baseline
        self._do_behind(self._watch_since(watches))

    async def _watch_since(self, watches: list[Watch]) -> None:
        """Fire those whose keys do not hold their baselines any more, and watch the others; or fail them."""
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

    def _watch_lost(self, failure: StoreError) -> None:
        self._counters.watches_lost += 1
        log.debug("watch_lost", store=self.address, error=str(failure))

    async def _look(self, keys: list[bytes]) -> list[bytes | None]:
        return await self.read(lambda transaction: transaction.get_many(keys))


def _native_class() -> type:
    found: type = fdb.impl.Transaction
    return found
