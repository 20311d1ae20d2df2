"""The embedded store in a SQLite file, which may be the application's own: its rows and its jobs are one commit.

SQLite's locks are byte ranges of files and know no process ids, so containers can share the file. Nothing here opens
the file, or the two beside it, but through SQLite: the end of any other descriptor would end the locks of all
connections of this process, also the application's.

The module has more than 600 lines because the engine is one class, with the connections that it keeps.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from time import monotonic, sleep
from typing import Any, BinaryIO, Final
from urllib.parse import quote

from jobs_service.errors import StoreDamaged, StoreError, StoreFull, StoreUnavailable, kind_of
from jobs_service.log import EventLog
from jobs_service.store.base import SYSTEM_KEYS, KeyValue, Limits, only_keys, ran_too_long
from jobs_service.store.embedded import STAMP_KEY, EmbeddedStore, Engine
from jobs_service.store.files import FileUse, StoreRoom, close_file, flush_directories, open_file, write_copy
from jobs_service.store.overlay import EmbeddedTransaction

log = EventLog("jobs_service.store")

TABLE: Final = "jobs_service_keys"
FORMAT: Final = b"1"
"""The version of all data in the table: the layout of keys, records and the store's own keys."""

_FORMAT_KEY: Final = SYSTEM_KEYS + b"/jobs_service/format"
_LEAST_VERSION: Final = (3, 35, 0)
_NEEDED: Final = ("OMIT_WAL", "OMIT_AUTHORIZATION", "OMIT_PROGRESS_CALLBACK", "OMIT_FOREIGN_KEY")
"""Options of builds without a part of SQLite that is used here."""

_MAKE: Final = f"""create table {TABLE} (
    key blob primary key not null check (typeof(key) = 'blob'),
    value blob not null check (typeof(value) = 'blob')
) without rowid"""
_GET: Final = f"select value from {TABLE} where key = ?"
_PUT: Final = f"insert into {TABLE} values (?, ?) on conflict (key) do update set value = excluded.value"
_AT_ONCE: Final = 64
"""Keys that one statement reads or writes: a third of the time of a statement for each."""
_REMOVE: Final = f"delete from {TABLE} where key = ?"
_UP: Final = f"select key, value from {TABLE} where key >= ? and key < ? order by key limit ?"
_DOWN: Final = f"select key, value from {TABLE} where key >= ? and key < ? order by key desc limit ?"
_KEYS: Final = f"select key from {TABLE} where key >= ? and key < ? order by key"
_FIRST_CHUNK: Final = 16
_LARGEST_CHUNK: Final = 256
"""Pairs that a range read fetches at once: it leaves no statement open, which would keep a commit from its end."""

_FIRST_WAIT: Final = 0.001
_LONGEST_WAIT: Final = 0.02
_LONG: Final = 1.0
"""Seconds of waiting for another program's write lock after which the log says so."""
_STATEMENTS: Final = 256
_STEPS: Final = 10_000
"""Steps of SQLite's machine between two looks at the clock during a statement of the application."""
_CACHE_KIB: Final = 16_384
_USUAL_LOG: Final = 16 << 20
"""Bytes to which the write-ahead log is cut when it begins anew."""
_LARGE_LOG: Final = 64 << 20
"""Bytes of a write-ahead log that somebody's open transaction keeps from beginning anew."""
_LOOK_PERIOD: Final = 64
"""Commits between two looks at the size of the write-ahead log."""

# What statements of the application may not do in a transaction that is not theirs alone.
_OF_TRANSACTIONS: Final = (sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_SAVEPOINT)
_OF_FILES: Final = (sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH)
_READS: Final = (sqlite3.SQLITE_READ, sqlite3.SQLITE_SELECT)
_HARMLESS_PRAGMAS: Final = ("defer_foreign_keys", "foreign_key_check", "foreign_key_list", "user_version")
_PRAGMAS_OF_SCHEMAS: Final = tuple(f"{of}_{what}" for of in ("table", "index") for what in ("info", "list", "xinfo"))

# By SQLite's primary error codes
_OUT_OF_ROOM: Final = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
_DAMAGED: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_LOCKED: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_READ_FAILURES: Final = (sqlite3.SQLITE_IOERR_READ, sqlite3.SQLITE_IOERR_SHORT_READ)


# Errors


def store_error(address: str, error: Exception) -> Exception:
    """Return the store's error for one of SQLite's: the only mapping between them.

    A violated constraint stays what it is: only rows of the application have constraints that can be.
    """
    if isinstance(error, StoreError | sqlite3.IntegrityError):
        return error
    extended = getattr(error, "sqlite_errorcode", 0)
    code = extended & 0xFF
    if code in _DAMAGED or extended in _READ_FAILURES or f"no such table: {TABLE}" in str(error):
        return StoreDamaged(
            f"store {address} is damaged ({error}): end all programs that use it, and restore a backup "
            "(docs/stores.md, A damaged store)"
        )
    if code in _OUT_OF_ROOM or isinstance(error, OSError):
        return StoreFull(
            f"store {address}: the disk is full or fails ({error}): nothing was written; make room and try again"
        )
    if code in _LOCKED:
        return StoreUnavailable(f"store {address} is locked by another program ({error}); try again later")
    if code == sqlite3.SQLITE_READONLY:
        return StoreError(f"store {address} is on a read-only file system or write-protected: nothing was written")
    return StoreError(f"store {address} failed: {error}")


def _is_locked(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _LOCKED


# Transactions


@functools.cache
def _get_of(keys: int) -> str:
    return f"select key, value from {TABLE} where key in ({', '.join('?' * keys)})"


@functools.cache
def _put_of(pairs: int) -> str:
    return _PUT.replace("(?, ?)", ", ".join(["(?, ?)"] * pairs))


class SqliteState:
    """The state of one SQLite transaction.

    Args:
        engine: began it, on one of its connections.
        connection: the connection.
        writes: whether it may write.

    Attributes:
        number, failure, undone: as of every EngineState.
    """

    __slots__ = (
        "_connection",
        "_engine",
        "_execute",
        "_has_ended",
        "_has_savepoint",
        "_writes",
        "failure",
        "number",
        "undone",
    )

    def __init__(self, engine: SqliteEngine, connection: sqlite3.Connection, *, writes: bool) -> None:
        self.failure: Exception | None = None
        self.undone = False
        self._engine = engine
        self._connection = connection
        self._execute = connection.execute
        self._writes = writes
        self._has_ended = False
        self._has_savepoint = False
        self.number = int.from_bytes(self.get(STAMP_KEY) or b"", "big") + writes

    def fail(self, error: Exception) -> StoreError:
        """Keep the error of a read, and return it as one of the store."""
        failure = store_error(self._engine.address, error)
        self.failure = failure
        return failure if isinstance(failure, StoreError) else StoreError(str(failure))

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key."""
        try:
            row = self._execute(_GET, (key,)).fetchone()
        except sqlite3.Error as error:
            raise self.fail(error) from error
        return None if row is None else row[0]

    def get_all(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of keys in their order."""
        found: dict[bytes, bytes] = {}
        try:
            for start in range(0, len(keys), _AT_ONCE):
                some = keys[start : start + _AT_ONCE]
                found.update(self._execute(_get_of(len(some)), some).fetchall())
        except sqlite3.Error as error:
            raise self.fail(error) from error
        return list(map(found.get, keys))

    def scan(self, begin: bytes, end: bytes, reverse: bool) -> Iterator[KeyValue]:
        """Yield pairs from begin up to, not including, end."""
        size = _FIRST_CHUNK
        while True:
            try:
                pairs = self._execute(_DOWN if reverse else _UP, (begin, end, size)).fetchall()
            except sqlite3.Error as error:
                raise self.fail(error) from error
            yield from pairs
            if len(pairs) < size:
                return
            if reverse:
                end = pairs[-1][0]
            else:
                begin = pairs[-1][0] + b"\x00"
            size = min(4 * size, _LARGEST_CHUNK)

    def keys_in(self, begin: bytes, end: bytes) -> Iterator[bytes]:
        """Return the keys from begin up to, not including, end."""
        return iter([key for (key,) in self._execute(_KEYS, (begin, end)).fetchall()])

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Set each key to its value, and remove those with None."""
        self.put_all([(key, value) for key, value in changes.items() if value is not None])
        if None in changes.values():
            self._connection.executemany(_REMOVE, [(key,) for key, value in changes.items() if value is None])

    def put_all(self, pairs: Sequence[KeyValue]) -> None:
        """Set many keys with few statements."""
        end = len(pairs) - len(pairs) % _AT_ONCE
        for start in range(0, end, _AT_ONCE):
            self._execute(_put_of(_AT_ONCE), [*chain.from_iterable(pairs[start : start + _AT_ONCE])])
        self._connection.executemany(_PUT, pairs[end:])

    def commit(self) -> None:
        """Commit, and let others write."""
        self._execute("commit")
        self._engine.note_commit(self.number)
        self._end()

    def end(self) -> None:
        """Roll back, unless it was committed, and let others write. Idempotent."""
        if not self._has_ended:
            with contextlib.suppress(sqlite3.Error):
                if self._connection.in_transaction:
                    self._execute("rollback")
            self._end()

    def _end(self) -> None:
        self._has_ended = True
        if self._writes:
            self._engine.let_others_write()

    # Rows of the application

    def run(self, statement: str, parameters: Sequence[Any] | Mapping[str, Any], until: float) -> list[tuple[Any, ...]]:
        """Run a statement of the application, and return its rows.

        Args:
            statement, parameters: the statement, and its parameters.
            until: when it is to be interrupted, on the monotonic clock.
        """
        if self.failure is not None:
            raise self.failure
        try:
            with self._engine.asking(until):
                # With the blank, its text is never that of a statement of ours which SQLite has checked already.
                return self._execute(" " + statement, parameters).fetchall()
        except sqlite3.Error as error:
            failure: Exception = error
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in (*_OUT_OF_ROOM, *_DAMAGED):
                failure = store_error(self._engine.address, error)
            if not self._connection.in_transaction:
                self.undone, self.failure = True, failure
            if failure is error:
                raise
            raise failure from error

    def begin_rows(self) -> None:
        """Set the savepoint of `undo_rows`, before the first statement of each transaction function."""
        if self._has_savepoint:
            self._execute("release rows")
        self._execute("savepoint rows")
        self._has_savepoint = True

    def undo_rows(self) -> None:
        """Undo the statements of the transaction function that has failed."""
        if not self._connection.in_transaction:
            return
        try:
            self._execute("rollback to rows")
        except sqlite3.Error as error:
            self.fail(error)


class SqliteTransaction(EmbeddedTransaction):
    """A transaction that also runs statements on the application's tables, at once and in the same commit."""

    __slots__ = ("_began", "_has_rows")

    _state: SqliteState

    def __init__(self, base: SqliteState, limits: Limits, **options: Any) -> None:
        super().__init__(base, limits, **options)
        self._began = monotonic()
        self._has_rows = False

    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        keys = only_keys(keys)
        if not self._ended and self._are_plain(keys) and self._are_untouched(keys):
            return self._state.get_all(keys)
        return await super().get_many(keys)

    async def sql(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        if self._read_only:
            raise self._refusal()
        if not isinstance(statement, str):
            raise StoreError(
                f"a statement of type {kind_of(statement)}; tx.sql() takes SQL text, and then its parameters"
            )
        if not self._has_rows:
            self._state.begin_rows()
            self._has_rows = True
        named = len(parameters) == 1 and isinstance(parameters[0], Mapping)
        try:
            return self._state.run(statement, parameters[0] if named else parameters, self._began + self.limits.seconds)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
                raise ran_too_long(monotonic() - self._began, self.limits) from error
            raise

    @property
    def writes(self) -> bool:
        return self._has_rows or bool(self.log or self.values or self.keys)

    def roll_back(self) -> None:
        if self._has_rows:
            self._state.undo_rows()


# The engine


class _FilesOfProcess:
    """The files that are open in this process: a forked child inherits SQLite's account of their locks, not the locks.

    Attributes:
        open: their real paths.
        inherited: those that were open at the fork of this process.
    """

    def __init__(self) -> None:
        self.open: list[Path] = []
        self.inherited: list[Path] = []
        os.register_at_fork(after_in_child=self._forked)

    def check(self, file: Path) -> None:
        """Refuse an inherited file, which this process would damage."""
        if file in self.inherited:
            raise StoreError(
                f"{file} was open when this process was forked, and SQLite cannot open it in the child, too: open the "
                "store after forking, or start processes anew (multiprocessing: spawn)"
            )

    def _forked(self) -> None:
        self.inherited += self.open
        self.open.clear()


@functools.cache
def _files_of_process() -> _FilesOfProcess:
    return _FilesOfProcess()


class SqliteEngine(Engine):
    """Two connections to one SQLite file: the writer's and the reader's."""

    transaction = SqliteTransaction

    _writer: sqlite3.Connection
    _reader: sqlite3.Connection
    _turn: int

    def open(self) -> None:
        _check_build()
        if self.path.is_dir():
            raise StoreError(f"{self.path} is a directory; an sqlite: store is a file")
        # SQLite follows symbolic links before it names the files beside the store.
        self._file = file = Path(os.path.realpath(self.path))
        self._log, index = Path(f"{file}-wal"), Path(f"{file}-shm")
        _files_of_process().check(file)
        self.processes = Path(f"{file}-processes")
        self.room = StoreRoom(file, self.location)
        self.use = use = FileUse(
            self.path, self.location, [self.path, self._log, index], processes=self.processes, gate=self.processes
        )
        self._until: float | None = None
        self._refused = ""
        self._has_named_log = False
        with ExitStack() as undo:
            undo.callback(use.end)
            try:
                missing = [directory for directory in file.parents if not directory.exists()]
                file.parent.mkdir(parents=True, exist_ok=True)
                self.at("opening: has made the directory")
                use.begin()
                self._writer = self._connect()
                undo.callback(self._writer.close)
                self._prepare_writer()
                self.at("opening: has made the files")
                self._reader = self._connect()
                undo.callback(self._reader.close)
                self._reader.execute("pragma query_only = on")
                self._reader.execute(_GET, (_FORMAT_KEY,)).fetchone()
                if not use.is_read_only:
                    flush_directories(*{directory.parent for directory in (file, *missing)})
                    self._turn = open_file(str(self.processes / "writer"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
                    undo.callback(close_file, self._turn)
                use.share()
            except (OSError, sqlite3.Error) as error:
                raise self._refusal(error) from error
            self.at("opening: has opened")
            undo.pop_all()
        _files_of_process().open.append(file)

    def close(self) -> None:
        _files_of_process().open.remove(self._file)
        for connection in (self._reader, self._writer):
            with contextlib.suppress(sqlite3.Error):
                connection.close()
        if not self.use.is_read_only:
            close_file(self._turn)
            del self._turn
        self.use.end()

    def begin(self, *, write: bool = False) -> SqliteState:
        if not write or self.use.is_read_only:
            connection = self._writer if write else self._reader
            connection.execute("begin")
            state = self._begun(connection, writes=False)
            if write:
                self._measure(state.number)
            return state
        # The processes of this package take turns at a lock that wakes the next one at once, which SQLite's does not.
        fcntl.flock(self._turn, fcntl.LOCK_EX)
        try:
            self._begin_immediate()
        except BaseException:
            self.let_others_write()
            raise
        state = self._begun(self._writer, writes=True)
        try:
            if self.room.is_due(state.number):
                self._measure(state.number)
        except BaseException:
            state.end()
            raise
        return state

    def let_others_write(self) -> None:
        """End this process's turn."""
        fcntl.flock(self._turn, fcntl.LOCK_UN)

    def note_commit(self, number: int) -> None:
        """Note a commit, by its number; look now and then whether somebody keeps the write-ahead log growing."""
        if number % _LOOK_PERIOD:
            return
        try:
            size = os.stat(self._log).st_size
        except OSError:  # somebody has removed it: that is for others to say
            return
        if size <= _LARGE_LOG:
            self._has_named_log = False
            return
        with contextlib.suppress(sqlite3.Error):
            is_held, pages, done = self._writer.execute("pragma wal_checkpoint(truncate)").fetchone()
            if is_held and 2 * done < pages and not self._has_named_log:  # a short read holds hardly any
                self._has_named_log = True
                log.warning("store_log_grows", store=self.location, bytes=size)

    @contextlib.contextmanager
    def asking(self, until: float) -> Iterator[None]:
        """Check the statements within the block, which are the application's, and interrupt them in time."""
        self._until, self._refused = until, ""
        try:
            yield
        except sqlite3.DatabaseError as error:
            if self._refused:
                raise StoreError(self._refused) from error
            raise
        finally:
            self._until = None

    def copy(self, path: Path) -> int:
        def write(file: BinaryIO) -> None:
            with (
                contextlib.closing(self._connect()) as source,
                contextlib.closing(sqlite3.connect(file.name)) as target,
            ):
                target.execute("pragma journal_mode = off")
                target.execute("pragma synchronous = off")
                source.backup(target)

        try:
            return write_copy(path, write, self.at)
        except sqlite3.Error as error:
            raise StoreError(f"{path} cannot be written: {error}") from error

    def error(self, error: Exception) -> Exception:
        return store_error(self.address, error)

    def _connect(self) -> sqlite3.Connection:
        mode = "rwc"
        if self.use.is_read_only:
            # Without a write-ahead log, nothing that others could change is beside the file.
            mode = "ro" if self._log.exists() and self._log.stat().st_size else "ro&immutable=1"
        return sqlite3.connect(
            f"file:{quote(str(self._file))}?mode={mode}",
            uri=True,
            timeout=self.settings.transaction_timeout,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=_STATEMENTS,
        )

    def _prepare_writer(self) -> None:
        """Set up the writer's connection, and make the table if it is missing."""
        execute = self._writer.execute
        if not self.use.is_read_only:
            [(mode,)] = execute("pragma journal_mode = wal").fetchall()
            if mode != "wal":
                raise StoreError(f"{self.path} cannot be opened: SQLite has no write-ahead log there, but mode {mode}")
            execute(f"pragma synchronous = {'full' if self.settings.durable else 'normal'}")
            execute(f"pragma fullfsync = {'on' if self.settings.durable else 'off'}")
            execute(f"pragma journal_size_limit = {_USUAL_LOG}")
            execute("pragma foreign_keys = on")
        execute(f"pragma cache_size = -{_CACHE_KIB}")
        if execute("select 1 from sqlite_master where name = ?", (TABLE,)).fetchone() is None:
            execute("begin immediate")
            if execute("select 1 from sqlite_master where name = ?", (TABLE,)).fetchone() is None:
                execute(_MAKE)
                execute(_PUT, (_FORMAT_KEY, FORMAT))
            self.at("opening: has made the table")
            execute("commit")
        found = execute(_GET, (_FORMAT_KEY,)).fetchone()
        if found is None or found[0] != FORMAT:
            was = "no format" if found is None else f"format {found[0].decode('ascii', 'replace')}"
            raise StoreError(
                f"{self.path} has {was} in its table {TABLE}, made by another version of jobs_service or changed by "
                f"hand; this one reads format {FORMAT.decode()}: upgrade it, or restore a backup"
            )
        execute("pragma busy_timeout = 0")  # `_begin_immediate` waits by itself
        self._page_size = execute("pragma page_size").fetchone()[0]
        self._writer.set_authorizer(self._authorize)
        self._writer.set_progress_handler(self._is_late, _STEPS)

    def _begun(self, connection: sqlite3.Connection, *, writes: bool) -> SqliteState:
        try:
            return SqliteState(self, connection, writes=writes)
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("rollback")
            if writes:
                self.let_others_write()
            raise

    def _begin_immediate(self) -> None:
        """Begin to write as soon as no other program does."""
        pause, began, has_named = _FIRST_WAIT, monotonic(), False
        while True:
            try:
                self._writer.execute("begin immediate")
                return
            except sqlite3.OperationalError as error:
                if not _is_locked(error):
                    raise
            if not has_named and monotonic() - began > _LONG:
                has_named = True
                log.warning("store_locked", store=self.location, seconds=_LONG)
            sleep(pause)
            pause = min(2 * pause, _LONGEST_WAIT)

    def _measure(self, number: int) -> None:
        execute = self._writer.execute
        pages = execute("pragma page_count").fetchone()[0]
        free = execute("pragma freelist_count").fetchone()[0]
        self.room.measure(number, self._page_size * (pages - free), self._page_size * pages)

    def _is_late(self) -> bool:
        return self._until is not None and monotonic() > self._until

    def _authorize(self, action: int, first: str | None, second: str | None, *_: str | None) -> int:
        """Refuse what a statement of the application may not do."""
        if self._until is None:
            return sqlite3.SQLITE_OK
        if action in _OF_TRANSACTIONS:
            self._refused = "tx.sql() cannot begin, commit or roll back: transact() does, and an error rolls back"
        elif action in _OF_FILES:
            self._refused = "tx.sql() cannot attach or detach files: a commit of several is not all or nothing"
        elif action == sqlite3.SQLITE_PRAGMA and str(first).lower() not in (*_HARMLESS_PRAGMAS, *_PRAGMAS_OF_SCHEMAS):
            self._refused = f"tx.sql() cannot use pragma {first}; set it on a connection of your own"
        elif TABLE in (first, second) and action not in _READS:
            self._refused = f"tx.sql() cannot change {TABLE}, which has the jobs"
        else:
            return sqlite3.SQLITE_OK
        return sqlite3.SQLITE_DENY

    def _refusal(self, error: Exception) -> Exception:
        """Return the error for a file that could not be opened."""
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_NOTADB:
            return StoreError(f"{self.path} is no SQLite file; choose another path")
        if code == sqlite3.SQLITE_FULL or (isinstance(error, sqlite3.Error) and code in (*_DAMAGED, *_LOCKED)):
            return store_error(self.address, error)
        reason = error.strerror if isinstance(error, OSError) else None
        return StoreError(f"{self.path} cannot be opened: {reason or error}")


def _check_build() -> None:
    """Refuse a SQLite that lacks a feature needed here.

    Raises:
        StoreError: it is too old, or was built without a part.
    """
    found = sqlite3.sqlite_version
    remedy = "take a Python with another one, or an lmdb: store"
    if sqlite3.sqlite_version_info < _LEAST_VERSION:
        least = ".".join(map(str, _LEAST_VERSION[:2]))
        raise StoreError(f"an sqlite: store needs SQLite {least} or newer, and this Python has {found}: {remedy}")
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        options = {option for (option,) in connection.execute("pragma compile_options")}
    lacks = sorted(options.intersection((*_NEEDED, "THREADSAFE=0")))
    if lacks:
        raise StoreError(f"an sqlite: store cannot use this Python's SQLite {found}, built with {lacks[0]}: {remedy}")


class SqliteStore(EmbeddedStore):
    """The embedded store in a SQLite file: setting durable."""

    scheme = "sqlite"
    longest_key = Limits.key
    engine = SqliteEngine
