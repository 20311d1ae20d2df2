"""A store whose files are removed, moved or replaced while processes use it: nothing is answered that nobody finds."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest

from jobs_service import JobsService, StoreLost, SupervisorFailed
from jobs_service.store.files import SHARED
from jobs_service.store.lmdb import PROCESSES
from tests.cli.support import process as program
from tests.cli.support import serving
from tests.contract.support import contents, patience, value_of, write
from tests.store.lmdb.lmdb_process import process
from tests.store.lmdb.test_store import opened, refusal
from tests.store.lmdb.watching import watch


def remove_the_directory(path: Path) -> None:
    shutil.rmtree(path)


def move_the_directory(path: Path) -> None:
    path.rename(path.with_name("moved"))


def replace_the_directory(path: Path) -> None:
    path.rename(path.with_name("moved"))
    path.mkdir()
    shutil.copy(path.with_name("moved") / "data.mdb", path)


def remove_the_data(path: Path) -> None:
    (path / "data.mdb").unlink()


def restore_a_backup(path: Path) -> None:
    shutil.copy(path / "data.mdb", path / "backup")
    (path / "backup").rename(path / "data.mdb")


def remove_the_locks(path: Path) -> None:
    (path / "lock.mdb").unlink()


def replace_the_locks(path: Path) -> None:
    remove_the_locks(path)
    (path / "lock.mdb").touch()


def retarget_the_link(path: Path) -> None:
    """The directory is reached by a symbolic link, as that of a release often is."""
    target = path.resolve()
    path.rename(path.with_name("old"))
    other = target.with_name("other")
    shutil.copytree(path.with_name("old"), other)
    path.symlink_to(other)


ALL = [
    remove_the_directory,
    move_the_directory,
    replace_the_directory,
    remove_the_data,
    restore_a_backup,
    remove_the_locks,
    replace_the_locks,
    retarget_the_link,
]
LOST = r"^store lmdb:/\S+: /\S+ was (removed or moved|replaced) while this process used it; [^\n]*$"


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
                await store.backup(str(path.parent / "copy"))


@pytest.mark.parametrize("change", ALL)
async def test_a_lost_store_is_noticed_by_who_only_waits(path: Path, change: Callable[[Path], None]) -> None:
    async with opened(path) as store:
        watched = await watch(store, b"a")
        change(path)
        async with patience():
            with pytest.raises(StoreLost):
                await watched.wait()


@pytest.mark.parametrize("change", ALL)
async def test_what_was_answered_while_the_files_are_changed_is_in_the_store_that_was_there(
    path: Path, change: Callable[[Path], None]
) -> None:
    """Many ask at once, and who was answered before the change finds it in what the change has moved or copied."""
    answered: list[int] = []
    enough = asyncio.Event()

    async def ask(first: int) -> None:
        with suppress(StoreLost):
            for number in range(first, first + 10_000):
                await write(store, {b"%d" % number: b"1"})
                answered.append(number)
                if len(answered) >= 100:
                    enough.set()

    async with opened(path, durable=False) as store:
        asking = [asyncio.create_task(ask(first)) for first in range(0, 80_000, 10_000)]
        await enough.wait()
        before = len(answered)
        await asyncio.to_thread(change, path)
        async with patience():
            await asyncio.gather(*asking)
    if change in (remove_the_directory, remove_the_data):
        return
    if change in (restore_a_backup, replace_the_directory, retarget_the_link):
        answered = answered[:before]
    async with opened(path.with_name("moved") if change is move_the_directory else path) as store:
        assert {b"%d" % number for number in answered} <= (await contents(store)).keys()


@pytest.mark.parametrize("name", ["data.mdb", "lock.mdb"])
@pytest.mark.parametrize("replaced", [False, True])
async def test_who_opens_a_store_whose_file_is_not_that_of_living_processes_is_refused(
    path: Path, name: str, replaced: bool
) -> None:
    async with process(path, process_check_period=0) as other:
        (path / name).rename(path / "kept")
        if replaced:
            shutil.copy(path / "kept", path / name)
        said = f"{path / name} was {'replaced' if replaced else 'removed'} while other processes use the store"
        assert said in await refusal(path)
        assert (path / name).exists() is replaced
        (path / "kept").rename(path / name)
        async with opened(path) as store:
            assert await other.ask("set", "key", 1) == "done"
            assert await value_of(store, b"key") == b"1"
        (path / name).rename(path / "kept")
        await other.kill()
        if name == "data.mdb":
            (path / "kept").rename(path / name)
    async with opened(path) as store:
        assert await value_of(store, b"key") == b"1"


async def test_who_opens_a_store_whose_processes_were_made_unknown_is_refused(path: Path) -> None:
    async with process(path) as other:
        shutil.rmtree(path / PROCESSES)
        assert f"{path / PROCESSES} was removed" in await refusal(path)
        (path / "lock.mdb").unlink()
        assert f"{path / PROCESSES} was removed" in await refusal(path)
        assert not (path / "lock.mdb").exists()
        await other.kill()
    async with opened(path):
        pass


async def test_a_copy_of_a_store_in_use_is_a_store_of_its_own(path: Path) -> None:
    copy = path.with_name("copy")
    async with opened(path) as store:
        await write(store, {b"a": b"1"})
        shutil.copytree(path, copy)
        async with opened(copy) as other:
            await write(other, {b"a": b"2"})
        assert await value_of(store, b"a") == b"1"


async def test_a_note_that_nobody_wrote_is_of_no_living_process(path: Path) -> None:
    async with opened(path):
        pass
    for noted in (b"", b"\xff\n", b"pid:[1]\n1 2\n3 4\n", bytes(5000)):
        (path / PROCESSES / SHARED).write_bytes(noted)
        async with opened(path), process(path):
            pass


async def test_those_who_open_a_store_at_once_wait_for_one_another(path: Path) -> None:
    async with AsyncExitStack() as stack:
        processes = await asyncio.gather(*[stack.enter_async_context(process(path)) for _ in range(4)])
        assert [await each.end() for each in processes] == [0] * 4


# A service, and the daemon


async def test_a_service_whose_store_is_lost_fails_at_once(path: Path) -> None:
    async def serve() -> None:
        async with JobsService(f"lmdb:{path}") as jobs:
            await jobs.set_type_timeout("type", 60)
            remove_the_directory(path)
            async with patience():
                await jobs.accept("type")

    with pytest.raises(SupervisorFailed, match=LOST) as failed:
        await serve()
    assert isinstance(failed.value.__cause__, StoreLost)


async def test_who_waits_without_supervision_gets_the_error_itself(path: Path) -> None:
    async with JobsService(f"lmdb:{path}", supervise=False) as jobs:
        await jobs.set_type_timeout("type", 60)
        accepting = asyncio.create_task(jobs.accept("type"))
        await asyncio.sleep(0)
        remove_the_directory(path)
        async with patience():
            with pytest.raises(StoreLost, match=LOST):
                await accepting
        with pytest.raises(StoreLost, match=LOST):
            await jobs.add("type", "id", None)


@pytest.mark.parametrize("change", [remove_the_directory, restore_a_backup, remove_the_locks])
def test_a_daemon_whose_store_is_lost_says_so_in_one_line_and_ends(path: Path, change: Callable[[Path], None]) -> None:
    address = f"lmdb:{path}"
    assert program("types", "set", "type", "60", "--store", address, cwd=path.parent).code == 0
    with serving("--store", address, cwd=path.parent) as daemon:
        change(path)
        _, said = daemon.communicate(timeout=60)
    assert daemon.returncode == 3
    lines = said.splitlines()
    assert [json.loads(line)["event"] for line in lines[:-1]] == ["service_failed"]
    assert lines[-1].startswith("jobs-service: store lmdb:")
    assert "while this process used it" in lines[-1]
    assert not path.exists() or os.listdir(path / PROCESSES) == [SHARED]
