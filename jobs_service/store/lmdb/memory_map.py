"""The memory map of a store's file in one process: it grows when another process has made the store larger.

A process whose map is too small for the store gets MDB_MAP_RESIZED from each new transaction. It may take over the
other's size, but LMDB unmaps the file for that: no thread of the process may be in a transaction then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import lmdb

_MOST_TRIES: Final = 100


class MemoryMap:
    """The map of one environment, for all threads with transactions.

    Args:
        environment: the store's environment.
        grown: called with the new size in bytes after growth, on the thread that met the old one.
        failed: called with the error if it could not grow: then the environment must not be used any more.
    """

    def __init__(
        self,
        environment: lmdb.Environment,
        grown: Callable[[int], object],
        failed: Callable[[lmdb.Error], Exception],
    ) -> None:
        self._environment = environment
        self._grown = grown
        self._failed = failed
        self._users = 0
        # Each commit takes it: as a plain lock it costs a third of a condition.
        self._counting = threading.Lock()
        self._unused = threading.Condition(self._counting)
        self._waiting = 0

    def begin(self, *, write: bool = False) -> lmdb.Transaction[bytes]:
        """Begin a transaction; the caller calls `end` after its end.

        Raises:
            lmdb.Error: the begin failed; do not call `end`.
        """
        for _ in range(_MOST_TRIES):
            with self._counting:
                self._users += 1
            try:
                return self._environment.begin(write=write)
            except lmdb.MapResizedError:
                self.end()
                self._grow()
            except BaseException:
                self.end()
                raise
        raise lmdb.MapResizedError(f"it was grown {_MOST_TRIES} times meanwhile")

    def end(self) -> None:
        """Note the end of a transaction."""
        with self._counting:
            self._users -= 1
            if self._waiting and not self._users:
                self._unused.notify_all()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the map unchanged, and as large as the store is now, while the block runs."""
        transaction = self.begin()
        transaction.abort()
        try:
            yield
        finally:
            self.end()

    def _grow(self) -> None:
        with self._unused:
            self._waiting += 1
            self._unused.wait_for(lambda: not self._users)
            self._waiting -= 1
            before = self._environment.info()["map_size"]
            try:
                self._environment.set_mapsize(0)
            except lmdb.Error as error:
                raise self._failed(error) from error
            size = self._environment.info()["map_size"]
        if size > before:
            self._grown(size)
