"""The embedded store: LMDB on disk, shared by all processes of one machine.

One writer thread runs all waiting transaction functions, commits once and only then answers all of them (group commit).
One reader thread serves reads and notices other processes' commits. LMDB's own lock makes that correct across
processes. LMDB never runs on the loop's thread, because a cold page or a busy disk can block for seconds.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

import lmdb

from jobs_service.errors import StoreError, StoreLost, StoreUnavailable
from jobs_service.settings import Settings
from jobs_service.sources import Sources
from jobs_service.store.base import (
    Limits,
    Store,
    Transaction,
    TransactionFunction,
)
from jobs_service.store.calls import not_open, open_loop
from jobs_service.store.counters import CommitTimes, Counters
from jobs_service.store.lmdb.environment import copy_environment
from jobs_service.store.lmdb.process_locks import ProcessLocks
from jobs_service.store.lmdb.reader import Reader
from jobs_service.store.lmdb.room import Room
from jobs_service.store.lmdb.thread_calls import Deadlines, Request
from jobs_service.store.lmdb.watches import Watches
from jobs_service.store.lmdb.writer import Writer
from jobs_service.uncancelable import outlast

T = TypeVar("T")


class LmdbStore(Writer, Reader, Store):
    """The embedded store.

    Args:
        path: a directory; made if missing.
        settings: durable, lmdb_map_size, watch_poll, transaction_timeout, process_check_period.
        sources: randomness, the clock and the points where tests stop threads; None for the machine's.
    """

    serves_threads = True

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
        self._has_logged_damage = False
        self._own_commits: deque[int] = deque()
        self._seen_commit = 0
        self._seen_at = 0.0
        self._next_look = 0.0
        self._next_check = 0.0
        self._when_lost: dict[Callable[[StoreLost], object], None] = {}
        self._copying: set[asyncio.Future[int]] = set()
        self._opened = False
        self.commit_times = CommitTimes()
        self._counters = Counters()
        self._reads_run = 0

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
        begun = "; it had begun and may still take effect"
        self._write_deadlines = Deadlines(loop, seconds, f"store {self.address}", begun)
        self._read_deadlines = Deadlines(loop, seconds, f"store {self.address}")
        self._ended: asyncio.Future[None] = loop.create_future()
        # New ones, because a failed opening or a closing that was cut short leaves requests in the old ones.
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
        """Wait for the writer's end, through cancellations: it cannot be interrupted during the opening."""
        self._writes.put(None)
        await outlast([opened], self._settings.transaction_timeout)
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

    async def transact(self, function: TransactionFunction[T], *, abandoned: Callable[[T], None] | None = None) -> T:
        loop = self._usable()
        return await self._ask(loop, self._writes, self._write_deadlines, function, abandoned)

    def transact_in_thread(self, function: TransactionFunction[T], answered: Callable[[T], object]) -> None:
        loop, has_run = self._loop, threading.Event()
        if not self._opened or loop is None:
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
        request: Request[T] = Request(work, future, math.inf, None)
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
        request: Request[T] = Request(function, loop.create_future(), deadline, abandoned)
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
        environment = self._environment
        assert environment is not None
        use, map, at = self._use, self._map, self._at

        def copy() -> int:
            use.check()
            with map.held():
                return copy_environment(environment, Path(path), at)

        copying = loop.run_in_executor(None, copy)
        self._copying.add(copying)
        copying.add_done_callback(self._copying.discard)
        return await asyncio.shield(copying)

    def _usable(self) -> asyncio.AbstractEventLoop:
        if self._opened and os.getpid() != self._pid:
            raise StoreError(
                f"store {self.address} was opened in process {self._pid}, before a fork, and is of no use in the "
                "child: open it after forking, or start processes anew (multiprocessing: spawn)"
            )
        # This also keeps a transaction function from calling transact(): its thread has no loop.
        return open_loop(self.address, self._opened, self._loop)
