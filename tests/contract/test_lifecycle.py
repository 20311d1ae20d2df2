"""Opening and closing, and use at the wrong time or place, on every store."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from jobs_service.errors import InvalidAddress, StoreError
from jobs_service.settings import Settings
from jobs_service.sources import Sources
from jobs_service.store import Store, Transaction, Watch, open_address
from tests.contract.conftest import Reopen
from tests.contract.support import contents, patience, write
from tests.stores import StoreKind


async def read(store: Store) -> None:
    """Read something."""
    await store.read(lambda tr: tr.get(b"a"))


async def fired_or_closed(watch: Watch) -> None:
    """Wait until a watch has fired or was lost with its store."""
    with contextlib.suppress(StoreError):
        await watch.wait()
    assert watch.error is None or "closed" in str(watch.error)


async def transact(store: Store) -> None:
    """Write something."""
    await write(store, {b"a": b"1"})


USES = pytest.mark.parametrize("use", [read, transact])


@USES
async def test_a_store_must_be_open(closed_store: Store, use: Callable[[Store], Awaitable[None]]) -> None:
    assert not closed_store.is_open
    with pytest.raises(StoreError, match=r"^store .* is not open$"):
        await use(closed_store)
    await closed_store.open()
    await use(closed_store)
    await closed_store.close()
    assert not closed_store.is_open
    with pytest.raises(StoreError, match=r"^store .* is not open$"):
        await use(closed_store)


async def test_a_store_is_opened_once(store: Store) -> None:
    with pytest.raises(StoreError, match="open already"):
        await store.open()
    await transact(store)


async def test_closing_again_does_nothing(closed_store: Store) -> None:
    await closed_store.close()
    await closed_store.open()
    await closed_store.close()
    await closed_store.close()
    await asyncio.gather(closed_store.close(), closed_store.close())


async def test_what_was_written_is_there_when_it_is_opened_again(store: Store, reopen: Reopen) -> None:
    await write(store, {b"a": b"1", b"b": b"2"})
    again = await reopen()
    assert await contents(again) == {b"a": b"1", b"b": b"2"}
    await write(again, {b"c": b"3"})
    assert sorted(await contents(await reopen())) == [b"a", b"b", b"c"]


async def test_closing_lets_running_transactions_end(store: Store, reopen: Reopen) -> None:
    async def increment(tr: Transaction) -> int:
        count = int(await tr.get(b"count") or 0) + 1
        tr.set(b"count", b"%d" % count)
        return count

    calls = [asyncio.create_task(store.transact(increment)) for _ in range(50)]
    readers = [asyncio.create_task(store.read(lambda tr: tr.get(b"count"))) for _ in range(20)]
    await asyncio.sleep(0)
    async with patience():
        await store.close()
    assert all(call.done() for call in calls + readers)
    assert sorted([call.result() for call in calls]) == list(range(1, 51))
    assert await contents(await reopen()) == {b"count": b"50"}


async def test_a_cancelled_close_closes(store: Store, reopen: Reopen) -> None:
    async def watching(tr: Transaction) -> Watch:
        return tr.watch(b"a")

    watch = await store.transact(watching)
    calls = [asyncio.create_task(transact(store)) for _ in range(20)]
    await asyncio.sleep(0)
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0)
    closing.cancel()
    async with patience():
        results = await asyncio.gather(closing, *calls, return_exceptions=True)
        assert not [result for result in results if not isinstance(result, asyncio.CancelledError | None)]
        assert not store.is_open
        await fired_or_closed(watch)
    with pytest.raises(StoreError, match="not open"):
        await read(store)
    assert await contents(await reopen()) == {b"a": b"1"}


async def test_another_loop_is_refused(store: Store) -> None:
    def elsewhere(use: Callable[[Store], Awaitable[None]]) -> None:
        async def main() -> None:
            with pytest.raises(StoreError, match="loop"):
                await use(store)

        asyncio.run(main())

    for use in (read, transact):
        await asyncio.to_thread(elsewhere, use)
    assert await contents(store) == {}


async def test_the_prefix_stays(store: Store, reopen: Reopen) -> None:
    prefix = await store.prefix()
    assert prefix
    assert await store.prefix() == prefix
    assert await (await reopen()).prefix() == prefix


def test_the_address_names_the_store(closed_store: Store, store_kind: StoreKind, tmp_path: Path) -> None:
    assert closed_store.address == store_kind.address_in(tmp_path)


@pytest.mark.parametrize("address", ["", "lmdb", "lmdb:", "memory", "memory:x", "redis:host", "/tmp/data"])
def test_an_address_that_names_no_store_is_refused(address: str) -> None:
    with pytest.raises(StoreError, match=r"names no store; use lmdb:PATH, sqlite:PATH, memory: or fdb:"):
        open_address(address, Settings(), Sources(0))


@pytest.mark.parametrize("slashes", ["//", "///", "////"])
def test_a_url_is_not_taken_for_a_path_from_the_root_on(slashes: str) -> None:
    with pytest.raises(InvalidAddress, match=r"is a URL; write sqlite:app.db, or sqlite:/app.db from the root on"):
        open_address(f"sqlite:{slashes}app.db", Settings(), Sources(0))
