"""What only the FoundationDB store does: its client, and watches past the limit."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from jobs_service import Settings
from jobs_service.errors import StoreError, StoreUnavailable
from jobs_service.sources import Sources
from jobs_service.store import Store, Transaction, Watch, open_address
from jobs_service.store.fdb import FdbStore
from tests.contract.support import patience, write
from tests.store.fdb.clusters import CLUSTER, cluster_test
from tests.stores import plain_settings, settings_with

KEY = b"own/key"
OTHER = b"own/other"


def make(**settings: Any) -> FdbStore:
    """Return a store on the cluster, not yet open."""
    store = open_address(f"fdb:{CLUSTER}", settings_with(**settings), Sources())
    assert isinstance(store, FdbStore)
    return store


@pytest.fixture
async def store() -> AsyncIterator[FdbStore]:
    """An open store without keys of earlier tests."""
    opened = make()
    await opened.open()
    await write_nothing(opened)
    yield opened
    await opened.close()


async def write_nothing(store: Store) -> None:
    """Clear the keys that these tests write."""

    async def clear(tr: Transaction) -> None:
        tr.clear_range(b"own/", b"own0")

    await store.transact(clear)


async def test_a_cluster_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    store = open_address(f"fdb:{tmp_path / 'nowhere'}", plain_settings(), Sources(0))
    with pytest.raises(StoreError, match=r"nowhere.*cluster file cannot be read: No such file"):
        await store.open()
    assert not store.is_open


@pytest.mark.parametrize("content", [b"not a cluster file", b"", b"a:b@c", b"\xff\xfe", b"a:b@c:1\nd:e@f:2"])
async def test_a_cluster_file_that_is_none_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "fdb.cluster"
    file.write_bytes(content)
    store = open_address(f"fdb:{file}", plain_settings(), Sources(0))
    with pytest.raises(StoreError, match="not a cluster file"):
        await store.open()


@cluster_test
async def test_a_cluster_that_does_not_answer_is_unavailable_within_the_limit(tmp_path: Path) -> None:
    file = tmp_path / "fdb.cluster"
    file.write_text("test:test@127.0.0.1:1")
    store = open_address(f"fdb:{file}", Settings(transaction_timeout=0.2), Sources(0))
    await store.open()
    with pytest.raises(StoreUnavailable, match=r"did not answer within 0\.2 s"):
        await store.transact(lambda tr: tr.get(KEY))
    with pytest.raises(StoreUnavailable):
        await store.prefix()
    async with patience():
        await store.close()


@cluster_test
async def test_watches_beyond_the_clients_limit_are_polled() -> None:
    store = make(fdb_max_watches=3, fdb_watch_poll=0.01)
    await store.open()
    await write_nothing(store)

    async def watching(tr: Transaction) -> Watch:
        return tr.watch(KEY)

    async def writing_and_watching(tr: Transaction) -> Watch:
        tr.set(OTHER, b"1")
        return tr.watch(KEY)

    watches = [await store.read(watching) for _ in range(6)] + [await store.transact(writing_and_watching)]
    canceled = await store.read(watching)
    canceled.cancel()
    await write(store, {KEY: b"1"})
    async with patience():
        for watch in watches:
            await watch.wait()
    assert not canceled.fired
    late = [await store.read(watching) for _ in range(5)]
    await store.close()
    for watch in late:
        with pytest.raises(StoreError, match="closed"):
            await watch.wait()
