"""The embedded store among several real processes, some of which are stopped or killed."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from jobs_service.errors import StoreUnavailable
from jobs_service.settings import Settings
from jobs_service.store import Transaction, Watch
from jobs_service.store.lmdb import LmdbStore, map_size
from tests.contract.support import contents, number, patience, value_of, write
from tests.store.lmdb.lmdb_process import ROOT, Process, process
from tests.store.lmdb.test_store import opened, own_threads
from tests.store.lmdb.watching import watch


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a store may be made."""
    return tmp_path / "store"


@pytest.mark.parametrize("made_in", ["read", "transact"])
async def test_another_processs_commits_fire_watches(path: Path, made_in: str) -> None:
    async def function(tr: Transaction) -> Watch:
        return tr.watch(b"key")

    async with opened(path) as store, process(path) as other:
        await write(store, {b"key": b"0"})
        for count in range(1, 21):
            watched = await (store.read if made_in == "read" else store.transact)(function)
            if count % 2:
                # Own commits in between must not hide theirs.
                await write(store, {b"own": b"%d" % count})
            assert not watched.fired
            other.tell("set", "key", count)
            async with patience():
                await watched.wait()
            assert await value_of(store, b"key") == b"%d" % count
            assert await other.hear() == "done"


async def test_processes_that_make_a_store_together_share_it(path: Path) -> None:
    async with AsyncExitStack() as stack:
        processes = await asyncio.gather(*[stack.enter_async_context(process(path)) for _ in range(3)])
        assert await asyncio.gather(*[each.ask("log", 40) for each in processes]) == ["done"] * 3
        assert await asyncio.gather(*[each.end() for each in processes]) == [0, 0, 0]
    async with opened(path) as store:
        found = await contents(store)
        assert found.pop(b"count") == b"120"
        assert found.pop(b"sum") == number(120)
        log = [value.split(b"/") for _, value in sorted(found.items())]
        assert len(log) == 120
        for each in processes:
            own = [int(place) for pid, place in log if int(pid) == each.pid]
            assert own == list(range(40))


async def test_closing_does_not_wait_for_ever_for_a_lock(path: Path) -> None:
    async with opened(path, transaction_timeout=0.3) as store, process(path) as other:
        assert await other.ask("hold", "held") == "holding"
        other.signal(signal.SIGSTOP)
        writing = asyncio.create_task(write(store, {b"a": b"1"}))
        await asyncio.sleep(0)
        async with patience():
            await store.close()
            with pytest.raises(StoreUnavailable):
                await writing
        assert not store.is_open
        await other.kill()
        await no_threads_left()
    async with opened(path) as store:
        assert await contents(store) == {}


@asynccontextmanager
async def child(program: str, path: Path, *arguments: str) -> AsyncIterator[Process]:
    """Run a program that says when it has opened a store."""
    pipe = asyncio.subprocess.PIPE
    command = [sys.executable, "-c", program, str(path), *arguments]
    process = Process(await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=pipe, stdout=pipe))
    try:
        assert await process.hear() == "open"
        yield process
    finally:
        await process.kill()


HOLD_A_NEW_ENVIRONMENT = """
import lmdb, os, sys
os.mkdir(sys.argv[1])
with lmdb.open(sys.argv[1]) as environment, environment.begin(write=True):
    print("open", flush=True)
    sys.stdin.readline()
"""


async def test_opening_does_not_wait_for_ever_for_a_lock(path: Path) -> None:
    """A process that was stopped while it made the store holds the lock that another one needs for the same."""
    async with child(HOLD_A_NEW_ENVIRONMENT, path) as other:
        store = LmdbStore(path, settings=Settings(transaction_timeout=0.3))
        with pytest.raises(StoreUnavailable, match=r"within 0\.3 s"):
            await store.open()
        assert not store.is_open
        assert await other.end() == 0
    await no_threads_left()
    async with opened(path) as again:
        await write(again, {b"a": b"1"})


async def no_threads_left() -> None:
    """Return when the threads that waited for a lock have let go of the store, as they do in their own time."""
    async with patience():
        while own_threads():  # noqa: ASYNC110 - a thread's end is no event
            await asyncio.sleep(0.01)


async def test_a_store_that_another_process_has_grown_is_used_with_its_new_size(path: Path) -> None:
    async with (
        opened(path, lmdb_map_size=1 << 17, durable=False) as store,
        process(path, lmdb_map_size=1 << 28, durable=False) as other,
    ):
        await write(store, {b"a": b"1"})
        watched = await watch(store, b"watched")
        with capture_logs() as logged:
            for place in range(750):  # more than the small map with its reserve
                assert await other.ask("set", f"large/{place}", "x" * 95_000) == "done"
            writes = [write(store, {b"%d" % place: b"1"}) for place in range(20)]
            found, *_ = await asyncio.gather(contents(store), *writes)
            assert len(found or {}) >= 751
            assert await value_of(store, b"19") == b"1"
            assert await other.ask("set", "watched", 1) == "done"
            async with patience():
                await watched.wait()
            await write(store, {b"large/mine": b"x" * 95_000})
        assert [entry["event"] for entry in logged] == ["map_grown"]
        assert logged[0]["bytes"] == map_size(1 << 28)
        assert await other.ask("get", "19") == "1"
        await store.backup(str(path.with_name("backup")))


async def test_a_map_is_not_grown_as_long_as_somebody_reads_from_it(path: Path) -> None:
    """The writer meets the larger size while the reader is in a transaction on the smaller map."""
    async with (
        opened(path, lmdb_map_size=1 << 17, durable=False) as store,
        process(path, lmdb_map_size=1 << 28, durable=False) as other,
    ):
        loop = asyncio.get_running_loop()
        begun, let_go = asyncio.Event(), threading.Event()

        async def slow(tr: Transaction) -> bytes | None:
            before = await tr.get(b"large/0")
            loop.call_soon_threadsafe(begun.set)
            let_go.wait()
            return before if before == await tr.get(b"large/0") else b"changed"

        for place in range(650):
            assert await other.ask("set", f"large/{place}", "x" * 95_000) == "done"
        slowly = asyncio.create_task(store.read(slow))
        await begun.wait()
        for place in range(50):
            assert await other.ask("set", f"large/{place}", "y" * 95_000) == "done"
        writing = asyncio.create_task(write(store, {b"a": b"1"}))
        await asyncio.sleep(0)
        let_go.set()
        assert await slowly == b"x" * 95_000
        await writing
        assert await value_of(store, b"large/0") == b"y" * 95_000


LIMITED = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_{0}, ({1}, {1}))
runpy.run_module("tests.store.lmdb.lmdb_process", run_name="__main__")
"""


async def test_a_map_that_this_process_may_not_have_is_named(path: Path) -> None:
    command = [sys.executable, "-c", LIMITED.format("AS", 1 << 31), str(path)]
    done = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, capture_output=True, text=True, check=False)
    said = done.stderr.splitlines()[-1]
    assert f"{path} cannot be opened" in said
    assert "set JOBS_SERVICE_LMDB_MAP_SIZE lower" in said


async def test_a_store_that_grows_beyond_what_this_process_may_map_is_lost_to_it(path: Path) -> None:
    async with child(LIMITED.format("AS", 1 << 31), path, f"lmdb_map_size={1 << 17}") as small:
        async with opened(path, lmdb_map_size=1 << 32, durable=False) as store:
            for place in range(750):
                await write(store, {b"large/%d" % place: b"x" * 95_000})
            assert await small.ask("fill", 1) == "0 StoreLost"
            assert await small.ask("fill", 1) == "0 StoreLost"
        assert await small.end() == 0


async def test_a_file_that_may_not_grow_is_a_full_store(path: Path) -> None:
    async with child(LIMITED.format("FSIZE", 400_000), path) as other:
        written, error = (await other.ask("fill", 5000)).split()
        assert error == "StoreFull"
        assert int(written) > 10
        for place in (0, int(written) - 1):
            assert await other.ask("get", f"fill/{place:06d}") == "x" * 5000
        assert await other.ask("get", f"fill/{int(written):06d}") == "none"
        assert await other.end() == 0
    async with opened(path) as store:
        assert len(await contents(store)) == int(written)
