"""The embedded store on LMDB: a directory, shared by all processes of one PID namespace.

The module has more than 600 lines because every way to open a file goes through the same checks, and each environment
is opened once in a process, for all its stores.
"""

from __future__ import annotations

import errno
import functools
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import takewhile
from pathlib import Path
from time import monotonic
from typing import Any, Final

import lmdb

from jobs_service.errors import StoreDamaged, StoreError, StoreFull, StoreLost, StoreUnavailable
from jobs_service.log import EventLog
from jobs_service.settings import Settings
from jobs_service.sources import go_on
from jobs_service.store.base import SYSTEM_KEYS, KeyValue
from jobs_service.store.embedded import EmbeddedStore, Engine
from jobs_service.store.files import FileUse, StoreRoom, flush_directories, pid_namespace, write_copy
from jobs_service.store.lmdb_pages import check_meta_pages, check_pages
from jobs_service.store.overlay import EmbeddedTransaction

log = EventLog("jobs_service.store")

PROCESSES: Final = "processes"

_READER_CHECK_PERIOD: Final = 64
"""Commits between two checks for dead readers: LMDB cannot reuse pages that a reader pins, even a killed one."""
_MOST_TRIES: Final = 100
DATA_FILE: Final = "data.mdb"
LOCK_FILE: Final = "lock.mdb"
FORMAT: Final = b"1"
"""The version of all data in the file: the layout of keys, records and the store's own keys."""

_FORMAT_KEY: Final = SYSTEM_KEYS + b"/jobs_service/format"
_MAX_READERS: Final = 1024
_LOCK_BYTES: Final = _MAX_READERS * 64 + 128
"""The size of LMDB's lock file: a cache line per reader, and two of its own."""
_MOST_LOOKS: Final = 1000
"""Most repetitions of the check because other processes have committed twice meanwhile."""
_SHARE: Final = 16
"""Divisor of the limit for the reserve, which the map has beyond the limit."""
_LEAST_RESERVE: Final = 64 << 20


# The store


class LmdbTransaction(EmbeddedTransaction):
    """A transaction on LMDB; reads of its state raise lmdb.Error."""

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
        """Abort the transaction, unless it was committed. Idempotent."""
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


# Environments


def open_environment(
    path: Path, settings: Settings, use: FileUse, at: Callable[[str], object] = go_on
) -> SharedEnvironment:
    """Open or make the LMDB environment, check that it is complete, and check or write its format version.

    An empty data file counts as a new one: it remains if there was no room to make the file.

    Args:
        path: path of its directory.
        settings: durable, lmdb_map_size.
        use: the use of its files; the caller ends it after closing the environment.
        at: called with names of points where a test may stop or kill the process.
    """
    if path.is_file():
        raise StoreError(
            f"{path} is a file; an lmdb: store is a directory, in which its file, also of a backup, is data.mdb"
        )
    with ExitStack() as undo:
        undo.callback(use.end)
        try:
            missing = [directory for directory in (path, *path.parents) if not directory.exists()]
            path.mkdir(parents=True, exist_ok=True)
            at("opening: has made the directory")
            use.begin()
            check_meta_pages(path / DATA_FILE)
            if not (path / DATA_FILE).exists():
                _make_file(path / DATA_FILE, _write_data_file, at)
                flush_directories(path, *{directory.parent for directory in (path, *missing)})
            if not (path / LOCK_FILE).exists() and not use.is_read_only:
                _make_file(path / LOCK_FILE, _write_lock_file, at)
            at("opening: has made the files")
            use.take_files()
            options = {
                "map_size": map_size(settings.lmdb_map_size),
                "max_readers": _MAX_READERS,
                "max_spare_txns": 1,
                "metasync": settings.durable,
                "meminit": True,  # otherwise the unused part of a page has whatever was in the program's freed memory
                "readahead": False,
                "readonly": use.is_read_only,
            }

            def check(environment: SharedEnvironment) -> None:
                try:
                    at("opening: has opened")
                    environment.reader_check()
                    _check_pages(environment, path)
                    _check_format(environment, path)
                    at("opening: has checked the format")
                except (OSError, lmdb.Error) as error:
                    raise store_error(f"lmdb:{path}", error) from error

            environment = open_environments().take(path, path / DATA_FILE, options, check)
            undo.callback(environment.close)
            use.share()
        except (OSError, lmdb.Error) as error:
            raise _refusal(path, error, settings) from error
        undo.pop_all()
    return environment


def _refusal(path: Path, error: Exception, settings: Settings) -> StoreError:
    """Return the error for an environment that LMDB refused to open."""
    if isinstance(error, lmdb.InvalidError):
        return StoreError(f"{path / DATA_FILE} is no embedded store: {error}")
    if "already open" in str(error):
        return StoreError(
            f"{path} was in use at the moment when this process was forked, and is of no use in it: open stores after "
            "forking, or start processes anew (multiprocessing: spawn)"
        )
    if is_out_of_room(error):
        return store_error(f"lmdb:{path}", error)
    if isinstance(error, lmdb.MemoryError):
        return StoreError(
            f"{path} cannot be opened: its map takes {map_size(settings.lmdb_map_size):,} bytes of address space, more "
            "than this process may have (ulimit -v); set JOBS_SERVICE_LMDB_MAP_SIZE lower"
        )
    reason = error.strerror if isinstance(error, OSError) else None
    return StoreError(f"{path} cannot be opened: {reason or str(error).removeprefix(f'{path}: ')}")


def _make_file(path: Path, write: Callable[[Path], object], at: Callable[[str], object]) -> None:
    """Make a missing file; it gets its name only when it is complete."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        write(temporary)
        at(f"opening: has written {path.name}")
        os.link(temporary, path)
        at(f"opening: has made {path.name}")
    except OSError as error:
        # Another process was faster. Or the file system has no links: then LMDB makes the file.
        if temporary.exists() and not is_out_of_room(error):
            return
        raise
    finally:
        temporary.unlink(missing_ok=True)


def _write_data_file(path: Path) -> None:
    """Write an empty store to disk.

    LMDB itself would make the file under its final name and flush nothing before the first commit. After a power cut in
    between, the file would look damaged.
    """
    directory = path.with_name(f"{path.name}.new")  # LMDB notes in the file whether it has a directory of its own
    shutil.rmtree(directory, ignore_errors=True)
    try:
        directory.mkdir()
        with lmdb.open(str(directory), lock=False) as environment, environment.begin(write=True) as transaction:
            transaction.put(_FORMAT_KEY, FORMAT)
        os.rename(directory / DATA_FILE, path)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _write_lock_file(path: Path) -> None:
    """Write all bytes of a lock file.

    LMDB would make a sparse file and map it; on a full disk, touching a page of it kills the process (SIGBUS). The file
    is written before it gets its name, and never opened afterwards: if this process already uses the file, closing a
    second descriptor would release its locks.
    """
    path.write_bytes(bytes(_LOCK_BYTES))


def _check_pages(environment: SharedEnvironment, path: Path) -> None:
    """Refuse a data file that lacks pages, before LMDB reads more than its meta pages."""
    for _ in range(_MOST_LOOKS):
        try:
            with environment.begin() as transaction:
                if check_pages(path / DATA_FILE, transaction.id()):
                    return
        except lmdb.MapResizedError:  # another process grows it just now
            environment.set_mapsize(0)
    raise StoreError(
        f"{path / DATA_FILE} is damaged, or was replaced while other processes use the store: end them all, then "
        "open it or restore a backup"
    )


def _check_format(environment: SharedEnvironment, path: Path) -> None:
    with environment.begin() as transaction:
        found = transaction.get(_FORMAT_KEY)
        empty = not transaction.cursor().first()
    if found is None and empty:
        with environment.begin(write=True) as transaction:
            transaction.put(_FORMAT_KEY, FORMAT, overwrite=False)
            found = transaction.get(_FORMAT_KEY)
    if found is None:
        raise StoreError(f"{path} is an LMDB environment, but no store of jobs_service; choose another directory")
    if found != FORMAT:
        raise StoreError(
            f"{path} has format {found.decode('ascii', 'replace')}, made by another version of jobs_service; "
            f"this one reads format {FORMAT.decode()}: upgrade it"
        )


# The map's size


def map_size(limit: int) -> int:
    """Return the map's size of a store with a limit of so many bytes."""
    return limit + max(limit // _SHARE, _LEAST_RESERVE)


def limit_of(size: int) -> int:
    """Return the limit in bytes of a store with a map of this size: the inverse of `map_size`."""
    small = size - _LEAST_RESERVE
    return small if small // _SHARE < _LEAST_RESERVE else size * _SHARE // (_SHARE + 1)


# Errors


def store_error(address: str, error: Exception) -> StoreError:
    """Return the store's error for an LMDB error: the only mapping between them."""
    if isinstance(error, StoreError):
        return error
    if isinstance(error, lmdb.MapFullError):
        return StoreFull(
            f"store {address} is full (its map's size): nothing was written; set JOBS_SERVICE_LMDB_MAP_SIZE higher"
        )
    if is_out_of_room(error):
        return StoreFull(
            f"store {address}: the disk is full or fails ({error}): nothing was written; make room and try again"
        )
    if isinstance(error, lmdb.MapResizedError):
        return StoreUnavailable(f"store {address} was grown by another process meanwhile; try again")
    if isinstance(error, lmdb.ReadonlyError):
        return StoreError(f"store {address} is on a read-only file system: nothing was written")
    if isinstance(error, lmdb.CorruptedError | lmdb.PageNotFoundError | lmdb.PageFullError):
        return StoreDamaged(
            f"a page of store {address} is damaged ({error}): end all programs that use it, and restore a backup "
            "(docs/stores.md, A damaged store)"
        )
    return StoreError(f"store {address} failed: {error}")


def is_out_of_room(error: Exception) -> bool:
    """Whether LMDB, or the system, had no room for a write."""
    code = error.errno if isinstance(error, OSError) else getattr(error, "code", 0)
    # EIO is what LMDB makes of a write that came out short.
    return isinstance(error, lmdb.DiskError) or code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


# The environments of a process


_LONGEST_PAUSE: Final = 5.0
"""Seconds for which a fork waits for the end of the transactions that run: the limit of a transaction function."""


class MapUses:
    """The transactions of an environment, of all threads and stores: LMDB's map may change only while there are none.

    Attributes:
        counting: to be held while the others change. Each commit takes it: a plain lock costs a third of a condition.
        number: of transactions.
        failure: why the environment is of no use any more.
    """

    def __init__(self) -> None:
        self.counting = threading.Lock()
        self.number = 0
        self.failure: lmdb.Error | None = None
        self._unused = threading.Condition(self.counting)
        self._waiting = 0

    def end(self) -> None:
        """Note the end of a transaction."""
        with self.counting:
            self.number -= 1
            if self._waiting and not self.number:
                self._unused.notify_all()

    def until_unused(self, seconds: float | None = None) -> bool:
        """Wait until there are no transactions, with `counting` held; return False if there are some after a time."""
        self._waiting += 1
        try:
            return self._unused.wait_for(lambda: not self.number, seconds)
        finally:
            self._waiting -= 1


class SharedEnvironment:
    """An environment with all methods of lmdb.Environment; `close` closes it when every store has called it.

    Args:
        path: of its directory.
        options: for lmdb.open.

    Attributes:
        uses: its transactions.
        stores: number of stores that have it open.
    """

    def __init__(self, path: Path, options: dict[str, Any]) -> None:
        self.uses = MapUses()
        self.stores = 0
        self._path = path
        self._options = options
        self._closed_for_fork = False
        self._native = self._opened()

    def begin(self, *, write: bool = False) -> lmdb.Transaction[bytes]:
        """Begin a transaction."""
        return self._native.begin(write=write)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)

    def join(self, options: dict[str, Any]) -> None:
        """Check and take over the options of one more store.

        Raises:
            StoreError: it is to be durable, and the environment is not.
        """
        if options["metasync"] and not self._options["metasync"]:
            raise StoreError(
                f"{self._path} is open in this process already with durable=False; give all services of a process the "
                "same JOBS_SERVICE_DURABLE"
            )
        with self.uses.counting:
            if options["map_size"] > self._native.info()["map_size"]:
                self.uses.until_unused()
                self._native.set_mapsize(options["map_size"])

    def close(self) -> None:
        """Close it for one store."""
        open_environments().leave(self)

    def close_itself(self) -> None:
        """Close it for all."""
        self._native.close()

    def pause(self, seconds: float) -> None:
        """Admit no more transactions, and close it; if some are still running after a time, leave it open."""
        self.uses.counting.acquire()
        if self.uses.until_unused(seconds):
            self._options["map_size"] = self._native.info()["map_size"]
            self._native.close()
            self._closed_for_fork = True

    def go_on(self) -> None:
        """Open it again, and admit transactions."""
        try:
            if self._closed_for_fork:
                self._closed_for_fork = False
                self._native = self._opened()
        except lmdb.Error as error:
            self.uses.failure = error
        finally:
            self.uses.counting.release()

    def _opened(self) -> lmdb.Environment:
        return lmdb.open(str(self._path), **self._options)


class OpenEnvironments:
    """The open environments, by device and inode of their data files."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._open: dict[tuple[int, int], SharedEnvironment] = {}
        os.register_at_fork(before=self._before, after_in_parent=self._in_parent, after_in_child=self._in_child)

    def take(
        self, path: Path, data_file: Path, options: dict[str, Any], check: Callable[[SharedEnvironment], object]
    ) -> SharedEnvironment:
        """Return the environment in a directory, opened if no store of the process has it open.

        Args:
            path: of the directory.
            data_file: its data file; missing if LMDB is to make it.
            options: for lmdb.open.
            check: called with a newly opened one; may raise.

        Raises:
            StoreError, OSError, lmdb.Error: it cannot be opened.
        """
        with self._changing:
            found = os.stat(data_file) if data_file.exists() else None
            shared = None if found is None else self._open.get((found.st_dev, found.st_ino))
            if shared is not None:
                shared.join(options)
            else:
                shared = SharedEnvironment(path, options)
                try:
                    check(shared)
                    found = os.stat(data_file)
                except BaseException:
                    shared.close_itself()
                    raise
                self._open[found.st_dev, found.st_ino] = shared
            shared.stores += 1
            return shared

    def leave(self, shared: SharedEnvironment) -> None:
        """Close an environment for one store, and entirely for the last one."""
        with self._changing:
            shared.stores -= 1
            if not shared.stores:
                self._open = {key: each for key, each in self._open.items() if each is not shared}
                shared.close_itself()

    def _before(self) -> None:
        self._changing.acquire()
        deadline = monotonic() + _LONGEST_PAUSE
        for shared in self._open.values():
            shared.pause(max(deadline - monotonic(), 0.0))

    def _in_parent(self) -> None:
        for shared in self._open.values():
            shared.go_on()
        self._changing.release()

    def _in_child(self) -> None:
        self._open.clear()
        self._changing.release()


@functools.cache
def open_environments() -> OpenEnvironments:
    """Return the open environments of this process."""
    return OpenEnvironments()
