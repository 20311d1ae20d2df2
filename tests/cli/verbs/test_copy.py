"""`copy`."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import fdb.tuple
import pytest

from jobs_service import JobsService, NewJob
from jobs_service.layer.keyspace import Keyspace
from jobs_service.layer.rows import mark_key
from jobs_service.store import Transaction
from tests.cli.conftest import Invoke
from tests.cli.support import arrange, rows, started, write_lock_held

JOBS = 1500
PREFIX = fdb.tuple.pack(("jobs_service",))


async def _nothing(_: JobsService) -> None:
    """Only open the store."""


@pytest.fixture
def full(invoke: Invoke, email: str) -> str:
    """The address of a store with jobs of two types."""

    async def fill(jobs: JobsService) -> None:
        await jobs.set_type_timeout(7, 5)
        await jobs.add(7, b"\xff", run_at=4e9)
        await jobs.add_many("email", [NewJob(f"{n * 7919 % JOBS}", n, n % 2) for n in range(JOBS)])
        job = await jobs.accept("email", timeout=0)
        assert job is not None
        await job.finish()

    arrange(email, fill)
    return email


@pytest.fixture
def other(tmp_path: Path) -> str:
    """The address of a store that is not there yet."""
    return f"lmdb:{tmp_path / 'other'}"


def test_the_copy_has_what_the_store_has(invoke: Invoke, full: str, other: str) -> None:
    done = invoke("copy", full, other)
    assert (done.code, done.err) == (0, "")
    *table, summary = done.out.splitlines()
    assert rows("\n".join(table)) == [
        ["TYPE", "READY", "SCHEDULED", "FINISHED"],
        ["email", f"{JOBS - 1}", "0", "1"],
        ["json:7", "0", "1", "0"],
    ]
    assert summary == f"{JOBS + 1} jobs of 2 types copied. Now have your programs use {other}; {full} is as it was"
    for verb in (["types", "-o", "json"], ["show", "email", "3", "-o", "json"]):
        copied, wanted = (invoke(*verb, "--store", store).json_lines for store in (other, full))
        for each in (*copied, *wanted):
            each.pop("seq", None)
        assert copied == wanted


def test_json_tells_it_in_numbers_and_a_second_copy_is_refused(invoke: Invoke, full: str, other: str) -> None:
    assert invoke("copy", full, other, "-o", "json").json == {
        "from": full,
        "to": other,
        "types": 2,
        "jobs": JOBS + 1,
        "ready": JOBS - 1,
        "scheduled": 1,
        "finished": 1,
    }
    for anew in ([], ["--anew"]):
        refused = invoke("copy", full, other, *anew)
        assert (refused.code, refused.error) == (1, f"{other} is not empty, it has jobs or types: name an empty store")


def test_a_refused_copy_leaves_no_store_behind_where_there_was_none(invoke: Invoke, full: str, other: str) -> None:
    arrange(full, lambda jobs: jobs.accept("email", timeout=0))
    assert invoke("copy", full, other).code == 1
    assert not Path(other.removeprefix("lmdb:")).exists()
    assert invoke("copy", other, f"{other}-copy").code == 3
    assert not Path(f"{other}-copy".removeprefix("lmdb:")).exists()


@pytest.mark.parametrize("named", ["{}", "{}/", "{}/../store", "link", "./link/."])
def test_a_store_is_not_copied_to_itself_by_whatever_name(
    invoke: Invoke, email: str, tmp_path: Path, named: str
) -> None:
    (tmp_path / "link").symlink_to("store")
    refused = invoke("copy", email, "lmdb:" + named.format(email.removeprefix("lmdb:")))
    assert (refused.code, "is the store that is copied; name another" in refused.error) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["lmdb:nowhere", "lmdb:to"], 3, "there is no store at {}/nowhere: nothing to copy"),
        (["memory:", "lmdb:to"], 2, "Invalid value for FROM: memory: is gone when the command has ended"),
        (["lmdb:store", "memory:"], 2, "Invalid value for TO: memory: is gone when the command has ended"),
        (["lmdb:store", "mysql:to"], 2, "store address 'mysql:to' names no store"),
        (["store", "lmdb:to"], 2, "store address 'store' names no store"),
        (["lmdb:store"], 2, "Missing argument 'TO'"),
        (["lmdb:store", "lmdb:/dev/null"], 3, "/dev/null cannot be opened: File exists"),
    ],
)
def test_what_is_no_store_is_one_line(
    invoke: Invoke, email: str, tmp_path: Path, arguments: list[str], code: int, complaint: str
) -> None:
    refused = invoke("copy", *arguments)
    assert refused.code == code
    assert complaint.format(tmp_path) in refused.error
    assert not (tmp_path / "nowhere").exists()


def test_half_a_copy_is_one_line_for_every_verb_until_it_is_begun_anew(invoke: Invoke, full: str, other: str) -> None:
    async def mark(transaction: Transaction) -> None:
        transaction.set(mark_key(Keyspace(PREFIX)), b"a copy's")

    arrange(other, lambda jobs: jobs.store.transact(mark))
    refused = f"store {other} is half a copy: begin it anew with jobs-service copy FROM {other} --anew, or remove it"
    for verb in (["list", "--store", other], ["copy", full, other], ["copy", other, f"{other}-copy"]):
        told = invoke(*verb)
        assert (told.code, told.error) == (3, refused)
    assert invoke("copy", full, other, "--anew").code == 0
    assert len(invoke("list", "email", "--limit", "5", "--store", other).out.splitlines()) > 5


def test_a_copy_that_is_interrupted_says_how_to_begin_anew(full: str, other: str, tmp_path: Path) -> None:
    arrange(other, _nothing)
    users = Path(other.removeprefix("lmdb:"), "processes")
    with write_lock_held(other), started("copy", full, other, cwd=tmp_path) as copying:
        before = len(os.listdir(users))
        while len(os.listdir(users)) == before:
            time.sleep(0.01)
        os.kill(copying.pid, signal.SIGINT)
        _, said = copying.communicate()
    assert (copying.returncode, said) == (
        130,
        "jobs-service: interrupted; the same command with --anew begins it anew\n",
    )
