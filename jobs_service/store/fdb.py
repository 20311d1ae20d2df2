"""The FoundationDB store: transactions run on the loop, their futures completed by callbacks. Floor: store.

No thread is held on the hot path: a transaction function is suspended at a read that is not there yet, and resumed
when the client says that it is. What a call does happens at most once: every transaction that writes leaves a mark, and
where the client does not know whether a commit happened, the mark is looked for before the function is run again.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

import fdb

from jobs_service.errors import (
    CommitUnknown,
    DirectoryMoved,
    StoreError,
    StoreUnavailable,
    TransactionConflict,
    TransactionTooOld,
    kind_of,
    shown,
)
from jobs_service.settings import Settings
from jobs_service.sources import Sources
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
from jobs_service.store.fdb_client import Bridge, Network, translated
from jobs_service.store.fdb_transaction import FdbTransaction, Until
from jobs_service.store.fdb_watches import SLACK, FdbWatches

T = TypeVar("T")

DIRECTORY: Final = ("jobs_service",)
"""Where in the directory layer the jobs' keys are."""

_CLUSTER: Final = re.compile(r"\w+:\w+@[^\s,@]+:\d+(:tls)?(,[^\s,@]+:\d+(:tls)?)*")
_METADATA_VERSION: Final = b"\xff/metadataVersion"
_MARKS: Final = b"\xfe"
"""Follows the directory's prefix; no tuple begins with it."""
_OFFSET_BYTES: Final = 4
_TOKEN_BYTES: Final = 16
_NUMBER_BYTES: Final = 8
_FIRST_PAUSE: Final = 0.002
_LONGEST_PAUSE: Final = 0.5
_VERSIONS_PER_SECOND: Final = 1_000_000
_STALE_MARK: Final = 86_400 * _VERSIONS_PER_SECOND
"""A mark as old as that, by its versionstamp, is of a process that was killed: nobody asks for it any more."""
_MOST_STALE: Final = 10_000
_MOST_WATCHES: Final = 1_000_000
# One for the watches, one for the directory layer, whose calls block.
_THREADS: Final = 2


class _Slot:
    """Where one call at a time has its transactions leave their marks.

    Attributes:
        key: of the mark.
        number: what the present transaction's mark says, behind its versionstamp.
        settled: whether it is known what became of that transaction.
    """

    __slots__ = ("key", "number", "settled")

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.number = 0
        self.settled = True

    def leave(self, transaction: Any) -> None:
        """Have a mark written with the transaction, and nobody else's commit come in between."""
        self.number += 1
        self.settled = False
        # Whoever finds out what became of the commit writes here, and it can happen no more. The client ignores such a
        # claim on what the transaction has written already, so it comes first.
        transaction.add_read_conflict_key(self.key)
        transaction.set_versionstamped_value(
            self.key, bytes(STAMP_BYTES) + self.number.to_bytes(_NUMBER_BYTES, "little") + bytes(_OFFSET_BYTES)
        )

    def stamp(self, value: bytes | None) -> bytes | None:
        """Return the versionstamp of the present transaction if this is its mark."""
        if value is None or int.from_bytes(value[STAMP_BYTES:], "little") != self.number:
            return None
        return value[:STAMP_BYTES]


class FdbStore(Store):
    """A FoundationDB cluster.

    Args:
        cluster_file: its path; empty for the one that the client library takes by default.
        settings: transaction_timeout, transaction_retries, fdb_library, fdb_max_watches, fdb_watch_poll.
        sources: names of marks, jitter of pauses.

    Attributes:
        conflicts: how many commits failed so far because others had written what they had read.
    """

    overlaps = True

    def __init__(self, cluster_file: str, *, settings: Settings, sources: Sources) -> None:
        self.address = f"fdb:{cluster_file}"
        # Where a versionstamp goes is said in 4 bytes behind the key or value, and the client counts them.
        self.limits = Limits(key=Limits.key - _OFFSET_BYTES, value=Limits.value - _OFFSET_BYTES)
        self.conflicts = 0
        self._cluster_file = cluster_file
        self._settings = settings
        self._sources = sources
        self._opened = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._database: Any = None

    @property
    def is_open(self) -> bool:
        return self._opened

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
        )
        self._calls = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._behind: set[asyncio.Task[None]] = set()
        self._finding = asyncio.Lock()
        self._prefix: bytes | None = None
        self._told: bytes | None = None
        self._metadata: bytes | None = None
        self._token = self._sources.token(_TOKEN_BYTES)
        self._slots: list[_Slot] = []
        self._made_slots = 0
        self._opened = True

    def _connect(self) -> Network:
        """Start the client and make the database's handle, which connects when it is used; in a thread."""
        if self._cluster_file:
            _check_cluster_file(self._cluster_file)
        network = Network.started(self._settings.fdb_library)
        try:
            self._database = fdb.open(self._cluster_file or None)
            self._database.options.set_max_watches(min(self._settings.fdb_max_watches + SLACK, _MOST_WATCHES))
        except fdb.FDBError as error:
            raise StoreError(f"store {self.address} cannot be opened: {translated(error)}") from None
        return network

    async def close(self) -> None:
        if not self._opened:
            return
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
        await self._idle.wait()
        if self._behind:
            await asyncio.wait(set(self._behind), timeout=self._settings.transaction_timeout)
            for task in set(self._behind):
                task.cancel()
            if self._behind:
                await asyncio.wait(set(self._behind))
        await self._watches.close(f"store {self.address} was closed")
        await self._clear_marks()
        self._executor.shutdown()
        self._database = None

    async def prefix(self) -> bytes:
        found = await self._call(self._locate())
        self._told = found
        return found

    async def transact(self, function: TransactionFunction[T], *, abandoned: Callable[[T], None] | None = None) -> T:
        attempts = _Attempts(self)
        work = self._repeat(function, attempts, read_only=False, abandoned=abandoned)
        return await self._call(work, attempts, "a write may still take effect")

    async def transact_after(self, before: asyncio.Future[Any], function: TransactionFunction[T]) -> T:
        attempts = _Attempts(self)
        work = self._repeat(function, attempts, read_only=False, before=before)
        return await self._call(work, attempts, "a write may still take effect")

    async def read(self, function: TransactionFunction[T]) -> T:
        attempts = _Attempts(self)
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

    @property
    def retries(self) -> int:
        """How often a function is run again at most."""
        return self._settings.transaction_retries

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

    async def _call(
        self, work: Coroutine[Any, Any, T], attempts: _Attempts | None = None, otherwise: str = "try again later"
    ) -> T:
        """Wait for a transaction within its time limit; the error for that says what may be otherwise."""
        try:
            self._check_usable()
            if asyncio.get_running_loop() is not self._loop:
                raise StoreError(
                    f"store {self.address} was opened on another event loop; use it there, or open one here"
                )
        except StoreError:
            work.close()
            raise
        self._enter()
        limit = self._settings.transaction_timeout
        try:
            async with asyncio.timeout(limit) as timer:
                return await work
        except TimeoutError as error:
            if not timer.expired():
                raise  # The function's own.
            last = f": {attempts.failure}" if attempts is not None and attempts.failure is not None else ""
            raise StoreUnavailable(
                f"store {self.address} did not answer within {limit:g} s{last}; {otherwise}"
            ) from error
        finally:
            self._leave()

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
        attempts: _Attempts,
        *,
        read_only: bool,
        abandoned: Callable[[T], None] | None = None,
        before: asyncio.Future[Any] | None = None,
    ) -> T:
        """Run the function until it has been read, or committed, which waits until another call has ended."""
        if self._prefix is None and not read_only:
            await self._locate()
        told = self._told
        # Taken before there is a read version, so that whoever had the slot last is no conflict.
        slot = None if read_only else self._slots.pop() if self._slots else self._new_slot()
        try:
            return await self._repeat_with(slot, function, attempts, told, abandoned, before)
        finally:
            if slot is not None:
                self._give_back(slot)

    async def _repeat_with(
        self,
        slot: _Slot | None,
        function: TransactionFunction[T],
        attempts: _Attempts,
        told: bytes | None,
        abandoned: Callable[[T], None] | None,
        before: asyncio.Future[Any] | None,
    ) -> T:
        while True:
            transaction, metadata = self._begin(read_only=slot is None)
            live = False
            try:
                result = await self._run(function, transaction)
                if before is not None:
                    await asyncio.shield(before)
                failure = transaction.broken
                if failure is None:
                    await self._check_directory(metadata, told)
                    if slot is None or not transaction.writes:
                        await self._arm(transaction)
                        live = True
                        return result
                    baselines = await self._baselines(transaction)
                    live = True
                    failure = await self._commit(transaction, slot, result, abandoned)
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
            await attempts.again(failure)

    def _begin(self, *, read_only: bool) -> tuple[FdbTransaction, Any]:
        """Return a new transaction, and the future of the metadata version that it sees."""
        native = self._database.create_transaction()
        # It comes with the read version: no storage server is asked.
        metadata = native.snapshot.get(_METADATA_VERSION)
        return FdbTransaction(native, self.limits, read_only=read_only), metadata

    def _end_run(self, transaction: FdbTransaction, live: bool) -> None:
        """End a run; `live` if its commit, or its watches, are to go on."""
        transaction.end()
        for watch in transaction.watches:
            watch.fire(StoreError("the watch was lost: its transaction did not commit"))
        if not live:
            transaction.native.cancel()

    async def _run(self, function: TransactionFunction[T], transaction: FdbTransaction) -> T:
        """Run the function once, and wait for what it reads."""
        assert self._loop is not None
        began = self._loop.time()
        coroutine: object = function(transaction)
        if not isinstance(coroutine, Coroutine):
            raise no_coroutine(coroutine)
        result: T = await self._drive(coroutine)
        took = self._loop.time() - began
        if took > self.limits.seconds:
            transaction.broken = transaction.too_long(took)
        return result

    async def _drive(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine that waits for nothing but futures of the client."""
        try:
            awaited = coroutine.send(None)
            while awaited.__class__ is Until:
                try:
                    await self._bridge.until(awaited.future)
                except BaseException as error:
                    awaited = coroutine.throw(error)
                else:
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
        self, transaction: FdbTransaction, slot: _Slot, result: T, abandoned: Callable[[T], None] | None
    ) -> StoreError | None:
        """Commit; return why that did not happen and the function may be run again, None if it did.

        Raises:
            StoreError: it did not happen, and never will.
        """
        slot.leave(transaction.native)
        commit = self._submit(transaction)
        try:
            return await self._outcome(transaction, commit, slot)
        except asyncio.CancelledError:
            # It is under way all the same; whoever called has gone, and hears of it otherwise.
            self._do_behind(self._come_late(transaction, commit, slot, result, abandoned))
            raise

    def _submit(self, transaction: FdbTransaction) -> tuple[Any, Any]:
        """Send a commit on its way, and return the futures of its outcome and its versionstamp."""
        stamp = transaction.native.get_versionstamp()
        return transaction.native.commit(), stamp

    async def _outcome(self, transaction: FdbTransaction, commit: tuple[Any, Any], slot: _Slot) -> StoreError | None:
        """Return why a commit did not happen and may be tried again, None if it did."""
        committed, stamp = commit
        try:
            await self._bridge.until(committed)
            committed.wait()
            await self._bridge.until(stamp)
            transaction.stamp.value = stamp.value
        except fdb.FDBError as error:
            failure = translated(error)
            if isinstance(failure, CommitUnknown):
                transaction.stamp.value = await self._find_out(slot)
                slot.settled = True
                return failure if transaction.stamp.value is None else None
            slot.settled = True
            if isinstance(failure, TransactionConflict):
                self.conflicts += 1
            if not failure.retryable:
                raise failure from None
            return failure
        slot.settled = True
        return None

    async def _find_out(self, slot: _Slot) -> bytes | None:
        """Return the versionstamp of a commit whose outcome was unknown; None if it did not happen, and never will."""
        pause = _FIRST_PAUSE
        while True:
            native = self._database.create_transaction()
            try:
                mark = native.get(slot.key)
                await self._bridge.until(mark)
                stamp = slot.stamp(mark.value)
                if stamp is not None:
                    return stamp
                # Once this is written, a commit that is still under way conflicts with it.
                native.set(slot.key, b"")
                done = native.commit()
                await self._bridge.until(done)
                done.wait()
                return None
            except fdb.FDBError as error:
                if not fdb.predicates.is_retryable(error):
                    raise translated(error) from None
            finally:
                native.cancel()
            await self.pause(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _come_late(
        self,
        transaction: FdbTransaction,
        commit: tuple[Any, Any],
        slot: _Slot,
        result: T,
        abandoned: Callable[[T], None] | None,
    ) -> None:
        """Find out what became of a commit whose caller has gone, and tell of it if it happened."""
        try:
            failure = await self._outcome(transaction, commit, slot)
        except StoreError as error:
            failure = error
        self._give_back(slot)
        if failure is None and abandoned is not None:
            abandoned(result)

    def _new_slot(self) -> _Slot:
        assert self._prefix is not None
        self._made_slots += 1
        return _Slot(self._prefix + _MARKS + self._token + self._made_slots.to_bytes(4, "big"))

    def _give_back(self, slot: _Slot) -> None:
        """Let others have a slot, unless its mark may still be asked for, or is not in the directory any more."""
        assert self._prefix is not None
        if slot.settled and slot.key.startswith(self._prefix + _MARKS):
            self._slots.append(slot)

    def _do_behind(self, work: Coroutine[Any, Any, None]) -> None:
        """Do what no caller waits for; `close` does."""
        assert self._loop is not None
        task = self._loop.create_task(work)
        self._behind.add(task)
        task.add_done_callback(self._behind.discard)

    async def _clear_marks(self) -> None:
        """Remove the marks of this store, and those that killed processes have left: nobody will ask for them.

        If that fails, another store does it.
        """
        if not self._made_slots or self._prefix is None:
            return
        native = self._database.create_transaction()
        try:
            native.options.set_timeout(1000)
            marks = self._prefix + _MARKS
            native.clear_range(marks + self._token, marks + self._token + b"\xff" * 5)
            version = native.get_read_version()
            found = native.snapshot._get_range(
                fdb.KeySelector.first_greater_or_equal(marks),
                fdb.KeySelector.first_greater_or_equal(marks + b"\xff"),
                _MOST_STALE,
                fdb.StreamingMode.want_all,
                1,
                False,
            )
            await self._bridge.until(version)
            await self._bridge.until(found)
            oldest = (version.wait() - _STALE_MARK).to_bytes(8, "big", signed=True)
            if oldest[0] < 0x80:
                for pair in found.wait()[0]:
                    if pair.value[:8] < oldest:
                        native.clear(pair.key)
            done = native.commit()
            await self._bridge.until(done)
        except fdb.FDBError:
            pass
        finally:
            native.cancel()

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
        native.options.set_timeout(int(self._settings.transaction_timeout * 1000))
        try:
            found, self._metadata = await self._loop.run_in_executor(self._executor, _open_directory, native)
        except fdb.FDBError as error:
            raise translated(error) from None
        except asyncio.CancelledError:
            native.cancel()
            raise
        if found != self._prefix:
            self._prefix = found
            self._slots = []  # Their marks are under the other prefix.

    async def _check_directory(self, metadata: Any, told: bytes | None) -> None:
        """See that the directory is where the caller was told that it is."""
        await self._bridge.until(metadata)
        if self._prefix is not None and metadata.value != self._metadata:
            async with self._finding:
                if metadata.value != self._metadata:
                    await self._look_up()
        if told is not None and told != self._prefix:
            raise DirectoryMoved(
                f"store {self.address}: the directory {'/'.join(DIRECTORY)} was moved or removed and there is a new "
                "one; nothing was written"
            )

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
        """Fire those whose keys do not hold their baselines any more, and watch the others."""
        attempts = _Attempts(self)
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
            except asyncio.CancelledError:
                failure = StoreError(f"store {self.address} was closed")
            finally:
                native.cancel()
            try:
                await attempts.again(failure)
            except StoreError as error:
                for watch in watches:
                    watch.fire(StoreError(f"the watch was lost: {error}"))
                return

    async def _look(self, keys: list[bytes]) -> list[bytes | None]:
        return await self.read(lambda transaction: transaction.get_many(keys))


class _Attempts:
    """The runs of one call's function: how long to pause before the next, and when to give up.

    Attributes:
        failure: what ended the last run; None for the first.
    """

    __slots__ = ("_left", "_pause", "_store", "_too_old", "failure")

    def __init__(self, store: FdbStore) -> None:
        self._store = store
        self._left = store.retries
        self._pause = _FIRST_PAUSE
        self._too_old = False
        self.failure: StoreError | None = None

    async def again(self, failure: StoreError) -> None:
        """Return when the function may be run again.

        Raises:
            StoreError: what ended the last run, if another one is of no use.
        """
        self.failure = failure
        if isinstance(failure, TransactionTooOld):
            # Once may be the cluster's fault, which stood still.
            if self._too_old:
                raise failure
            self._too_old = True
        if not failure.retryable or not self._left:
            raise failure
        self._left -= 1
        await self._store.pause(self._pause)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)


def _check_cluster_file(path: str) -> None:
    """Refuse a file that cannot be one: the client would wait for the cluster that it does not name."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise StoreError(f"store {shown(f'fdb:{path}')}: the cluster file cannot be read: {error.strerror}") from None
    except ValueError:
        lines = []
    said = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
    if len(said) != 1 or not _CLUSTER.fullmatch(said[0]):
        raise StoreError(
            f"store {shown(f'fdb:{path}')}: not a cluster file; one has the line DESCRIPTION:ID@ADDRESS:PORT,..."
        )


def _native_class() -> type:
    found: type = fdb.impl.Transaction
    return found


def _open_directory(native: Any) -> tuple[bytes, bytes | None]:
    """Return the prefix of the directory, made when missing, and the metadata version; blocks."""
    while True:
        try:
            metadata = native.get(_METADATA_VERSION)
            directory = fdb.directory.create_or_open(native, DIRECTORY)
            native.commit().wait()
            prefix: bytes = directory.key()
            return prefix, metadata.value
        except fdb.FDBError as error:
            native.on_error(error).wait()
