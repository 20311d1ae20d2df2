"""The embedded store's own, within one process: threads, group commit, backup."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import lmdb
import pytest

from jobs_service.errors import StoreError
from jobs_service.settings import Settings
from jobs_service.store import Transaction, Watch
from jobs_service.store.base import TransactionFunction
from jobs_service.store.lmdb import LmdbStore
from tests.contract.support import contents, patience, placeholder, value_of, write

FORMAT_KEY = b"\xff/jobs_service/format"


@asynccontextmanager
async def opened(path: Path, **settings: object) -> AsyncIterator[LmdbStore]:
    """Open a store, and close it."""
    store = LmdbStore(path, settings=Settings(**settings))
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def filling(name: bytes, size: int) -> TransactionFunction[None]:
    """Return a function that writes so many bytes."""

    async def function(tr: Transaction) -> None:
        for part in range(size // 1000):
            tr.set(b"%s/%04d" % (name, part), b"x" * 1000)

    return function


def own_threads() -> list[str]:
    """Return the names of this process's store threads."""
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("lmdb"))


async def refusal(path: Path, **settings: object) -> str:
    """Return why a store cannot be opened: one line, after which nothing is left of the attempt."""
    store = LmdbStore(path, settings=Settings(**settings))
    with pytest.raises(StoreError) as caught:
        await store.open()
    assert not store.is_open
    assert not own_threads()
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


# Threads


def watching(key: bytes) -> TransactionFunction[Watch]:
    """Return a function that watches a key."""

    async def function(tr: Transaction) -> Watch:
        return tr.watch(key)

    return function


async def test_a_reader_never_waits_for_the_writer(path: Path) -> None:
    async with opened(path) as store:
        await write(store, {b"a": b"1"})
        let_go = threading.Event()

        async def slow(tr: Transaction) -> None:
            tr.set(b"a", b"2")
            let_go.wait()

        writing = asyncio.create_task(store.transact(slow))
        try:
            async with patience():
                for _ in range(3):
                    assert await value_of(store, b"a") == b"1"
            assert not writing.done()
        finally:
            let_go.set()
        await writing
        assert await value_of(store, b"a") == b"2"


async def test_a_commit_between_looking_and_watching_fires_the_watch(path: Path) -> None:
    """The reader is held up in the middle of its function, and the writer overtakes it."""
    async with opened(path) as store:
        loop = asyncio.get_running_loop()
        let_go = threading.Event()
        begun = asyncio.Event()

        async def slow(tr: Transaction) -> tuple[bytes | None, Watch]:
            value = await tr.get(b"a")
            loop.call_soon_threadsafe(begun.set)
            let_go.wait()
            return value, tr.watch(b"a")

        await write(store, {b"a": b"old"})
        other = await store.read(watching(b"other"))
        await value_of(store, b"a")
        looking = asyncio.create_task(store.read(slow))
        await begun.wait()
        await write(store, {b"a": b"new"})
        let_go.set()
        value, watch = await looking
        assert value == b"old"
        async with patience():
            await watch.wait()
        assert not other.fired


# Group commit


async def test_concurrent_transactions_share_commits(path: Path) -> None:
    async def append(tr: Transaction) -> Transaction:
        tr.set_versionstamped_key(placeholder(b"log/"), b"")
        return tr

    async with opened(path) as store:
        transactions = await asyncio.gather(*[store.transact(append) for _ in range(1000)])
        stamps = [tr.stamp.value for tr in transactions]
        assert len(await contents(store)) == 1000
    assert stamps == sorted({stamp for stamp in stamps if stamp is not None})
    versions = {stamp[:8] for stamp in stamps if stamp is not None}
    assert len(versions) <= 100
    with lmdb.open(str(path)) as environment:
        # Each version is one commit of LMDB's; one more made the store.
        assert environment.info()["last_txnid"] == len(versions) + 1


async def test_a_large_group_is_committed_in_parts(path: Path) -> None:
    """Nobody waits for a commit of a hundred megabytes because so many came at once."""

    def large(place: int) -> TransactionFunction[Transaction]:
        async def function(tr: Transaction) -> Transaction:
            for part in range(40):
                tr.set(b"%d/%d" % (place, part), b"x" * 100_000)
            return tr

        return function

    async def stamp(tr: Transaction) -> Transaction:
        tr.set(b"stamp", b"")
        return tr

    async with opened(path, durable=False) as store:
        calls = [store.transact(large(place)) for place in range(10)]
        transactions = await asyncio.gather(store.transact(stamp), *calls, store.transact(stamp))
        first, last = transactions[0].stamp.value, transactions[-1].stamp.value
        assert first is not None
        assert last is not None
        assert int.from_bytes(first[:8], "big") + 2 <= int.from_bytes(last[:8], "big")
        assert len(await store.read(lambda tr: tr.get_range(b"0", b":"))) == 400


async def test_the_result_of_who_is_canceled_in_the_very_turn_of_its_answer_is_told(path: Path) -> None:
    async def function(tr: Transaction) -> str:
        tr.set(b"a", b"1")
        return "result"

    told: list[str] = []
    async with opened(path) as store:
        watch = await store.read(watching(b"a"))
        call = asyncio.create_task(store.transact(function, abandoned=told.append))
        watch.on_fire(call.cancel)  # after the answer, and before the call goes on
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.sleep(0)
        assert told == ["result"]


# Backup


async def test_a_backup_made_while_the_store_is_in_use_opens_as_a_consistent_store(path: Path, tmp_path: Path) -> None:
    async def transfer(tr: Transaction) -> None:
        count = int(await tr.get(b"count") or 0) + 1
        tr.set(b"count", b"%d" % count)
        tr.set(b"log/%06d" % count, b"x" * 1000)
        tr.set_versionstamped_value(b"stamp", placeholder())

    async with opened(path) as store:
        ending = False

        async def work() -> None:
            while not ending:
                await asyncio.gather(*[store.transact(transfer) for _ in range(10)])

        working = asyncio.create_task(work())
        copies = [tmp_path / f"copy{number}" for number in range(3)]
        for copy in copies:
            copy.mkdir()
            size = await store.backup(str(copy / "data.mdb"))
            assert size == (copy / "data.mdb").stat().st_size
        ending = True
        await working
        stamp = await value_of(store, b"stamp") or b""
        assert os.listdir(copies[0]) == ["data.mdb"]
    counts = []
    for copy in copies:
        async with opened(copy) as backup:
            found = await contents(backup)
            counts.append(int(found.get(b"count", b"0")))
            assert len(found) == counts[-1] + 2 * (b"count" in found)
            assert found.get(b"stamp", b"") <= stamp
            await backup.transact(transfer)
            assert (await value_of(backup, b"stamp") or b"") > found.get(b"stamp", b"")
    assert counts == sorted(counts)


async def test_a_backup_takes_no_existing_file_and_no_impossible_place(path: Path, tmp_path: Path) -> None:
    (tmp_path / "there").write_text("precious")
    async with opened(path) as store:
        with pytest.raises(StoreError, match="exists already"):
            await store.backup(str(tmp_path / "there"))
        with pytest.raises(StoreError, match="cannot be written: No such file or directory"):
            await store.backup(str(tmp_path / "missing" / "copy"))
        with pytest.raises(StoreError, match="cannot be written"):
            await store.backup(str(tmp_path / "there" / "copy"))
        await write(store, {b"a": b"1"})
    assert (tmp_path / "there").read_text() == "precious"
    assert sorted(os.listdir(tmp_path)) == ["store", "there"]


# The file


async def test_nothing_of_the_programs_memory_gets_into_the_file(path: Path, tmp_path: Path) -> None:
    """What is unused of the last page of a long value is filled up by LMDB."""
    secret = b"a password of somebody else;"

    async def leave_behind(_: Transaction) -> int:
        # By the writer's thread, whose freed memory is what LMDB is given for pages.
        return len([secret * length for length in range(100, 600, 5)])

    async with opened(path) as store:
        for number in range(40):
            await store.transact(leave_behind)
            await write(store, {b"%d" % number: bytes(9_000)})
        await store.backup(str(tmp_path / "backup"))
    assert secret not in (path / "data.mdb").read_bytes()
    assert secret not in (tmp_path / "backup").read_bytes()
