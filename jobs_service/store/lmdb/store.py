"""The embedded store on LMDB: a directory, shared by all processes of one PID namespace."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Final

import lmdb

from jobs_service.errors import StoreError, StoreLost
from jobs_service.log import EventLog
from jobs_service.store.base import KeyValue
from jobs_service.store.embedded import EmbeddedStore, Engine
from jobs_service.store.files import FileUse, StoreRoom, pid_namespace, write_copy
from jobs_service.store.lmdb.data_file import (
    DATA_FILE,
    LOCK_FILE,
    SharedEnvironment,
    limit_of,
    map_size,
    open_environment,
    store_error,
)
from jobs_service.store.overlay import EmbeddedTransaction

log = EventLog("jobs_service.store")

PROCESSES: Final = "processes"

_READER_CHECK_PERIOD: Final = 64
"""Commits between two checks for dead readers: LMDB cannot reuse pages that a reader pins, even a killed one."""
_MOST_TRIES: Final = 100


class LmdbTransaction(EmbeddedTransaction):
    """A transaction on LMDB, whose errors are those of its state's reads."""

    __slots__ = ()

    base_errors = (lmdb.Error,)


class LmdbState:
    """The state of an LMDB transaction.

    Args:
        map: began the transaction.
        transaction: the transaction of the reads and writes.
        address: address of the store, for messages.

    Attributes:
        get: returns the value of a key.
        number, failure, undone: as of every EngineState.
    """

    __slots__ = ("_address", "_cursor", "_has_ended", "_map", "_transaction", "failure", "get", "number")

    undone = False

    def __init__(self, map: MemoryMap, transaction: lmdb.Transaction[bytes], address: str) -> None:
        self.failure: Exception | None = None
        self.get: Callable[[bytes], bytes | None] = transaction.get
        self.number = transaction.id()
        self._map = map
        self._transaction = transaction
        self._address = address
        self._cursor: lmdb.Cursor[bytes] | None = None
        self._has_ended = False

    def fail(self, error: Exception) -> StoreError:
        """Keep the error of a read, and return it as one of the store."""
        self.failure = failure = store_error(self._address, error)
        return failure

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

    def keys_in(self, begin: bytes, end: bytes) -> Iterator[bytes]:
        """Yield the keys from begin up to, not including, end."""
        with self._transaction.cursor() as cursor:
            if cursor.set_range(begin) if begin else cursor.first():
                yield from takewhile(end.__gt__, cursor.iternext(values=False))

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Set each key to its value, and remove those with None."""
        put, delete = self._transaction.put, self._transaction.delete
        for key, value in changes.items():
            if value is None:
                delete(key)
            else:
                put(key, value)

    def put_all(self, pairs: Sequence[KeyValue]) -> None:
        """Set many keys with one call."""
        with self._transaction.cursor() as cursor:
            cursor.putmulti(pairs)

    def commit(self) -> None:
        """Commit; `end` follows all the same."""
        self._transaction.commit()

    def end(self) -> None:
        """Abort what was not committed. Idempotent."""
        self._transaction.abort()
        if not self._has_ended:
            self._has_ended = True
            self._map.end()


class LmdbEngine(Engine):
    """One LMDB environment."""

    errors = (lmdb.Error,)
    transaction = LmdbTransaction

    _environment: SharedEnvironment
    _map: MemoryMap

    def open(self) -> None:
        limit = self.settings.lmdb_map_size
        self.processes = self.path / PROCESSES
        self.room = StoreRoom(self.path / DATA_FILE, self.location, limit, map_size(limit) - limit)
        self.use = FileUse(
            self.path,
            self.location,
            [self.path / DATA_FILE, self.path / LOCK_FILE],
            processes=self.processes,
            gate=self.path,
            namespace=pid_namespace(),
            locks_data=True,
        )
        self._environment = open_environment(self.path, self.settings, self.use, self.at)
        self._map = MemoryMap(self._environment, self._has_grown, self._cannot_grow)

    def close(self) -> None:
        self._environment.close()
        self.use.end()

    def begin(self, *, write: bool = False) -> LmdbState:
        transaction = self._map.begin(write=write and not self.use.is_read_only)
        try:
            state = LmdbState(self._map, transaction, self.address)
            if write:
                self._look_around(state.number)
        except BaseException:
            transaction.abort()
            self._map.end()
            raise
        return state

    def copy(self, path: Path) -> int:
        with self._map.held():
            try:
                return write_copy(path, lambda file: self._environment.copyfd(file.fileno(), compact=True), self.at)
            except lmdb.Error as error:
                raise StoreError(f"{path} cannot be written: {error}") from error

    def error(self, error: Exception) -> Exception:
        return store_error(self.address, error)

    def _look_around(self, number: int) -> None:
        """Drop dead readers, and measure the room, each now and then."""
        environment, room = self._environment, self.room
        if number % _READER_CHECK_PERIOD == 0:
            environment.reader_check()
        if room.is_due(number):
            statistics = environment.stat()
            page = statistics["psize"]
            used = page * (statistics["branch_pages"] + statistics["leaf_pages"] + statistics["overflow_pages"])
            size = page * (environment.info()["last_pgno"] + 1)
            is_held = room.is_pressed(size) and _has_old_reader(environment, number)
            room.measure(number, used, size, is_held=is_held)

    def _has_grown(self, size: int) -> None:
        """Take over the larger map of another process."""
        limit = limit_of(size)
        self.room.grow(limit, map_size(limit) - limit)
        log.info("map_grown", store=self.location, bytes=size)

    def _cannot_grow(self, error: lmdb.Error) -> StoreLost:
        """Mark the store as lost: without a map it can neither read nor write."""
        self.use.lost = StoreLost(
            f"store {self.location} was grown by a process with a larger map, and this one cannot map so much "
            f"({error}; ulimit -v). Give all the same JOBS_SERVICE_LMDB_MAP_SIZE, and start the program anew"
        )
        return self.use.lost


def _has_old_reader(environment: SharedEnvironment, number: int) -> bool:
    """Whether a reader uses an old state: LMDB must keep every page of it."""
    rows = [row.split() for row in environment.readers().splitlines()[1:]]
    return any(len(row) == 3 and row[2].isdigit() and int(row[2]) < number - 2 for row in rows)


class LmdbStore(EmbeddedStore):
    """The embedded store in a directory, on LMDB: settings durable, lmdb_map_size."""

    scheme = "lmdb"
    longest_key = 511
    engine = LmdbEngine


class MemoryMap:
    """The map of one environment, for all threads with transactions.

    A process whose map is too small for the store gets MDB_MAP_RESIZED from each new transaction. It may take over the
    other's size, but LMDB unmaps the file for that: no thread of the process may be in a transaction then.

    Args:
        environment: the store's environment.
        grown: called with the new size in bytes after growth, on the thread that met the old one.
        failed: called with the error if it could not grow: then the environment must not be used any more.
    """

    def __init__(
        self, environment: SharedEnvironment, grown: Callable[[int], object], failed: Callable[[lmdb.Error], Exception]
    ) -> None:
        self._environment = environment
        self._uses = environment.uses
        self._grown = grown
        self._failed = failed
        self.end = self._uses.end

    def begin(self, *, write: bool = False) -> lmdb.Transaction[bytes]:
        """Begin a transaction; the caller calls `end` after its end.

        Raises:
            lmdb.Error: the begin failed; do not call `end`.
        """
        uses = self._uses
        for _ in range(_MOST_TRIES):
            with uses.counting:
                if uses.failure is not None:
                    raise self._failed(uses.failure)
                uses.number += 1
            try:
                return self._environment.begin(write=write)
            except lmdb.MapResizedError:
                self.end()
                self._grow()
            except BaseException:
                self.end()
                raise
        raise lmdb.MapResizedError(f"it was grown {_MOST_TRIES} times meanwhile")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the map unchanged, and as large as the store is now, while the block runs."""
        transaction = self.begin()
        transaction.abort()
        try:
            yield
        finally:
            self.end()

    def _grow(self) -> None:
        with self._uses.counting:
            self._uses.until_unused()
            before = self._environment.info()["map_size"]
            try:
                self._environment.set_mapsize(0)
            except lmdb.Error as error:
                self._uses.failure = error
                raise self._failed(error) from error
            size = self._environment.info()["map_size"]
        if size > before:
            self._grown(size)
