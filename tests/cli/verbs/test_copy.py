"""`copy`."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from pathlib import Path

import pytest

from jobs_service import JobsService, NewJob, Settings
from jobs_service.cli.verbs.copy import absolute_address
from jobs_service.store.lmdb import LmdbStore
from tests.cli.conftest import Invoke
from tests.cli.support import IMPATIENT, arrange, on_terminal, process, rows, started, without_escapes, write_lock_held
from tests.copying.support import opened, reached

JOBS = 1500


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
        ["TYPE", "READY", "SCHEDULED", "RUNNING", "FINISHED"],
        ["email", f"{JOBS - 1}", "0", "0", "1"],
        ["json:7", "0", "1", "0", "0"],
    ]
    assert (
        summary
        == f"{JOBS + 1} jobs of 2 types copied; compared. Now have your programs use {other}; {full} is as it was"
    )
    for verb in (["types", "--json"], ["show", "email", "3", "--json"]):
        copied, wanted = (invoke(*verb, "--store", store).json_lines for store in (other, full))
        for each in (*copied, *wanted):
            each.pop("seq", None)
        assert copied == wanted


def test_json_tells_it_in_numbers_and_a_second_time_nothing_is_written(invoke: Invoke, full: str, other: str) -> None:
    told = {
        "from": full,
        "to": other,
        "types": 2,
        "jobs": JOBS + 1,
        "ready": JOBS - 1,
        "scheduled": 1,
        "running": 0,
        "finished": 1,
        "resumed": False,
        "complete_before": False,
        "skipped": 0,
        "differing": 0,
    }
    assert invoke("copy", full, other, "--json").json == told
    assert invoke("copy", full, other, "--json").json == {**told, "complete_before": True}
    again = invoke("copy", full, other).out.splitlines()[-1]
    assert again == f"{other} is a complete copy already: {JOBS + 1} jobs; nothing was written"


def test_a_store_without_types_is_copied_in_one_line(invoke: Invoke, store: str, other: str) -> None:

    async def nothing(_: JobsService) -> None:
        pass

    arrange(store, nothing)
    assert invoke("copy", store, other).out == (
        f"0 jobs of 0 types copied; compared. Now have your programs use {other}; {store} is as it was\n"
    )


def test_running_jobs_need_force_and_are_told(invoke: Invoke, full: str, other: str) -> None:
    arrange(full, lambda jobs: jobs.accept("email", timeout=0))
    refused = invoke("copy", full, other)
    assert (refused.code, refused.error.startswith(f"{full} is being worked on: job 'email'/")) == (1, True)
    done = invoke("copy", full, other, "--force")
    assert done.code == 0
    assert done.out.splitlines()[-1].startswith(
        f"{JOBS + 1} jobs of 2 types copied; 1 of them ran and are pending now; compared. Now have"
    )


def test_a_refused_copy_leaves_no_store_behind_where_there_was_none(invoke: Invoke, full: str, other: str) -> None:
    arrange(full, lambda jobs: jobs.accept("email", timeout=0))
    assert invoke("copy", full, other).code == 1
    assert not Path(other.removeprefix("lmdb:")).exists()
    assert invoke("copy", other, f"{other}-copy").code == 3
    assert not Path(f"{other}-copy".removeprefix("lmdb:")).exists()


def test_jobs_that_are_there_need_force_and_are_told(invoke: Invoke, email: str, other: str) -> None:
    for store, data in ((email, "1"), (other, "2")):
        invoke("types", "set", "email", "60", "--store", store)
        invoke("add", "email", "x", "--data", data, "--store", store)
    refused = invoke("copy", email, other)
    assert (refused.code, f"{other} has jobs already" in refused.error) == (1, True)
    done = invoke("copy", email, other, "--force")
    assert done.out.splitlines()[-1] == (
        f"0 jobs of 1 type copied; 1 job stayed as before in {other}; 1 job not as in {email}. Now have your programs "
        f"use {other}; {email} is as it was"
    )


@pytest.mark.parametrize("named", ["{}", "{}/", "{}/../store", "link", "./link/."])
def test_a_store_is_not_copied_to_itself_by_whatever_name(
    invoke: Invoke, email: str, tmp_path: Path, named: str
) -> None:
    (tmp_path / "link").symlink_to("store")
    refused = invoke("copy", email, "lmdb:" + named.format(email.removeprefix("lmdb:")))
    assert (refused.code, "is the store that is copied; name another" in refused.error) == (2, True)


def test_a_symbolic_link_that_leads_to_itself_is_one_line(invoke: Invoke, email: str, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    refused = invoke("copy", email, "lmdb:loop")
    assert (refused.code, "cannot be opened" in refused.error) == (3, True)


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


def test_a_target_that_cannot_be_written_to_is_code_3(full: str, other: str, tmp_path: Path, invoke: Invoke) -> None:
    assert invoke("types", "set", "email", "60", "--store", other).code == 0
    with write_lock_held(other):
        refused = process("copy", full, other, cwd=tmp_path, env=IMPATIENT)
    assert (refused.code, len(refused.err.splitlines())) == (3, 1)


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGINT])
def test_a_command_that_was_killed_or_interrupted_is_gone_on_with(
    invoke: Invoke, full: str, other: str, tmp_path: Path, signal_number: int
) -> None:
    async def end_it_on_its_way() -> tuple[int, str]:
        async with opened(target := LmdbStore(other.removeprefix("lmdb:"), settings=Settings())):
            with started("copy", full, other, cwd=tmp_path) as copying:
                await reached(target, 500)
                os.kill(copying.pid, signal_number)
                _, said = copying.communicate()
                return copying.returncode, said

    code, said = asyncio.run(end_it_on_its_way())
    if signal_number == signal.SIGINT and code != 0:
        assert (code, said) == (130, "jobs-service: interrupted; the same command goes on where it stopped\n")
    told = invoke("copy", full, other, "--json").json
    assert told["resumed"] or told["complete_before"]
    assert invoke("copy", full, other, "--json").json["complete_before"]


def test_on_a_terminal_a_bar_shows_how_far_it_is(full: str, other: str, tmp_path: Path) -> None:
    code, shown = on_terminal("copy", full, other, cwd=tmp_path, columns=300)
    assert code == 0
    text = without_escapes(shown)
    assert re.search(rf"comparing .* {JOBS + 1}/{JOBS + 1} ", text)
    assert f"{JOBS + 1} jobs of 2 types copied" in text


@pytest.mark.parametrize("directory", ["", "?directory=staging/jobs"])
def test_a_path_is_absolute_and_the_directory_of_a_cluster_is_none(directory: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("file")
    file = tmp_path.resolve() / "file"
    assert absolute_address(f"fdb:{directory}", "TO") == f"fdb:{directory}"
    assert absolute_address(f"fdb:link{directory}", "TO") == f"fdb:{file}{directory}"
    assert absolute_address("lmdb:what?", "TO") == f"lmdb:{tmp_path.resolve() / 'what?'}"
