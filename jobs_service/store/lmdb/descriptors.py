"""Open files whose locks prove a living process: locks of flock(2), which belong to an open file description.

Record locks of POSIX belong to the process: it would release them by closing any descriptor of the file, as a backup of
the directory does, and could lock the files of its own instances. In return no other process may keep the description:
executed programs do not inherit it, and a forked child closes its copy at once. If a child is forked without Python's
knowledge, the lock lasts as long as that child: a death is then noticed late, never too early.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import threading


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
    """The descriptors of all stores of the process that a forked child must close."""

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
