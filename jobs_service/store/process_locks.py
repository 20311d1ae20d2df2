"""The locks that prove a living process: a dead process's instance of an embedded store is told by its lock."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
from bisect import bisect_right
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from jobs_service.store.files import close_file, lock_file, open_file

INSTANCE_BYTES: Final = 8
MOST_AT_ONCE: Final = 64
"""Most dead instances that `dead` returns: each takes a descriptor until it is forgotten."""

_NAME: Final = re.compile(f"[0-9a-f]{{{2 * INSTANCE_BYTES}}}")
_MOST_TRIES: Final = 100
_MOST_COUNTED: Final = 1000
_PID_BYTES: Final = 20
_MOST_LIVING: Final = 16
"""Most locks of living instances that one `dead` tries, to bound its cost; the next call continues from there."""


class ProcessLocks:
    """The lock of one instance, and the search for dead ones. For use by one thread at a time.

    Every opened store (an *instance*, with a random id) locks a file of its own in the processes' directory. If another
    process gets that lock, the instance's process has ended; a living process keeps it, even while it is stopped.

    To try the locks of hundreds of processes several times a second would take too long. So each file has the process's
    id. If the system does not know that id any more, its lock is tried at once. All others are tried in turn, a few at
    a time: an id may have gone to another process, or belong to an ended process that its parent has not reaped, or be
    one of another container.

    Args:
        directory: the processes' directory of the store; made if missing.
        token: returns so many random bytes.

    Attributes:
        instance: this instance's id; b"" while no lock is held.
    """

    def __init__(self, directory: Path, token: Callable[[int], bytes]) -> None:
        self._directory = directory
        self._token = token
        self.instance = b""
        self._own: int | None = None
        self._dead: dict[bytes, int] = {}
        # Forgotten instances whose files could not be removed.
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
