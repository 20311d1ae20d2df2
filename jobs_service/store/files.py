"""The files of an embedded store: as processes share them, the locks on them, and the room on their disk.

Neither LMDB nor SQLite checks that the next process opens the same files, and neither tells in time that a disk fills.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import math
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import BinaryIO, Final, TypeAlias

from jobs_service.errors import StoreError, StoreFull, StoreLost
from jobs_service.log import EventLog
from jobs_service.sources import go_on
from jobs_service.store.overlay import EmbeddedTransaction, grows

log = EventLog("jobs_service.store")

SHARED: Final = "shared"

_Identity: TypeAlias = tuple[int, int]
"""Device and inode."""

_FLAGS: Final = os.O_NONBLOCK | os.O_NOFOLLOW
_MOST_BYTES: Final = 1000
_MOUNTS: Final = "/proc/self/mountinfo"
_CLUSTER: Final = ("afs", "beegfs", "ceph", "cifs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "smb3", "smbfs")
_IN_USER_SPACE: Final = ("ceph", "davfs2", "gcsfuse", "glusterfs", "rclone", "s3fs", "sshfs")
_NETWORK: Final = frozenset((*_CLUSTER, *(f"fuse.{name}" for name in _IN_USER_SPACE)))
"""File systems whose files other machines can change: their locks and memory maps do not reach these."""

_MIB: Final = 1 << 20
_SHARE: Final = 16
"""Divisor of a disk's size for the part kept free."""
_MOST_KEPT: Final = 16 * _MIB
"""Most bytes of a disk that are kept free."""
_URGENT: Final = 0.75
"""The share of the reserve for urgent transactions; the rest is for transactions that make the store smaller."""
_PAGE_FILL: Final = 2
"""Estimated bytes of pages per byte written, until the next measurement."""
_FILLING: Final = 0.8
_NO_LONGER_FILLING: Final = 0.7
_AMPLE: Final = 2048 * _MIB
"""Room from which on disk and store are measured only now and then."""
_RARELY: Final = 64
"""Transactions between two measurements then."""
_RECENTLY: Final = 0.25
"""Seconds between two looks at the disk."""


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


# The files in use


class FileUse:
    """One opened store's use of its files: the next process must open the same ones.

    Each process with an open store holds a shared lock on the file `shared`, in which the first one has noted the
    files; later processes must find the same. Processes open the store one after the other: a directory is locked
    meanwhile. LMDB and SQLite never look at the names of their files again: after a removal or replacement they go on
    with a file that no other process finds.

    Args:
        store: what the address names, absolute.
        location: name of the store in errors.
        files: the files that all its processes must share, the data first.
        processes: the directory of `shared`, made if missing.
        gate: the directory that is locked while a process opens the store.
        namespace: what a process must share with all others beside the files; see `pid_namespace`.
        locks_data: whether to hold a lock on the data file as well, so that a removal of `processes` does not make the
            store look unused. SQLite's own locks on a file end when its process closes any descriptor of it.

    Attributes:
        is_read_only: whether the file system is read-only, so that nothing can be locked in it.
        lost: the error of `check` after its first failure.
    """

    def __init__(
        self,
        store: Path,
        location: str,
        files: Sequence[Path],
        *,
        processes: Path,
        gate: Path,
        namespace: str = "",
        locks_data: bool = False,
    ) -> None:
        self.is_read_only = False
        self.lost: StoreLost | None = None
        self._store = store
        self._location = location
        self._paths = tuple(map(str, files))
        self._processes = processes
        self._gate_directory = gate
        self._namespace = namespace
        self._locks_data = locks_data
        self._files: tuple[tuple[str, _Identity], ...] = ()
        self._gate: int | None = None
        self._shared: int | None = None
        self._data: int | None = None
        self._is_first = False

    def begin(self) -> None:
        """Wait until no other process is opening the store, and check that it can be shared with its other users.

        Raises:
            StoreError: the file system is a network's; a process in another namespace uses the store, or one with other
                files than the present ones.
            OSError: the directory supports no locks, or has no room.
        """
        parent = self._processes.parent
        _check_file_system(self._store, os.stat(parent).st_dev)
        self.is_read_only = bool(os.statvfs(parent).f_flag & os.ST_RDONLY)
        if not self.is_read_only:
            self._processes.mkdir(exist_ok=True)
        with contextlib.ExitStack() as missing:
            if self.is_read_only:
                missing.enter_context(contextlib.suppress(FileNotFoundError))
            self._gate = open_file(str(self._gate_directory), os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(self._gate, fcntl.LOCK_EX)
        if self.is_read_only:
            self._begin_reading()
            return
        path = str(self._processes / SHARED)
        self._shared = open_file(path, os.O_RDWR | os.O_CREAT | _FLAGS)
        self._is_first = lock_file(self._shared)
        if self._is_first:
            _check_that_locks_exclude(path)
        else:
            self._check_shared(self._shared)
        if not self._locks_data:
            return
        with contextlib.suppress(FileNotFoundError):
            self._data = open_file(self._paths[0], os.O_RDONLY | os.O_NONBLOCK)
            if self._is_first and not lock_file(self._data):
                raise StoreError(
                    f"{self._store} is in use by a process of which nothing is known, because {self._processes} was "
                    "removed or that process reads it from a read-only mount: end it, then open the store"
                )

    def take_files(self) -> None:
        """Remember the files; called before they are opened."""
        self._files = tuple((path, found) for path in self._paths if (found := _identity(path)) is not None)

    def share(self) -> None:
        """Let other processes share the files that were opened.

        Raises:
            StoreError: the files have changed in the meantime.
            OSError: there is no room to note the files.
        """
        self.check()
        self.take_files()
        if self._locks_data:
            if self._data is None:
                self._data = open_file(self._paths[0], os.O_RDONLY | os.O_NONBLOCK)
            fcntl.flock(self._data, fcntl.LOCK_SH)
        if self._shared is not None:
            if self._is_first:
                os.ftruncate(self._shared, 0)
                os.pwrite(self._shared, _note(self._namespace, *map(_identity, self._paths)), 0)
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
        """Check that no process can write meanwhile: nothing can be locked on a read-only file system."""
        in_use = StoreError(
            f"{self._store} is on a read-only mount, and in use by a process that may write to it: end that one, "
            "mount it writable, or read a backup"
        )
        with contextlib.suppress(FileNotFoundError):
            shared = open_file(str(self._processes / SHARED), os.O_RDONLY | _FLAGS)
            try:
                if not lock_file(shared):
                    raise in_use
            finally:
                close_file(shared)
        if self._locks_data:
            self._data = open_file(self._paths[0], os.O_RDONLY | os.O_NONBLOCK)
            if not lock_file(self._data, fcntl.LOCK_SH):
                raise in_use

    def _check_shared(self, descriptor: int) -> None:
        """Refuse to use other files than the living processes, or from another namespace."""
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        noted = os.pread(descriptor, _MOST_BYTES, 0)
        if noted.split(b"\n")[0].decode("ascii", "replace") != self._namespace:
            raise StoreError(
                f"{self._store} is in use from another PID namespace (another container, or a container's host), "
                'and LMDB\'s locks are good for one: have both in the same (compose: pid: "service:web"; Kubernetes: '
                "shareProcessNamespace: true), use docker exec instead of the host's shell, or take an sqlite: store"
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
            f"store {self._location}: {path} was {how} while this process used it; calls that were not answered are "
            "not in the store. Start the program anew"
        )


def _check_that_locks_exclude(path: str) -> None:
    """Refuse a file system whose locks do not exclude other holders; the file's first lock is held."""
    second = open_file(path, os.O_RDONLY | _FLAGS)
    try:
        if lock_file(second):
            raise StoreError(f"{path}: the file system's locks exclude nobody; an embedded store needs a local disk")
    finally:
        close_file(second)


def _check_file_system(store: Path, device: int) -> None:
    """Refuse a network file system."""
    try:
        mounts = Path(_MOUNTS).read_text(errors="replace")
    except OSError:
        return  # not Linux: the locks' own check must do
    kind = file_system(mounts, device)
    if kind in _NETWORK:
        raise StoreError(
            f"{store} is on a network file system ({kind}), whose locks and memory maps do not reach other machines; "
            "an embedded store needs a local disk"
        )


def file_system(mounts: str, device: int) -> str | None:
    """Return the type of the file system on a device; None if it is not mounted under its own number.

    Args:
        mounts: the text of /proc/self/mountinfo.
        device: number of the device.
    """
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) > 3 and fields[2] == number and "-" in fields:
            return fields[fields.index("-") + 1]
    return None


def pid_namespace() -> str:
    """Return the PID namespace of this process; the same for all processes without a /proc.

    LMDB knows processes by their ids, in the locks of lock.mdb and in its table of readers, and threads by theirs.
    These are unique within one PID namespace only: across namespaces two writers may work at once.
    """
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


# Room


class StoreRoom:
    """The remaining room of a store, and the transactions that may use it. Used by the store's writer thread.

    A changed page is written to another place, so that even a removal needs room, and a completely full store could
    never be emptied. So the last part of the disk is kept, and LMDB's map is larger than the store's limit:

    | effect of a transaction                                         | goes through as long as                        |
    |-----------------------------------------------------------------|------------------------------------------------|
    | adds jobs, or writes the application's own keys beside no job   | the store is smaller than `lmdb_map_size`      |
    | takes, updates, ends or removes jobs (`Transaction.use_reserve`)| a quarter of the reserve is left: see `_URGENT`|
    | makes the store smaller                                         | there are pages at all                         |

    On a disk that is nearly full, additions are refused a little before everything is. A long reader, such as a backup,
    keeps LMDB from reusing pages: while there is one, nothing may be added beyond half of the reserve.

    Args:
        file: the store's data file.
        location: name of the store in logs.
        limit: most bytes of the store.
        reserve: bytes beyond the limit.
    """

    def __init__(self, file: Path, location: str, limit: float = math.inf, reserve: float = math.inf) -> None:
        self._file = file
        self._location = location
        self._limit = limit
        self._reserve = reserve
        self._left = 0.0
        self._left_for_urgent = 0.0
        self._of_disk = False
        self._next = 0
        self._disk_at = -_RECENTLY
        self._disk_left = 0.0
        self._disk_share = 0.0
        self._kept = self._unseen = 0
        self._filling = False

    def is_due(self, number: int) -> bool:
        """Whether the room may have changed much; asked at the begin of each transaction, by its number."""
        return number >= self._next

    def is_pressed(self, file_size: int) -> bool:
        """Whether a file of so many bytes takes more than half of the reserve."""
        return file_size > self._limit + self._reserve // 2

    def measure(self, number: int, used: int, file_size: int, *, is_held: bool = False) -> None:
        """Measure the room.

        Args:
            number: number of the transaction.
            used: bytes of the pages in use.
            file_size: bytes of all pages.
            is_held: whether a reader keeps removed pages from being used again, in a file that is pressed.
        """
        left = self._limit - used
        if is_held:
            left = min(left, 0)
        self._look_at_disk(used, file_size)
        self._of_disk = self._disk_left < left
        self._left = min(left, self._disk_left)
        self._left_for_urgent = self._limit + _URGENT * self._reserve - used
        self._next = number + (_RARELY if self._left > _AMPLE else 0)
        self._tell(used)

    def grow(self, limit: int, reserve: int) -> None:
        """Raise the limit to that of a process with a larger map; called on any thread."""
        if limit > self._limit:
            self._limit, self._reserve, self._next = limit, reserve, 0

    def wrote(self, size: int) -> None:
        """Subtract so many bytes of keys and values, written since the last measurement."""
        size *= _PAGE_FILL
        self._left -= size
        self._left_for_urgent -= size
        self._disk_left -= size
        # The estimate is off by less than the part that is kept, whatever a commit costs beside what it writes.
        self._unseen += size
        if self._unseen > self._kept // 2:
            self._disk_at, self._next = -_RECENTLY, 0

    def claim(self, size: int) -> None:
        """Refuse an addition of so many bytes if there is no room.

        Raises:
            StoreFull: there is no room.
        """
        if size > self._left:
            raise self._full()

    def admit(self, own: EmbeddedTransaction) -> None:
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
        self._disk_at, self._unseen = now, 0
        try:
            disk = os.statvfs(self._file.parent)
            found = os.stat(self._file)
        except OSError:  # somebody has moved it: that is for others to say
            self._disk_left, self._disk_share = math.inf, 0.0
            return
        free = disk.f_bavail * disk.f_frsize
        self._kept = min(_MOST_KEPT, disk.f_blocks * disk.f_frsize // _SHARE)
        # Free pages within the file are on the disk already.
        within = max(0, min(file_size, 512 * found.st_blocks) - used)
        # Pages that are only in SQLite's log yet need their room in the file before the log can begin anew.
        owed = max(0, file_size - found.st_size)
        self._disk_left = free + within - self._kept - owed
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
            f"store {self._location} is full: the rest is kept for ends and removals of jobs; nothing was written. "
            f"Remove jobs, or set JOBS_SERVICE_LMDB_MAP_SIZE higher than {self._limit}"
        )


# Copies


def flush_directories(*paths: Path) -> None:
    """Flush the names in these directories to disk, if the file system can."""
    for path in paths:
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def write_copy(path: Path, write: Callable[[BinaryIO], object], at: Callable[[str], object] = go_on) -> int:
    """Write a copy of a store to a new file, under a temporary name until it is complete; return its size in bytes.

    Args:
        path: path of the new file.
        write: writes to the file, which has a name.
        at: called with names of points where a test may stop or kill the process.

    Raises:
        StoreError: the file exists or cannot be written.
    """
    if path.exists():
        raise StoreError(f"{path} exists already; name a new file")
    temporary = path.with_name(path.name + ".part")
    try:
        with open(temporary, "xb") as file:
            try:
                write(file)
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
    return size
