"""The writer's thread: runs all waiting transaction functions, commits once, and only then answers all of them."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final

import lmdb

from jobs_service.errors import StoreError, StoreLost
from jobs_service.log import EventLog
from jobs_service.settings import Settings
from jobs_service.store.base import SYSTEM_KEYS, Watch
from jobs_service.store.counters import CommitTimes, Counters
from jobs_service.store.lmdb.environment import open_environment
from jobs_service.store.lmdb.errors import store_error
from jobs_service.store.lmdb.file_use import FileUse
from jobs_service.store.lmdb.memory_map import MemoryMap
from jobs_service.store.lmdb.responder import Responder, lose
from jobs_service.store.lmdb.state import LmdbTransaction, State, apply_log
from jobs_service.store.lmdb.thread_calls import Answer, Deadlines, Request, failed

log = EventLog("jobs_service.store")

_STAMP_KEY: Final = SYSTEM_KEYS + b"/jobs_service/versionstamp"
_MAX_BATCH: Final = 4000
_MAX_BATCH_BYTES: Final = 16_000_000
_READER_CHECK_PERIOD: Final = 64
"""Commits between two checks for dead readers: LMDB cannot reuse pages that a reader pins, even a killed one."""


class Writer(Responder):
    """The part of a store on the writer's thread; the store sets the attributes."""

    path: Path
    instance: bytes
    _settings: Settings
    _environment: lmdb.Environment | None
    _ended: asyncio.Future[None]
    _writes: SimpleQueue[Request[Any] | None]
    _write_deadlines: Deadlines
    # The reader's thread, its queue, and the numbers of this process's commits, for which it need not search.
    _reader: threading.Thread
    _reads: SimpleQueue[Request[Any] | Callable[[], None] | None]
    _own_commits: deque[int]
    commit_times: CommitTimes
    _counters: Counters
    _monotonic: Callable[[], float]

    def _run_writer(self, opened: asyncio.Future[None]) -> None:
        # It may wait for another process long after `close` has given up, and `open` then makes new ones.
        writes, reader, processes, ended = self._writes, self._reader, self._processes, self._ended
        self._use = use = FileUse(self.path.absolute(), self.location)
        try:
            self._environment = environment = open_environment(self.path, self._settings, use, self._at)
        except StoreError as error:
            self._tell(_fail, opened, error)
            return
        except BaseException as error:
            self._tell(_fail, opened, StoreError(f"store {self.address} cannot be opened: {error}"))
            return
        try:
            # So that other processes notice when this one dies; otherwise its jobs would wait for their timeout.
            if self._settings.process_check_period and not use.is_read_only:
                processes.enter()
        except OSError as error:
            environment.close()
            use.end()
            self._tell(_fail, opened, store_error(self.address, error))
            return
        self.instance = processes.instance
        self._map = MemoryMap(environment, self._has_grown, self._cannot_grow)
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
            self._write(environment, batch)
        # The environment must not be closed while the reader may use it.
        self._at("writer: ends")
        if reader.ident is not None:
            reader.join()
        processes.leave()
        self.instance = b""
        environment.close()
        use.end()
        self._tell(_succeed, ended)

    def _has_grown(self, size: int) -> None:
        """Take over the larger map of another process."""
        self._room.grow(size)
        log.info("map_grown", store=self.location, bytes=size)

    def _cannot_grow(self, error: lmdb.Error) -> StoreLost:
        """Mark the store as lost: without a map it can neither read nor write."""
        self._use.lost = StoreLost(
            f"store {self.location} was grown by a process with a larger map, and this one cannot map so much "
            f"({error}; ulimit -v). Give all the same JOBS_SERVICE_LMDB_MAP_SIZE, and start the program anew"
        )
        return self._use.lost

    def _write(self, environment: lmdb.Environment, batch: deque[Request[Any]]) -> None:
        """Run a batch of transaction functions, as many as fit in one LMDB transaction at a time; commit and answer."""
        while batch:
            answers: list[Answer] = []
            try:
                fired = self._commit(environment, batch, answers)
            except Exception as error:
                failure = store_error(self.address, error)
                if isinstance(failure, StoreLost):
                    self._fail_for_good(self._write_deadlines, [*(answer.request for answer in answers), *batch])
                    return
                if answers:
                    self._retry_alone(environment, answers, failure)
                else:
                    self._send_answers(self._write_deadlines, failed(batch, failure), [])
                    return
            else:
                self._at("writer: answers")
                self._send_answers(self._write_deadlines, answers, fired)

    def _commit(self, environment: lmdb.Environment, batch: deque[Request[Any]], answers: list[Answer]) -> list[Watch]:
        """Run requests from the front of the batch in one LMDB transaction, commit, and return the watches to fire.

        Raises:
            StoreLost: the commit is not in the store that the next process opens, so its requests are not answered.
        """
        if self._use.lost is not None:
            raise self._use.lost
        self._at("writer: begins")
        transaction = self._map.begin(write=not self._use.is_read_only)
        self._at("writer: has begun")
        watched: list[Watch] = []
        try:
            state = State(transaction)
            number = transaction.id()
            if number % _READER_CHECK_PERIOD == 0:
                environment.reader_check()
            version = int.from_bytes(transaction.get(_STAMP_KEY) or b"", "big") + 1
            stamp_head = version.to_bytes(8, "big")
            written: dict[bytes, bytes | None] = {}
            place = size = 0
            room = self._room
            room.measure(environment, number)
            while batch and size < _MAX_BATCH_BYTES:
                request = batch.popleft()
                if not request.take():
                    continue  # withdrawn: its caller was canceled, or its time was up
                answer = Answer(request)
                answers.append(answer)
                self._run(answer, LmdbTransaction(state, self.limits, self.address, claim=room.claim))
                if state.failure is not None:
                    raise state.failure  # LMDB's transaction is useless: the other requests run again
                own = answer.transaction
                if own is None:
                    continue
                watched += own.watches
                if own.writes:
                    answer.stamp = stamp = stamp_head + place.to_bytes(2, "big")
                    place += 1
                    size += own.size
                    room.wrote(own.size)
                    apply_log(transaction, own, stamp, written)
            self._at("writer: has run all")
            if watched:
                # Before the commit: another process may commit right after it, and its change must not be missed.
                self._watches.register(watched, number if place else number - 1)
                self._at("writer: has registered watches")
            if place:
                transaction.put(_STAMP_KEY, stamp_head)
                began = self._monotonic()
                self._at("writer: commits")
                transaction.commit()
                self.commit_times.add(self._monotonic() - began)
                self._counters.commits += place
                self._at("writer: has committed")
                if self._watches:  # otherwise the reader, which removes the numbers, is asleep
                    self._own_commits.append(number)
                self._at("writer: has noted its commit")
            else:
                transaction.abort()
            self._use.check()
        except BaseException:
            transaction.abort()
            for watch in watched:
                self._watches.forget(watch)
            self._tell(lose, watched)
            raise
        finally:
            self._map.end()
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

    def _retry_alone(self, environment: lmdb.Environment, answers: list[Answer], error: StoreError) -> None:
        """After a failed commit, give each request its own commit, so that only the guilty one fails."""
        for answer in answers:
            alone: list[Answer] = []
            fired: list[Watch] = []
            if len(answers) > 1:
                answer.request.claim.append(True)
                try:
                    fired = self._commit(environment, deque([answer.request]), alone)
                except Exception as failure:
                    alone = failed([answer.request], store_error(self.address, failure))
            else:
                alone = failed([answer.request], error)
            self._send_answers(self._write_deadlines, alone, fired)


def _look() -> None:
    """Wake the reader thread from its queue, so that it begins to check for other processes' commits."""


def _succeed(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _fail(future: asyncio.Future[None], error: StoreError) -> None:
    if not future.done():
        future.set_exception(error)
