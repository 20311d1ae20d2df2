"""What only the FoundationDB store does: its client, cancellation, marks, watches past the limit, moved directories."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import fdb
import pytest

from jobs_service import JobsService, Settings
from jobs_service.errors import DirectoryMoved, StoreError, StoreUnavailable
from jobs_service.sources import Sources
from jobs_service.store import Store, Transaction, Watch, open_address
from jobs_service.store.fdb import FdbStore
from jobs_service.store.fdb.directory import DIRECTORY
from tests.contract.support import patience, value_of, write
from tests.stores import FDB_VARIABLE, plain_settings

CLUSTER = os.environ.get(FDB_VARIABLE, "")
needs_cluster = [
    pytest.mark.skipif(not CLUSTER, reason=f"{FDB_VARIABLE} names no cluster file"),
    pytest.mark.cluster,
]
KEY = b"own/key"
OTHER = b"own/other"


def cluster_test(test: Any) -> Any:
    """Mark a test that needs a cluster."""
    for mark in needs_cluster:
        test = mark(test)
    return test


def make(**settings: Any) -> FdbStore:
    """Return a store on the cluster, not yet open."""
    store = open_address(f"fdb:{CLUSTER}", Settings(**settings), Sources())
    assert isinstance(store, FdbStore)
    return store


@pytest.fixture
async def store() -> AsyncIterator[FdbStore]:
    """An open store without keys of earlier tests."""
    opened = make()
    await opened.open()
    await write_nothing(opened)
    yield opened
    await opened.close()


async def write_nothing(store: Store) -> None:
    """Clear the keys that these tests write."""

    async def clear(tr: Transaction) -> None:
        tr.clear_range(b"own/", b"own0")

    await store.transact(clear)


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


async def test_a_cluster_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    store = open_address(f"fdb:{tmp_path / 'nowhere'}", plain_settings(), Sources(0))
    with pytest.raises(StoreError, match=r"nowhere.*cluster file cannot be read: No such file"):
        await store.open()
    assert not store.is_open


@pytest.mark.parametrize("content", [b"not a cluster file", b"", b"a:b@c", b"\xff\xfe", b"a:b@c:1\nd:e@f:2"])
async def test_a_cluster_file_that_is_none_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "fdb.cluster"
    file.write_bytes(content)
    store = open_address(f"fdb:{file}", plain_settings(), Sources(0))
    with pytest.raises(StoreError, match="not a cluster file"):
        await store.open()


@cluster_test
async def test_a_cluster_that_does_not_answer_is_unavailable_within_the_limit(tmp_path: Path) -> None:
    file = tmp_path / "fdb.cluster"
    file.write_text("test:test@127.0.0.1:1")
    store = open_address(f"fdb:{file}", Settings(transaction_timeout=0.2), Sources(0))
    await store.open()
    with pytest.raises(StoreUnavailable, match=r"did not answer within 0\.2 s"):
        await store.transact(lambda tr: tr.get(KEY))
    with pytest.raises(StoreUnavailable):
        await store.prefix()
    async with patience():
        await store.close()


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


@cluster_test
async def test_several_services_share_the_client() -> None:
    async with JobsService(f"fdb:{CLUSTER}", supervise=False) as one:
        await one.set_type_timeout("shared client", 10)
        async with JobsService(f"fdb:{CLUSTER}", supervise=False) as two:
            assert await two.get_type_timeout("shared client") == 10
        await one.clear_type_timeout("shared client")


TWO_LOOPS = """
import asyncio, sys, threading
from jobs_service import JobsService, JobState

both = threading.Barrier(2, timeout=30)
done = []

async def work(own, other):
    async with JobsService(sys.argv[1]) as jobs:
        await jobs.set_type_timeout(own, 60)
        await jobs.add(own, "job")
        await asyncio.to_thread(both.wait)
        async with jobs.subscribe(other, "job") as events:
            await (await jobs.accept(own)).finish()
            states = [event.state async for event in events]
        assert states[-1] is JobState.FINISHED
        if own == "two loops: b":  # the other one goes on when the first has gone
            await asyncio.to_thread(both.wait)
            await jobs.resubmit(own, "job")
            await (await jobs.accept(own)).finish()
    if own == "two loops: a":
        both.wait()
    done.append(own)

names = ["two loops: a", "two loops: b"]
threads = [threading.Thread(target=asyncio.run, args=(work(*pair),)) for pair in (names, names[::-1])]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(sorted(done) == names)
"""


@cluster_test
def test_two_event_loops_of_one_process_have_a_service_each_on_the_same_cluster() -> None:
    ended = run_python_with(TWO_LOOPS, f"fdb:{CLUSTER}")
    assert (ended.returncode, ended.stdout) == (0, "True\n"), ended.stderr


@cluster_test
async def test_watches_beyond_the_clients_limit_are_polled() -> None:
    store = make(fdb_max_watches=3, fdb_watch_poll=0.01)
    await store.open()
    await write_nothing(store)

    async def watching(tr: Transaction) -> Watch:
        return tr.watch(KEY)

    async def writing_and_watching(tr: Transaction) -> Watch:
        tr.set(OTHER, b"1")
        return tr.watch(KEY)

    watches = [await store.read(watching) for _ in range(6)] + [await store.transact(writing_and_watching)]
    canceled = await store.read(watching)
    canceled.cancel()
    await write(store, {KEY: b"1"})
    async with patience():
        for watch in watches:
            await watch.wait()
    assert not canceled.fired
    late = [await store.read(watching) for _ in range(5)]
    await store.close()
    for watch in late:
        with pytest.raises(StoreError, match="closed"):
            await watch.wait()


@cluster_test
async def test_watches_made_at_the_same_time_do_not_exceed_the_clients_limit() -> None:
    store = make(fdb_max_watches=1, fdb_watch_poll=0.01)
    await store.open()
    await write_nothing(store)

    async def watching(tr: Transaction) -> Watch:
        return tr.watch(KEY)

    for number in range(20):
        watches = await asyncio.gather(*[store.read(watching) for _ in range(30)])
        assert store._watches.number == 30
        assert len(store._watches._native) == 1
        await write(store, {KEY: b"%d" % number})
        async with patience():
            for watch in watches:
                await watch.wait()
    await store.close()


ENDS_WITHOUT_CLOSING = """
import asyncio, sys
from jobs_service import Settings
from jobs_service.sources import Sources
from jobs_service.store import open_address

async def main():
    store = open_address(sys.argv[1], Settings(), Sources())
    await store.open()
    await store.read(lambda tr: tr.get(b"a"))
    print("opened", flush=True)

if sys.argv[2] == "closed loop":
    asyncio.run(main())
else:
    asyncio.new_event_loop().run_until_complete(main())
"""


@cluster_test
@pytest.mark.parametrize("loop", ["closed loop", "open loop"])
def test_a_program_that_ends_without_closing_its_store_ends(loop: str) -> None:
    ended = run_python_with(ENDS_WITHOUT_CLOSING, f"fdb:{CLUSTER}", loop)
    assert (ended.returncode, ended.stdout) == (0, "opened\n")


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


@cluster_test
async def test_a_thousand_watches_need_no_more_threads_than_one(store: FdbStore) -> None:
    def threads() -> int:
        return len(os.listdir("/proc/self/task"))

    async def watching(tr: Transaction) -> list[Watch]:
        return [tr.watch(b"own/%d" % number) for number in range(1000)]

    first = await store.read(lambda tr: watching(tr))
    before = threads()
    more = [watch for _ in range(4) for watch in await store.read(watching)]
    assert threads() == before
    await write(store, {b"own/%d" % number: b"" for number in range(1000)})
    async with patience():
        for watch in first + more:
            await watch.wait()
    assert threads() == before


@cluster_test
async def test_a_cancelled_call_cancels_its_transaction_and_writes_nothing(store: FdbStore) -> None:
    reading = asyncio.Event()

    async def function(tr: Transaction) -> None:
        tr.set(KEY, b"1")
        for _ in range(1_000_000):
            await tr.get(OTHER)
            reading.set()

    call = asyncio.create_task(store.transact(function))
    async with patience():
        await reading.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert await value_of(store, KEY) is None


@cluster_test
async def test_marks_do_not_grow_and_are_gone_after_closing() -> None:
    store, other = make(), make()
    await store.open()
    await other.open()
    marks = await store.prefix() + b"\xfe"

    async def count() -> int:
        return len(await other.read(lambda tr: tr.get_range(marks, marks + b"\xff")))

    async def increment(tr: Transaction) -> None:
        tr.set(KEY, b"%d" % (int(await tr.get(KEY) or b"0") + 1))

    await write_nothing(store)
    before = await count()
    await asyncio.gather(*[store.transact(increment) for _ in range(100)])
    assert await count() - before <= 100
    await asyncio.gather(*[store.transact(increment) for _ in range(100)])
    assert await count() - before <= 100
    assert int(await value_of(store, KEY) or b"") == 200
    await store.close()
    assert await count() < before + 1
    await other.close()


@cluster_test
async def test_transactions_that_overlap_and_share_no_key_never_conflict(store: FdbStore) -> None:
    async def work(number: int) -> None:
        key = OTHER + b"%03d" % number

        async def increment(tr: Transaction) -> None:
            tr.set(key, b"%d" % (int(await tr.get(key) or b"0") + 1))

        for _ in range(10):
            await store.transact(increment)
        assert await value_of(store, key) == b"10"

    await asyncio.gather(*[work(number) for number in range(30)])
    assert store.conflicts == 0


@cluster_test
async def test_a_moved_directory_is_noticed_by_the_metadata_version() -> None:
    database = fdb.open(CLUSTER) if fdb.is_api_version_selected() else None
    async with JobsService(f"fdb:{CLUSTER}") as jobs:
        database = database or fdb.open(CLUSTER)
        await jobs.set_type_timeout("moving", 10)
        await jobs.add("moving", "a")
        before = await jobs.store.prefix()

        @fdb.transactional  # type: ignore[untyped-decorator]
        def move(tr: Any) -> None:
            fdb.directory.remove_if_exists(tr, ("moved away",))
            fdb.directory.move(tr, DIRECTORY, ("moved away",))
            tr.set_versionstamped_value(b"\xff/metadataVersion", bytes(14))

        await asyncio.to_thread(move, database)
        with pytest.raises(DirectoryMoved):
            await jobs.add("moving", "b")
        async with patience():
            while await jobs.types():  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.01)
        assert await jobs.store.prefix() != before
        await jobs.set_type_timeout("moving", 10)
        await jobs.add("moving", "b")
        async with patience():
            while jobs.supervision()["state"] != "running":  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.01)
        await jobs.clear_type_timeout("moving")
        await jobs.remove("moving", "b")
