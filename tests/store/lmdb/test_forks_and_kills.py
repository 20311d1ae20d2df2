"""Processes that are killed, stopped or forked while they use a store."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jobs_service.errors import StoreUnavailable
from jobs_service.settings import Settings
from jobs_service.store.lmdb import LmdbStore
from tests.contract.support import contents, number, patience, value_of, write
from tests.store.lmdb.lmdb_process import ROOT, process
from tests.store.lmdb.test_store import opened, own_threads
from tests.store.lmdb.watching import watch


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a store may be made."""
    return tmp_path / "store"


async def test_a_process_killed_while_it_holds_the_write_lock_blocks_nobody(path: Path) -> None:
    async with opened(path) as store:
        await write(store, {b"a": b"1"})
        for count in range(2):
            async with process(path) as other:
                assert await other.ask("hold", "held") == "holding"
                writing = asyncio.create_task(write(store, {b"ours": b"%d" % count}))
                assert await value_of(store, b"a") == b"1"
                assert not writing.done()
                await other.kill()
                async with patience():
                    await writing
            assert await contents(store) == {b"a": b"1", b"ours": b"%d" % count}


async def test_a_stopped_process_that_holds_the_write_lock_makes_writing_unavailable_until_it_goes_on(
    path: Path,
) -> None:
    async with opened(path, transaction_timeout=0.3) as store, process(path) as other:
        await write(store, {b"a": b"1"})
        assert await other.ask("hold", "held") == "holding"
        other.signal(signal.SIGSTOP)
        trouble: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: trouble.append(context))
        calls = [asyncio.create_task(write(store, {b"timed out": b"%d" % place})) for place in range(5)]
        await asyncio.sleep(0)
        canceled = calls.pop(3)
        canceled.cancel()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert canceled.cancelled()
        assert [type(result) for result in results] == [StoreUnavailable] * 4
        assert "within 0.3 s" in str(results[0])
        assert "\n" not in str(results[0])
        # Reading goes on meanwhile, and so do watches.
        watched = await watch(store, b"held")
        assert await value_of(store, b"a") == b"1"
        other.signal(signal.SIGCONT)
        assert await other.ask("let go") == "done"
        async with patience():
            await watched.wait()
        await write(store, {b"b": b"1"})
        # Who was told that nothing had begun finds nothing written afterwards.
        assert await contents(store) == {b"a": b"1", b"b": b"1", b"held": b"1"}
        assert not trouble


async def test_what_was_closed_while_another_process_held_the_write_lock_ends_later_and_harms_nobody(
    path: Path,
) -> None:
    store = LmdbStore(path, settings=Settings(transaction_timeout=0.1))
    await store.open()
    async with process(path) as other:
        assert await other.ask("hold", "held") == "holding"
        with pytest.raises(StoreUnavailable):
            await write(store, {b"a": b"1"})
        await store.close()  # its thread waits for the lock
        assert own_threads() == ["lmdb-writer"]
        await store.open()
        assert await contents(store) == {}
        assert await other.ask("let go") == "done"
        await write(store, {b"b": b"1"})
        assert await contents(store) == {b"b": b"1", b"held": b"1"}
        assert store.instance
        await store.close()
        async with patience():
            while own_threads():  # noqa: ASYNC110 - there is no event for the end of a thread
                await asyncio.sleep(0.001)
        assert len(os.listdir(path / "processes")) == 2  # its own, and `shared`
        await store.open()
        assert await store.other_processes() == (1, 0)
        await store.close()


async def test_what_a_killed_process_was_answered_is_there(path: Path) -> None:
    async with opened(path) as store:
        answered: dict[int, int] = {}
        for round in range(4):
            async with process(path) as other:
                other.tell("append")
                for _ in range(10 + 7 * round):
                    answered[other.pid] = int(await other.hear())
                await other.kill()
                while line := await other.hear():
                    answered[other.pid] = int(line)
        found = await contents(store)
        log = [value.split(b"/") for key, value in sorted(found.items()) if key.startswith(b"log/")]
        assert found[b"count"] == b"%d" % len(log)
        assert found[b"sum"] == number(len(log))
        for pid, last in answered.items():
            places = [int(place) for own, place in log if int(own) == pid]
            # At most the one transaction that was under way came through unanswered.
            assert places in (list(range(last + 1)), list(range(last + 2)))


FORK = """
import asyncio, os, sys
from jobs_service.errors import StoreError
from jobs_service.settings import Settings
from jobs_service.store.lmdb import LmdbStore
from tests.contract.support import contents, write

async def main(path):
    store = LmdbStore(path, settings=Settings())
    await store.open()
    await write(store, {b"parent": b"1"})
    if (pid := os.fork()) == 0:
        status = 1
        try:
            for use in (lambda: write(store, {b"child": b"1"}), lambda: contents(store), lambda: store.backup("copy")):
                try:
                    await use()
                except StoreError as error:
                    print(error, flush=True)
            await store.close()
            status = 0
        finally:
            os._exit(status)
    print(os.waitpid(pid, 0)[1], flush=True)
    await write(store, {b"parent": b"2"})
    print(await contents(store))
    await store.close()

asyncio.run(main(sys.argv[1]))
"""


async def test_a_fork_after_opening_gets_an_error_and_harms_nothing(path: Path) -> None:
    result = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-W", "ignore", "-c", FORK, str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    lines = result.stdout.splitlines()
    assert (result.returncode, result.stderr) == (0, "")
    assert all("before a fork" in line and "spawn" in line for line in lines[:3])
    assert lines[3:] == ["0", str({b"parent": b"2"})]
    async with opened(path) as store:
        assert await contents(store) == {b"parent": b"2"}


FORK_AND_OPEN = """
import asyncio, os, sys, threading
from jobs_service.settings import Settings
from jobs_service.store.lmdb import LmdbStore
from tests.contract.support import contents, write

async def child(path):
    store = LmdbStore(path, settings=Settings())
    await store.open()
    await write(store, {b"child": b"1"})
    print(sorted(await contents(store)), flush=True)
    await store.close()

async def before(store):
    await store.open()
    await write(store, {b"parent": b"1"})

async def work():
    for number in range(300):
        await write(store, {b"parent": b"%d" % number})
        await contents(store)

async def after(store):
    print(sorted(await contents(store)), await store.other_processes())
    await store.close()

path = sys.argv[1]
store = LmdbStore(path, settings=Settings())
with asyncio.Runner() as runner:
    runner.run(before(store))
    working = threading.Thread(target=runner.run, args=(work(),))
    working.start()  # the fork is in the midst of its transactions
    if (pid := os.fork()) == 0:
        asyncio.run(child(path))
        os._exit(0)
    print(os.waitpid(pid, 0)[1], flush=True)
    working.join()
    runner.run(after(store))
"""


async def test_a_fork_opens_the_store_anew_while_its_parent_uses_it(path: Path) -> None:
    result = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-W", "ignore", "-c", FORK_AND_OPEN, str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    keys = str([b"child", b"parent"])
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [keys, "0", f"{keys} (0, 0)"]


FORK_WITHIN = """
import asyncio, os, sys
from jobs_service.errors import StoreError
from jobs_service.settings import Settings
from jobs_service.store import lmdb as lmdb_store
from jobs_service.store.lmdb import LmdbStore
from tests.contract.support import contents, write

async def child(path):
    try:
        await LmdbStore(path, settings=Settings()).open()
    except StoreError as error:
        print(error, flush=True)

async def fork(transaction):
    transaction[b"parent"] = b"1"
    if (pid := os.fork()) == 0:
        asyncio.run(child(sys.argv[1]))
        os._exit(0)
    print(os.waitpid(pid, 0)[1], flush=True)

async def main():
    store = LmdbStore(sys.argv[1], settings=Settings())
    await store.open()
    await store.transact(fork)
    print(await contents(store))
    await store.close()

lmdb_store._LONGEST_PAUSE = 0.1
asyncio.run(main())
"""


async def test_a_fork_within_a_transaction_cannot_open_the_store_and_is_told_why(path: Path) -> None:
    result = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-W", "ignore", "-c", FORK_WITHIN, str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    refusal, *rest = result.stdout.splitlines()
    assert (result.returncode, result.stderr) == (0, "")
    assert "was in use at the moment when this process was forked" in refusal
    assert rest == ["0", str({b"parent": b"1"})]


async def test_a_process_killed_while_it_reads_does_not_make_the_store_grow(path: Path) -> None:
    """Its slot among the readers would keep its state, and all that came after it, for as long as the store is open."""
    async with opened(path, lmdb_map_size=1 << 22, durable=False) as store:
        await write(store, {b"a": b"0" * 10_000})
        async with process(path, lmdb_map_size=1 << 22) as other:
            assert await other.ask("hold_read", "a") == "holding"
            await other.kill()
        for count in range(1000):
            await write(store, {b"a": b"%d" % count * 3000})
        assert await value_of(store, b"a") == b"999" * 3000
