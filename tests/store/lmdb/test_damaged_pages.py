"""A damaged page ends the calls that need it with StoreDamaged; it is logged once."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from jobs_service.errors import StoreDamaged
from jobs_service.store.base import Transaction, Watch
from tests.contract.support import patience
from tests.store.lmdb.lmdb_process import process
from tests.store.lmdb.test_store import opened

PAGE = 4096
DAMAGED = 30
SOUND = 200


def needle(number: int) -> bytes:
    return b"needle-%04d-" % number + b"x" * 900


async def fill(tr: Transaction) -> None:
    for number in range(300):
        tr.set(b"%05d" % number, needle(number))


def damage(path: Path) -> None:
    """Overwrite the page of the value DAMAGED."""
    with (path / "data.mdb").open("r+b") as file:
        file.seek(file.read().index(needle(DAMAGED)) // PAGE * PAGE)
        file.write(bytes(PAGE))


async def bad(tr: Transaction) -> bytes | None:
    return await tr.get(b"%05d" % DAMAGED)


async def good(tr: Transaction) -> bytes | None:
    tr.watch(b"%05d" % SOUND).cancel()
    return await tr.get(b"%05d" % SOUND)


async def good_write(tr: Transaction) -> bytes | None:
    tr.set(b"new", b"")
    return await tr.get(b"%05d" % SOUND)


async def bad_watch(tr: Transaction) -> Watch:
    return tr.watch(b"%05d" % DAMAGED)


@pytest.mark.parametrize("writes", [False, True])
async def test_calls_that_share_a_transaction_with_one_that_meets_damage_get_their_answers(
    tmp_path: Path, writes: bool
) -> None:
    path = tmp_path / "store"
    began, queued = threading.Event(), threading.Event()

    async def wait(_: Transaction) -> None:
        began.set()
        assert queued.wait(60)

    async with opened(path) as store:
        await store.transact(fill)
        damage(path)
        call = store.transact if writes else store.read
        with capture_logs() as events:
            for _ in range(2):
                began.clear()
                queued.clear()
                held = asyncio.create_task(call(wait))
                await asyncio.to_thread(began.wait)
                # What comes meanwhile shares the next transaction of LMDB.
                functions = (good_write if writes else good, bad, bad_watch, good)
                beside = [asyncio.create_task(call(function)) for function in functions]
                await asyncio.sleep(0)
                queued.set()
                found = await asyncio.gather(*beside, return_exceptions=True)
                assert [type(each) for each in found] == [bytes, StoreDamaged, StoreDamaged, bytes]
                assert "restore a backup" in str(found[1])
                await held
        assert [event["event"] for event in events] == ["store_damaged"]
        assert not store.metrics()["watches"]


async def test_all_watches_fire_at_another_processs_commit_if_one_of_their_keys_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "store"

    async def watch(tr: Transaction) -> list[Watch]:
        return [tr.watch(b"%05d" % number) for number in (DAMAGED, SOUND, 290)]

    async with opened(path) as store, process(path) as other:
        await store.transact(fill)
        watches = await store.read(watch)
        damage(path)
        assert await other.ask("set", f"{SOUND:05}", "new") == "done"
        async with patience():
            for each in watches:
                await each.wait()
