"""LMDB environments: opened, checked, copied; and the room in which they may grow."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from typing import Final

import lmdb

from jobs_service.errors import StoreError, StoreFull
from jobs_service.log import EventLog
from jobs_service.settings import Settings
from jobs_service.sources import go_on
from jobs_service.store.base import SYSTEM_KEYS
from jobs_service.store.lmdb.process_locks import DATA_FILE, LOCK_FILE, FileUse, check_meta_pages, check_pages
from jobs_service.store.lmdb.shared import SharedEnvironment, open_environments
from jobs_service.store.lmdb.transaction import LmdbTransaction, grows, is_out_of_room, store_error

log = EventLog("jobs_service.store")

FORMAT: Final = b"1"
"""The version of all data in the file: the layout of keys, records and the store's own keys."""

_FORMAT_KEY: Final = SYSTEM_KEYS + b"/jobs_service/format"
_MAX_READERS: Final = 1024
_LOCK_BYTES: Final = _MAX_READERS * 64 + 128
"""The size of LMDB's lock file: a cache line per reader, and two of its own."""
_MOST_LOOKS: Final = 1000
"""Most repetitions of the check because other processes have committed twice meanwhile."""

_MIB: Final = 1 << 20
_SHARE: Final = 16
"""Divisor of the map's size for the reserve, and of a disk's size for the part kept free."""
_LEAST_RESERVE: Final = 64 * _MIB
_MOST_KEPT: Final = 16 * _MIB
"""Most bytes of a disk that are kept free."""
_URGENT: Final = 0.75
"""The share of the reserve for urgent transactions; the rest is for transactions that make the store smaller."""
_PAGE_FILL: Final = 2
"""Estimated bytes of pages per byte written, until the next measurement."""
_FILLING: Final = 0.8
_NO_LONGER_FILLING: Final = 0.7
_AMPLE: Final = 2048 * _MIB
"""Room from which on disk and map are measured only now and then."""
_RARELY: Final = 64
_RECENTLY: Final = 0.25


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
        raise StoreError(f"{path} is a file; an embedded store is a directory")
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


def flush_directories(*paths: Path) -> None:
    """Flush the names in these directories to disk, if the file system can."""
    for path in paths:
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


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


def copy_environment(environment: SharedEnvironment, path: Path, at: Callable[[str], object] = go_on) -> int:
    """Write a compacted copy to a new file, under a temporary name until it is complete.

    Args:
        environment: the environment to copy.
        path: path of the new file.
        at: as for `open_environment`.
    """
    if path.exists():
        raise StoreError(f"{path} exists already; name a new file")
    temporary = path.with_name(path.name + ".part")
    try:
        with open(temporary, "xb") as file:
            try:
                environment.copyfd(file.fileno(), compact=True)
                os.fsync(file.fileno())
                size = os.fstat(file.fileno()).st_size
                at("backup: is written")
                os.rename(temporary, path)
                flush_directories(path.parent)
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


# Room


def map_size(limit: int) -> int:
    """Return the map's size of a store with a limit of so many bytes."""
    return limit + max(limit // _SHARE, _LEAST_RESERVE)


def limit_of(size: int) -> int:
    """Return the limit in bytes of a store with a map of this size: the inverse of `map_size`."""
    small = size - _LEAST_RESERVE
    return small if small // _SHARE < _LEAST_RESERVE else size * _SHARE // (_SHARE + 1)


class StoreRoom:
    """The remaining room of a store, and the transactions that may use it. Used by the store's writer thread.

    LMDB writes a changed page to another place, so that even a removal needs room, and a completely full store can
    never be emptied. So the map is larger than the store's limit, by a reserve:

    | effect of a transaction                                         | goes through as long as                        |
    |-----------------------------------------------------------------|------------------------------------------------|
    | adds jobs, or writes the application's own keys beside no job   | the store is smaller than `lmdb_map_size`      |
    | takes, updates, ends or removes jobs (`Transaction.use_reserve`)| a quarter of the reserve is left: see `_URGENT`|
    | makes the store smaller                                         | there are pages at all                         |

    On a disk that is nearly full, additions are refused a little before everything is. A long reader, such as a backup,
    keeps LMDB from reusing pages: while there is one, nothing may be added beyond half of the reserve.

    Args:
        directory: the store's directory.
        location: name of the store in logs.
        limit: most bytes of the store.
    """

    def __init__(self, directory: Path, location: str, limit: int) -> None:
        self._directory = directory
        self._location = location
        self._limit = limit
        self._reserve = map_size(limit) - limit
        self._left = 0.0
        self._left_for_urgent = 0.0
        self._of_disk = False
        self._next = 0
        self._disk_at = -_RECENTLY
        self._disk_left = 0.0
        self._disk_share = 0.0
        self._filling = False

    def measure(self, environment: SharedEnvironment, number: int) -> None:
        """Measure the room, if it may have changed much; called at the begin of each LMDB transaction.

        Args:
            environment: the store's environment.
            number: number of the transaction.
        """
        if number < self._next:
            return
        statistics = environment.stat()
        page = statistics["psize"]
        used = page * (statistics["branch_pages"] + statistics["leaf_pages"] + statistics["overflow_pages"])
        file_size = page * (environment.info()["last_pgno"] + 1)
        left = self._limit - used
        if file_size > self._limit + self._reserve // 2 and _has_old_reader(environment, number):
            left = min(left, 0)
        self._look_at_disk(used, file_size)
        self._of_disk = self._disk_left < left
        self._left = min(left, self._disk_left)
        self._left_for_urgent = self._limit + _URGENT * self._reserve - used
        self._next = number + (_RARELY if self._left > _AMPLE else 0)
        self._tell(used)

    def grow(self, size: int) -> None:
        """Raise the store's limit to that of a process with a map of so many bytes; called on any thread."""
        limit = max(self._limit, limit_of(size))
        self._limit, self._reserve, self._next = limit, map_size(limit) - limit, 0

    def wrote(self, size: int) -> None:
        """Subtract so many bytes of keys and values, written since the last measurement."""
        size *= _PAGE_FILL
        self._left -= size
        self._left_for_urgent -= size
        self._disk_left -= size

    def claim(self, size: int) -> None:
        """Refuse an addition of so many bytes if there is no room.

        Raises:
            StoreFull: there is no room.
        """
        if size > self._left:
            raise self._full()

    def admit(self, own: LmdbTransaction) -> None:
        """Refuse a transaction that has run, if there is no room for its writes.

        Raises:
            StoreFull: there is no room.
        """
        size = own.size
        if size > self._left and not (own.is_urgent and size <= self._left_for_urgent) and grows(own):
            raise self._full()

    def _look_at_disk(self, used: int, file_size: int) -> None:
        now = monotonic()
        if now - self._disk_at < _RECENTLY:
            return
        self._disk_at = now
        try:
            disk = os.statvfs(self._directory)
            allocated = 512 * os.stat(self._directory / DATA_FILE).st_blocks
        except OSError:  # somebody has moved it: that is for LMDB to say
            self._disk_left, self._disk_share = math.inf, 0.0
            return
        free = disk.f_bavail * disk.f_frsize
        kept = min(_MOST_KEPT, disk.f_blocks * disk.f_frsize // _SHARE)
        # Free pages within the file are on the disk already.
        within = max(0, min(file_size, allocated) - used)
        self._disk_left = free + within - kept
        self._disk_share = used / (used + within + free) if free else 1.0

    def _tell(self, used: int) -> None:
        """Warn once when the store, or its disk, is nearly full; again only after it was emptier."""
        share = max(used / self._limit, self._disk_share)
        if self._filling:
            self._filling = share > _NO_LONGER_FILLING
        elif share >= _FILLING:
            self._filling = True
            of = "disk" if self._disk_share > used / self._limit else "lmdb_map_size"
            log.warning("store_filling", store=self._location, of=of, percent=int(100 * share), bytes=used)

    def _full(self) -> StoreFull:
        if self._of_disk:
            return StoreFull(
                f"store {self._location}: the disk is full but for a reserve, kept for what ends or removes jobs: "
                "nothing was written; make room and try again"
            )
        return StoreFull(
            f"store {self._location} is full: what is left is kept for what ends or removes jobs; nothing was written. "
            f"Remove jobs, or set JOBS_SERVICE_LMDB_MAP_SIZE higher than {self._limit}"
        )


def _has_old_reader(environment: SharedEnvironment, number: int) -> bool:
    """Whether a reader uses an old state: LMDB must keep every page of it."""
    rows = [row.split() for row in environment.readers().splitlines()[1:]]
    return any(len(row) == 3 and row[2].isdigit() and int(row[2]) < number - 2 for row in rows)
