"""Full embedded stores: what they refuse, what they still take, and what makes room."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from jobs_service.errors import StoreError, StoreFull
from jobs_service.store import Store, Transaction
from jobs_service.store.base import TransactionFunction
from tests.contract.support import END, contents, patience
from tests.store.lmdb.test_store import filling, opened


async def fill(store: Store, size: int) -> list[bytes]:
    """Write values of so many bytes until the store is full, and return the names of those that it took."""
    names: list[bytes] = []

    async def add() -> None:
        while True:
            name = b"%04d" % len(names)
            await store.transact(filling(name, size))
            names.append(name)

    with pytest.raises(StoreFull, match=r"^[^\n]*JOBS_SERVICE_LMDB_MAP_SIZE[^\n]*$"):
        await add()
    return names


async def names_in(store: Store) -> list[bytes]:
    """Return the names under which something was filled in."""
    return sorted({key.split(b"/")[0] for key in await contents(store)})


async def test_a_full_store_loses_nothing_and_goes_on_reading(path: Path) -> None:
    async with opened(path, lmdb_map_size=1 << 20) as store:
        names = await fill(store, 20_000)
        assert len(names) > 10
        assert await names_in(store) == names
        for _ in range(3):
            with pytest.raises(StoreFull):
                await store.transact(filling(b"more", 20_000))
            assert await names_in(store) == names
    async with opened(path, lmdb_map_size=1 << 20) as store:
        assert await names_in(store) == names


async def test_a_full_store_takes_more_when_something_was_removed(path: Path) -> None:
    async with opened(path, lmdb_map_size=1 << 20) as store:
        names = await fill(store, 20_000)
        for name in names[: len(names) // 2]:
            await store.transact(clearing(name))
        kept = names[len(names) // 2 :]
        assert await names_in(store) == kept
        await store.transact(filling(b"more", 20_000))
        assert await names_in(store) == [*kept, b"more"]


def clearing(name: bytes) -> TransactionFunction[None]:
    """Return a function that clears what was filled in under a name."""

    async def function(tr: Transaction) -> None:
        tr.clear_range(name + b"/", name + b"0")

    return function


async def test_who_clears_nothing_in_a_full_store_may_not_add_to_it(path: Path) -> None:
    async def clear_and_fill(tr: Transaction) -> None:
        tr.clear_range(b"nobody/", b"nobody0")
        await filling(b"more", 20_000)(tr)

    async with opened(path, lmdb_map_size=1 << 20) as store:
        names = await fill(store, 20_000)
        with pytest.raises(StoreFull):
            await store.transact(clear_and_fill)
        assert await names_in(store) == names


async def test_a_full_store_can_be_emptied_in_one_transaction(path: Path) -> None:
    async with opened(path, lmdb_map_size=1 << 20) as store:
        await fill(store, 20_000)

        async def clear(tr: Transaction) -> None:
            tr.clear_range(b"", END)

        await store.transact(clear)
        assert await contents(store) == {}
        assert await fill(store, 20_000)


async def test_only_those_who_ask_for_too_much_are_refused(path: Path) -> None:
    """They are in one group with others, whose transactions commit."""
    async with opened(path, lmdb_map_size=1 << 20) as store:
        sizes = [2000, 3_000_000, 2000, 2000, 3_000_000, 2000]
        results = await asyncio.gather(
            *[store.transact(filling(b"%d" % place, size)) for place, size in enumerate(sizes)],
            return_exceptions=True,
        )
        assert [type(result) for result in results] == [StoreFull if size > 2000 else type(None) for size in sizes]
        assert await names_in(store) == [b"0", b"2", b"3", b"5"]


async def test_a_full_store_takes_more_when_opened_with_a_larger_map(path: Path) -> None:
    async with opened(path, lmdb_map_size=1 << 20) as store:
        names = await fill(store, 20_000)
    async with opened(path, lmdb_map_size=1 << 22) as store:
        await store.transact(filling(b"more", 20_000))
        assert await names_in(store) == [*names, b"more"]


async def test_watches_of_a_transaction_that_does_not_fit_are_lost(path: Path) -> None:
    async with opened(path, lmdb_map_size=1 << 20) as store:
        watches = []

        async def function(tr: Transaction) -> None:
            watches.append(tr.watch(b"a"))
            await filling(b"more", 3_000_000)(tr)

        with pytest.raises(StoreFull):
            await store.transact(function)
        assert watches
        for watch in watches:
            async with patience():
                with pytest.raises(StoreError):
                    await watch.wait()
