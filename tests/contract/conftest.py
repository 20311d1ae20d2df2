"""The store of a test's own, once for every kind of store there is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from jobs_service.store import Store
from tests.store.conftest import no_thread_is_left as no_thread_is_left  # here, too, for every test
from tests.stores import EVERY_KIND, StoreKind, one_of

Reopen = Callable[[], Awaitable[Store]]


store_kind = one_of(EVERY_KIND)


@pytest.fixture
async def closed_store(store_kind: StoreKind, tmp_path: Path) -> Store:
    """A store that is not open yet."""
    return store_kind.make_bare(tmp_path)


@pytest.fixture
async def store(closed_store: Store) -> AsyncIterator[Store]:
    """An open, empty store."""
    await closed_store.open()
    yield closed_store
    await closed_store.close()


@pytest.fixture
async def reopen(store_kind: StoreKind, store: Store, tmp_path: Path) -> AsyncIterator[Reopen]:
    """A function that closes the store and opens it again: from its address, unless it lives in its object only."""
    opened: list[Store] = [store]

    async def again() -> Store:
        await opened[-1].close()
        if store_kind.persistent:
            opened.append(store_kind.make_bare(tmp_path))
        await opened[-1].open()
        return opened[-1]

    yield again
    await opened[-1].close()
