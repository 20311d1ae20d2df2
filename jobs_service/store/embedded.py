"""The embedded stores' common part: all of a store but the file format, which an engine has, LMDB or SQLite.

One writer thread runs all waiting transaction functions, commits once and only then answers all of them (group commit).
One reader thread serves reads and notices other processes' commits. The engine's own lock makes that correct across
processes. The engine never runs on the loop's thread, because a cold page or a busy disk can block for seconds.

The module has more than 600 lines because the store is one class, with the calls that its loop passes to its threads:
the loop and both threads share its state, and one place shows what each touches.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, ClassVar, Final, Generic, TypeVar

from jobs_service.errors import StoreDamaged, StoreError, StoreLost, StoreUnavailable, anew
from jobs_service.log import EventLog
from jobs_service.settings import Settings
from jobs_service.sources import Sources, go_on
from jobs_service.store.base import (
    SYSTEM_KEYS,
    CommitTimes,
    Counters,
    Limits,
    Store,
    Transaction,
    TransactionFunction,
    Watch,
    drive,
    not_open,
    open_loop,
    ran_too_long,
)
from jobs_service.store.files import FileUse, StoreRoom
from jobs_service.store.overlay import BaseState, EmbeddedTransaction, EngineState, apply_log
from jobs_service.store.process_locks import ProcessLocks
from jobs_service.uncancelable import outlast

log = EventLog("jobs_service.store")

T = TypeVar("T")

STAMP_KEY: Final = SYSTEM_KEYS + b"/jobs_service/versionstamp"
_MAX_BATCH: Final = 4000
_MAX_BATCH_BYTES: Final = 16_000_000

_QUIET: Final = 1.0
"""Seconds without a commit after which the checks for other processes' commits become rarer."""
_RARER: Final = 3
"""Factor of the pause between these checks then."""
_LOOKS_REST: Final = 10
"""Least wait after looking up all watched keys, as a multiple of the time that it took."""
_LONGEST_REST: Final = 3.0
"""Most seconds of that wait: a look-up also takes very long while the process, or its disk, stands still."""
_CHECK_PERIOD: Final = 1.0
"""Seconds between two checks of the store's file names while there are no requests."""

_SHARE_OF_A_COMMIT: Final = 0.1
"""Share of the time limit for which functions are taken into one commit: the first is not answered before the last."""
_CHUNK: Final = 500
"""Keys that are looked up in one go; the process's other threads run in between."""


# Calls


class ThreadCall(Generic[T]):
    """One request to a thread: a call of transact, transact_in_thread or read.

    Attributes:
        is_answered: whether the thread has sent the answer, which the loop may not have processed yet.
    """

    __slots__ = ("abandoned", "claim", "deadline", "function", "future", "is_answered", "watches")

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
        self.watches: list[Watch] = []
        self.is_answered = False
        # Popping from a list is atomic, so it decides without a lock who owns the request: the thread that runs it, or
        # the caller that withdraws it.
        self.claim = [True]

    def take(self) -> bool:
        """Claim the request; only the first attempt succeeds."""
        try:
            return self.claim.pop()
        except IndexError:
            return False

    def withdraw(self, answered: asyncio.Future[Any]) -> bool:
        """Claim the request so that no thread runs it; return whether the claim was in time.

        Its references are dropped, because it may stay in the queue for hours while another process holds the lock.

        Args:
            answered: a done future, in place of the request's own.
        """
        if not self.take():
            return False
        self.function = _nothing
        self.abandoned = None
        self.future = answered
        return True


async def _nothing(transaction: Any) -> Any:
    """The function of a withdrawn request; it never runs."""


class ThreadAnswer:
    """The result or the error of one request.

    Attributes:
        is_final: whether its error stays, though all others of its batch run again.
    """

    __slots__ = ("error", "is_final", "request", "result", "stamp", "transaction")

    def __init__(self, request: ThreadCall[Any]) -> None:
        self.request = request
        self.result: Any = None
        self.error: BaseException | None = None
        self.transaction: EmbeddedTransaction | None = None
        self.stamp: bytes | None = None
        self.is_final = False


class Deadlines:
    """Fails requests that are not answered in time, with one timer for all of them.

    Args:
        loop: the store's loop.
        seconds: time limit of a request.
        what: name of the store in the error.
        begun: the error's addition for a request that a thread has begun.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, what: str, begun: str = "") -> None:
        self._loop = loop
        self._seconds = seconds
        self._what = what
        self._begun = begun
        self._waiting: deque[ThreadCall[Any]] = deque()
        self._answered = loop.create_future()
        self._answered.cancel()
        self._timer: asyncio.TimerHandle | None = None

    def watch_over(self, request: ThreadCall[Any]) -> None:
        """Fail the request when its deadline passes."""
        self._waiting.append(request)
        if self._timer is None:
            self._timer = self._loop.call_at(request.deadline, self._expire)

    def withdraw(self, request: ThreadCall[Any]) -> None:
        """Withdraw a request whose caller has gone, if no thread has begun it."""
        request.withdraw(self._answered)

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
            future = request.future
            if future.done() or request.is_answered:
                continue
            begun = "" if request.withdraw(self._answered) else self._begun
            future.set_exception(
                StoreUnavailable(
                    f"{self._what} did not answer within {self._seconds:g} s{begun}. Another process may hold its "
                    "write lock, or the disk is slow; try again later"
                )
            )
        self.forget_answered()
        if self._waiting:
            self._timer = self._loop.call_at(self._waiting[0].deadline, self._expire)


def failed(requests: Iterable[ThreadCall[Any]], error: Exception) -> list[ThreadAnswer]:
    """Return answers that fail these requests, each with its own copy of the error."""
    answers = []
    for request in requests:
        request.take()
        answer = ThreadAnswer(request)
        answer.error = type(error)(str(error))
        answers.append(answer)
    return answers


# Watches


class _Several:
    """Stands for the value of a key whose watches expect different values; equal to no value."""


_SEVERAL: Final = _Several()


class Watches:
    """The living watches by key; shared by both threads and the loop.

    Args:
        at: called with names of points where a test may stop the caller's thread.
    """

    def __init__(self, at: Callable[[str], object] = go_on) -> None:
        self._at = at
        self._lock = threading.Lock()
        # key -> watch -> the number of the state that its baseline is from
        self._by_key: dict[bytes, dict[Watch, int]] = {}
        # The value that the watches of each key expect, and the sorted keys, None after they have changed.
        self._expected: dict[bytes, bytes | _Several | None] = {}
        self._order: list[bytes] | None = []

    def __bool__(self) -> bool:
        return bool(self._by_key)

    @property
    def number(self) -> int:
        """Number of living watches."""
        with self._lock:
            return sum(map(len, self._by_key.values()))

    def register(self, watches: list[Watch], number: int) -> None:
        """Keep the watches, with baselines from the state of this number, until they fire."""
        with self._lock:
            for watch in watches:
                key = watch.key
                group = self._by_key.get(key)
                if group is None:
                    group = self._by_key[key] = {}
                    self._expected[key] = watch.baseline
                    self._order = None
                elif self._expected[key] != watch.baseline:
                    self._expected[key] = _SEVERAL
                group[watch] = number

    def forget(self, watch: Watch) -> None:
        """Drop a watch; an unknown one is no error."""
        with self._lock:
            self._drop(watch)

    def changed(self, written: dict[bytes, bytes | None], number: int) -> list[Watch]:
        """Remove and return the watches whose keys have another value after this commit."""
        if not self._by_key:
            return []
        with self._lock:
            return self._take({key: written[key] for key in self._by_key.keys() & written.keys()}, number)

    def changed_in(self, state: BaseState, number: int, keys: list[bytes] | None = None) -> list[Watch]:
        """Remove and return the watches (on these keys, or all) whose keys have another value in this state.

        Args:
            state, number: the state that is looked at, and its number.
            keys: keys of the watches; None for all.
        """
        values = self._unexpected(state) if keys is None else {key: state.get(key) for key in keys}
        self._at("reader: has looked up watched keys")
        with self._lock:
            return self._take({key: value for key, value in values.items() if key in self._by_key}, number)

    def take_all(self) -> list[Watch]:
        """Remove and return all watches."""
        with self._lock:
            watches = [watch for group in self._by_key.values() for watch in group]
            self._by_key.clear()
            self._expected.clear()
            self._order = []
            return watches

    def _unexpected(self, state: BaseState) -> dict[bytes, bytes | None]:
        """Return the watched keys with an unexpected value, and that value.

        Looking up thousands of keys takes milliseconds, so it happens without the lock, which the writer needs.
        """
        with self._lock:
            expected = self._expected.copy()
            order = self._order
        if order is None:
            order = sorted(expected)  # neighboring keys share pages, so they are found faster
            with self._lock:
                if self._expected.keys() == expected.keys():
                    self._order = order
        found: dict[bytes, bytes | None] = {}
        for start in range(0, len(order), _CHUNK):
            keys = order[start : start + _CHUNK]
            values = list(map(state.get, keys))
            wanted = list(map(expected.__getitem__, keys))
            if values != wanted:
                found.update(
                    (key, value) for key, value, want in zip(keys, values, wanted, strict=True) if value != want
                )
        return found

    def _take(self, values: dict[bytes, bytes | None], number: int) -> list[Watch]:
        # A watch that is younger than the state must not fire: the state lacks its own transaction's writes.
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
                del self._expected[watch.key]
                self._order = None


# Engines


class Engine(ABC):
    """The engine under an embedded store, which holds its keys: one opening of its files, for the store's threads.

    Args:
        path: path of the store, absolute.
        address: the store's address, for messages.
        location: name of the store in logs, and in errors about its files.
        settings: settings of the store.
        at: called with names of points where a test may stop or kill the process.

    Attributes:
        use: its files, as processes share them; this and the next two are set by `open`.
        processes: the directory of the locks of processes.
        room: the room that it has.
        failures: exceptions of its states' reads, translated or not.
    """

    errors: ClassVar[tuple[type[Exception], ...]] = ()
    """Exceptions of its states' reads that `error` translates."""
    transaction: ClassVar[type[EmbeddedTransaction]]
    """The class of its transactions."""

    use: FileUse
    processes: Path
    room: StoreRoom

    def __init__(
        self, path: Path, address: str, location: str, settings: Settings, at: Callable[[str], object]
    ) -> None:
        self.path = path
        self.address = address
        self.location = location
        self.settings = settings
        self.at = at
        self.failures: tuple[type[Exception], ...] = (*self.errors, StoreError)

    @abstractmethod
    def open(self) -> None:
        """Open the files, make missing ones, and check that they are a store.

        Raises:
            StoreError: they cannot be opened; nothing is left open.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the files, and release their locks."""

    @abstractmethod
    def begin(self, *, write: bool = False) -> EngineState:
        """Begin a transaction; one that writes waits for the lock of others that do."""

    @abstractmethod
    def copy(self, path: Path) -> int:
        """Write a consistent copy to a new file, and return its size in bytes; called on any thread."""

    @abstractmethod
    def error(self, error: Exception) -> Exception:
        """Return the store's error for one of the engine's."""


# The store


class EmbeddedStore(Store):
    """A store in files, shared by the processes of one machine.

    Args:
        path: path of the file or directory; made if missing.
        settings: durable, watch_poll, transaction_timeout, process_check_period, and the engine's.
        sources: randomness, the clock and the points where tests stop threads; None for the machine's.
    """

    serves_threads = True
    scheme: ClassVar[str]
    """The part of its addresses before the colon."""
    longest_key: ClassVar[int]
    """Bytes of the longest key."""
    engine: ClassVar[type[Engine]]

    def __init__(self, path: str | os.PathLike[str], *, settings: Settings, sources: Sources | None = None) -> None:
        self.path = Path(path)
        self.address = f"{self.scheme}:{self.path}"
        self.limits = Limits(key=self.longest_key)
        self.commit_times = CommitTimes()
        self._settings = settings
        self._sources = Sources() if sources is None else sources
        self._monotonic = self._sources.monotonic
        # Called with the names of points at which a test may stop a thread, or another one go first.
        self._at = self._sources.at
        self._counters = Counters()
        self._pid = 0
        self._absolute: Path | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watches = Watches(self._at)
        self._when_lost: dict[Callable[[StoreLost], object], None] = {}
        self._copying: set[asyncio.Future[int]] = set()
        self._has_logged_damage = False

        self._writes: SimpleQueue[ThreadCall[Any] | None] = SimpleQueue()
        self._reads: SimpleQueue[ThreadCall[Any] | Callable[[], None] | None] = SimpleQueue()
        # Numbers of this process's commits, for which the reader need not search.
        self._own_commits: deque[int] = deque()
        self._seen_commit = 0
        # Times of the clock: when another commit was seen last, when the watched keys may be looked up again, and when
        # the files are to be checked.
        self._seen_at = 0.0
        self._next_look = 0.0
        self._next_check = 0.0
        self._reads_run = 0

        # Set by `open`, some of them on the writer's thread.
        self._engine: Engine
        self._processes: ProcessLocks
        self._write_deadlines: Deadlines
        self._read_deadlines: Deadlines
        self._writer: threading.Thread
        self._reader: threading.Thread
        self._ended: asyncio.Future[None]

    # Opening and closing

    @property
    def location(self) -> str:
        return f"{self.scheme}:{self.path.absolute() if self._absolute is None else self._absolute}"

    async def open(self) -> None:
        if self.is_open:
            raise StoreError(f"store {self.address} is open already")
        self._loop = loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        # The working directory may change while the store is open.
        self._absolute = self.path.absolute()
        self._engine = self.engine(self._absolute, self.address, self.location, self._settings, self._at)
        seconds = self._settings.transaction_timeout
        begun = "; it had begun and may still take effect"
        self._write_deadlines = Deadlines(loop, seconds, f"store {self.address}", begun)
        self._read_deadlines = Deadlines(loop, seconds, f"store {self.address}")
        self._ended = loop.create_future()
        # New ones, because a failed opening or a closing that was cut short leaves requests in the old ones.
        self._writes = SimpleQueue()
        self._reads = SimpleQueue()
        opened: asyncio.Future[None] = loop.create_future()
        # Daemons, because a thread that waits for another process's write lock cannot be interrupted.
        self._writer = threading.Thread(
            target=self._run_writer, args=(opened,), name=f"{self.scheme}-writer", daemon=True
        )
        self._reader = threading.Thread(target=self._run_reader, name=f"{self.scheme}-reader", daemon=True)
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
        self.is_open = True

    async def _abort_opening(self, opened: asyncio.Future[None]) -> None:
        """Wait for the writer's end, through cancellations: it cannot be interrupted during the opening."""
        self._writes.put(None)
        await outlast([opened], self._settings.transaction_timeout)
        if opened.done():
            opened.exception()
            self._writer.join()

    async def close(self) -> None:
        if not self.is_open:
            return
        self.is_open = False
        seconds = self._settings.transaction_timeout
        if os.getpid() != self._pid:
            return
        canceled = await outlast(self._copying, seconds)
        self._reads.put(None)
        self._writes.put(None)
        canceled = await outlast([self._ended], seconds) or canceled
        if self._ended.done():
            self._writer.join()
        self._write_deadlines.stop()
        self._read_deadlines.stop()
        for watch in self._watches.take_all():
            watch.fire(StoreError(f"store {self.address} was closed"))
        if canceled is not None:
            raise canceled

    def on_lost(self, callback: Callable[[StoreLost], object]) -> Callable[[], object]:
        self._when_lost[callback] = None
        return lambda: self._when_lost.pop(callback, None)

    def _usable(self) -> asyncio.AbstractEventLoop:
        if self.is_open and os.getpid() != self._pid:
            raise StoreError(
                f"store {self.address} was opened in process {self._pid}, before a fork, and is of no use in the "
                "child: open it after forking, or start processes anew (multiprocessing: spawn)"
            )
        # This also keeps a transaction function from calling transact(): its thread has no loop.
        return open_loop(self.address, self.is_open, self._loop)

    # Calls, on the loop

    async def transact(self, function: TransactionFunction[T], *, abandoned: Callable[[T], None] | None = None) -> T:
        loop = self._usable()
        return await self._ask(loop, self._writes, self._write_deadlines, function, abandoned)

    def transact_in_thread(self, function: TransactionFunction[T], answered: Callable[[T], object]) -> None:
        loop, has_run = self._loop, threading.Event()
        if not self.is_open or loop is None:
            raise not_open(self.address)

        async def work(transaction: Transaction) -> T:
            has_run.set()
            return await function(transaction)

        def answer(future: asyncio.Future[T]) -> None:
            if not future.cancelled() and future.exception() is None:
                answered(future.result())

        # The future is the loop's, which answers when it turns again. Nobody else has it yet, so a thread may make it.
        future: asyncio.Future[T] = loop.create_future()
        future.add_done_callback(answer)
        request: ThreadCall[T] = ThreadCall(work, future, math.inf, None)
        self._writes.put(request)
        seconds = self._settings.transaction_timeout
        if not has_run.wait(seconds) and request.withdraw(future):
            raise StoreUnavailable(f"store {self.address} did not answer a thread within {seconds:g} s")

    async def read(self, function: TransactionFunction[T]) -> T:
        loop = self._usable()
        return await self._ask(loop, self._reads, self._read_deadlines, function)

    async def _ask(
        self,
        loop: asyncio.AbstractEventLoop,
        queue: SimpleQueue[Any],
        deadlines: Deadlines,
        function: TransactionFunction[T],
        abandoned: Callable[[T], None] | None = None,
    ) -> T:
        """Run the function on a thread, and return its result."""
        deadline = loop.time() + self._settings.transaction_timeout
        request: ThreadCall[T] = ThreadCall(function, loop.create_future(), deadline, abandoned)
        deadlines.watch_over(request)
        queue.put(request)
        try:
            return await request.future
        except asyncio.CancelledError:
            if request.future.done() and not request.future.cancelled():
                # The answer came in the same turn of the loop in which the caller was canceled.
                self._abandon(request)
            else:
                deadlines.withdraw(request)
            raise

    async def dead_instances(self) -> list[bytes]:
        # On the reader's thread, because files may be slow.
        async def look(_: Transaction) -> list[bytes]:
            return self._processes.dead()

        return await self.read(look)

    async def other_processes(self) -> tuple[int, int] | None:
        async def look(_: Transaction) -> tuple[int, int]:
            return self._processes.others()

        return await self.read(look) if self.instance else None

    async def ended_instances(self, instances: Collection[bytes]) -> set[bytes]:
        async def look(_: Transaction) -> set[bytes]:
            return {instance for instance in instances if self._processes.has_ended(instance)}

        return await self.read(look) if instances else set()

    async def forget_instances(self, instances: Sequence[bytes]) -> None:
        async def forget(_: Transaction) -> None:
            self._processes.forget(instances)

        await self.read(forget)

    def metrics(self) -> dict[str, int]:
        counts = self._counters.as_dict()
        return {**counts, "transactions": counts["transactions"] + self._reads_run, "watches": self._watches.number}

    async def backup(self, path: str) -> int:
        loop = self._usable()
        engine = self._engine

        def copy() -> int:
            engine.use.check()
            return engine.copy(Path(path))

        copying = loop.run_in_executor(None, copy)
        self._copying.add(copying)
        copying.add_done_callback(self._copying.discard)
        return await asyncio.shield(copying)

    # Answers, from a thread to the loop

    def _send_answers(self, deadlines: Deadlines, answers: list[ThreadAnswer], fired: list[Watch]) -> None:
        for answer in answers:
            answer.request.is_answered = True
            if isinstance(answer.error, StoreDamaged) and not self._has_logged_damage:
                self._has_logged_damage = True
                log.error("store_damaged", store=self.location, error=str(answer.error))
        self._tell(self._answer, deadlines, answers, fired)

    def _fail_for_good(self, deadlines: Deadlines, requests: Iterable[ThreadCall[Any]]) -> None:
        """Fail requests for good: the next process would open other files of the store."""
        lost = self._engine.use.lost
        assert lost is not None
        self._tell(self._lose_all, lost)
        self._tell(self._answer, deadlines, failed(requests, lost), [])

    def _tell(self, callback: Callable[..., object], *args: Any) -> None:
        assert self._loop is not None
        # A closed loop raises; then nobody waits for an answer.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *args)

    def _answer(self, deadlines: Deadlines, answers: list[ThreadAnswer], fired: list[Watch]) -> None:
        for answer in answers:
            request = answer.request
            future = request.future
            transaction = answer.transaction
            if transaction is not None:
                for watch in transaction.watches:
                    watch.attach(self._watches.forget)
                request.watches = transaction.watches
            if future.done():
                if answer.error is None:
                    self._abandon(request, answer.result)
            elif answer.error is None:
                future.set_result(answer.result)
            else:
                future.set_exception(answer.error)
        deadlines.forget_answered()
        for watch in fired:
            watch.fire()

    def _abandon(self, request: ThreadCall[Any], *result: Any) -> None:
        """Give an unclaimed result to the request's `abandoned`; without one, drop the request's watches."""
        if request.abandoned is None:
            for watch in request.watches:
                watch.cancel()
        elif self._loop is not None and (result or request.future.exception() is None):
            # In a callback of its own: if it fails, the other requests still get their answers.
            self._loop.call_soon(request.abandoned, result[0] if result else request.future.result())

    def _lose_all(self, lost: StoreLost) -> None:
        """Fail all waiting callers and watches; the registered callbacks come first, to end their own work."""
        for callback in [*self._when_lost]:
            callback(lost)
        self._when_lost.clear()
        for watch in self._watches.take_all():
            watch.fire(anew(lost))

    # On both threads

    def _run(self, engine: Engine, answer: ThreadAnswer, own: EmbeddedTransaction) -> None:
        """Run one transaction function and look up its watched keys; keep the result or the error in the answer."""
        answer.error = None
        began = self._monotonic()
        try:
            answer.result = drive(answer.request.function(own))
            if own.writes:
                engine.room.admit(own)
            if own.watches:
                own.settle_watches()
            took = self._monotonic() - began
            if took > self.limits.seconds:
                raise ran_too_long(took, self.limits)
        except BaseException as error:
            answer.error = engine.error(error) if isinstance(error, engine.errors) else error
            own.roll_back()
            own.end()
            if own.watches:
                self._tell(lose, own.watches)
        else:
            answer.transaction = own

    # On the writer's thread

    def _run_writer(self, opened: asyncio.Future[None]) -> None:
        # This thread may wait for another process long after `close` has given up; `open` then sets all of these anew.
        engine, writes, reader, ended = self._engine, self._writes, self._reader, self._ended
        try:
            engine.open()
        except StoreError as error:
            self._tell(_fail, opened, error)
            return
        except BaseException as error:
            self._tell(_fail, opened, StoreError(f"store {self.address} cannot be opened: {error}"))
            return
        self._processes = processes = ProcessLocks(engine.processes, self._sources.token)
        try:
            # So that other processes notice when this one dies; otherwise its jobs would wait for their timeout.
            if self._settings.process_check_period and not engine.use.is_read_only:
                processes.enter()
        except OSError as error:
            engine.close()
            self._tell(_fail, opened, engine.error(error))
            return
        self.instance = processes.instance
        self._tell(_succeed, opened)
        while True:
            self._at("writer: waits")
            request = writes.get()
            if request is None:
                break
            # Take all that waits: one commit, with one flush to the disk, serves the callers of all threads and turns.
            batch = deque([request])
            try:
                while len(batch) < _MAX_BATCH:
                    following = writes.get_nowait()
                    if following is None:
                        writes.put(None)  # the end comes after this batch
                        break
                    batch.append(following)
            except Empty:
                pass
            self._write(engine, batch)
        # The engine must not be closed while the reader may use it.
        self._at("writer: ends")
        if reader.ident is not None:
            reader.join()
        processes.leave()
        if self._processes is processes:  # it has not been opened again meanwhile
            self.instance = b""
        engine.close()
        self._tell(_succeed, ended)

    def _write(self, engine: Engine, batch: deque[ThreadCall[Any]]) -> None:
        """Run a batch of transaction functions, as many as fit in one commit at a time; commit and answer."""
        while batch:
            answers: list[ThreadAnswer] = []
            try:
                fired = self._commit(engine, batch, answers)
            except Exception as error:
                failure = engine.error(error)
                if isinstance(failure, StoreLost):
                    self._fail_for_good(self._write_deadlines, [*(answer.request for answer in answers), *batch])
                    return
                if answers:
                    self._retry_alone(engine, answers, failure)
                else:
                    self._send_answers(self._write_deadlines, failed(batch, failure), [])
                    return
            else:
                self._at("writer: answers")
                self._send_answers(self._write_deadlines, answers, fired)

    def _commit(self, engine: Engine, batch: deque[ThreadCall[Any]], answers: list[ThreadAnswer]) -> list[Watch]:
        """Run requests from the front of the batch in one transaction, commit, and return the watches to fire.

        Raises:
            StoreLost: the commit is not in the store that the next process opens, so its requests are not answered.
        """
        if engine.use.lost is not None:
            raise engine.use.lost
        self._at("writer: begins")
        state = engine.begin(write=True)
        watched: list[Watch] = []
        try:
            self._at("writer: has begun")
            number = state.number
            version = int.from_bytes(state.get(STAMP_KEY) or b"", "big") + 1
            stamp_head = version.to_bytes(8, "big")
            written: dict[bytes, bytes | None] = {}
            place = size = 0
            room = engine.room
            latest = self._monotonic() + self._settings.transaction_timeout * _SHARE_OF_A_COMMIT
            while batch and size < _MAX_BATCH_BYTES and (not answers or self._monotonic() < latest):
                request = batch.popleft()
                if not request.take():
                    continue  # withdrawn: its caller was canceled, or its time was up
                answer = ThreadAnswer(request)
                answers.append(answer)
                self._run(engine, answer, engine.transaction(state, self.limits, claim=room.claim))
                if state.failure is not None:
                    # The engine's transaction is useless: the other requests run again.
                    answer.is_final = state.undone
                    answer.error = answer.error or state.failure
                    raise state.failure
                own = answer.transaction
                if own is None:
                    continue
                watched += own.watches
                if own.writes:
                    answer.stamp = stamp = stamp_head + place.to_bytes(2, "big")
                    place += 1
                    size += own.size
                    room.wrote(own.size)
                    apply_log(state, own, stamp, written)
            self._at("writer: has run all")
            if watched:
                # Before the commit: another process may commit right after it, and its change must not be missed.
                self._watches.register(watched, number if place else number - 1)
                self._at("writer: has registered watches")
            if place:
                state.put_all([(STAMP_KEY, stamp_head)])
                began = self._monotonic()
                self._at("writer: commits")
                state.commit()
                self.commit_times.add(self._monotonic() - began)
                self._counters.commits += place
                self._at("writer: has committed")
                if self._watches:  # otherwise the reader, which removes the numbers, is asleep
                    self._own_commits.append(number)
                self._at("writer: has noted its commit")
            else:
                state.end()
            engine.use.check()
        except BaseException:
            for watch in watched:
                self._watches.forget(watch)
            self._tell(lose, watched)
            raise
        finally:
            state.end()
            self._counters.transactions += len(answers)
            for answer in answers:
                if answer.transaction is not None:
                    answer.transaction.end()
        if watched:
            # The reader sleeps while there are no watches.
            self._reads.put(_look)
            self._at("writer: has woken the reader")
        for answer in answers:
            if answer.stamp is not None and answer.transaction is not None:
                answer.transaction.stamp.value = answer.stamp
        return self._watches.changed(written, number)

    def _retry_alone(self, engine: Engine, answers: list[ThreadAnswer], error: Exception) -> None:
        """After a failed commit, give each request its own commit, so that only the guilty one fails."""
        for answer in answers:
            alone: list[ThreadAnswer] = []
            fired: list[Watch] = []
            if answer.is_final:
                alone = [answer]
            elif len(answers) > 1:
                answer.request.claim.append(True)
                try:
                    fired = self._commit(engine, deque([answer.request]), alone)
                except Exception as failure:
                    if not (alone and alone[0].is_final):
                        alone = failed([answer.request], engine.error(failure))
            else:
                alone = failed([answer.request], error)
            self._send_answers(self._write_deadlines, alone, fired)

    # On the reader's thread

    def _run_reader(self) -> None:
        engine, reads = self._engine, self._reads
        poll = self._settings.watch_poll
        stopping = False
        self._seen_at = self._monotonic()
        while not stopping:
            batch: list[ThreadCall[Any]] = []
            try:
                # Each check wakes the thread, and for most of a day nothing happens.
                rest = poll if self._monotonic() - self._seen_at < _QUIET else _RARER * poll
                timeout = rest if self._watches else None
                self._at("reader: waits" if timeout is None else "reader: rests")
                item = reads.get(timeout=timeout)
                while True:
                    if item is None:
                        stopping = True
                    elif isinstance(item, ThreadCall):
                        batch.append(item)
                    item = reads.get_nowait()
            except Empty:
                pass
            try:
                self._read(engine, batch)
            except StoreLost:
                self._fail_for_good(self._read_deadlines, batch)
            except Exception as error:
                self._send_answers(self._read_deadlines, failed(batch, engine.error(error)), [])
        self._at("reader: ends")

    def _read(self, engine: Engine, batch: list[ThreadCall[Any]]) -> None:
        """Check for other processes' commits, run a batch of reads on one state, and answer them.

        Raises:
            StoreLost: the next process would read another store, so the reads are not answered.
        """
        if engine.use.lost is not None:
            raise engine.use.lost
        self._at("reader: begins")
        state = engine.begin()
        try:
            self._at("reader: has begun")
            number = state.number
            if not batch and number == self._seen_commit:
                self._look_at_files(engine)  # the usual case
                return
            fired = self._changed_elsewhere(engine, state, number)
            self._at("reader: has looked for commits")
            answers = []
            watched: list[Watch] = []
            for request in batch:
                if not request.take():
                    continue
                answer = ThreadAnswer(request)
                answers.append(answer)
                if state.failure is not None:  # the engine's transaction is useless
                    state.end()
                    state = engine.begin()
                self._run(engine, answer, engine.transaction(state, self.limits, read_only=True))
                own = answer.transaction
                if own is not None:
                    watched += own.watches
                    own.end()
            self._reads_run += len(answers)
            self._at("reader: has run all")
            self._watches.register(watched, number)
            self._at("reader: has registered watches")
        finally:
            state.end()
        if watched:
            fired += self._changed_since(engine, number, watched)
        if answers or fired:
            engine.use.check()
            self._at("reader: answers")
            self._send_answers(self._read_deadlines, answers, fired)

    def _look_at_files(self, engine: Engine) -> None:
        """Check now and then, while there are no requests, that the store's files are still in place."""
        now = self._monotonic()
        if now >= self._next_check:
            self._next_check = now + _CHECK_PERIOD
            engine.use.check()

    def _changed_elsewhere(self, engine: Engine, state: EngineState, number: int) -> list[Watch]:
        """Return the watches to fire after another process's commit since the last check."""
        seen = self._seen_commit
        if number == seen:
            return []
        now = self._monotonic()
        if now < self._next_look:
            return []  # the next check finds it
        self._at("reader: looks for commits")
        self._seen_commit = number
        self._seen_at = now
        own = 0
        while self._own_commits and self._own_commits[0] <= number:
            own += self._own_commits.popleft() > seen
        self._at("reader: has counted its own")
        # This process's own commits have fired their watches directly. One whose number is not in the list yet counts
        # as foreign: that check finds nothing, and is harmless.
        if number - seen <= own or not self._watches:
            return []
        try:
            fired = self._watches.changed_in(state, number)
        except engine.failures as error:
            # Which of them have changed is unknown: all look for themselves.
            state.fail(error)
            fired = self._watches.take_all()
        # With thousands of watches this takes milliseconds. The pause keeps it rare while others commit all the time.
        ended = self._monotonic()
        self._next_look = ended + min(_LOOKS_REST * (ended - now), _LONGEST_REST)
        return fired

    def _changed_since(self, engine: Engine, number: int, watched: list[Watch]) -> list[Watch]:
        """Return the new watches whose keys changed before their registration."""
        state = engine.begin()
        try:
            self._at("reader: looks again")
            if state.number == number:
                return []
            return self._watches.changed_in(state, state.number, [watch.key for watch in watched])
        except engine.failures:
            self._own_commits.clear()  # so that the next check looks at all watched keys, whoever has committed
            return []
        finally:
            state.end()


def lose(watches: list[Watch]) -> None:
    """Fail the watches of a transaction that did not commit."""
    for watch in watches:
        watch.fire(StoreError("the watch was lost: its transaction did not commit"))


def _look() -> None:
    """Do nothing: as an item of its queue this wakes the reader, which then begins to check for others' commits."""


def _succeed(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _fail(future: asyncio.Future[None], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
