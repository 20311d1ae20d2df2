"""`serve` with worker processes: one program, whatever happens to one of them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from jobs_service import JobsService, JobState
from tests.cli.conftest import Invoke
from tests.cli.support import HANG, environment, event_named, is_alive, process, serving, started
from tests.system.worker_storm import storm

APPLICATION = """
import asyncio, logging, os, sys, time
from jobs_service import JobsService

jobs = JobsService("lmdb:store")

@jobs.handler("pid", slots=1)
async def pid():
    return os.getpid()

@jobs.handler("says", slots=1)
async def says():
    logging.warning("%s", "x" * 20_000)
    print("said", file=sys.stderr)
    return os.getpid()

@jobs.handler("blocks", grace=0.1)
async def blocks():
    time.sleep(1000)

leaked = []

@jobs.handler("leaks", slots=1)
async def leaks():
    leaked.append(b"x" * 200_000_000)
    while not os.path.exists("leave"):
        await asyncio.sleep(0.01)
    return os.getpid()

@jobs.handler("isolated", isolated=True)
def isolated():
    logging.warning("in a process")
    return os.getppid()
"""


@pytest.fixture
def application(tmp_path: Path) -> str:
    (tmp_path / "app.py").write_text(APPLICATION)
    return "app:jobs"


def in_store(tmp_path: Path, body: Callable[[JobsService], Awaitable[Any]]) -> Any:
    """Do something with the store, and see what becomes of jobs."""

    async def run() -> Any:
        async with JobsService(f"lmdb:{tmp_path / 'store'}") as jobs:
            return await body(jobs)

    return asyncio.run(run())


def result_of(tmp_path: Path, type: str, id: str) -> Any:
    """Add a job, wait for its end, and return its result."""

    async def run(jobs: JobsService) -> Any:
        await jobs.add(type, id)
        await jobs.wait(type, id, JobState.FINISHED, timeout=HANG)
        return (await jobs.get(type, id)).result

    return in_store(tmp_path, run)


def gone(pid: int) -> None:
    """Wait until a process has ended."""
    while is_alive(pid):
        time.sleep(0.02)


async def test_every_job_takes_effect_once_while_workers_are_killed_and_the_parent_ends_in_order(
    tmp_path: Path,
) -> None:
    figures = await storm(tmp_path, processes=3, kills=4, every=0.3)
    assert figures["jobs"] > 0


def test_the_log_is_one_stream_of_whole_lines_with_their_processes(application: str, tmp_path: Path) -> None:
    with serving(application, "--processes", "2", cwd=tmp_path) as daemon:
        results = {result_of(tmp_path, "says", str(number)) for number in range(4)}
        result_of(tmp_path, "isolated", "i")
        daemon.send_signal(signal.SIGTERM)
        assert daemon.stderr is not None
        lines = daemon.stderr.read().splitlines()
        assert daemon.wait(HANG) == 0
    events = [json.loads(line) for line in lines if line.startswith("{")]
    assert {event["pid"] for event in events if event["event"] == "x" * 20_000} == results
    assert {line for line in lines if not line.startswith("{")} == {f"[{pid}] said" for pid in results}
    [inside] = [event for event in events if event["event"] == "in a process"]
    assert inside["pid"] not in results
    assert (inside["job_type"], inside["job_id"]) == ("isolated", "i")
    assert all("pid" in event for event in events)


def test_workers_end_with_a_parent_that_was_killed(application: str, tmp_path: Path) -> None:
    with started("serve", application, "--processes", "2", cwd=tmp_path) as daemon:
        pids = event_named(daemon, "serving")["processes"]
        nursery = result_of(tmp_path, "isolated", "i")
        daemon.kill()
        for pid in (*pids, nursery):
            gone(pid)


def test_http_survives_the_workers_whose_log_levels_and_options_it_shares(application: str, tmp_path: Path) -> None:
    with started("serve", application, "--processes", "1", "--http", "127.0.0.1:0", cwd=tmp_path) as daemon:
        try:
            # In any order: the first is a worker's, the second its parent's.
            events = {event["event"]: event for event in (event_named(daemon, "http_serving", "serving") for _ in "ab")}
            url, pids = events["http_serving"]["url"], events["serving"]["processes"]
            worker = result_of(tmp_path, "pid", "a")
            assert worker in pids
            assert len(pids) == 2
            os.kill(worker, signal.SIGKILL)
            assert event_named(daemon, "worker_ended")["process"] == worker
            assert httpx.get(f"{url}/livez", timeout=HANG).status_code == 200
            assert result_of(tmp_path, "pid", "b") not in pids
            daemon.send_signal(signal.SIGINT)
            assert daemon.wait(HANG) == 0
        finally:
            daemon.kill()


def test_a_second_signal_ends_all_at_once(application: str, tmp_path: Path) -> None:
    with serving(application, "--processes", "1", cwd=tmp_path) as daemon:

        async def add(jobs: JobsService) -> list[int]:
            await jobs.add("blocks", "a")
            await jobs.wait("blocks", "a", JobState.RUNNING, timeout=HANG)
            return [each.pid for each in await jobs.processes()]

        [worker] = in_store(tmp_path, add)
        daemon.send_signal(signal.SIGTERM)
        event_named(daemon, "draining")
        daemon.send_signal(signal.SIGINT)
        assert daemon.wait(HANG) == 128 + signal.SIGINT
        gone(worker)


def test_a_worker_is_replaced_after_so_many_jobs(application: str, tmp_path: Path) -> None:
    limits = ("--processes", "1", "--max-jobs-per-process", "1", "--max-memory-per-process", "100G")
    with serving(application, *limits, cwd=tmp_path) as daemon:
        first = result_of(tmp_path, "pid", "a")
        replaced = event_named(daemon, "worker_replaced")
        assert (replaced["process"], replaced["why"]) == (first, "it has run 1 jobs")
        gone(first)
        assert result_of(tmp_path, "pid", "b") != first


def test_a_worker_with_so_much_memory_is_replaced_at_once_and_ends_with_its_last_job(
    application: str, tmp_path: Path
) -> None:
    with serving(application, "--processes", "1", "--max-memory-per-process", "200M", cwd=tmp_path) as daemon:
        first = result_of(tmp_path, "pid", "a")
        in_store(tmp_path, lambda jobs: jobs.add("leaks", "a"))
        replaced = event_named(daemon, "worker_replaced")
        assert replaced["process"] == first
        assert re.fullmatch(r"it has 2\d{8} bytes of memory", replaced["why"])
        # The first worker may be in the midst of taking a job when it is told to take no more.
        assert any(result_of(tmp_path, "pid", f"b-{number}") != first for number in range(2))
        assert is_alive(first)
        (tmp_path / "leave").touch()
        assert in_store(tmp_path, lambda jobs: jobs.result("leaks", "a", timeout=HANG)) == first
        gone(first)


def test_reload_takes_changed_files_and_waits_out_those_that_cannot_be_compiled(tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    code = "from jobs_service import JobsService\njobs = JobsService('lmdb:store')\n"
    code += "@jobs.handler('work')\nasync def work():\n    return 'NEW'\n"
    file.write_text(code.replace("NEW", "old"))
    with serving("app:jobs", "--reload", cwd=tmp_path) as daemon:
        assert result_of(tmp_path, "work", "a") == "old"
        os.mkfifo(tmp_path / "fifo.py")  # nobody writes to it
        file.write_text("-" * 100_000 + "1")
        assert event_named(daemon, "reload_waits")["error"].startswith(f"{file}:1: ")
        file.write_text("async def work(:\n")
        assert event_named(daemon, "reload_waits")["error"] == f"{file}:1: invalid syntax"
        assert result_of(tmp_path, "work", "b") == "old"
        file.write_text("import nothing_of_this_name\n")
        assert event_named(daemon, "reloading")["files"] == [str(file)]
        assert "there is no module" not in next(line for line in daemon.stderr or () if "jobs-service: " in line)
        assert event_named(daemon, "worker_ended")["restart_in"] is None
        file.write_text(code)
        event_named(daemon, "reloading")
        assert result_of(tmp_path, "work", "c") == "NEW"


def test_a_log_without_ends_of_lines_is_passed_on_and_does_not_grow(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APPLICATION.replace('"said"', '"=" * 1_100_000, end="", flush=True'))
    with serving("app:jobs", "--processes", "1", cwd=tmp_path) as daemon:
        in_store(tmp_path, lambda jobs: jobs.add("says", "a"))
        line = next(line for line in daemon.stderr or () if line.startswith("["))
        assert line.rstrip("=\n").endswith("] ")
        assert len(line) > 1 << 20


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("app:jobs", "--max-jobs-per-process", "5"), "Invalid value for --processes: limits of worker processes need"),
        (("app:jobs", "--processes", "0"), "Invalid value for '--processes'"),
        (("app:jobs", "--reload", "--max-memory-per-process", "much"), "'much' is no number of bytes; write 500000000"),
    ],
)
def test_wrong_options_are_refused(
    invoke: Invoke, application: str, arguments: tuple[str, ...], complaint: str
) -> None:
    refused = invoke("serve", *arguments)
    assert refused.code == 2
    assert complaint in refused.error


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            ("app:jobs", "--types", "others"),
            "type others has no handler; there are: pid, says, blocks, leaks, isolated",
        ),
        (("--store", "memory:"), "memory: is of one process; use lmdb:, sqlite: or fdb:"),
    ],
)
def test_what_no_worker_can_do_ends_the_parent(
    application: str, tmp_path: Path, arguments: tuple[str, ...], complaint: str
) -> None:
    refused = process("serve", *arguments, "--processes", "1", cwd=tmp_path)
    assert refused.code == 2
    assert complaint in refused.err


PROGRAM = (
    APPLICATION
    + """
import asyncio, signal

async def main():
    running = asyncio.create_task(jobs.run(types=["pid"], processes=2, started=lambda: print("started", flush=True)))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    await asyncio.wait([running])
    print("canceled", running.cancelled())

if __name__ == "__main__":
    asyncio.run(main())
"""
)


def test_a_program_runs_its_handlers_in_processes(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    with subprocess.Popen(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as program:
        assert program.stdout is not None
        try:
            assert program.stdout.readline() == "started\n"
            worker = result_of(tmp_path, "pid", "a")
            assert worker != program.pid
            program.send_signal(signal.SIGTERM)
            assert program.stdout.read() == "canceled True\n"
            gone(worker)
        finally:
            program.kill()
