"""The embedded store: LMDB on disk, shared by all processes of one machine. Floor: store.

One writer thread runs all waiting transaction functions, commits once and only then answers all of them (group
commit); one reader thread serves reads and notices other processes' commits. LMDB's own lock makes that correct across
processes. Nothing of LMDB runs on the loop's thread: a cold page or a busy disk can block for seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, Final, Generic, TypeVar

import fdb.tuple
import lmdb

from jobs_service.errors import StoreError, StoreFull, StoreUnavailable, TransactionTooOld
from jobs_service.settings import Settings
from jobs_service.store.base import (
    STAMP_BYTES,
    SYSTEM_KEYS,
    KeyValue,
    Limits,
    Store,
    TransactionFunction,
    Watch,
    drive,
)
from jobs_service.store.buffer import (
    ADD,
    CLEAR,
    CLEAR_RANGE,
    SET,
    STAMPED_VALUE,
    BaseState,
    BufferedTransaction,
    added,
)

T = TypeVar("T")

FORMAT: Final = 1
"""The version of everything in the file: the layout of keys, records and the store's own keys."""

_FORMAT_KEY: Final = SYSTEM_KEYS + b"/jobs_service/format"
_STAMP_KEY: Final = SYSTEM_KEYS + b"/jobs_service/versionstamp"
_MAX_BATCH: Final = 4000
_MAX_BATCH_BYTES: Final = 16_000_000


class _Request(Generic[T]):
    """One call of transact or read, on its way through a thread."""

    __slots__ = ("abandoned", "claim", "deadline", "function", "future")

    def __init__(
        self,
        function: TransactionFunction[T],
        future: asyncio.Future[T],
        deadline: float,
        abandoned: Callable[[T], None] | None,
    ) -> None:
        self.function = function
        self.future = future
        self.deadline = deadline
        self.abandoned = abandoned
        # Whoever pops it owns the request: the thread that runs it, or the caller that withdraws it.
        self.claim = [True]

    def take(self) -> bool:
        """Claim the request; only one of all who try succeeds."""
        try:
            return self.claim.pop()
        except IndexError:
            return False


class _Answer:
    """What became of one request."""

    __slots__ = ("error", "request", "result", "stamp", "transaction")

    def __init__(self, request: _Request[Any]) -> None:
        self.request = request
        self.result: Any = None
        self.error: BaseException | None = None
        self.transaction: LmdbTransaction | None = None
        self.stamp: bytes | None = None


class _State:
    """What an LMDB transaction sees, as a base state."""

    __slots__ = ("_cursor", "_transaction", "get")

    def __init__(self, transaction: lmdb.Transaction[bytes]) -> None:
        self.get = transaction.get
        self._transaction = transaction
        self._cursor: lmdb.Cursor[bytes] | None = None

    def scan(self, begin: bytes, end: bytes, reverse: bool) -> Iterator[KeyValue]:
        """Yield pairs from begin up to, not including, end. One scan at a time: they share the cursor."""
        cursor = self._cursor
        if cursor is None:
            cursor = self._cursor = self._transaction.cursor()
        if reverse:
            if not (cursor.prev() if cursor.set_range(end) else cursor.last()):
                return
            for pair in cursor.iterprev():
                if pair[0] < begin:
                    return
                yield pair
        else:
            if not (cursor.set_range(begin) if begin else cursor.first()):
                return
            for pair in cursor.iternext():
                if pair[0] >= end:
                    return
                yield pair


class LmdbTransaction(BufferedTransaction):
    """A buffered transaction that takes what a unit of work leaves as a whole: most of what is written here.

    Attributes:
        values, keys: as given to `stamp_all`.
    """

    __slots__ = ("keys", "values")

    def __init__(self, base: BaseState, limits: Limits, *, read_only: bool = False) -> None:
        super().__init__(base, limits, read_only=read_only)
        self.values: Sequence[tuple[bytes, bytes, bytes]] = ()
        self.keys: Sequence[tuple[bytes, bytes, bytes]] = ()

    def stamp_all(
        self, values: Sequence[tuple[bytes, bytes, bytes]], keys: Sequence[tuple[bytes, bytes, bytes]]
    ) -> None:
        key_limit = self.limits.key
        value_limit = self.limits.value - STAMP_BYTES
        size = 0
        for key, before, after in values:
            written = len(before) + len(after)
            size += len(key) + written
            if len(key) > key_limit or written > value_limit:
                self._check(key, before + bytes(STAMP_BYTES) + after)
        key_limit -= STAMP_BYTES
        for before, after, value in keys:
            written = len(before) + len(after)
            size += written + len(value)
            if written > key_limit or len(value) > value_limit:
                self._check(before + bytes(STAMP_BYTES) + after, value)
        self._writable(size + STAMP_BYTES * (len(values) + len(keys)))
        self.values = values
        self.keys = keys

    def discard(self) -> None:
        super().discard()
        self.values = self.keys = ()

    @property
    def writes(self) -> bool:
        """Whether there is anything to commit."""
        return bool(self.log or self.values or self.keys)


class _Deadlines:
    """Fails the requests that no thread has answered in time: one timer, whatever their number."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, what: str) -> None:
        self._loop = loop
        self._seconds = seconds
        self._what = what
        self._waiting: deque[_Request[Any]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def watch_over(self, request: _Request[Any]) -> None:
        """Fail the request when its deadline passes."""
        self._waiting.append(request)
        if self._timer is None:
            self._timer = self._loop.call_at(request.deadline, self._expire)

    def forget_answered(self) -> None:
        """Drop the answered requests at the front."""
        waiting = self._waiting
        while waiting and waiting[0].future.done():
            waiting.popleft()

    def stop(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        self.forget_answered()
        while self._waiting and self._waiting[0].deadline <= now:
            request = self._waiting.popleft()
            if request.future.done():
                continue
            begun = "" if request.take() else "; it had begun and may still take effect"
            request.future.set_exception(
                StoreUnavailable(
                    f"{self._what} did not answer within {self._seconds:g} s{begun}. Another process may hold its "
                    "write lock, or the disk is slow; try again later"
                )
            )
        self.forget_answered()
        if self._waiting:
            self._timer = self._loop.call_at(self._waiting[0].deadline, self._expire)


class _Watches:
    """The watches that are alive, by key; shared by both threads and the loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # key -> watch -> the LMDB transaction whose state its baseline is from
        self._by_key: dict[bytes, dict[Watch, int]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_key)

    def register(self, watches: list[Watch], number: int) -> None:
        """Keep the watches, whose baselines are from the state of this LMDB transaction, until they fire."""
        with self._lock:
            for watch in watches:
                self._by_key.setdefault(watch.key, {})[watch] = number

    def forget(self, watch: Watch) -> None:
        """Drop a watch; it need not be there."""
        with self._lock:
            self._drop(watch)

    def changed(
        self, written: dict[bytes, bytes | None], cleared: list[tuple[bytes, bytes]], number: int
    ) -> list[Watch]:
        """Take out and return the watches whose keys this commit has given another value."""
        if not self._by_key:
            return []
        with self._lock:
            values = {key: written[key] for key in self._by_key.keys() & written.keys()}
            for begin, end in cleared:
                values.update((key, None) for key in self._by_key if begin <= key < end and key not in written)
            return self._take(values, number)

    def changed_in(self, state: _State, number: int, keys: list[bytes] | None = None) -> list[Watch]:
        """Take out and return the watches (on these keys, or all) whose keys have another value in this state."""
        with self._lock:
            return self._take({key: state.get(key) for key in (keys or self._by_key) if key in self._by_key}, number)

    def take_all(self) -> list[Watch]:
        """Take out and return all watches."""
        with self._lock:
            watches = [watch for group in self._by_key.values() for watch in group]
            self._by_key.clear()
            return watches

    def _take(self, values: dict[bytes, bytes | None], number: int) -> list[Watch]:
        # A watch that is younger than the state knows better: it is not to fire for its own transaction's writes.
        fired = [
            watch
            for key, value in values.items()
            for watch, made in self._by_key[key].items()
            if watch.baseline != value and made <= number
        ]
        for watch in fired:
            self._drop(watch)
        return fired

    def _drop(self, watch: Watch) -> None:
        group = self._by_key.get(watch.key)
        if group is not None:
            group.pop(watch, None)
            if not group:
                del self._by_key[watch.key]


class LmdbStore(Store):
    """The embedded store.

    Args:
        path: a directory; made when missing.
        settings: durable, lmdb_map_size, watch_poll, transaction_timeout.
    """

    def __init__(self, path: str | os.PathLike[str], *, settings: Settings) -> None:
        self.path = Path(path)
        self.address = f"lmdb:{self.path}"
        self.limits = Limits(key=511)
        self._settings = settings
        self._environment: lmdb.Environment | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0
        self._writes: SimpleQueue[_Request[Any] | None] = SimpleQueue()
        self._reads: SimpleQueue[_Request[Any] | Callable[[], None] | None] = SimpleQueue()
        self._watches = _Watches()
        self._own_commits: deque[int] = deque()
        self._seen_commit = 0
        self._copying: set[asyncio.Future[int]] = set()
        self._opened = False

    @property
    def is_open(self) -> bool:
        return self._opened

    async def open(self) -> None:
        if self._opened:
            raise StoreError(f"store {self.address} is open already")
        self._loop = loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        seconds = self._settings.transaction_timeout
        self._write_deadlines = _Deadlines(loop, seconds, f"store {self.address}")
        self._read_deadlines = _Deadlines(loop, seconds, f"store {self.address}")
        self._ended: asyncio.Future[None] = loop.create_future()
        # New ones, because an opening that failed or a closing that was cut short leaves something in the old ones.
        self._writes = SimpleQueue()
        self._reads = SimpleQueue()
        opened: asyncio.Future[None] = loop.create_future()
        # Daemons, because a thread that waits for another process's write lock cannot be interrupted.
        self._writer = threading.Thread(target=self._run_writer, args=(opened,), name="lmdb-writer", daemon=True)
        self._reader = threading.Thread(target=self._run_reader, name="lmdb-reader", daemon=True)
        self._writer.start()
        try:
            async with asyncio.timeout(seconds):
                await asyncio.shield(opened)
        except BaseException as error:
            await self._abort_opening(opened)
            if isinstance(error, TimeoutError):
                raise StoreUnavailable(
                    f"store {self.address} could not be opened within {seconds:g} s: another process holds its "
                    "write lock"
                ) from None
            raise
        self._reader.start()
        self._opened = True

    async def _abort_opening(self, opened: asyncio.Future[None]) -> None:
        """Let the writer end, also when the caller is canceled again; it cannot be interrupted while it opens."""
        self._writes.put(None)
        await _wait_though_canceled([opened], self._settings.transaction_timeout)
        if opened.done():
            opened.exception()
            self._writer.join()

    async def close(self) -> None:
        if not self._opened:
            return
        self._opened = False
        seconds = self._settings.transaction_timeout
        if os.getpid() != self._pid:
            return
        canceled = await _wait_though_canceled(self._copying, seconds)
        self._reads.put(None)
        self._writes.put(None)
        canceled |= await _wait_though_canceled([self._ended], seconds)
        if self._ended.done():
            self._writer.join()
        self._write_deadlines.stop()
        self._read_deadlines.stop()
        for watch in self._watches.take_all():
            watch.fire(StoreError(f"store {self.address} was closed"))
        if canceled:
            raise asyncio.CancelledError

    async def prefix(self) -> bytes:
        packed: bytes = fdb.tuple.pack(("jobs_service",))
        return packed

    async def transact(self, function: TransactionFunction[T], *, abandoned: Callable[[T], None] | None = None) -> T:
        loop = self._usable()
        request = _Request(function, loop.create_future(), loop.time() + self._settings.transaction_timeout, abandoned)
        self._write_deadlines.watch_over(request)
        self._writes.put(request)
        try:
            result: T = await request.future
            return result
        except asyncio.CancelledError:
            request.take()
            raise

    async def read(self, function: TransactionFunction[T]) -> T:
        loop = self._usable()
        request = _Request(function, loop.create_future(), loop.time() + self._settings.transaction_timeout, None)
        self._read_deadlines.watch_over(request)
        self._reads.put(request)
        try:
            result: T = await request.future
            return result
        except asyncio.CancelledError:
            request.take()
            raise

    async def backup(self, path: str) -> int:
        loop = self._usable()
        environment = self._environment
        assert environment is not None
        copying = loop.run_in_executor(None, _copy, environment, Path(path))
        self._copying.add(copying)
        copying.add_done_callback(self._copying.discard)
        return await asyncio.shield(copying)

    def _usable(self) -> asyncio.AbstractEventLoop:
        if not self._opened or self._loop is None:
            raise StoreError(f"store {self.address} is not open")
        if os.getpid() != self._pid:
            raise StoreError(
                f"store {self.address} was opened in process {self._pid}, before a fork, and is of no use in the "
                "child: open it after forking, or start processes anew (multiprocessing: spawn)"
            )
        # Also what keeps a transaction function from calling transact(): its thread has no loop.
        if asyncio.get_running_loop() is not self._loop:
            raise StoreError(f"store {self.address} was opened on another event loop; use it there, or open one here")
        return self._loop

    # The writer thread

    def _run_writer(self, opened: asyncio.Future[None]) -> None:
        try:
            self._environment = environment = _open_environment(self.path, self._settings)
        except StoreError as error:
            self._tell(_fail, opened, error)
            return
        except BaseException as error:
            self._tell(_fail, opened, StoreError(f"store {self.address} cannot be opened: {error}"))
            return
        self._tell(_succeed, opened)
        writes = self._writes
        while (request := writes.get()) is not None:
            batch = deque([request])
            try:
                while len(batch) < _MAX_BATCH:
                    following = writes.get_nowait()
                    if following is None:
                        writes.put(None)
                        break
                    batch.append(following)
            except Empty:
                pass
            self._write(environment, batch)
        # The environment is the writer's: it is closed when no reader can be in it any more.
        if self._reader.ident is not None:
            self._reader.join()
        environment.close()
        self._tell(_succeed, self._ended)

    def _write(self, environment: lmdb.Environment, batch: deque[_Request[Any]]) -> None:
        """Run a batch of transaction functions, as many as fit in one LMDB transaction at a time; commit and answer."""
        while batch:
            answers: list[_Answer] = []
            try:
                fired = self._commit(environment, batch, answers)
            except Exception as error:
                failure = _store_error(self.address, error)
                if answers:
                    self._retry_alone(environment, answers, failure)
                else:
                    self._tell(self._answer, self._write_deadlines, _failed(batch, failure), [])
                    return
            else:
                self._tell(self._answer, self._write_deadlines, answers, fired)

    def _commit(
        self, environment: lmdb.Environment, batch: deque[_Request[Any]], answers: list[_Answer]
    ) -> list[Watch]:
        """Run requests from the front of the batch in one LMDB transaction, commit it, and return whom to wake."""
        transaction = environment.begin(write=True)
        watched: list[Watch] = []
        try:
            state = _State(transaction)
            number = transaction.id()
            version = int.from_bytes(transaction.get(_STAMP_KEY) or b"", "big") + 1
            stamp_head = version.to_bytes(8, "big")
            written: dict[bytes, bytes | None] = {}
            cleared: list[tuple[bytes, bytes]] = []
            place = size = 0
            while batch and size < _MAX_BATCH_BYTES:
                request = batch.popleft()
                if not request.take():
                    continue
                answer = _Answer(request)
                answers.append(answer)
                self._run(answer, LmdbTransaction(state, self.limits))
                own = answer.transaction
                if own is None:
                    continue
                if own.watches:
                    own.settle_watches()
                    watched += own.watches
                if own.writes:
                    answer.stamp = stamp = stamp_head + place.to_bytes(2, "big")
                    place += 1
                    size += own.size
                    _apply(transaction, own, stamp, written, cleared)
            if watched:
                self._watches.register(watched, number if place else number - 1)
            if place:
                transaction.put(_STAMP_KEY, stamp_head)
                transaction.commit()
                self._own_commits.append(number)
            else:
                transaction.abort()
        except BaseException:
            transaction.abort()
            for watch in watched:
                self._watches.forget(watch)
            self._tell(_lose, watched)
            raise
        finally:
            for answer in answers:
                if answer.transaction is not None:
                    answer.transaction.end()
        if watched:
            self._reads.put(_look)
        for answer in answers:
            if answer.stamp is not None and answer.transaction is not None:
                answer.transaction.stamp.value = answer.stamp
        return self._watches.changed(written, cleared, number)

    def _run(self, answer: _Answer, own: LmdbTransaction) -> None:
        """Run one transaction function and note its result or its error."""
        began = monotonic()
        try:
            answer.result = drive(answer.request.function(own))
            took = monotonic() - began
            if took > self.limits.seconds:
                raise TransactionTooOld(
                    f"transaction_too_old (1007): a transaction function ran for {took:.1f} s; "
                    f"the limit is {self.limits.seconds:g} s"
                )
        except BaseException as error:
            answer.error = error
            own.end()
            if own.watches:
                self._tell(_lose, own.watches)
        else:
            answer.transaction = own

    def _retry_alone(self, environment: lmdb.Environment, answers: list[_Answer], error: StoreError) -> None:
        """After a failed commit: give each request a commit of its own, so that only the guilty one fails."""
        for answer in answers:
            alone: list[_Answer] = []
            fired: list[Watch] = []
            if len(answers) > 1:
                answer.request.claim.append(True)
                try:
                    fired = self._commit(environment, deque([answer.request]), alone)
                except Exception as own_error:
                    alone = _failed([answer.request], _store_error(self.address, own_error))
            else:
                alone = _failed([answer.request], error)
            self._tell(self._answer, self._write_deadlines, alone, fired)

    # The reader thread

    def _run_reader(self) -> None:
        environment = self._environment
        assert environment is not None
        reads = self._reads
        poll = self._settings.watch_poll
        stopping = False
        while not stopping:
            batch: list[_Request[Any]] = []
            try:
                item = reads.get(timeout=poll if self._watches else None)
                while True:
                    if item is None:
                        stopping = True
                    elif isinstance(item, _Request):
                        batch.append(item)
                    item = reads.get_nowait()
            except Empty:
                pass
            try:
                self._read(environment, batch)
            except Exception as error:
                failed = _failed(batch, _store_error(self.address, error))
                self._tell(self._answer, self._read_deadlines, failed, [])

    def _read(self, environment: lmdb.Environment, batch: list[_Request[Any]]) -> None:
        """Look for other processes' commits, run a batch of reads in one state, and answer."""
        transaction = environment.begin()
        try:
            state = _State(transaction)
            number = transaction.id()
            fired = self._changed_elsewhere(state, number)
            answers = []
            watched: list[Watch] = []
            for request in batch:
                if not request.take():
                    continue
                answer = _Answer(request)
                answers.append(answer)
                self._run(answer, LmdbTransaction(state, self.limits, read_only=True))
                own = answer.transaction
                if own is not None and own.watches:
                    own.settle_watches()
                    watched += own.watches
                if own is not None:
                    own.end()
            self._watches.register(watched, number)
        finally:
            transaction.abort()
        if watched:
            fired += self._changed_since(environment, number, watched)
        if answers or fired:
            self._tell(self._answer, self._read_deadlines, answers, fired)

    def _changed_elsewhere(self, state: _State, number: int) -> list[Watch]:
        """Return the watches to wake if another process has committed since the last look."""
        seen = self._seen_commit
        if number == seen:
            return []
        self._seen_commit = number
        own = 0
        while self._own_commits and self._own_commits[0] <= number:
            own += self._own_commits.popleft() > seen
        # This process's own commits woke their watches directly. One that is not noted yet counts as foreign:
        # that look is for nothing, and harmless.
        return self._watches.changed_in(state, number) if number - seen > own and self._watches else []

    def _changed_since(self, environment: lmdb.Environment, number: int, watched: list[Watch]) -> list[Watch]:
        """Return those of the new watches that a commit overtook before they were registered."""
        transaction = environment.begin()
        try:
            newer = transaction.id()
            if newer == number:
                return []
            return self._watches.changed_in(_State(transaction), newer, [watch.key for watch in watched])
        finally:
            transaction.abort()

    # Back on the loop

    def _tell(self, callback: Callable[..., object], *args: Any) -> None:
        assert self._loop is not None
        # A closed loop raises: nobody is left to be told.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *args)

    def _answer(self, deadlines: _Deadlines, answers: list[_Answer], fired: list[Watch]) -> None:
        for answer in answers:
            request = answer.request
            future = request.future
            transaction = answer.transaction
            if transaction is not None:
                for watch in transaction.watches:
                    watch.attach(self._watches.forget)
            if future.done():
                if answer.error is None and request.abandoned is not None and self._loop is not None:
                    # By itself: if it fails, the others get their answers all the same.
                    self._loop.call_soon(request.abandoned, answer.result)
            elif answer.error is None:
                future.set_result(answer.result)
            else:
                future.set_exception(answer.error)
        deadlines.forget_answered()
        for watch in fired:
            watch.fire()


def _failed(requests: Iterable[_Request[Any]], error: StoreError) -> list[_Answer]:
    """Return the answers that fail these requests, each with an error of its own."""
    answers = []
    for request in requests:
        request.take()
        answer = _Answer(request)
        answer.error = type(error)(str(error))
        answers.append(answer)
    return answers


def _look() -> None:
    """Wake the reader thread, so that it begins to look for other processes' commits."""


def _lose(watches: list[Watch]) -> None:
    for watch in watches:
        watch.fire(StoreError("the watch was lost: its transaction did not commit"))


def _succeed(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _fail(future: asyncio.Future[None], error: StoreError) -> None:
    if not future.done():
        future.set_exception(error)


async def _wait_though_canceled(futures: Iterable[asyncio.Future[Any]], seconds: float) -> bool:
    """Wait until all are done, but not for longer than so many seconds; return whether the caller was canceled."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    canceled = False
    while (left := [future for future in futures if not future.done()]) and loop.time() < deadline:
        try:
            await asyncio.wait(left, timeout=deadline - loop.time())
        except asyncio.CancelledError:
            canceled = True
    return canceled


def _apply(
    transaction: lmdb.Transaction[bytes],
    own: LmdbTransaction,
    stamp: bytes,
    written: dict[bytes, bytes | None],
    cleared: list[tuple[bytes, bytes]],
) -> None:
    """Write one transaction's log into the LMDB transaction, and note what each key holds now."""
    put = transaction.put
    for operation, key, argument, last in own.log:
        if operation == SET:
            value = argument
        elif operation == STAMPED_VALUE:
            value = argument + stamp + last
        elif operation == CLEAR:
            transaction.delete(key)
            written[key] = None
            continue
        elif operation == ADD:
            value = added(transaction.get(key), argument)
        elif operation == CLEAR_RANGE:
            _clear_range(transaction, key, argument, written)
            cleared.append((key, argument))
            continue
        else:
            key = key + stamp + argument
            value = last
        put(key, value)
        written[key] = value
    if own.values or own.keys:
        pairs = [(key, before + stamp + after) for key, before, after in own.values]
        pairs += [(before + stamp + after, value) for before, after, value in own.keys]
        with transaction.cursor() as cursor:
            cursor.putmulti(pairs)
        written.update(pairs)
    for watch in own.watches:
        if watch.key in written:
            watch.baseline = written[watch.key]


def _clear_range(
    transaction: lmdb.Transaction[bytes], begin: bytes, end: bytes, written: dict[bytes, bytes | None]
) -> None:
    with transaction.cursor() as cursor:
        found = cursor.set_range(begin) if begin else cursor.first()
        while found and cursor.key() < end:
            written[cursor.key()] = None
            found = cursor.delete()
            # Deleting moves the cursor to the next key, or past the last one.
            found = found and bool(cursor.key())


def _open_environment(path: Path, settings: Settings) -> lmdb.Environment:
    """Open or make the LMDB environment, and check or write its format version."""
    if path.is_file():
        raise StoreError(f"{path} is a file; an embedded store is a directory")
    try:
        path.mkdir(parents=True, exist_ok=True)
        environment = lmdb.open(
            str(path),
            map_size=settings.lmdb_map_size,
            max_readers=1024,
            max_spare_txns=1,
            metasync=settings.durable,
            meminit=False,
            readahead=False,
        )
    except OSError as error:
        raise StoreError(f"{path} cannot be opened: {error.strerror or error}") from error
    except lmdb.InvalidError as error:
        raise StoreError(f"{path / 'data.mdb'} is no embedded store: {error}") from error
    except lmdb.Error as error:
        if "already open" in str(error):
            raise StoreError(
                f"{path} is open in this process already, or was when it was forked; "
                "give that service's `store` to the second one"
            ) from error
        raise StoreError(f"{path} cannot be opened: {str(error).removeprefix(f'{path}: ')}") from error
    try:
        environment.reader_check()
        _check_format(environment, path)
    except lmdb.Error as error:
        environment.close()
        raise _store_error(f"lmdb:{path}", error) from error
    except BaseException:
        environment.close()
        raise
    return environment


def _check_format(environment: lmdb.Environment, path: Path) -> None:
    with environment.begin() as transaction:
        found = transaction.get(_FORMAT_KEY)
        empty = not transaction.cursor().first()
    if found is None and empty:
        with environment.begin(write=True) as transaction:
            transaction.put(_FORMAT_KEY, b"%d" % FORMAT, overwrite=False)
            found = transaction.get(_FORMAT_KEY)
    if found is None:
        raise StoreError(f"{path} is an LMDB environment, but no store of jobs_service; choose another directory")
    if not found.isdigit() or int(found) > FORMAT:
        raise StoreError(
            f"{path} has format {found.decode('ascii', 'replace')}, made by a newer version of jobs_service; "
            f"this one reads up to format {FORMAT}: upgrade it"
        )


def _store_error(address: str, error: Exception) -> StoreError:
    """Return the store's error for one of LMDB's: the one place where they are mapped."""
    code = getattr(error, "code", 0)
    if isinstance(error, lmdb.MapFullError):
        return StoreFull(
            f"store {address} is full (its map's size): nothing was written; set JOBS_SERVICE_LMDB_MAP_SIZE higher"
        )
    # EIO is what LMDB makes of a write that came out short.
    if isinstance(error, lmdb.DiskError) or code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
        return StoreFull(
            f"store {address}: the disk is full or fails ({error}): nothing was written; make room and try again"
        )
    if isinstance(error, lmdb.MapResizedError):
        return StoreError(
            f"store {address} was grown by a process with a larger map; give all the same JOBS_SERVICE_LMDB_MAP_SIZE"
        )
    return StoreError(f"store {address} failed: {error}")


def _copy(environment: lmdb.Environment, path: Path) -> int:
    """Write a compacted copy to a new file: to a temporary one first, so that a half-written one never has its name."""
    if path.exists():
        raise StoreError(f"{path} exists already; name a new file")
    temporary = path.with_name(path.name + ".part")
    try:
        with open(temporary, "xb") as file:
            try:
                environment.copyfd(file.fileno(), compact=True)
                os.fsync(file.fileno())
                size = os.fstat(file.fileno()).st_size
                os.rename(temporary, path)
            except BaseException:
                temporary.unlink()
                raise
    except FileExistsError as error:
        raise StoreError(f"{temporary} exists already, left by another backup; remove it") from error
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}") from error
    except lmdb.Error as error:
        raise StoreError(f"{path} cannot be written: {error}") from error
    return size
