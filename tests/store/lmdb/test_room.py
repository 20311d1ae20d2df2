"""Full embedded stores: what they refuse, what they still take, and what makes room."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from jobs_service.errors import StoreFull
from jobs_service.store import Store, Transaction
from tests.contract.support import END, contents
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
