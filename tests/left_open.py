"""The threads and open files of this process, to see which of them something has left behind."""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import dataclass


@dataclass(frozen=True)
class Open:
    """The threads and open files at one moment.

    Two moments are compared by what is new in the later one, not by numbers: threads of tests before may still end.
    """

    threads: frozenset[threading.Thread]
    files: frozenset[tuple[int, int, int]]
    """The descriptor, the device and the inode of each open file, pipe and socket."""

    @classmethod
    def now(cls) -> Open:
        """Return those of this moment."""
        files = set()
        for name in os.listdir("/dev/fd"):
            with contextlib.suppress(OSError):  # the listing's own is closed by now
                status = os.fstat(int(name))
                files.add((int(name), status.st_dev, status.st_ino))
        return cls(frozenset(threading.enumerate()), frozenset(files))

    def since(self, before: Open) -> Open:
        """Return what was not there before."""
        return Open(self.threads - before.threads, self.files - before.files)

    def __bool__(self) -> bool:
        return bool(self.threads or self.files)
