"""A cluster that cannot be reached or used: the error says why, and at once where waiting is of no use."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import structlog

from jobs_service import Settings
from jobs_service.errors import StoreError, StoreUnavailable
from jobs_service.sources import Sources
from jobs_service.store import open_address
from jobs_service.store.fdb.diagnosis import (
    ClusterFile,
    Coordinator,
    FileWatch,
    Reason,
    default_cluster_file,
    read_cluster_file,
    reason_in,
)
from tests.contract.support import patience, value_of, write
from tests.store.fdb.clusters import CLUSTER, cluster_test
from tests.system.fdb_server import FdbServer, missing

FIRST = "test:id@127.0.0.1:4500"
OTHER = "other:id@127.0.0.1:4501"


def test_a_cluster_file_is_read_as_the_client_reads_it() -> None:
    cluster = ClusterFile.parse("# a comment\n\n  some_name:Id1@10.0.0.1:4500:tls,[::1]:4501,db.example.org:4502  \n")
    assert cluster is not None
    assert cluster.description == "some_name"
    assert cluster.coordinators == (
        Coordinator("10.0.0.1", 4500, True),
        Coordinator("::1", 4501, False),
        Coordinator("db.example.org", 4502, False),
    )
    assert str(cluster.coordinators[0]) == "10.0.0.1:4500:tls"
    for bad in ["", "a:b", "a@1.2.3.4:5", "a:b@1.2.3.4", f"{FIRST}\n{OTHER}"]:
        assert ClusterFile.parse(bad) is None


def test_without_a_name_the_file_is_the_one_that_the_client_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FDB_CLUSTER_FILE", raising=False)
    monkeypatch.chdir(tmp_path)
    assert default_cluster_file().endswith("/etc/foundationdb/fdb.cluster")
    (tmp_path / "fdb.cluster").write_text(FIRST)
    assert default_cluster_file() == str(tmp_path / "fdb.cluster")
    monkeypatch.setenv("FDB_CLUSTER_FILE", "/elsewhere")
    assert default_cluster_file() == "/elsewhere"


def test_a_file_that_names_another_cluster_is_told_of_once_when_that_does_not_pass(tmp_path: Path) -> None:
    file = tmp_path / "fdb.cluster"
    file.write_text(FIRST)
    watch = FileWatch(str(file))
    assert not watch.is_due(0)
    file.write_text(OTHER + "\n")
    assert not watch.is_due(0.1)  # It is looked at now and then only.
    assert watch.is_due(10)
    assert watch.differing(FIRST) is None
    assert watch.is_due(20)
    differing = watch.differing(FIRST)
    assert differing is not None
    assert differing.text == OTHER
    assert not watch.is_due(30)


def test_a_change_of_coordinators_that_the_client_follows_is_not_told_of(tmp_path: Path) -> None:
    file = tmp_path / "fdb.cluster"
    file.write_text(FIRST)
    watch = FileWatch(str(file))
    file.write_text("test:id2@127.0.0.1:4500,127.0.0.1:4501")
    assert watch.is_due(10)
    assert watch.differing(FIRST) is None
    assert watch.is_due(20)
    assert watch.differing("test:id2@127.0.0.1:4501,127.0.0.1:4500") is None
    assert not watch.is_due(30)
    file.unlink()
    assert watch.is_due(40)
    assert watch.differing(FIRST) is None
    assert not watch.is_due(50)


def test_what_the_status_says_is_told() -> None:
    message = {"name": "unreachable_master_worker", "description": "Unable to locate the master worker."}
    assert reason_in({"cluster": {"messages": [message]}}) == Reason(
        "unable to locate the master worker. (unreachable_master_worker)"
    )
    assert str(reason_in({"client": {"coordinators": {"quorum_reachable": False}}})).startswith("the client reaches no")
    assert "configured" in str(reason_in({"client": {"database_status": {"available": False}}}))
    assert reason_in({"client": {"database_status": {"available": True}}, "cluster": {"messages": []}}) is None


def named_cluster() -> str:
    """Return what the file of the tests' cluster says."""
    return Path(CLUSTER).read_text(encoding="utf-8").strip()


def lock(server: FdbServer) -> None:
    """Lock a server's database as an operator does."""
    command = ["fdbcli", "-C", str(server.cluster_file), "--exec", "lock"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "locked" in done.stdout.lower()


async def refusal(file: Path, **settings: Any) -> str:
    """Return what a store says that is not there."""
    store = open_address(f"fdb:{file}", Settings(**settings), Sources())
    await store.open()
    with pytest.raises(StoreUnavailable) as raised:
        await store.prefix()
    await store.close()
    assert "\n" not in str(raised.value)
    return str(raised.value)


@cluster_test
async def test_coordinators_that_nobody_is_at_are_named_when_the_time_is_up(tmp_path: Path) -> None:
    file = tmp_path / "fdb.cluster"
    file.write_text("test:test@127.0.0.1:1,127.0.0.1:2")
    said = await refusal(file, transaction_timeout=2)
    assert "did not answer within 2 s: 2 of 2 coordinators (127.0.0.1:1, 127.0.0.1:2) cannot be reached" in said
    assert "connection refused" in said


@cluster_test
@pytest.mark.parametrize("name", ["another:{id}", "{description}:another"])
async def test_a_wrong_description_or_id_is_named_as_what_may_be_wrong(name: str, tmp_path: Path) -> None:
    text = named_cluster()
    (description, id), address = text.partition("@")[0].split(":"), text.partition("@")[2]
    file = tmp_path / "fdb.cluster"
    file.write_text(f"{name.format(description=description, id=id)}@{address}")
    said = await refusal(file, transaction_timeout=5)
    assert "its coordinators answer, but know no cluster of this description and id" in said


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
async def test_a_locked_database_is_said_at_once(tmp_path: Path) -> None:
    with FdbServer(tmp_path) as server:
        lock(server)
        assert "the database is locked" in await refusal(server.cluster_file, transaction_timeout=3600)


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
async def test_a_store_that_is_opened_after_the_file_was_changed_is_on_the_other_cluster(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    file = tmp_path / "fdb.cluster"
    with FdbServer(tmp_path / "one") as one, FdbServer(tmp_path / "two") as two:
        for number, server in enumerate([one, two]):
            file.write_text(server.cluster_file.read_text())
            store = open_address(f"fdb:{file}", Settings(), Sources())
            await store.open()
            assert await value_of(store, b"which") is None
            await write(store, {b"which": b"%d" % number})
            await store.close()


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
async def test_a_cluster_that_goes_away_while_it_is_used_is_said_to_be_away_until_it_is_back(tmp_path: Path) -> None:
    with FdbServer(tmp_path) as server:
        store = open_address(server.address, Settings(transaction_timeout=1), Sources())
        await store.open()
        async with patience():
            while True:
                with suppress(StoreUnavailable):
                    await write(store, {b"a": b"1"})
                    break
        server.kill()
        said = ""
        async with patience():
            while "connection refused" not in said:
                with pytest.raises(StoreUnavailable) as raised:
                    await value_of(store, b"a")
                said = str(raised.value)
        server.start()
        async with patience():
            while True:
                with suppress(StoreUnavailable):
                    assert await value_of(store, b"a") == b"1"
                    break
        await store.close()


@cluster_test
async def test_a_store_in_use_whose_file_names_another_cluster_logs_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs_service.store.fdb.diagnosis._LOOK_EVERY", 0.0)
    file = tmp_path / "fdb.cluster"
    file.write_text(named_cluster())
    store = open_address(f"fdb:{file}", Settings(), Sources())
    await store.open()
    # The client reads the file some time after the store was opened, on its own thread: an answer says that it has.
    await write(store, {b"own/key": b"0"})
    file.write_text(OTHER)
    with structlog.testing.capture_logs() as logs:
        async with patience():
            while not logs:
                await write(store, {b"own/key": b"1"})
    assert [(entry["event"], entry["names"]) for entry in logs] == [("cluster_file_changed", OTHER)]
    assert logs[0]["used"] == named_cluster()
    await store.close()


def test_a_cluster_file_that_is_a_directory_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "fdb.cluster"
    file.mkdir()
    with pytest.raises(StoreError, match="cannot be read"):
        read_cluster_file(str(file))
