"""The files of an embedded store, as processes share them: locks that prove a living process, and what LMDB ignores.

LMDB checks neither that its data file is complete nor that the next process opens the same files, and it tells nobody
that a process has died. The module has more than 600 lines because all of that is done with the same files, descriptors
and locks.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import re
import stat
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from struct import error as StructError
from typing import Final, TypeAlias

from jobs_service.errors import StoreError, StoreLost

DATA_FILE: Final = "data.mdb"
LOCK_FILE: Final = "lock.mdb"
PROCESSES: Final = "processes"
SHARED: Final = "shared"

INSTANCE_BYTES: Final = 8
MOST_AT_ONCE: Final = 64
"""Most dead instances that `dead` returns: each takes a descriptor until it is forgotten."""

_NAME: Final = re.compile(f"[0-9a-f]{{{2 * INSTANCE_BYTES}}}")
_MOST_TRIES: Final = 100
_MOST_COUNTED: Final = 1000
_PID_BYTES: Final = 20
_MOST_LIVING: Final = 16
"""Most locks of living instances that one `dead` tries, to bound its cost; the next call continues from there."""

_Identity: TypeAlias = tuple[int, int]
"""Device and inode."""

_FLAGS: Final = os.O_NONBLOCK | os.O_NOFOLLOW
_MOST_BYTES: Final = 1000

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


# Locked files


def open_file(path: str, flags: int) -> int:
    """Open a file, and return its descriptor, which forked children close.

    Raises:
        OSError: it cannot be opened.
    """
    return _descriptors().open(path, flags)


def close_file(descriptor: int) -> None:
    """Close a descriptor of `open_file`; a closed one is no error."""
    _descriptors().close(descriptor)


def lock_file(descriptor: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Lock a file, or change its lock; return False if another description's lock is in the way.

    Raises:
        OSError: the file system has no such locks.
    """
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class _Descriptors:
    """The descriptors of all stores of the process that a forked child must close.

    Locks are those of flock(2), which belong to an open file description. Record locks of POSIX belong to the process:
    it would release them by closing any descriptor of the file, as a backup of the directory does, and could lock the
    files of its own instances. In return no other process may keep the description: executed programs do not inherit
    it, and a forked child closes its copy at once. If a child is forked without Python's knowledge, the lock lasts as
    long as that child: a death is then noticed late, never too early.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: set[int] = set()
        os.register_at_fork(
            before=self._lock.acquire, after_in_parent=self._lock.release, after_in_child=self._close_all
        )

    def open(self, path: str, flags: int) -> int:
        with self._lock:
            descriptor = os.open(path, flags, 0o666)
            self._open.add(descriptor)
        return descriptor

    def close(self, descriptor: int) -> None:
        with self._lock:
            if descriptor in self._open:
                self._open.remove(descriptor)
                os.close(descriptor)

    def _close_all(self) -> None:
        for descriptor in self._open:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self._open.clear()
        self._lock.release()


@functools.cache
def _descriptors() -> _Descriptors:
    return _Descriptors()


# The data file: does it have all pages that LMDB may touch?


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


# The files in use


class FileUse:
    """One opened store's use of its files: the next process must open the same ones.

    LMDB knows processes by their ids, in the locks of lock.mdb and in its table of readers, and threads by theirs.
    These are unique within one PID namespace only: across namespaces two writers may work at once. And LMDB never looks
    at the names of its files again: after a removal or replacement it goes on with a file that no other process finds.

    So each process with an open store holds a shared lock on `processes/shared`, in which the first one has noted the
    namespace and the files; later processes must find the same. It also holds a lock on data.mdb, so that a removal of
    `processes` does not make the store look unused. Processes open the store one after the other: the directory itself
    is locked meanwhile.

    Args:
        directory: the store's directory, absolute.
        location: name of the store in errors.

    Attributes:
        is_read_only: whether the file system is read-only, so that LMDB can lock nothing in it.
        lost: the error of `check` after its first failure.
    """

    def __init__(self, directory: Path, location: str) -> None:
        self.is_read_only = False
        self.lost: StoreLost | None = None
        self._directory = directory
        self._location = location
        self._paths = tuple(str(directory / name) for name in (DATA_FILE, LOCK_FILE))
        self._files: tuple[tuple[str, _Identity], ...] = ()
        self._gate: int | None = None
        self._shared: int | None = None
        self._data: int | None = None
        self._is_first = False

    def begin(self) -> None:
        """Wait until no other process is opening the store, and check that it can be shared with its other users.

        Raises:
            StoreError: a process in another PID namespace uses the store, or one with other files than the present
                ones.
            OSError: the directory supports no locks, or has no room.
        """
        self._gate = open_file(str(self._directory), os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._gate, fcntl.LOCK_EX)
        self.is_read_only = bool(os.statvfs(self._directory).f_flag & os.ST_RDONLY)
        if self.is_read_only:
            self._begin_reading()
            return
        (self._directory / PROCESSES).mkdir(exist_ok=True)
        path = str(self._directory / PROCESSES / SHARED)
        self._shared = open_file(path, os.O_RDWR | os.O_CREAT | _FLAGS)
        self._is_first = lock_file(self._shared)
        if self._is_first:
            _check_that_locks_exclude(path)
        else:
            self._check_shared(self._shared)
        with contextlib.suppress(FileNotFoundError):
            self._data = open_file(self._paths[0], os.O_RDONLY | os.O_NONBLOCK)
            if self._is_first and not lock_file(self._data):
                raise StoreError(
                    f"{self._directory} is in use by a process of which nothing is known, because "
                    f"{self._directory / PROCESSES} was removed or that process reads it from a read-only mount: end "
                    "it, then open the store"
                )

    def take_files(self) -> None:
        """Remember the files; called before LMDB opens them."""
        self._files = tuple((path, found) for path in self._paths if (found := _identity(path)) is not None)

    def share(self) -> None:
        """Let other processes share the files that LMDB has opened.

        Raises:
            StoreError: the files have changed in the meantime.
            OSError: there is no room to note the files.
        """
        self.check()
        self.take_files()
        if self._data is None:
            self._data = open_file(self._paths[0], os.O_RDONLY | os.O_NONBLOCK)
        fcntl.flock(self._data, fcntl.LOCK_SH)
        if self._shared is not None:
            if self._is_first:
                os.ftruncate(self._shared, 0)
                os.pwrite(self._shared, _note(_namespace(), *map(_identity, self._paths)), 0)
            fcntl.flock(self._shared, fcntl.LOCK_SH)
        if self._gate is not None:
            close_file(self._gate)
            self._gate = None

    def check(self) -> None:
        """Check that the next process would open the same files.

        Raises:
            StoreLost: it would open other files, or none.
        """
        if self.lost is None:
            for path, known in self._files:
                try:
                    found = os.stat(path)
                except PermissionError:
                    continue  # this process may have fewer rights now than when it opened the store
                except OSError as error:
                    gone = error.errno in (errno.ENOENT, errno.ENOTDIR)
                    self.lost = self._lost(path, "removed or moved" if gone else f"made unreachable ({error.strerror})")
                    break
                if (found.st_dev, found.st_ino) != known:
                    self.lost = self._lost(path, "replaced")
                    break
        if self.lost is not None:
            raise StoreLost(str(self.lost))

    def end(self) -> None:
        """Release all locks and files. Idempotent."""
        for descriptor in (self._data, self._shared, self._gate):
            if descriptor is not None:
                # Not left to the closing: a program that is just being started may still have a copy.
                with contextlib.suppress(OSError):
                    fcntl.flock(descriptor, fcntl.LOCK_UN)
                close_file(descriptor)
        self._data = self._shared = self._gate = None
        self._files = ()

    def _begin_reading(self) -> None:
        """Check that no process can write meanwhile: LMDB uses no locks on a read-only file system."""
        in_use = StoreError(
            f"{self._directory} is on a read-only mount, and in use by a process that may write to it: end that one, "
            "mount it writable, or read a backup"
        )
        with contextlib.suppress(FileNotFoundError):
            shared = open_file(str(self._directory / PROCESSES / SHARED), os.O_RDONLY | _FLAGS)
            try:
                if not lock_file(shared):
                    raise in_use
            finally:
                close_file(shared)
        self._data = open_file(self._paths[0], os.O_RDONLY | os.O_NONBLOCK)
        if not lock_file(self._data, fcntl.LOCK_SH):
            raise in_use

    def _check_shared(self, descriptor: int) -> None:
        """Refuse to use other files than the living processes, or from another namespace."""
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        noted = os.pread(descriptor, _MOST_BYTES, 0)
        namespace = _namespace()
        if noted.split(b"\n")[0].decode("ascii", "replace") != namespace:
            raise StoreError(
                f"{self._directory} is in use from another PID namespace (another container, or a container's host), "
                'and LMDB\'s locks are good for one: have both in the same (compose: pid: "service:web"; Kubernetes: '
                "shareProcessNamespace: true), use docker exec instead of the host's shell, or take another store"
            )
        found = [*map(_identity, self._paths)]
        for path, line, identity in zip(self._paths, noted.split(b"\n")[1:], found, strict=False):
            if line != _line(identity):
                raise StoreError(
                    f"{path} was {'removed' if identity is None else 'replaced'} while other processes use the store: "
                    "end them all, then open it or restore a backup"
                )

    def _lost(self, path: str, how: str) -> StoreLost:
        return StoreLost(
            f"store {self._location}: {path} was {how} while this process used it; what was not answered is not in "
            "the store. Start the program anew"
        )


def _check_that_locks_exclude(path: str) -> None:
    """Refuse a file system whose locks do not exclude other holders; the file's first lock is held."""
    second = open_file(path, os.O_RDONLY | _FLAGS)
    try:
        if lock_file(second):
            raise StoreError(f"{path}: the file system's locks exclude nobody; an embedded store needs a local disk")
    finally:
        close_file(second)


def _namespace() -> str:
    """Return the PID namespace of this process; the same for all processes without a /proc."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return "unknown"


def _identity(path: str) -> _Identity | None:
    """Return the identity of the file at a path; None for none."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _note(namespace: str, *files: _Identity | None) -> bytes:
    return b"".join(line + b"\n" for line in (namespace.encode(), *map(_line, files)))


def _line(identity: _Identity | None) -> bytes:
    return b"" if identity is None else b"%d %d" % identity


# Living processes


class ProcessLocks:
    """The lock of one instance, and the search for dead ones. For use by one thread at a time.

    Every opened store (an *instance*, with a random id) locks a file of its own, `processes/<id>`. If another process
    gets that lock, the instance's process has ended; a living process keeps it, even while it is stopped.

    To try the locks of hundreds of processes several times a second would take too long. So each file has the process's
    id. If the system does not know that id any more, its lock is tried at once. All others are tried in turn, a few at
    a time: an id may have gone to another process, or belong to an ended process that its parent has not reaped.

    Args:
        store: the store's existing directory.
        token: returns so many random bytes.

    Attributes:
        instance: this instance's id; b"" while no lock is held.
    """

    def __init__(self, store: Path, token: Callable[[int], bytes]) -> None:
        self._directory = store / PROCESSES
        self._token = token
        self.instance = b""
        self._own: int | None = None
        self._dead: dict[bytes, int] = {}
        self._kept: set[bytes] = set()
        # By the name of the file, of living instances: 0 where it says nothing.
        self._pids: dict[str, int] = {}
        self._last = ""

    def enter(self) -> None:
        """Take a new id, and the lock on its file.

        Raises:
            OSError: the file cannot be made.
        """
        self._directory.mkdir(exist_ok=True)
        for _ in range(_MOST_TRIES):
            instance = self._token(INSTANCE_BYTES)
            path = self._path(instance)
            try:
                descriptor = open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            except FileExistsError:
                continue
            try:
                os.write(descriptor, b"%d" % os.getpid())
            except OSError:
                _remove(path)
                close_file(descriptor)
                raise
            # Another process may have taken the new file, not yet locked, for a dead instance's, and removed it.
            if lock_file(descriptor) and _is_at(path, descriptor):
                self._own, self.instance = descriptor, instance
                break
            close_file(descriptor)
        else:
            raise OSError(f"{self._directory}: no file could be locked in {_MOST_TRIES} tries")

    def leave(self) -> None:
        """Remove this instance's file, and release its lock and the locks of dead instances."""
        if self._own is not None:
            _remove(self._path(self.instance))
            close_file(self._own)
            self._own, self.instance = None, b""
        for descriptor in self._dead.values():
            close_file(descriptor)
        self._dead.clear()

    def dead(self) -> list[bytes]:
        """Return at most MOST_AT_ONCE instances whose process has ended.

        This instance keeps their locks, so that no other finds them, until it calls `forget` or ends.
        """
        names = self._others()
        self._learn_pids(names)
        for name in names:
            pid = self._pids.get(name)
            if pid and len(self._dead) < MOST_AT_ONCE and not _is_known(pid) and not self._is_dead(name):
                self._pids[name] = 0  # it lives all the same
        living = 0
        for name in names:
            if living >= _MOST_LIVING or len(self._dead) >= MOST_AT_ONCE:
                break
            self._last = name
            living += not self._is_dead(name)
        return [*self._dead]

    def _learn_pids(self, names: list[str]) -> None:
        """Read new files, and forget removed ones."""
        if len(self._pids) > 2 * len(names):
            self._pids = {name: self._pids[name] for name in names if name in self._pids}
        new = [name for name in names if name not in self._pids]
        for name in new[:_MOST_COUNTED]:
            pid = _noted_pid(os.path.join(self._directory, name))
            if pid is not None:
                self._pids[name] = pid

    def _is_dead(self, name: str) -> bool:
        """Return whether an instance's process has ended, and keep its lock if so."""
        instance = bytes.fromhex(name)
        if instance in self._dead or instance in self._kept:
            return True
        descriptor = self._try(instance)
        if descriptor is not None:
            self._dead[instance] = descriptor
        return descriptor is not None

    def _others(self) -> list[str]:
        """Return the names of the other instances' files, from the end of the last `dead` on."""
        try:
            names = sorted(each for each in os.listdir(self._directory) if each in self._pids or _NAME.fullmatch(each))
        except OSError:
            return []
        own = self.instance.hex()
        start = bisect_right(names, self._last or own)
        return [name for name in names[start:] + names[:start] if name != own]

    def others(self) -> tuple[int, int]:
        """Return the number of other living instances, and of dead ones that were not forgotten.

        A starting instance may count as dead. This takes no lock from other instances' searches.
        """
        names = self._others()[:_MOST_COUNTED]
        dead = sum(self._is_unlocked(bytes.fromhex(name)) for name in names)
        return len(names) - dead, dead

    def has_ended(self, instance: bytes) -> bool:
        """Return whether an instance has left, or its process has died; this takes no lock either."""
        if instance == self.instance:
            return False
        return instance in self._dead or not os.path.lexists(self._path(instance)) or self._is_unlocked(instance)

    def _is_unlocked(self, instance: bytes) -> bool:
        """Return whether an instance's file is unlocked; False for a missing file."""
        with contextlib.suppress(OSError):
            descriptor = open_file(self._path(instance), os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            try:
                # Shared, so that processes that look at once do not take each other for the living instance.
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return True
            finally:
                close_file(descriptor)
        return False

    def forget(self, instances: Iterable[bytes]) -> None:
        """Remove the files of dead instances: no process finds them any more."""
        for instance in instances:
            descriptor = self._dead.pop(instance, None)
            if descriptor is not None:
                if not _remove(self._path(instance)):
                    self._kept.add(instance)
                close_file(descriptor)

    def _try(self, instance: bytes) -> int | None:
        """Lock an instance's file and return its descriptor; None if another process has the lock."""
        try:
            # Non-blocking, in case somebody has put a pipe there.
            descriptor = open_file(self._path(instance), os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        except OSError:
            return None
        if lock_file(descriptor) and stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        close_file(descriptor)
        return None

    def _path(self, instance: bytes) -> str:
        return os.path.join(self._directory, instance.hex())


def _noted_pid(path: str) -> int | None:
    """Return the process id noted in a file: 0 for other content, None for an empty or unreadable file."""
    with contextlib.suppress(OSError):
        descriptor = open_file(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            noted = os.read(descriptor, _PID_BYTES)
            return int(noted) if noted.isdigit() else 0 if noted else None
        finally:
            close_file(descriptor)
    return None


def _is_known(pid: int) -> bool:
    """Whether the system knows a process with this id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # another user's; no id at all
        return True
    return True


def _is_at(path: str, descriptor: int) -> bool:
    """Whether the path still leads to the open file."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _remove(path: str) -> bool:
    """Remove a file, which may be missing; return whether it is gone."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
