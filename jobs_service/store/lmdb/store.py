"""The embedded store: LMDB on disk, shared by all processes of one machine. Floor: store.

One writer thread runs all waiting transaction functions, commits once and only then answers all of them (group
commit); one reader thread serves reads and notices other processes' commits. LMDB's own lock makes that correct across
processes. Nothing of LMDB runs on the loop's thread: a cold page or a busy disk can block for seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

import fdb.tuple
import lmdb

from jobs_service.errors import OTHER_LOOP, StoreDamaged, StoreError, StoreUnavailable, TransactionTooOld
from jobs_service.log import EventLog
from jobs_service.settings import Settings
from jobs_service.sources import Sources
from jobs_service.store.base import (
    SYSTEM_KEYS,
    Limits,
    Store,
    Transaction,
    TransactionFunction,
    Watch,
    drive,
)
from jobs_service.store.lmdb.damage import MOST_RUNS, Damage
from jobs_service.store.lmdb.environment import copy_environment, open_environment
from jobs_service.store.lmdb.errors import store_error
from jobs_service.store.lmdb.process_locks import ProcessLocks
from jobs_service.store.lmdb.room import Room
from jobs_service.store.lmdb.state import LmdbTransaction, State, apply_log
from jobs_service.store.lmdb.thread_calls import Answer, Deadlines, Request, failed
from jobs_service.store.lmdb.watches import Watches

T = TypeVar("T")

log = EventLog("jobs_service.store")

_STAMP_KEY: Final = SYSTEM_KEYS + b"/jobs_service/versionstamp"
_MAX_BATCH: Final = 4000
_MAX_BATCH_BYTES: Final = 16_000_000
_READER_CHECK_PERIOD: Final = 64
"""Commits between two looks for processes that were killed while they read: what those saw would be kept for ever."""

_QUIET: Final = 1.0
"""Seconds without a commit after which the looks for those of other processes become rarer."""
_RARER: Final = 2
_LOOKS_REST: Final = 10
"""How many times as long as it took to look up all watched keys nobody does so again."""


class LmdbStore(Store):
    """The embedded store.

    Args:
        path: a directory; made when missing.
        settings: durable, lmdb_map_size, watch_poll, transaction_timeout, process_check_period.
        sources: randomness, the clock and the points at which threads may be stopped; None for the machine's.
    """

    def __init__(self, path: str | os.PathLike[str], *, settings: Settings, sources: Sources | None = None) -> None:
        self.path = Path(path)
        self.address = f"lmdb:{self.path}"
        self.limits = Limits(key=511)
        self._settings = settings
        self._sources = Sources() if sources is None else sources
        self._monotonic = self._sources.monotonic
        self._at = self._sources.at
        self._directory: Path | None = None
        self._environment: lmdb.Environment | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0
        self._writes: SimpleQueue[Request[Any] | None] = SimpleQueue()
        self._reads: SimpleQueue[Request[Any] | Callable[[], None] | None] = SimpleQueue()
        self._watches = Watches(self._at)
        self._damage = Damage()
        self._own_commits: deque[int] = deque()
        self._seen_commit = 0
        self._seen_at = 0.0
        self._next_look = 0.0
        self._copying: set[asyncio.Future[int]] = set()
        self._opened = False

    @property
    def location(self) -> str:
        return f"lmdb:{self.path.absolute() if self._directory is None else self._directory}"

    @property
    def is_open(self) -> bool:
        return self._opened

    async def open(self) -> None:
        if self._opened:
            raise StoreError(f"store {self.address} is open already")
        self._loop = loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        # The working directory may change while the store is open.
        self._directory = directory = self.path.absolute()
        self._room = Room(directory, self.location, self._settings.lmdb_map_size)
        self._processes = ProcessLocks(directory, self._sources.token)
        seconds = self._settings.transaction_timeout
        self._write_deadlines = Deadlines(loop, seconds, f"store {self.address}")
        self._read_deadlines = Deadlines(loop, seconds, f"store {self.address}")
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
        return await self._ask(loop, self._writes, self._write_deadlines, function, abandoned)

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
        """Have a thread run the function, and return its result."""
        deadline = loop.time() + self._settings.transaction_timeout
        request: Request[T] = Request(function, loop.create_future(), deadline, abandoned)
        deadlines.watch_over(request)
        queue.put(request)
        try:
            return await request.future
        except asyncio.CancelledError:
            if request.future.done() and not request.future.cancelled():
                # The answer came in the very turn of the loop in which the caller was canceled.
                self._abandon(request)
            else:
                deadlines.withdraw(request)
            raise

    async def dead_instances(self) -> list[bytes]:
        # On the reader's thread, as files may be slow: what the function does besides reading is the store's own.
        async def look(_: Transaction) -> list[bytes]:
            return self._processes.dead()

        return await self.read(look)

    async def other_processes(self) -> tuple[int, int] | None:
        async def look(_: Transaction) -> tuple[int, int]:
            return self._processes.others()

        return await self.read(look) if self.instance else None

    async def forget_instances(self, instances: Sequence[bytes]) -> None:
        async def forget(_: Transaction) -> None:
            self._processes.forget(instances)

        await self.read(forget)

    async def backup(self, path: str) -> int:
        loop = self._usable()
        environment = self._environment
        assert environment is not None
        copying = loop.run_in_executor(None, copy_environment, environment, Path(path), self._at)
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
            raise StoreError(f"store {self.address} {OTHER_LOOP}")
        return self._loop

    # The writer thread

    def _run_writer(self, opened: asyncio.Future[None]) -> None:
        try:
            self._environment = environment = open_environment(self.path, self._settings, self._at)
        except StoreError as error:
            self._tell(_fail, opened, error)
            return
        except BaseException as error:
            self._tell(_fail, opened, StoreError(f"store {self.address} cannot be opened: {error}"))
            return
        self._enter_processes()
        self._tell(_succeed, opened)
        writes = self._writes
        while True:
            self._at("writer: waits")
            request = writes.get()
            if request is None:
                break
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
        self._at("writer: ends")
        if self._reader.ident is not None:
            self._reader.join()
        environment.close()
        self._processes.leave()
        self.instance = b""
        self._tell(_succeed, self._ended)

    def _enter_processes(self) -> None:
        """Have other processes notice when this one dies; without that, its jobs wait for their timeout."""
        if not self._settings.process_check_period:
            return
        try:
            self._processes.enter()
        except OSError as error:
            log.warning("process_lock_failed", store=self.location, error=str(error))
        self.instance = self._processes.instance

    def _write(self, environment: lmdb.Environment, batch: deque[Request[Any]]) -> None:
        """Run a batch of transaction functions, as many as fit in one LMDB transaction at a time; commit and answer."""
        while batch:
            answers: list[Answer] = []
            try:
                fired = self._commit(environment, batch, answers)
            except Exception as error:
                failure = store_error(self.address, error)
                if answers:
                    self._retry_alone(environment, answers, failure)
                else:
                    self._tell(self._answer, self._write_deadlines, failed(batch, failure), [])
                    return
            else:
                self._at("writer: answers")
                self._tell(self._answer, self._write_deadlines, answers, fired)

    def _commit(self, environment: lmdb.Environment, batch: deque[Request[Any]], answers: list[Answer]) -> list[Watch]:
        """Run requests from the front of the batch in one LMDB transaction, commit it, and return whom to wake."""
        self._at("writer: begins")
        transaction = environment.begin(write=True)
        self._at("writer: has begun")
        if transaction.id() % _READER_CHECK_PERIOD == 0:
            environment.reader_check()
        watched: list[Watch] = []
        try:
            state = State(transaction, self._damage)
            number = transaction.id()
            version = int.from_bytes(transaction.get(_STAMP_KEY) or b"", "big") + 1
            stamp_head = version.to_bytes(8, "big")
            written: dict[bytes, bytes | None] = {}
            place = size = 0
            room = self._room
            room.measure(environment, number)
            while batch and size < _MAX_BATCH_BYTES:
                request = batch.popleft()
                if not request.take():
                    continue
                answer = Answer(request)
                answers.append(answer)
                self._run(answer, LmdbTransaction(state, self.limits, self.address, claim=room.claim))
                if state.is_spoiled:
                    raise StoreDamaged(str(state.failure))
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
                    room.wrote(own.size)
                    apply_log(transaction, own, stamp, written)
                    if state.is_careful:
                        self._damage.forget_all(written)
            self._at("writer: has run all")
            if watched:
                self._watches.register(watched, number if place else number - 1)
                self._at("writer: has registered watches")
            if place:
                transaction.put(_STAMP_KEY, stamp_head)
                self._at("writer: commits")
                transaction.commit()
                self._at("writer: has committed")
                if self._watches:  # otherwise the reader, which takes them out, is asleep
                    self._own_commits.append(number)
                self._at("writer: has noted its commit")
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
            self._at("writer: has woken the reader")
        for answer in answers:
            if answer.stamp is not None and answer.transaction is not None:
                answer.transaction.stamp.value = answer.stamp
        return self._watches.changed(written, number)

    def _run(self, answer: Answer, own: LmdbTransaction) -> None:
        """Run one transaction function and note its result or its error: those of its last run."""
        answer.error = None
        began = self._monotonic()
        try:
            answer.result = drive(answer.request.function(own))
            if own.writes:
                self._room.admit(own)
            took = self._monotonic() - began
            if took > self.limits.seconds:
                raise TransactionTooOld(
                    f"transaction_too_old (1007): a transaction function ran for {took:.1f} s; "
                    f"the limit is {self.limits.seconds:g} s"
                )
        except BaseException as error:
            answer.error = store_error(self.address, error) if isinstance(error, lmdb.Error) else error
            own.end()
            if own.watches:
                self._tell(_lose, own.watches)
        else:
            answer.transaction = own

    def _retry_alone(self, environment: lmdb.Environment, answers: list[Answer], error: StoreError) -> None:
        """After a failed commit: give each request a commit of its own, so that only the guilty one fails."""
        for answer in answers:
            alone: list[Answer] = []
            fired: list[Watch] = []
            if len(answers) > 1 or isinstance(error, StoreDamaged):
                alone, fired = self._commit_alone(environment, answer.request)
            else:
                alone = failed([answer.request], error)
            self._tell(self._answer, self._write_deadlines, alone, fired)

    def _commit_alone(self, environment: lmdb.Environment, request: Request[Any]) -> tuple[list[Answer], list[Watch]]:
        """Run a request once more; again, as long as it only meets damage that was not known before."""
        for _ in range(MOST_RUNS):
            known = self._damage.count
            request.claim.append(True)
            answers: list[Answer] = []
            try:
                return answers, self._commit(environment, deque([request]), answers)
            except Exception as error:
                failure = store_error(self.address, error)
                if not isinstance(failure, StoreDamaged) or self._damage.count == known:
                    break
        return failed([request], failure), []

    # The reader thread

    def _run_reader(self) -> None:
        environment = self._environment
        assert environment is not None
        reads = self._reads
        poll = self._settings.watch_poll
        stopping = False
        self._seen_at = self._monotonic()
        while not stopping:
            batch: list[Request[Any]] = []
            try:
                # Each look costs a wake-up of the thread, and most of a day nothing happens.
                rest = poll if self._monotonic() - self._seen_at < _QUIET else _RARER * poll
                timeout = rest if self._watches else None
                self._at("reader: waits" if timeout is None else "reader: rests")
                item = reads.get(timeout=timeout)
                while True:
                    if item is None:
                        stopping = True
                    elif isinstance(item, Request):
                        batch.append(item)
                    item = reads.get_nowait()
            except Empty:
                pass
            try:
                self._read(environment, batch)
            except Exception as error:
                self._tell(self._answer, self._read_deadlines, failed(batch, store_error(self.address, error)), [])
        self._at("reader: ends")

    def _read(self, environment: lmdb.Environment, batch: list[Request[Any]]) -> None:
        """Look for other processes' commits, run a batch of reads in one state, and answer."""
        self._at("reader: begins")
        transaction = environment.begin()
        self._at("reader: has begun")
        try:
            number = transaction.id()
            if not batch and number == self._seen_commit:
                return  # so most looks end
            state = State(transaction, self._damage)
            fired = self._changed_elsewhere(state, number)
            self._at("reader: has looked for commits")
            answers = []
            watched: list[Watch] = []
            for request in batch:
                if not request.take():
                    continue
                answer = Answer(request)
                answers.append(answer)
                for _ in range(MOST_RUNS):
                    known = self._damage.count
                    if state.is_spoiled:
                        transaction.abort()
                        transaction = environment.begin()
                        state = State(transaction, self._damage)
                    self._run(answer, LmdbTransaction(state, self.limits, self.address, read_only=True))
                    if not state.is_spoiled or self._damage.count == known:
                        break
                own = answer.transaction
                if own is not None and own.watches:
                    own.settle_watches()
                    watched += own.watches
                if own is not None:
                    own.end()
            self._at("reader: has run all")
            self._watches.register(watched, number)
            self._at("reader: has registered watches")
        finally:
            transaction.abort()
        if watched:
            fired += self._changed_since(environment, number, watched)
        if answers or fired:
            self._at("reader: answers")
            self._tell(self._answer, self._read_deadlines, answers, fired)

    def _changed_elsewhere(self, state: State, number: int) -> list[Watch]:
        """Return the watches to wake if another process has committed since the last look."""
        seen = self._seen_commit
        if number == seen:
            return []
        now = self._monotonic()
        if now < self._next_look:
            return []  # the next one finds it
        self._at("reader: looks for commits")
        self._seen_commit = number
        self._seen_at = now
        own = 0
        while self._own_commits and self._own_commits[0] <= number:
            own += self._own_commits.popleft() > seen
        self._at("reader: has counted its own")
        # This process's own commits woke their watches directly. One that is not noted yet counts as foreign:
        # that look is for nothing, and harmless.
        if number - seen <= own or not self._watches:
            return []
        try:
            fired = self._watches.changed_in(state, number)
        except lmdb.Error:  # of damage hear those who read there
            state.spoil()
            return []
        # With thousands of watches a look takes milliseconds. While others commit all the time there are fewer then.
        ended = self._monotonic()
        self._next_look = ended + _LOOKS_REST * (ended - now)
        return fired

    def _changed_since(self, environment: lmdb.Environment, number: int, watched: list[Watch]) -> list[Watch]:
        """Return those of the new watches that a commit overtook before they were registered."""
        transaction = environment.begin()
        try:
            newer = transaction.id()
            self._at("reader: looks again")
            if newer == number:
                return []
            state = State(transaction, self._damage)
            return self._watches.changed_in(state, newer, [watch.key for watch in watched])
        except lmdb.Error:
            return []
        finally:
            transaction.abort()

    # Back on the loop

    def _tell(self, callback: Callable[..., object], *args: Any) -> None:
        assert self._loop is not None
        # A closed loop raises: nobody is left to be told.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *args)

    def _answer(self, deadlines: Deadlines, answers: list[Answer], fired: list[Watch]) -> None:
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

    def _abandon(self, request: Request[Any], *result: Any) -> None:
        """Take note that nobody gets the result of a request that was run."""
        if request.abandoned is None:
            for watch in request.watches:
                watch.cancel()
        elif self._loop is not None and (result or request.future.exception() is None):
            # By itself: if it fails, the others get their answers all the same.
            self._loop.call_soon(request.abandoned, result[0] if result else request.future.result())


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
