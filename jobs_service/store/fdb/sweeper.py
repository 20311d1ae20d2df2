"""Removes the marks of killed processes from a cluster.

Only stores that are open for long do it, one of them at a time; a command that ends after a second never does.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

from jobs_service.errors import StoreError
from jobs_service.sources import Sources
from jobs_service.store.base import Transaction, background
from jobs_service.store.commit_marks import Marks, version_of
from jobs_service.store.fdb.transaction import FdbTransaction

if TYPE_CHECKING:
    from jobs_service.store.fdb import FdbStore

_FIRST: Final = (60.0, 600.0)
"""Least and most seconds from the opening of a store to its first sweep."""

_PERIOD: Final = 3600.0
"""Seconds between two sweeps, by any store."""

_VERSIONS_PER_SECOND: Final = 1_000_000

_PAGE: Final = 1000
"""Marks that one transaction reads."""


class MarkSweeper:
    """Sweeps the marks of a store's directory now and then.

    Args:
        store: the store of the directory.
        sources: draw the pauses.
    """

    def __init__(self, store: FdbStore, sources: Sources) -> None:
        self._store = store
        self._sources = sources
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Schedule the first sweep, some minutes from now."""
        self._wait(self._sources.uniform(*_FIRST))

    async def stop(self) -> None:
        """Begin no more sweeps, and end a running one."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _wait(self, seconds: float) -> None:
        # A timer, not a sleeping task, which a program that forgets to close its store would leave behind.
        self._timer = asyncio.get_running_loop().call_later(seconds, self._begin)

    def _begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._sweep())

    async def _sweep(self) -> None:
        with contextlib.suppress(StoreError), background():  # If it fails, the next one does it.
            await self.sweep()
        self._task = None
        self._wait(self._sources.uniform(_PERIOD / 2, _PERIOD))

    async def sweep(self, *, pause: float = _PERIOD) -> None:
        """Remove all old marks, unless a store has begun a sweep recently.

        Args:
            pause: least seconds since the beginning of the last sweep.

        Raises:
            StoreError: the sweep was not finished.
        """
        await self._store.prefix()
        marks = self._store.marks
        assert marks is not None
        if not await self._store.transact(_Claim(marks, int(pause * _VERSIONS_PER_SECOND))):
            return
        begin: bytes | None = marks.prefix + b"\x00"
        while begin is not None:
            begin = await self._store.transact(_Page(marks, begin))


class _Claim:
    """A transaction function that returns whether a sweep is due, and if so records its beginning.

    The key in front of all marks has the versionstamp of the last sweep's beginning.
    """

    def __init__(self, marks: Marks, pause: int) -> None:
        self._marks = marks
        self._pause = pause

    async def __call__(self, transaction: Transaction) -> bool:
        key = self._marks.prefix
        last = await transaction.get(key)
        if last is not None and 0 <= await _version(transaction) - version_of(last) < self._pause:
            return False
        transaction.stamp_value(key, b"", b"")
        return True


class _Page:
    """A transaction function that removes the stale ones of some marks; returns the next key, None at the end."""

    def __init__(self, marks: Marks, begin: bytes) -> None:
        self._marks = marks
        self._begin = begin

    async def __call__(self, transaction: Transaction) -> bytes | None:
        # By snapshot, because other stores write marks all the time. But each mark that is removed gets a read
        # conflict, so that it is the one that was read.
        end = self._marks.end
        pairs = await transaction.snapshot.get_range(self._begin, end, limit=_PAGE)
        stale = self._marks.stale(pairs, await _version(transaction))
        for key in stale:
            transaction.add_read_conflict_key(key)
            transaction.clear(key)
        return pairs[-1][0] + b"\x00" if len(pairs) == _PAGE else None


async def _version(transaction: Transaction) -> int:
    native: Any = transaction
    assert isinstance(native, FdbTransaction)
    return await native.read_version()
