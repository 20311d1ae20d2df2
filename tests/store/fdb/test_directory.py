"""Where the jobs are in a cluster: the directory that an address or a setting names, its format, how it is found."""

from __future__ import annotations

import asyncio
from typing import Any

import fdb
import pytest

from jobs_service import Settings
from jobs_service.errors import StoreError
from jobs_service.sources import Sources
from jobs_service.store import open_address
from jobs_service.store.fdb import FdbStore
from jobs_service.store.fdb.directory import (
    FORMAT,
    split_address,
)
from tests.contract.support import value_of, write
from tests.store.fdb.clusters import CLUSTER, cluster_test

KEY = b"own/key"


def at(directory: str, **settings: Any) -> FdbStore:
    """Return a store in another directory of the cluster, not yet open."""
    store = open_address(f"fdb:{CLUSTER}?directory={directory}", Settings(**settings), Sources())
    assert isinstance(store, FdbStore)
    return store


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ("", ("", ("jobs_service",))),
        ("/etc/fdb.cluster", ("/etc/fdb.cluster", ("jobs_service",))),
        ("?directory=staging", ("", ("staging",))),
        ("/etc/fdb.cluster?directory=apps/staging/jobs", ("/etc/fdb.cluster", ("apps", "staging", "jobs"))),
        ("/odd?name?directory=staging", ("/odd?name", ("staging",))),
    ],
)
def test_an_address_names_a_cluster_file_and_a_directory(rest: str, expected: object) -> None:
    assert split_address(rest, "jobs_service") == expected


@pytest.mark.parametrize(
    "rest", ["file?", "file?dir=a", "file?directory=", "file?directory=/a", "a?directory=b//c", "a?directory=b\nc"]
)
def test_an_address_with_a_directory_that_cannot_be_is_refused_in_one_line(rest: str) -> None:
    with pytest.raises(StoreError, match="directory") as raised:
        open_address(f"fdb:{rest}", Settings(), Sources(0))
    assert "\n" not in str(raised.value)


def test_a_setting_names_the_directory_where_the_address_names_none() -> None:
    settings = Settings(fdb_directory="apps/jobs")
    assert open_address("fdb:/a", settings, Sources(0)).address == "fdb:/a?directory=apps/jobs"
    assert open_address("fdb:/a?directory=b", settings, Sources(0)).address == "fdb:/a?directory=b"
    assert open_address("fdb:/a", Settings(), Sources(0)).address == "fdb:/a"
    with pytest.raises(StoreError, match="fdb_directory='a//b'"):
        open_address("fdb:/a", Settings(fdb_directory="a//b"), Sources(0))


@cluster_test
async def test_a_directory_of_another_format_is_refused() -> None:
    store = at("tests/format")
    await store.open()
    key = await store.prefix() + b"\xffformat"
    assert await value_of(store, key) == FORMAT
    await write(store, {key: b"2"})
    other = at("tests/format")
    await other.open()
    with pytest.raises(StoreError, match=r"tests/format has format '2'.*upgrade"):
        await other.prefix()
    await other.close()
    await write(store, {key: FORMAT})
    await store.close()


@cluster_test
async def test_a_moved_parent_of_the_directory_is_noticed() -> None:
    store = at("tests parent/jobs")
    await store.open()
    before = await store.prefix()
    await write(store, {KEY: b"1"})

    @fdb.transactional  # type: ignore[untyped-decorator]
    def move(tr: Any) -> None:
        fdb.directory.remove_if_exists(tr, ("tests moved",))
        fdb.directory.move(tr, ("tests parent",), ("tests moved",))
        tr.set_versionstamped_value(b"\xff/metadataVersion", bytes(14))

    await asyncio.to_thread(move, fdb.open(CLUSTER))
    with pytest.raises(StoreError, match="tests parent/jobs was moved"):
        await write(store, {KEY: b"2"})
    assert await store.prefix() != before
    await write(store, {KEY: b"3"})
    await store.close()
