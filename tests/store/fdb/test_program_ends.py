"""Programs that end or fork while the client runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.store.fdb.clusters import CLUSTER, cluster_test


def run_python_with(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program with arguments in a process of its own."""
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def run_python(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own, whose client is not started yet."""
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


OPEN = """
import asyncio, sys
from jobs_service import JobsService
from jobs_service.errors import JobsError

async def main():
    try:
        async with JobsService(sys.argv[1] if len(sys.argv) > 1 else {address!r}, supervise=False) as jobs:
            print(await jobs.types())
    except JobsError as error:
        print("refused:", error)

asyncio.run(main())
"""


def test_without_the_client_library_one_line_says_what_to_install(tmp_path: Path) -> None:
    cluster = tmp_path / "fdb.cluster"
    cluster.write_text("test:test@127.0.0.1:4500")
    nowhere = tmp_path / "libfdb_c.so"
    done = run_python(OPEN.format(address=f"fdb:{cluster}"), JOBS_SERVICE_FDB_LIBRARY=str(nowhere))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("refused: ")
    assert str(nowhere) in done.stdout
    assert "JOBS_SERVICE_FDB_LIBRARY" in done.stdout
    assert done.stdout.count("\n") == 1


@cluster_test
def test_a_fork_after_the_start_of_the_client_is_refused() -> None:
    done = run_python(
        f"""
import asyncio, os
from jobs_service import JobsService
from jobs_service.errors import StoreError

async def look():
    async with JobsService("fdb:{CLUSTER}", supervise=False) as jobs:
        await jobs.types()

asyncio.run(look())
child = os.fork()
if child == 0:
    try:
        asyncio.run(look())
    except StoreError as error:
        os.write(1, f"child: {{error}}\\n".encode())
    os._exit(0)
os.waitpid(child, 0)
asyncio.run(look())
print("parent: works")
"""
    )
    assert done.returncode == 0, done.stderr
    child, parent = done.stdout.splitlines()
    assert child.startswith("child: ")
    assert "before a fork" in child
    assert parent == "parent: works"


WATCHES_TO_THE_END = """
import asyncio, atexit, gc, sys

def collect():
    global loop, store, tasks
    del loop, store, tasks
    gc.collect()

atexit.register(collect)  # First come, last served: the client has stopped by then.

from jobs_service import Settings
from jobs_service.sources import Sources
from jobs_service.store import open_address

store = open_address(sys.argv[1], Settings(), Sources())

async def make_watch(tr):
    return tr.watch(b"own/never")

async def watching():
    watch = await store.read(make_watch)
    try:
        await watch.wait()
    finally:
        watch.cancel()

async def main():
    await store.open()
    tasks = [asyncio.ensure_future(watching()) for _ in range(20)]
    while store.metrics()["watches"] < 20:
        await asyncio.sleep(0.01)
    print("watching", flush=True)
    return tasks

loop = asyncio.new_event_loop()
tasks = loop.run_until_complete(main())
"""


@cluster_test
def test_a_program_that_ends_while_coroutines_wait_for_watches_does_not_crash() -> None:
    ended = run_python_with(WATCHES_TO_THE_END, f"fdb:{CLUSTER}")
    assert (ended.returncode, ended.stdout) == (0, "watching\n")
