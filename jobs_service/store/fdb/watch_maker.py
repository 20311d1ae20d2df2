"""Makes the watches of transactions: within reading transactions, and after the commit of writing ones."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import fdb

from jobs_service.errors import StoreError
from jobs_service.store.base import Watch
from jobs_service.store.fdb.client import translated
from jobs_service.store.fdb.connection import Connection
from jobs_service.store.fdb.transaction import FdbTransaction
from jobs_service.store.fdb.watches import FdbWatches


class WatchMaker(Connection):
    """The part of a store that makes watches."""

    _watches: FdbWatches

    async def _arm(self, transaction: FdbTransaction) -> None:
        """Make the watches of a transaction without writes."""
        watches = transaction.watches
        if not watches:
            return
        if self._watches.full:
            baselines = await self._baselines(transaction)
            for watch, baseline in zip(watches, baselines, strict=True):
                watch.baseline = baseline
                self._watches.add_polled(watch)
        else:
            await self._make_watches(transaction.native, watches)
        transaction.watches = []

    async def _make_watches(self, native: Any, watches: Sequence[Watch]) -> None:
        """Make watches in a transaction without writes, and end it."""
        with self._watches.making(len(watches)):
            futures = [native.watch(watch.key) for watch in watches]
            done = native.commit()
            await self._bridge.until(done)
            done.wait()
        for watch, future in zip(watches, futures, strict=True):
            self._watches.add(watch, future)

    async def _baselines(self, transaction: FdbTransaction) -> list[bytes | None]:
        """Return the watched keys' values at the end of a transaction; None also for keys that await a versionstamp."""
        baselines: list[bytes | None] = []
        if not transaction.watches:
            return baselines
        unreadable = transaction.unreadable()
        for watch in transaction.watches:
            if unreadable is not None and watch.key in unreadable:
                baselines.append(None)
                continue
            value = transaction.native.snapshot.get(watch.key)
            await self._bridge.until(value)
            baselines.append(value.value)
        return baselines

    def _watch_in_background(self, transaction: FdbTransaction, baselines: list[bytes | None]) -> None:
        """Make the watches of a committed transaction.

        They cannot be made within it: a watch is a read, so the transaction would conflict with others over it.
        """
        watches, transaction.watches = transaction.watches, []
        if not watches:
            return
        for watch, baseline in zip(watches, baselines, strict=True):
            watch.baseline = transaction.stamped_value(watch.key) if baseline is None else baseline
        self._run_in_background(self._watch_since(watches))

    async def _watch_since(self, watches: list[Watch]) -> None:
        """Fire the watches whose keys have changed since, and make the others; if that fails, fail them all."""
        try:
            await self._try_to_watch(watches)
            return
        except StoreError as error:
            failure = error
        except asyncio.CancelledError:
            failure = StoreError(f"store {self.address} was closed")
        for watch in watches:
            watch.fire(StoreError(f"the watch was lost: {failure}"))

    async def _try_to_watch(self, watches: list[Watch]) -> None:
        attempts = self._attempts()
        while True:
            native = self._database.create_transaction()
            try:
                futures = [native.get(watch.key) for watch in watches]
                for future in futures:
                    await self._bridge.until(future)
                same = [watch for watch, future in zip(watches, futures, strict=True) if watch.baseline == future.value]
                if self._watches.full:
                    for watch in same:
                        self._watches.add_polled(watch)
                else:
                    await self._make_watches(native, same)
                for watch in watches:
                    if watch not in same:
                        watch.fire()
                return
            except fdb.FDBError as error:
                failure = translated(error)
            finally:
                self._network.cancel(native)
            await attempts.again(failure)
