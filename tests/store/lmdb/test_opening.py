"""Opening an embedded store: what is made, what is refused, and that nothing is left of a failure."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest

from jobs_service.settings import Settings
from jobs_service.store.lmdb import LmdbStore
from tests.contract.support import patience, value_of, write
from tests.store.lmdb.lmdb_process import ROOT
from tests.store.lmdb.test_store import FORMAT_KEY, opened, own_threads, refusal
from tests.store.lmdb.watching import watch


async def test_a_directory_is_made_when_missing_with_those_above_it(tmp_path: Path) -> None:
    path = tmp_path / "some" / "where" / "store"
    async with opened(path) as store:
        await write(store, {b"a": b"1"})
    assert sorted(os.listdir(path)) == ["data.mdb", "lock.mdb", "processes"]


@pytest.mark.parametrize("other", [b"0", b"2", b"next"])
async def test_a_store_of_another_format_is_refused_and_left_as_it_is(path: Path, other: bytes) -> None:
    async with opened(path) as store:
        await write(store, {b"a": b"1"})
    with lmdb.open(str(path)) as environment, environment.begin(write=True) as transaction:
        transaction.put(FORMAT_KEY, other)
    before = (path / "data.mdb").read_bytes()
    message = await refusal(path)
    assert f"format {other.decode()}" in message
    assert "another version" in message
    assert "\n" not in message
    assert (path / "data.mdb").read_bytes() == before


@pytest.mark.parametrize("spelling", ["same", "symlink", "relative"])
async def test_stores_of_one_process_share_the_files_whatever_their_path_is_called(
    path: Path, spelling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(path) as store:
        other = path
        if spelling == "symlink":
            other = path.with_name("link")
            other.symlink_to(path)
        elif spelling == "relative":
            monkeypatch.chdir(path.parent)
            other = Path(path.name)
        second = LmdbStore(other, settings=Settings())
        await second.open()
        watched = await watch(second, b"a")
        await write(store, {b"a": b"1"})
        async with patience():
            await watched.wait()
        assert await second.other_processes() == (1, 0)
        await store.close()
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
