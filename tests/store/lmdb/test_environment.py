"""Every LMDB environment that the package opens is opened with its flushes, whoever opens it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest

import jobs_service
from jobs_service import JobsService, Settings
from jobs_service.cli import main
from jobs_service.store.lmdb import LmdbStore
from tests.contract.support import write

pytestmark = pytest.mark.usefixtures("own_logging")

Flags = dict[str, Any]
FLUSHES = {"sync": True, "metasync": True, "writemap": False, "map_async": False, "readonly": False}
"""What makes an answered commit survive a power cut: its pages are flushed before its meta page is written, and that
goes through a descriptor that flushes each write."""


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Flags]:
    """The flags that LMDB says of each environment that is opened from now on."""
    flags: list[Flags] = []
    really_open = lmdb.open

    def open_and_note(*args: Any, **options: Any) -> lmdb.Environment:
        environment = really_open(*args, **options)
        found: dict[str, Any] = {**environment.flags()}
        flags.append({name: found[name] for name in FLUSHES})
        return environment

    monkeypatch.setattr(lmdb, "open", open_and_note)
    return flags


async def through_a_service(path: Path) -> None:
    """Open, use and close it as an application does."""
    async with JobsService(f"lmdb:{path}") as jobs:
        await jobs.set_type_timeout("type", 60)
        await jobs.add("type", "id", None)


async def through_a_backup(path: Path) -> None:
    """Open a store, copy it while it is open, and open the copy."""
    store = LmdbStore(path, settings=Settings())
    await store.open()
    await write(store, {b"a": b"1"})
    (path.parent / "backup").mkdir()
    await store.backup(str(path.parent / "backup" / "data.mdb"))
    await store.close()
    copy = LmdbStore(path.parent / "backup", settings=Settings())
    await copy.open()
    await copy.close()


def by_command(*arguments: str) -> Callable[[Path], Awaitable[None]]:
    """Return what runs a command of the program on a store with a job."""

    async def run(path: Path) -> None:
        await through_a_service(path)
        words = [word.format(path=path) for word in arguments]
        assert await asyncio.to_thread(main, words) == 0

    return run


WAYS = {
    "a service": through_a_service,
    "a backup": through_a_backup,
    "list": by_command("--store", "lmdb:{path}", "list", "type"),
    "add": by_command("--store", "lmdb:{path}", "add", "type", "other"),
    "backup": by_command("--store", "lmdb:{path}", "backup", "{path}.copy"),
    "copy": by_command("copy", "lmdb:{path}", "lmdb:{path}.copy"),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
async def test_an_environment_is_opened_with_its_flushes(
    way: Callable[[Path], Awaitable[None]], tmp_path: Path, opened: list[Flags]
) -> None:
    await way(tmp_path / "store")
    assert opened
    assert all(flags == FLUSHES for flags in opened)


async def test_relaxed_durability_leaves_out_the_meta_pages_flush_only(tmp_path: Path, opened: list[Flags]) -> None:
    async with JobsService(f"lmdb:{tmp_path / 'store'}", settings=Settings(durable=False)):
        pass
    made, used = opened
    assert made == FLUSHES
    assert used == {**FLUSHES, "metasync": False}


def test_environments_are_made_in_one_place_and_opened_in_another() -> None:
    """So what holds there holds everywhere: in tools that no test here runs as well."""
    package = Path(jobs_service.__file__).parent
    places = {
        str(file.relative_to(package)): len(found)
        for file in package.rglob("*.py")
        if (found := re.findall(r"lmdb\.(?:open|Environment)\(|from lmdb import\b", file.read_text()))
    }
    assert places == {"store/lmdb.py": 2}
