"""The LMDB environments of this process: one for the files of a store, however many stores are open on them.

A process may open LMDB's files only once: the locks belong to the process, and closing one environment would release
those of the other. And no environment may live through a fork: what the child does with its copy, be it only to close
it, changes the parent's entries in the table of readers. So each environment is closed before a fork, and opened again
after it by the parent, and by the child when it opens a store itself.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any, Final

import lmdb

from jobs_service.errors import StoreError

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
