"""Tracks the processes that share a store's files, and checks that the next process would open the same files.

LMDB knows processes by their ids, in the locks of lock.mdb and in its table of readers, and threads by theirs. These
are unique within one PID namespace only: across namespaces two writers may work at once. And LMDB never looks at the
names of its files again: after a removal or replacement it goes on with a file that no other process finds.

So each process with an open store holds a shared lock on `processes/shared`, in which the first one has noted the
namespace and the files; later processes must find the same. It also holds a lock on data.mdb, so that a removal of
`processes` does not make the store look unused. Processes open the store one after the other: the directory itself is
locked meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path
from typing import Final, TypeAlias

from jobs_service.errors import StoreError, StoreLost
from jobs_service.store.lmdb.descriptors import close_file, lock_file, open_file
from jobs_service.store.lmdb.file import DATA_FILE

PROCESSES: Final = "processes"
SHARED: Final = "shared"
LOCK_FILE: Final = "lock.mdb"

_FLAGS: Final = os.O_NONBLOCK | os.O_NOFOLLOW
_MOST_BYTES: Final = 1000

_Identity: TypeAlias = tuple[int, int]
"""Device and inode."""


class FileUse:
    """One opened store's use of its files.

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
