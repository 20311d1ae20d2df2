"""What the tests of the SQLite store have in common."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from jobs_service.settings import Settings
from jobs_service.store.sqlite import SqliteStore
from tests.store.sqlite.application import Application


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a store may be made."""
    return tmp_path / "app.db"


@pytest.fixture
def application(path: Path) -> Iterator[Application]:
    """The application's own connection to the file of the store."""
    with Application(path) as made:
        yield made


@asynccontextmanager
async def opened(path: Path, **settings: Any) -> AsyncIterator[SqliteStore]:
    """Open a store, and close it."""
    store = SqliteStore(path, settings=Settings(**settings))
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    """An open, empty store."""
    async with opened(path) as made:
        yield made
