"""What only the FoundationDB store does: its client, cancellation, marks, watches past the limit, moved directories."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import fdb
import pytest

from jobs_service import JobsService, Settings
from jobs_service.errors import DirectoryMoved, StoreError, StoreUnavailable
from jobs_service.sources import Sources
from jobs_service.store import Store, Transaction, Watch, open_address
from jobs_service.store.fdb import FdbStore
from jobs_service.store.fdb.directory import DIRECTORY
from tests.contract.support import patience, value_of, write
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
async def test_several_services_share_the_client() -> None:
    async with JobsService(f"fdb:{CLUSTER}", supervise=False) as one:
        await one.set_type_timeout("shared client", 10)
        async with JobsService(f"fdb:{CLUSTER}", supervise=False) as two:
            assert await two.get_type_timeout("shared client") == 10
        await one.clear_type_timeout("shared client")


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


@cluster_test
async def test_watches_made_at_the_same_time_do_not_exceed_the_clients_limit() -> None:
    store = make(fdb_max_watches=1, fdb_watch_poll=0.01)
    await store.open()
    await write_nothing(store)

    async def watching(tr: Transaction) -> Watch:
        return tr.watch(KEY)

    for number in range(20):
        watches = await asyncio.gather(*[store.read(watching) for _ in range(30)])
        assert store._watches.number == 30
        assert len(store._watches._native) == 1
        await write(store, {KEY: b"%d" % number})
        async with patience():
            for watch in watches:
                await watch.wait()
    await store.close()


@cluster_test
async def test_a_thousand_watches_need_no_more_threads_than_one(store: FdbStore) -> None:
    def threads() -> int:
        return len(os.listdir("/proc/self/task"))

    async def watching(tr: Transaction) -> list[Watch]:
        return [tr.watch(b"own/%d" % number) for number in range(1000)]

    first = await store.read(lambda tr: watching(tr))
    before = threads()
    more = [watch for _ in range(4) for watch in await store.read(watching)]
    assert threads() == before
    await write(store, {b"own/%d" % number: b"" for number in range(1000)})
    async with patience():
        for watch in first + more:
            await watch.wait()
    assert threads() == before


@cluster_test
async def test_a_cancelled_call_cancels_its_transaction_and_writes_nothing(store: FdbStore) -> None:
    reading = asyncio.Event()

    async def function(tr: Transaction) -> None:
        tr.set(KEY, b"1")
        for _ in range(1_000_000):
            await tr.get(OTHER)
            reading.set()

    call = asyncio.create_task(store.transact(function))
    async with patience():
        await reading.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert await value_of(store, KEY) is None


@cluster_test
async def test_marks_do_not_grow_and_are_gone_after_closing() -> None:
    store, other = make(), make()
    await store.open()
    await other.open()
    marks = await store.prefix() + b"\xfe"

    async def count() -> int:
        return len(await other.read(lambda tr: tr.get_range(marks, marks + b"\xff")))

    async def increment(tr: Transaction) -> None:
        tr.set(KEY, b"%d" % (int(await tr.get(KEY) or b"0") + 1))

    await write_nothing(store)
    before = await count()
    await asyncio.gather(*[store.transact(increment) for _ in range(100)])
    assert await count() - before <= 100
    await asyncio.gather(*[store.transact(increment) for _ in range(100)])
    assert await count() - before <= 100
    assert int(await value_of(store, KEY) or b"") == 200
    await store.close()
    assert await count() < before + 1
    await other.close()


@cluster_test
async def test_transactions_that_overlap_and_share_no_key_never_conflict(store: FdbStore) -> None:
    async def work(number: int) -> None:
        key = OTHER + b"%03d" % number

        async def increment(tr: Transaction) -> None:
            tr.set(key, b"%d" % (int(await tr.get(key) or b"0") + 1))

        for _ in range(10):
            await store.transact(increment)
        assert await value_of(store, key) == b"10"

    await asyncio.gather(*[work(number) for number in range(30)])
    assert store.conflicts == 0


@cluster_test
async def test_a_moved_directory_is_noticed_by_the_metadata_version() -> None:
    database = fdb.open(CLUSTER) if fdb.is_api_version_selected() else None
    async with JobsService(f"fdb:{CLUSTER}") as jobs:
        database = database or fdb.open(CLUSTER)
        await jobs.set_type_timeout("moving", 10)
        await jobs.add("moving", "a")
        before = await jobs.store.prefix()

        @fdb.transactional  # type: ignore[untyped-decorator]
        def move(tr: Any) -> None:
            fdb.directory.remove_if_exists(tr, ("moved away",))
            fdb.directory.move(tr, DIRECTORY, ("moved away",))
            tr.set_versionstamped_value(b"\xff/metadataVersion", bytes(14))

        await asyncio.to_thread(move, database)
        with pytest.raises(DirectoryMoved):
            await jobs.add("moving", "b")
        async with patience():
            while await jobs.types():  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.01)
        assert await jobs.store.prefix() != before
        await jobs.set_type_timeout("moving", 10)
        await jobs.add("moving", "b")
        async with patience():
            while jobs.supervision()["state"] != "running":  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.01)
        await jobs.clear_type_timeout("moving")
        await jobs.remove("moving", "b")
