"""The data file of an LMDB store: made, checked and opened as an environment, once in each process.

LMDB does not check that its data file is complete, and would end the process that reads a missing page.
The module has more than 600 lines because every way to open a file goes through the same checks.
"""

from __future__ import annotations

import errno
import functools
import os
import shutil
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from struct import error as StructError
from time import monotonic
from typing import Any, Final

import lmdb

from jobs_service.errors import StoreDamaged, StoreError, StoreFull, StoreUnavailable
from jobs_service.settings import Settings
from jobs_service.sources import go_on
from jobs_service.store.base import SYSTEM_KEYS
from jobs_service.store.files import FileUse, flush_directories

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
"""Divisor of the map's size for the reserve."""
_LEAST_RESERVE: Final = 64 << 20

# LMDB's pages
_MAGIC: Final = 0xBEEFC0DE
_DATA_VERSION: Final = 1
_META_PAGE: Final = 0x08
_BRANCH: Final = 0x01
_LEAF: Final = 0x02
_BIG_VALUE: Final = 0x01
_INTEGER_KEYS: Final = 0x08
_NO_PAGE: Final = 2**64 - 1

# Page number, flags, then how far the node pointers reach.
_PAGE: Final = Struct("=Q2xHH2x")
# Magic, data version; page size, flags and root of the list of free pages; root of the tree of all keys; last page;
# number of the transaction.
_META: Final = Struct("=II16x IH34xQ 40xQ QQ")
_META_END: Final = _PAGE.size + _META.size
_POINTER: Final = Struct("=H")
# Size of the value (low, high), flags, size of the key; on a branch the first three are the child's page number.
_NODE: Final = Struct("=HHHH")
_NUMBER: Final = Struct("=Q")


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


# Does the file have all pages that LMDB may touch?


@dataclass(frozen=True)
class _Meta:
    """The content of one meta page; the first five fields never change.

    LMDB maps the file into memory, so touching a page behind the file's end kills the process (SIGBUS) instead of
    raising an error. The two meta pages have the number of pages, but a sound file may be shorter: pages that a
    transaction took and freed again are never written. So a file is complete if all missing pages are in its list of
    free pages. Files of LMDB 1.0 or of 32-bit machines have another layout; LMDB itself checks them.
    """

    page_flags: int
    magic: int
    version: int
    page_size: int
    free_flags: int
    free_root: int
    main_root: int
    last_page: int
    number: int

    @property
    def is_known(self) -> bool:
        """Whether the meta page has the layout known here."""
        return self.magic == _MAGIC and self.version == _DATA_VERSION

    @property
    def is_sound(self) -> bool:
        """Whether LMDB can have written the fields that never change."""
        return (
            self.is_known
            and self.page_flags == _META_PAGE
            and 256 <= self.page_size <= 0x8000
            and self.page_size & (self.page_size - 1) == 0
            and self.free_flags == _INTEGER_KEYS
        )

    @property
    def is_possible(self) -> bool:
        """Whether the roots of the trees are existing pages."""
        return all(root == _NO_PAGE or 1 < root <= self.last_page for root in (self.free_root, self.main_root))


def check_meta_pages(file: Path) -> None:
    """Refuse a file whose meta pages would make LMDB divide by zero or read impossible pages.

    Called before LMDB opens the file, which need not exist. LMDB itself refuses foreign files. An incomplete file, left
    by a full disk or a killed process, is completed here.

    Raises:
        StoreError: LMDB cannot have written these meta pages.
        OSError: the file cannot be read.
    """
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return
    try:
        first = _meta(descriptor, 0)
        if first is None or not first.is_known:
            return
        second = _meta(descriptor, first.page_size)
        size = os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)
    if first.is_sound and size < 2 * first.page_size:
        if first.number or first.main_root != _NO_PAGE:
            raise StoreError(
                f"{file} has {size} bytes and needs at least {2 * first.page_size}: it was cut off; restore a backup"
            )
        _finish_making(file, first.page_size)
        return
    if second is None or not (first.is_sound and second.is_sound and first.page_size == second.page_size):
        raise StoreError(f"{file} is damaged: its first pages are not as LMDB writes them; restore a backup")


def _finish_making(file: Path, page_size: int) -> None:
    """Append the missing part of a new store's two meta pages, which are equal but for their numbers.

    Another process may just be making the store, and go on to use it: the appended bytes then lie behind all pages,
    where LMDB never reads.
    """
    descriptor = os.open(file, os.O_RDWR | os.O_APPEND)
    try:
        first = os.pread(descriptor, page_size, 0).ljust(page_size, b"\0")
        second = _NUMBER.pack(1) + first[_NUMBER.size :]
        os.write(descriptor, (first + second)[os.fstat(descriptor).st_size :])
    finally:
        os.close(descriptor)


def check_pages(file: Path, number: int) -> bool:
    """Refuse a file without pages that LMDB may touch.

    To be called within an LMDB read transaction, so that no other process changes pages of its state.

    Args:
        file: the data file, opened by LMDB.
        number: number of the read transaction.

    Returns:
        Whether the file was checked. After two commits in the meantime it was not: begin another read transaction.

    Raises:
        StoreError: the file was cut off or is damaged.
        OSError: the file cannot be read.
    """
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    try:
        first = _meta(descriptor, 0)
        if first is None or not first.is_known:
            return True
        # Commits write the two meta pages in turn.
        place = first.page_size * (number & 1)
        meta = _meta(descriptor, place)
        if meta is None or meta.number != number:
            return False
        size = os.fstat(descriptor).st_size
        problem = _problem(descriptor, meta, size)
        if problem and _meta(descriptor, place) != meta:
            return False
    finally:
        os.close(descriptor)
    if problem:
        raise StoreError(f"{file} {problem}; restore a backup")
    return True


def _problem(descriptor: int, meta: _Meta, size: int) -> str | None:
    """Return the danger for LMDB in reading a file of so many bytes; None for none."""
    if not meta.is_possible:
        return "is damaged: its first pages are not as LMDB writes them"
    complete = size // meta.page_size
    if complete > meta.last_page:
        return None
    end = meta.last_page + 1
    try:
        lacking = [page for page in _free_pages(descriptor, meta) if complete <= page < end]
    except (ValueError, StructError):
        lacking = []
    if len(lacking) == end - complete:
        return None
    lacking.sort()
    while lacking and lacking[-1] == end - 1:
        lacking.pop()
        end -= 1
    return f"has {size} bytes and needs {end * meta.page_size}: it was cut off"


def _meta(descriptor: int, offset: int) -> _Meta | None:
    """Return the meta page at an offset; None if the file ends within it."""
    content = os.pread(descriptor, _META_END, offset)
    if len(content) < _META_END:
        return None
    _, flags, _ = _PAGE.unpack_from(content)
    return _Meta(flags, *_META.unpack_from(content, _PAGE.size))


def _free_pages(descriptor: int, meta: _Meta) -> set[int]:
    """Return the free pages: LMDB reads none of them before writing it.

    Raises:
        ValueError, struct.error: part of the list is missing or invalid.
    """
    free: set[int] = set()
    seen: set[int] = set()
    waiting = [] if meta.free_root == _NO_PAGE else [meta.free_root]
    while waiting:
        number = waiting.pop()
        if number > meta.last_page or number in seen:
            raise ValueError(f"page {number} cannot be in the list")
        seen.add(number)
        page = os.pread(descriptor, meta.page_size, number * meta.page_size)
        found, flags, lower = _PAGE.unpack_from(page)
        if found != number or flags not in (_BRANCH, _LEAF):
            raise ValueError(f"page {number} is none of the list")
        for (place,) in _POINTER.iter_unpack(page[_PAGE.size : lower]):
            low, high, node_flags, key_size = _NODE.unpack_from(page, place)
            if flags == _BRANCH:
                waiting.append(low | high << 16 | node_flags << 32)
                continue
            numbers = page[place + _NODE.size + key_size :]
            if node_flags & _BIG_VALUE:
                (elsewhere,) = _NUMBER.unpack_from(numbers)
                if elsewhere > meta.last_page:
                    raise ValueError(f"page {elsewhere} cannot be in the list")
                numbers = os.pread(descriptor, low | high << 16, elsewhere * meta.page_size + _PAGE.size)
            (count,) = _NUMBER.unpack_from(numbers)
            if count > len(numbers):
                raise ValueError(f"page {number} is none of the list")
            free.update(Struct(f"={count}Q").unpack_from(numbers, _NUMBER.size))
    return free


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
