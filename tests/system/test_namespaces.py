"""Containers that share an embedded store: within one PID namespace all works, across several the second is refused."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from jobs_service import JobsService
from tests.checker import assert_sound
from tests.cli.support import HANG, PROGRAM, ROOT, Ended, environment, process, serving
from tests.system.pod import TYPE

NEW: Final = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
_KILLS: Final = int(os.environ.get("KILLS", "4"))
REFUSED: Final = "in use from another PID namespace"


def can_unshare() -> bool:
    """Whether this user may make PID namespaces."""
    try:
        return subprocess.run([*NEW, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


pytestmark = pytest.mark.skipif(not can_unshare(), reason="this user cannot make PID namespaces with unshare(1)")


def in_a_container(*command: str, cwd: Path, stdin: bytes = b"") -> Ended:
    """Run a command as the first process of a PID namespace of its own."""
    done = subprocess.run(
        [*NEW, *command], cwd=cwd, env=environment(), input=stdin, capture_output=True, timeout=HANG, check=False
    )
    return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())


LIBRARY = """
import asyncio, sys
from jobs_service import JobsService, Settings, StoreError
async def main():
    try:
        async with JobsService(sys.argv[1], settings=Settings(process_check_period=float(sys.argv[2]))):
            print("opened")
    except StoreError as error:
        print(error)
asyncio.run(main())
"""


def assert_refused(line: str, store: Path) -> None:
    """Check the one line that is said: where, why, and all that can be done."""
    assert "\n" not in line.strip()
    assert str(store) in line
    assert REFUSED in line
    for remedy in ('pid: "service:web"', "shareProcessNamespace: true", "docker exec", "sqlite: store"):
        assert remedy in line


def library(address: str, period: float) -> Sequence[str]:
    """Return the command of a program that opens a store as an application does."""
    return (sys.executable, "-c", LIBRARY, address, str(period))


def test_a_store_that_is_in_use_is_refused_to_all_of_another_namespace_and_is_theirs_afterwards(tmp_path: Path) -> None:
    store = tmp_path / "store"
    address = f"lmdb:{store}"
    with serving("--store", address, cwd=tmp_path) as daemon:
        for verb in (["types", "set", TYPE, "60"], ["serve"]):
            ended = in_a_container(*PROGRAM, *verb, "--store", address, cwd=tmp_path)
            assert ended.code == 3
            assert_refused(ended.error, store)
        assert_refused(in_a_container(*library(address, 0), cwd=tmp_path).out, store)
        assert process("types", "set", TYPE, "60", "--store", address, cwd=tmp_path).code == 0
        daemon.terminate()
        assert daemon.wait() == 0
    assert in_a_container(*library(address, 0), cwd=tmp_path).out == "opened\n"
    assert process("list", TYPE, "--store", address, cwd=tmp_path).code == 0


HOLD = LIBRARY.replace('print("opened")', 'print("opened", flush=True); sys.stdin.readline()')


def test_a_container_keeps_the_host_and_another_container_with_the_same_pids_out_until_it_is_killed(
    tmp_path: Path,
) -> None:
    store = tmp_path / "store"
    address = f"lmdb:{store}"
    holding = subprocess.Popen(
        [*NEW, sys.executable, "-c", HOLD, address, "0"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holding:
        assert holding.stdout is not None
        assert holding.stdout.readline() == "opened\n"
        assert_refused(process("processes", "--store", address, cwd=tmp_path).error, store)
        assert_refused(in_a_container(*library(address, 0.25), cwd=tmp_path).out, store)
        holding.kill()
    assert process("processes", "--store", address, cwd=tmp_path).code == 0


def test_of_containers_that_start_together_one_opens_the_store(tmp_path: Path) -> None:
    address = f"lmdb:{tmp_path / 'store'}"
    started = [
        subprocess.Popen(
            [*NEW, sys.executable, "-c", HOLD, address, "0.25"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    said = []
    for each in started:
        assert each.stdout is not None
        said.append(each.stdout.readline())
    for each in started:
        each.communicate()
    assert said.count("opened\n") == 1
    assert sum(REFUSED in line for line in said) == 3


async def test_containers_of_one_namespace_lose_nothing_while_one_after_the_other_is_killed(tmp_path: Path) -> None:
    store = tmp_path / "store"
    done = await asyncio.to_thread(
        subprocess.run,
        [*NEW, sys.executable, "-m", "tests.system.pod", str(store), str(_KILLS)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    half, end, *answered = done.stdout.split()
    assert len(answered) > _KILLS
    async with JobsService(f"lmdb:{store}", supervise=False) as jobs:
        found = {job.id async for job in jobs.list(TYPE)}
        await assert_sound(jobs.store)
    assert {*answered} <= found
    # What stays is a few hundred bytes for each; what is added and removed in between leaves its room to others.
    assert int(end) - int(half) < 2**20 + 1000 * len(answered)
