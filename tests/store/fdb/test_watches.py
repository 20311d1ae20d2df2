"""Watches beyond those that FoundationDB's client takes, and those that it gives up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import fdb
import pytest

from jobs_service import Settings
from jobs_service.errors import StoreError
from jobs_service.sources import Sources
from jobs_service.store import Transaction, Watch
from jobs_service.store.fdb import FdbStore
from jobs_service.store.fdb.watches import FdbWatches
from tests.contract.support import patience, write
from tests.store.fdb.clusters import CLUSTER, cluster_test
from tests.store.fdb.test_store import KEY, make, write_nothing
from tests.stores import plain_settings


class Keys:
    """What polled watches look at; the first looks fail as a test wants."""

    def __init__(self, *failures: Exception) -> None:
        self.values: dict[bytes, bytes] = {}
        self.failures = list(failures)
        self.most = 0

    async def look(self, keys: list[bytes]) -> list[bytes | None]:
        """Return what they hold."""
        self.most = max(self.most, len(keys))
        if self.failures:
            raise self.failures.pop(0)
        return [self.values.get(key) for key in keys]


@asynccontextmanager
async def polling(keys: Keys) -> AsyncIterator[FdbWatches]:
    """Watches of a client that takes none."""
    network: Any = None
    with ThreadPoolExecutor() as executor:
        watches = FdbWatches(
            network,
            asyncio.get_running_loop(),
            executor,
            limit=0,
            poll=0.001,
            values_of=keys.look,
            lost=lambda failure: None,
        )
        yield watches
        await watches.close("the end")


async def test_however_many_watches_are_polled_a_transaction_reads_a_bounded_number() -> None:
    keys = Keys(StoreError("away"))
    async with polling(keys) as watches:
        several = [Watch(b"%04d" % number) for number in range(2500)]
        for watch in several:
            watches.add_polled(watch)
        keys.values = {watch.key: b"changed" for watch in several}
        async with patience():
            for watch in several:
                await watch.wait()
    assert keys.most == 1000


@cluster_test
async def test_a_watch_that_the_client_refuses_is_told_of_after_a_pause_and_the_next_one_is_polled() -> None:
    store = make(fdb_watch_poll=0.01)
    await store.open()
    await write_nothing(store)
    store._database.options.set_max_watches(1)

    async def watching(tr: Transaction) -> Watch:
        return tr.watch(KEY)

    first = await store.read(watching)
    refused = await store.read(watching)
    async with patience():
        try:
            await refused.wait()
        except StoreError as error:
            assert "1032" in str(error)  # noqa: PT017 - either may come first
    counts = store.metrics()
    assert (counts["watches_lost"], counts["watches"], counts["watches_polled"]) == (1, 1, 0)
    polled = await store.read(watching)
    assert store.metrics()["watches_polled"] == 1
    await write(store, {KEY: b"changed"})
    async with patience():
        await first.wait()
        await polled.wait()
    await store.close()


@cluster_test
async def test_what_changes_between_a_commit_and_the_making_of_its_watches_fires_them() -> None:
    store = make()
    await store.open()
    await write_nothing(store)
    await write(store, {KEY: b"changed since"})
    behind, same = Watch(KEY), Watch(KEY)
    behind.baseline, same.baseline = b"of the commit", b"changed since"
    await store._watch_since([behind, same])
    assert (behind.fired, same.fired) == (True, False)
    await write_nothing(store)
    async with patience():
        await same.wait()
    await store.close()


class Pausing(FdbStore):
    """A store for which the cluster makes no watch now, and which waits until it may try again."""

    def __init__(self) -> None:
        super().__init__(CLUSTER, settings=plain_settings(), sources=Sources())
        self.pausing = asyncio.Event()

    async def _make_watches(self, native: Any, watches: Sequence[Watch]) -> None:
        raise fdb.FDBError(1009)  # future_version

    async def pause(self, longest: float) -> None:
        self.pausing.set()
        await asyncio.Event().wait()


@cluster_test
async def test_a_watch_that_is_to_be_made_in_a_while_is_lost_when_the_store_is_closed() -> None:
    store = Pausing()
    await store.open()

    async def function(transaction: Transaction) -> Watch:
        transaction.set(KEY, b"1")
        return transaction.watch(KEY)

    watch = await store.transact(function)
    async with patience():
        await store.pausing.wait()
        store._settings = Settings(transaction_timeout=0.01)
        await store.close()
        with pytest.raises(StoreError, match="was closed"):
            await watch.wait()
