"""Finds the store's directory in the cluster, again after each move."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, Final

import fdb

from jobs_service.errors import DirectoryMoved, StoreError, StoreUnavailable
from jobs_service.log import EventLog
from jobs_service.store.commit_marks import Marks
from jobs_service.store.fdb.client import translated
from jobs_service.store.fdb.cluster_file import CONNECTION_STRING
from jobs_service.store.fdb.directory import is_still_there, look_up
from jobs_service.store.fdb.errors import TRANSACTION_TIMED_OUT
from jobs_service.store.fdb.silence import SilenceExplainer

log = EventLog("jobs_service.store")

_MARKS: Final = b"\xfe"
"""Follows the directory's prefix; no tuple begins with it."""


class Locator(SilenceExplainer):
    """The part of a store that finds its directory."""

    _directory: tuple[str, ...]
    _prefix: bytes | None
    # Held by the one call that looks the directory up for all.
    _finding: asyncio.Lock

    async def _locate(self) -> bytes:
        """Return the directory's prefix; look it up if it is unknown."""
        if self._prefix is None:
            async with self._finding:
                if self._prefix is None:
                    await self._look_up()
        assert self._prefix is not None
        return self._prefix

    async def _look_up(self) -> None:
        assert self._loop is not None
        native = self._database.create_transaction()
        limit = self._settings.transaction_timeout
        native.options.set_timeout(int(limit * 1000))
        looking = self._loop.run_in_executor(self._executor, look_up, native, self._directory)
        # Retrieve the error, so that asyncio does not complain if nobody waits any more.
        looking.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            if self._location is None:
                await self._explain_silence(looking)
            found = await looking
        except fdb.FDBError as error:
            if error.code == TRANSACTION_TIMED_OUT and self._silence is not None:
                raise StoreUnavailable(
                    f"store {self.address} did not answer within {limit:g} s: {self._silence}; try again later"
                ) from None
            raise translated(error) from None
        except StoreError as error:
            self._network.cancel(native)
            raise type(error)(f"store {self.address}: {error}") from None
        except asyncio.CancelledError:
            self._network.cancel(native)
            raise
        self._silence = None
        self._counters.directory_lookups += 1
        self._location = found
        if found.prefix != self._prefix:
            self._prefix = found.prefix
            self._marks = Marks(found.prefix + _MARKS, self._sources.token)

    async def _check_directory(self, native: Any, metadata: Any, expected: bytes | None) -> None:
        """Check that a transaction sees the directory in the place that the store's user expects.

        Raises:
            DirectoryMoved: the directory is elsewhere now.
        """
        await self._bridge.until(metadata)
        if self._prefix is not None and not self._is_found_at(metadata.value):
            await self._find_again(native, metadata.value)
        if expected is not None and expected != self._prefix:
            raise DirectoryMoved(
                f"store {self.address}: the directory {'/'.join(self._directory)} was moved or removed and there is a "
                "new one; nothing was written"
            )

    def _is_found_at(self, metadata: bytes | None) -> bool:
        return self._location is None or self._location.metadata == metadata

    async def _find_again(self, native: Any, metadata: bytes | None) -> None:
        """Find the directory in the state of a transaction with another metadata version."""
        location = self._location
        assert location is not None
        if await is_still_there(native, location, self._bridge.until):
            # Transactions overlap. The newest state counts: older ones are seldom seen again.
            if (metadata or b"") > (location.metadata or b"") and self._location is location:
                self._location = replace(location, metadata=metadata)
            return
        async with self._finding:
            if not self._is_found_at(metadata):
                await self._look_up()

    async def _compare_file(self) -> None:
        """Log an error if the cluster file names another cluster than the one in use: the client does not notice it."""
        native = self._database.create_transaction()
        try:
            used = native.get(CONNECTION_STRING)
            await self._bridge.until(used)
            other = self._file.differing(bytes(used.value or b"").decode())
        except fdb.FDBError:
            return
        finally:
            self._network.cancel(native)
        if other is not None:
            log.error(
                "cluster_file_changed",
                store=self.address,
                file=self._file.path,
                names=other.text,
                used=bytes(used.value or b"").decode(),
            )
