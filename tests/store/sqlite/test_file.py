"""The file of a SQLite store: what is refused, what others do to it meanwhile, and what is left of it."""

from __future__ import annotations

import asyncio
import filecmp
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from jobs_service.errors import StoreDamaged, StoreError, StoreLost, StoreUnavailable
from jobs_service.settings import Settings
from jobs_service.store import Transaction, Watch
from jobs_service.store import sqlite as module
from jobs_service.store.files import file_system
from jobs_service.store.sqlite import FORMAT, TABLE, SqliteEngine, SqliteStore
from tests.contract.support import contents, patience, value_of, write
from tests.store.lmdb.lmdb_process import ROOT
from tests.store.sqlite.application import Application, signing_up
from tests.store.sqlite.conftest import opened

BESIDE = ["app.db", "app.db-processes"]


async def refusal(path: Path) -> str:
    """Return why a store cannot be opened: one line, after which nothing is left of the attempt."""
    store = SqliteStore(path, settings=Settings())
    with pytest.raises(StoreError) as caught:
        await store.open()
    assert not store.is_open
    message = str(caught.value)
    assert "\n" not in message
    return message


async def watching(store: SqliteStore, key: bytes) -> Watch:
    """Return a live watch."""

    async def function(tr: Transaction) -> Watch:
        return tr.watch(key)

    return await store.read(function)


# Opening


async def test_a_file_is_made_with_the_directories_above_it_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "some" / "where" / "app.db"
    async with opened(path) as store:
        await write(store, {b"a": b"1"})
    assert sorted(os.listdir(path.parent)) == BESIDE
    assert sorted(os.listdir(f"{path}-processes")) == ["shared", "writer"]
    async with opened(path) as store:
        assert await contents(store) == {b"a": b"1"}


async def test_a_file_of_the_application_gets_the_table_and_keeps_its_own(application: Application, path: Path) -> None:
    application.rows("insert into users (mail) values ('ada')")
    application.connection.close()
    async with opened(path) as store:
        await write(store, {b"a": b"1"})
    with Application(path) as again:
        assert again.mails == ["ada"]
        assert again.rows("pragma journal_mode") == [("wal",)]


async def test_what_is_no_store_is_refused_and_left_as_it_is(path: Path, tmp_path: Path) -> None:
    shutil.copy(__file__, path)
    assert "is no SQLite file" in await refusal(path)
    assert filecmp.cmp(__file__, path, shallow=False)
    assert "is a directory" in await refusal(tmp_path)


@pytest.mark.parametrize("other", [b"0", b"2", b"next"])
async def test_a_store_of_another_format_is_refused(path: Path, other: bytes) -> None:
    async with opened(path):
        pass
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"update {TABLE} set value = ? where value = ?", (other, FORMAT))
    assert f"format {other.decode()}" in await refusal(path)


async def test_a_sqlite_that_is_too_old_or_lacks_something_is_refused_with_its_version(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
    monkeypatch.setattr(sqlite3, "sqlite_version", "3.34.1")
    assert "needs SQLite 3.35 or newer, and this Python has 3.34.1" in await refusal(path)
    monkeypatch.undo()
    with closing(sqlite3.connect(":memory:")) as connection:
        [(built_with,), *_] = connection.execute("pragma compile_options").fetchall()
    monkeypatch.setattr(module, "_NEEDED", (built_with,))
    said = await refusal(path)
    assert f"SQLite {sqlite3.sqlite_version}, built with {built_with}" in said
    assert path.name not in os.listdir(path.parent)


def test_a_network_file_system_is_told_by_its_name() -> None:
    mounts = (
        "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n"
        "41 35 0:48 / /net rw,relatime shared:7 shared:8 - nfs4 server:/export rw,vers=4.2\n"
    )
    assert file_system(mounts, os.makedev(0, 48)) == "nfs4"
    assert file_system(mounts, os.makedev(98, 0)) == "ext3"
    assert file_system(mounts, os.makedev(1, 1)) is None
    assert file_system("nonsense\n", 0) is None


async def test_a_store_on_a_network_file_system_is_refused(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = os.stat(tmp_path).st_dev
    (tmp_path / "mounts").write_text(f"41 35 {os.major(device)}:{os.minor(device)} / /net rw - nfs4 server:/ rw\n")
    monkeypatch.setattr("jobs_service.store.files._MOUNTS", str(tmp_path / "mounts"))
    assert f"{path} is on a network file system (nfs4)" in await refusal(path)
    assert path.name not in os.listdir(path.parent)


# Foreign programs


async def test_while_another_program_holds_the_write_lock_reads_go_on_and_writes_wait(
    path: Path, application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LONG", 0.0)
    async with opened(path, transaction_timeout=0.3) as store:
        await write(store, {b"a": b"1"})
        with capture_logs() as logged:
            application.rows("begin immediate")
            application.rows("insert into users (mail) values ('theirs')")
            with pytest.raises(StoreUnavailable, match="did not answer within"):
                await store.transact(signing_up("ada"))
            assert await value_of(store, b"a") == b"1"
            application.rows("commit")
            await store.transact(signing_up("bob"))
        assert [entry["event"] for entry in logged] == ["store_locked"]
        assert application.mails == ["bob", "theirs"]
        assert await contents(store) == {b"a": b"1", b"bob": b"1"}


async def test_closing_does_not_wait_for_ever_for_another_programs_lock(path: Path, application: Application) -> None:
    store = SqliteStore(path, settings=Settings(transaction_timeout=0.3))
    await store.open()
    application.rows("begin immediate")
    writing = asyncio.create_task(write(store, {b"a": b"1"}))
    await asyncio.sleep(0)
    async with patience():
        await store.close()
        with pytest.raises(StoreUnavailable):
            await writing
    application.rows("rollback")
    await asyncio.to_thread(store._writer.join)
    async with opened(path) as again:
        assert await contents(again) == {}


@pytest.mark.parametrize("durable", [True, False])
async def test_every_commit_is_flushed_unless_it_need_not_be(path: Path, durable: bool) -> None:
    """With a write-ahead log, SQLite's FULL flushes it at each commit, NORMAL before a checkpoint only."""
    async with opened(path, durable=durable) as store:
        engine = store._engine
        assert isinstance(engine, SqliteEngine)
        await write(store, {b"a": b"1"})
        [(mode,)] = engine._writer.execute("pragma journal_mode").fetchall()
        [(flushes,)] = engine._writer.execute("pragma synchronous").fetchall()
    assert (mode, flushes) == ("wal", 2 if durable else 1)


async def test_a_long_reader_is_named_and_the_log_is_cut_when_it_has_gone(
    path: Path, application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LARGE_LOG", 6 << 20)
    monkeypatch.setattr(module, "_USUAL_LOG", 1 << 20)
    monkeypatch.setattr(module, "_LOOK_PERIOD", 1)
    async with opened(path, durable=False) as store:
        with capture_logs() as logged:
            application.rows("begin")
            application.rows("select * from users")
            for number in range(100):
                await write(store, {b"%d" % number: os.urandom(90_000)})
            application.rows("rollback")
            for number in range(3):
                await write(store, {b"%d" % number: b"1"})
        assert [entry["event"] for entry in logged] == ["store_log_grows"]
        assert os.stat(f"{path}-wal").st_size <= 1 << 20


async def test_a_vacuum_and_a_migration_are_in_nobodys_way(path: Path, application: Application) -> None:
    async with opened(path) as store:
        watch = await watching(store, b"a")
        await store.transact(signing_up("ada"))
        application.rows("alter table users add column name text")
        application.rows("vacuum")
        with Application(path) as another:  # SQLite removes the log with the last connection only
            another.rows("insert into users (mail) values ('eve')")
        await store.transact(signing_up("bob"))
        assert not watch.fired
        await write(store, {b"a": b"1"})
        async with patience():
            await watch.wait()
        assert application.rows("select mail, name from users") == [
            ("ada", None),
            ("eve", None),
            ("bob", None),
        ]


async def test_a_table_that_somebody_has_removed_is_damage(path: Path, application: Application) -> None:
    async with opened(path) as store:
        application.rows(f"drop table {TABLE}")
        with pytest.raises(StoreDamaged, match=f"no such table: {TABLE}"):
            await value_of(store, b"a")
        with pytest.raises(StoreDamaged, match=f"no such table: {TABLE}"):
            await write(store, {b"a": b"1"})


async def test_a_file_that_was_cut_off_is_damage(path: Path) -> None:
    async with opened(path) as store:
        await write(store, {b"%d" % number: bytes(50_000) for number in range(10)})
    os.truncate(path, 20_000)
    assert "is damaged" in await refusal(path)


FORK = """
import asyncio, os, sys
from jobs_service.errors import StoreError
from jobs_service.settings import Settings
from jobs_service.store.sqlite import SqliteStore
from tests.contract.support import contents, write

async def child(path):
    try:
        await SqliteStore(path, settings=Settings()).open()
    except StoreError as error:
        print(error, flush=True)
    other = SqliteStore(path + ".other", settings=Settings())
    await other.open()
    await other.close()

async def main(path, then):
    store = SqliteStore(path, settings=Settings())
    await store.open()
    await then(store)

async def fork(store):
    await write(store, {b"parent": b"1"})
    if (pid := os.fork()) == 0:
        os._exit(42 + await_in_new_loop(child(store.path.as_posix())))
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    await write(store, {b"parent": b"2"})
    print(await contents(store))
    await store.close()

def await_in_new_loop(coroutine):
    asyncio._set_running_loop(None)
    asyncio.run(coroutine)
    return 0

asyncio.run(main(sys.argv[1], fork))
"""


async def test_a_file_that_was_open_at_a_fork_is_refused_in_the_child(path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORK, str(path)]
    done = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    refused, *rest = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert "was open when this process was forked" in refused
    assert rest == ["42", str({b"parent": b"2"})]


async def test_two_stores_of_one_process_share_a_file(path: Path) -> None:
    async with opened(path) as one, opened(path) as other:
        watch = await watching(other, b"a")
        await write(one, {b"a": b"1"})
        async with patience():
            await watch.wait()
        assert await value_of(other, b"a") == b"1"
        await write(other, {b"a": b"2"})
        assert await value_of(one, b"a") == b"2"
        assert await other.other_processes() == (1, 0)


# Files that change


def remove_all(path: Path) -> None:
    for name in [path, *path.parent.glob("app.db-[ws]*")]:
        name.unlink()


def move(path: Path) -> None:
    path.rename(path.with_name("moved"))


def restore_a_backup(path: Path) -> None:
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(path.with_name("copy"))) as target:
        source.backup(target)
    path.with_name("copy").rename(path)


def remove_the_log(path: Path) -> None:
    Path(f"{path}-wal").unlink()


def replace_the_log(path: Path) -> None:
    remove_the_log(path)
    Path(f"{path}-wal").touch()


def remove_the_index(path: Path) -> None:
    Path(f"{path}-shm").unlink()


ALL = [remove_all, move, restore_a_backup, remove_the_log, replace_the_log, remove_the_index]
LOST = r"^store sqlite:/\S+: /\S+ was (removed or moved|replaced) while this process used it; [^\n]*$"


@pytest.mark.parametrize("change", ALL)
async def test_what_is_asked_of_a_lost_store_is_refused(path: Path, change: Callable[[Path], None]) -> None:
    async with opened(path) as store:
        await write(store, {b"a": b"1"})
        change(path)
        for _ in range(2):
            with pytest.raises(StoreLost, match=LOST):
                await write(store, {b"b": b"1"})
            with pytest.raises(StoreLost, match=LOST):
                await value_of(store, b"a")
            with pytest.raises(StoreLost, match=LOST):
                await store.backup(str(path.parent / "backup"))


@pytest.mark.parametrize("change", ALL)
async def test_a_lost_store_is_noticed_by_who_only_waits(path: Path, change: Callable[[Path], None]) -> None:
    async with opened(path) as store:
        watch = await watching(store, b"a")
        change(path)
        async with patience():
            with pytest.raises(StoreLost):
                await watch.wait()


async def test_what_was_answered_before_a_move_is_in_the_moved_file(path: Path) -> None:
    answered: list[bytes] = []
    enough = asyncio.Event()

    async def ask(name: bytes) -> None:
        with suppress(StoreLost):
            for number in range(10_000):
                key = b"%s%d" % (name, number)
                await write(store, {key: b"1"})
                answered.append(key)
                if len(answered) >= 100:
                    enough.set()

    def move_all() -> None:
        moved = path.with_name("moved")
        moved.mkdir()
        for each in (Path(f"{path}-wal"), Path(f"{path}-shm"), path):
            each.rename(moved / each.name)

    async with opened(path, durable=False) as store:
        asking = [asyncio.create_task(ask(b"%d/" % number)) for number in range(8)]
        await enough.wait()
        await asyncio.to_thread(move_all)
        async with patience():
            await asyncio.gather(*asking)
    async with opened(path.parent / "moved" / path.name) as store:
        assert set(answered) <= (await contents(store)).keys()


# Backup


async def test_a_backup_made_while_the_store_is_in_use_has_keys_and_rows_of_one_state(
    path: Path, tmp_path: Path, application: Application
) -> None:
    async with opened(path) as store:
        done = 0

        async def work() -> None:
            nonlocal done
            while done < 100:
                done += 1
                await store.transact(signing_up(f"user{done}"))

        working = [asyncio.create_task(work()) for _ in range(4)]
        copies = [tmp_path / f"copy{number}" for number in range(3)]
        for copy in copies:
            assert await store.backup(str(copy)) == copy.stat().st_size
        await asyncio.gather(*working)
        with pytest.raises(StoreError, match="exists already"):
            await store.backup(str(copies[0]))
    for copy in copies:
        with Application(copy) as restored:
            mails = restored.mails
        async with opened(copy) as store:
            assert sorted(key.decode() for key in await contents(store)) == mails
            await store.transact(signing_up("later"))


async def test_a_full_log_of_dead_processes_is_there_for_the_next(path: Path, tmp_path: Path) -> None:
    """As a killed process leaves it: the file, and the log that nobody has written back."""
    async with opened(path) as store:
        await write(store, {b"a": b"1"})
        left = tmp_path / "left"
        left.mkdir()
        for each in (path, Path(f"{path}-wal")):
            shutil.copy(each, left / each.name)  # the store is done with its locks before it is used again
    async with opened(left / path.name) as store:
        assert await contents(store) == {b"a": b"1"}
