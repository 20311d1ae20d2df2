"""The embedded store's own, within one process: opening, full stores, group commit, backup, threads."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import lmdb
import pytest

from jobs_service.errors import StoreError, StoreFull
from jobs_service.settings import Settings
from jobs_service.store import Store, Transaction, Watch
from jobs_service.store.base import TransactionFunction
from jobs_service.store.lmdb import LmdbStore
from jobs_service.store.lmdb.environment import FORMAT
from tests.contract.support import END, contents, patience, placeholder, value_of, write
from tests.store.lmdb.lmdb_process import ROOT

FORMAT_KEY = b"\xff/jobs_service/format"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a store may be made."""
    return tmp_path / "store"


@asynccontextmanager
async def opened(path: Path, **settings: object) -> AsyncIterator[LmdbStore]:
    """Open a store, and close it."""
    store = LmdbStore(path, settings=Settings(**settings))
    await store.open()
    try:
        yield store
    finally:
        await store.close()


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


# Opening


async def test_a_directory_is_made_when_missing_with_those_above_it(tmp_path: Path) -> None:
    path = tmp_path / "some" / "where" / "store"
    async with opened(path) as store:
        await write(store, {b"a": b"1"})
    assert sorted(os.listdir(path)) == ["data.mdb", "lock.mdb", "processes"]


async def test_the_format_is_written_into_a_new_store(path: Path) -> None:
    async with opened(path):
        pass
    with lmdb.open(str(path)) as environment, environment.begin() as transaction:
        assert transaction.get(FORMAT_KEY) == b"%d" % FORMAT


@pytest.mark.parametrize("durable", [True, False])
async def test_every_commit_is_flushed_and_of_a_durable_store_with_its_meta_page(path: Path, durable: bool) -> None:
    async with opened(path, durable=durable) as store:
        assert store._environment is not None
        flags = store._environment.flags()
    assert (flags["sync"], flags["metasync"], flags["writemap"], flags["map_async"]) == (True, durable, False, False)


async def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file")
    assert "is a file" in await refusal(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "a file"


async def test_a_path_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file")
    assert "cannot be opened: Not a directory" in await refusal(tmp_path / "file" / "store")


@pytest.mark.parametrize("content", [b"no store\n" * 1000, bytes(8192), bytes(range(256)) * 32, b"short"])
async def test_a_file_that_is_no_store_is_refused_and_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "data.mdb").write_bytes(content)
    assert "no embedded store" in await refusal(tmp_path)
    assert (tmp_path / "data.mdb").read_bytes() == content


async def test_another_programs_lmdb_environment_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path)) as environment, environment.begin(write=True) as transaction:
        transaction.put(b"theirs", b"1")
    before = (tmp_path / "data.mdb").read_bytes()
    assert "no store of jobs_service" in await refusal(tmp_path)
    assert (tmp_path / "data.mdb").read_bytes() == before


@pytest.mark.parametrize("newer", [b"%d" % (FORMAT + 1), b"1000", b"next"])
async def test_a_store_of_a_newer_format_is_refused_and_left_as_it_is(path: Path, newer: bytes) -> None:
    async with opened(path) as store:
        await write(store, {b"a": b"1"})
    with lmdb.open(str(path)) as environment, environment.begin(write=True) as transaction:
        transaction.put(FORMAT_KEY, newer)
    before = (path / "data.mdb").read_bytes()
    message = await refusal(path)
    assert f"format {newer.decode()}" in message
    assert "newer version" in message
    assert (path / "data.mdb").read_bytes() == before


@pytest.mark.parametrize("spelling", ["same", "symlink", "relative"])
async def test_a_store_is_open_once_in_a_process(path: Path, spelling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(path) as store:
        other = path
        if spelling == "symlink":
            other = path.with_name("link")
            other.symlink_to(path)
        elif spelling == "relative":
            monkeypatch.chdir(path.parent)
            other = Path(path.name)
        second = LmdbStore(other, settings=Settings())
        with pytest.raises(StoreError, match="open in this process already"):
            await second.open()
        await write(store, {b"a": b"1"})
        await store.close()
        await second.open()
        assert await value_of(second, b"a") == b"1"
        await write(second, {b"a": b"2"})
        assert await value_of(second, b"a") == b"2"
        await second.close()


UNWRITABLE = """
import asyncio, os, sys
from jobs_service.errors import StoreError
from jobs_service.settings import Settings
from jobs_service.store.lmdb import LmdbStore
if os.geteuid() == 0:
    os.setuid(65534)
for path in sys.argv[1:]:
    try:
        asyncio.run(LmdbStore(path, settings=Settings()).open())
    except StoreError as error:
        print(error)
    else:
        print("it opened")
"""


@pytest.fixture
def readable_directory() -> Iterator[Path]:
    """A directory that everybody may enter; those of pytest are its user's only."""
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    yield directory
    directory.chmod(0o755)
    shutil.rmtree(directory)


async def test_a_directory_or_a_store_that_may_not_be_written_is_refused(readable_directory: Path) -> None:
    missing, present = readable_directory / "missing", readable_directory / "present"
    async with opened(present):
        pass
    for place in (*present.iterdir(), present, readable_directory):
        place.chmod(0o555 if place.is_dir() else 0o444)
    result = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", UNWRITABLE, str(missing), str(present)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    present.chmod(0o755)
    assert result.stdout.splitlines() == [
        f"{missing} cannot be opened: Permission denied",
        f"{present} cannot be opened: Permission denied",
    ]


async def test_a_cancelled_opening_leaves_nothing_behind(path: Path) -> None:
    for steps in range(4):
        store = LmdbStore(path, settings=Settings())
        opening = asyncio.create_task(store.open())
        for _ in range(steps):
            await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert not store.is_open
        async with opened(path) as again:
            await write(again, {b"a": b"1"})
        assert not own_threads()


async def test_one_object_can_be_opened_again(path: Path) -> None:
    store = LmdbStore(path, settings=Settings())
    for count in range(3):
        await store.open()
        await write(store, {b"%d" % count: b""})
        assert len(await contents(store)) == count + 1
        await store.close()


# Threads


async def test_an_open_store_has_two_threads_and_a_closed_one_none(path: Path) -> None:
    before = threading.active_count()
    async with opened(path) as store:
        watches = [await store.transact(watching(b"%d" % place)) for place in range(20)]
        await asyncio.gather(*[write(store, {b"%d" % place: b"1"}) for place in range(200)])
        await asyncio.gather(*[contents(store) for _ in range(50)])
        assert own_threads() == ["lmdb-reader", "lmdb-writer"]
        assert threading.active_count() == before + 2
        assert all(watch.fired for watch in watches)
    assert threading.active_count() == before


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


async def test_who_is_cancelled_in_the_queue_has_not_run(path: Path) -> None:
    async with opened(path) as store:
        loop = asyncio.get_running_loop()
        let_go = threading.Event()
        begun = asyncio.Event()
        ran: list[Transaction] = []
        told: list[object] = []

        async def slow(tr: Transaction) -> None:
            loop.call_soon_threadsafe(begun.set)
            let_go.wait()

        async def function(tr: Transaction) -> None:
            ran.append(tr)
            tr.set(b"a", b"1")

        for call in (store.transact, store.read):
            let_go.clear()
            begun.clear()
            first = asyncio.create_task(call(slow))
            await begun.wait()
            waiting = [store.transact(function, abandoned=told.append) if call == store.transact else call(function)]
            queued = asyncio.create_task(waiting[0])
            await asyncio.sleep(0)
            queued.cancel()
            with pytest.raises(asyncio.CancelledError):
                await queued
            let_go.set()
            await first
        assert await contents(store) == {}
        assert not ran
        assert not told


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


async def test_an_abandoned_result_that_makes_trouble_keeps_nobody_from_an_answer(path: Path) -> None:
    def trouble(result: object) -> None:
        raise LookupError(result)

    async def function(tr: Transaction) -> str:
        tr.set(b"a", b"1")
        return "result"

    loop = asyncio.get_running_loop()
    told: list[object] = []
    loop.set_exception_handler(lambda _, context: told.append(context.get("exception")))
    async with opened(path) as store:
        # The first one is a group of its own and lets the others gather into the next.
        gates = [(threading.Event(), asyncio.Event()) for _ in range(2)]

        def slow(place: int) -> TransactionFunction[str]:
            let_go, begun = gates[place]

            async def wait(tr: Transaction) -> str:
                loop.call_soon_threadsafe(begun.set)
                let_go.wait()
                return await function(tr)

            return wait

        first = asyncio.create_task(store.transact(slow(0)))
        await gates[0][1].wait()
        canceled = asyncio.create_task(store.transact(function, abandoned=trouble))
        others = [asyncio.create_task(store.transact(each)) for each in (slow(1), function, function)]
        await asyncio.sleep(0)
        gates[0][0].set()
        await gates[1][1].wait()
        canceled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await canceled
        gates[1][0].set()
        async with patience():
            assert await asyncio.gather(first, *others) == ["result"] * 4
    assert [type(error) for error in told] == [LookupError]


# Full stores


def filling(name: bytes, size: int) -> TransactionFunction[None]:
    """Return a function that writes so many bytes."""

    async def function(tr: Transaction) -> None:
        for part in range(size // 1000):
            tr.set(b"%s/%04d" % (name, part), b"x" * 1000)

    return function


async def fill(store: Store, size: int) -> list[bytes]:
    """Write values of so many bytes until the store is full, and return the names of those that it took."""
    names: list[bytes] = []

    async def add() -> None:
        while True:
            name = b"%04d" % len(names)
            await store.transact(filling(name, size))
            names.append(name)

    with pytest.raises(StoreFull, match=r"^[^\n]*JOBS_SERVICE_LMDB_MAP_SIZE[^\n]*$"):
        await add()
    return names


async def names_in(store: Store) -> list[bytes]:
    """Return the names under which something was filled in."""
    return sorted({key.split(b"/")[0] for key in await contents(store)})


async def test_a_full_store_loses_nothing_and_goes_on_reading(path: Path) -> None:
    async with opened(path, lmdb_map_size=1 << 20) as store:
        names = await fill(store, 20_000)
        assert len(names) > 10
        assert await names_in(store) == names
        for _ in range(3):
            with pytest.raises(StoreFull):
                await store.transact(filling(b"more", 20_000))
            assert await names_in(store) == names
    async with opened(path, lmdb_map_size=1 << 20) as store:
        assert await names_in(store) == names


async def test_a_full_store_takes_more_when_something_was_removed(path: Path) -> None:
    async with opened(path, lmdb_map_size=1 << 20) as store:
        names = await fill(store, 20_000)
        for name in names[: len(names) // 2]:
            await store.transact(clearing(name))
        kept = names[len(names) // 2 :]
        assert await names_in(store) == kept
        await store.transact(filling(b"more", 20_000))
        assert await names_in(store) == [*kept, b"more"]


def clearing(name: bytes) -> TransactionFunction[None]:
    """Return a function that clears what was filled in under a name."""

    async def function(tr: Transaction) -> None:
        tr.clear_range(name + b"/", name + b"0")

    return function


async def test_who_clears_nothing_in_a_full_store_may_not_add_to_it(path: Path) -> None:
    async def clear_and_fill(tr: Transaction) -> None:
        tr.clear_range(b"nobody/", b"nobody0")
        await filling(b"more", 20_000)(tr)

    async with opened(path, lmdb_map_size=1 << 20) as store:
        names = await fill(store, 20_000)
        with pytest.raises(StoreFull):
            await store.transact(clear_and_fill)
        assert await names_in(store) == names


async def test_a_full_store_can_be_emptied_in_one_transaction(path: Path) -> None:
    async with opened(path, lmdb_map_size=1 << 20) as store:
        await fill(store, 20_000)

        async def clear(tr: Transaction) -> None:
            tr.clear_range(b"", END)

        await store.transact(clear)
        assert await contents(store) == {}
        assert await fill(store, 20_000)


async def test_only_those_who_ask_for_too_much_are_refused(path: Path) -> None:
    """They are in one group with others, whose transactions commit."""
    async with opened(path, lmdb_map_size=1 << 20) as store:
        sizes = [2000, 3_000_000, 2000, 2000, 3_000_000, 2000]
        results = await asyncio.gather(
            *[store.transact(filling(b"%d" % place, size)) for place, size in enumerate(sizes)],
            return_exceptions=True,
        )
        assert [type(result) for result in results] == [StoreFull if size > 2000 else type(None) for size in sizes]
        assert await names_in(store) == [b"0", b"2", b"3", b"5"]


async def test_a_full_store_takes_more_when_opened_with_a_larger_map(path: Path) -> None:
    async with opened(path, lmdb_map_size=1 << 20) as store:
        names = await fill(store, 20_000)
    async with opened(path, lmdb_map_size=1 << 22) as store:
        await store.transact(filling(b"more", 20_000))
        assert await names_in(store) == [*names, b"more"]


async def test_watches_of_a_transaction_that_does_not_fit_are_lost(path: Path) -> None:
    async with opened(path, lmdb_map_size=1 << 20) as store:
        watches = []

        async def function(tr: Transaction) -> None:
            watches.append(tr.watch(b"a"))
            await filling(b"more", 3_000_000)(tr)

        with pytest.raises(StoreFull):
            await store.transact(function)
        assert watches
        for watch in watches:
            async with patience():
                with pytest.raises(StoreError):
                    await watch.wait()


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


async def test_a_backup_needs_an_open_store(path: Path, tmp_path: Path) -> None:
    async with opened(path) as store:
        pass
    with pytest.raises(StoreError, match="not open"):
        await store.backup(str(tmp_path / "copy"))


async def test_closing_waits_for_a_backup(path: Path, tmp_path: Path) -> None:
    async with opened(path, durable=False) as store:
        for place in range(20):
            await store.transact(filling(b"%d" % place, 900_000))
        copying = asyncio.create_task(store.backup(str(tmp_path / "copy")))
        await asyncio.sleep(0)
        await store.close()
        size = await copying
    assert size == (tmp_path / "copy").stat().st_size > 18_000_000


# Other settings


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


async def test_relaxed_durability_writes_as_well(path: Path) -> None:
    async with opened(path, durable=False) as store:
        await asyncio.gather(*[write(store, {b"%d" % place: b"1"}) for place in range(50)])
    async with opened(path) as store:
        assert len(await contents(store)) == 50


async def test_closing_under_load_answers_everybody(path: Path) -> None:
    async with opened(path) as store:
        calls = [asyncio.create_task(write(store, {b"%d" % place: b"1"})) for place in range(500)]
        reads = [asyncio.create_task(contents(store)) for _ in range(100)]
        await asyncio.sleep(0)
        async with patience():
            await store.close()
        assert all(call.done() for call in [*calls, *reads])
        assert not [call for call in [*calls, *reads] if call.exception() is not None]
    async with opened(path) as store:
        assert len(await contents(store)) == 500
