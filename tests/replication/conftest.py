"""The servers that most tests replicate between."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.replication.partners import PouchServer, couch_database, pouch_server
from tests.replication.server import Server


@pytest.fixture
async def source() -> AsyncIterator[Server]:
    """The project's own server, with an empty database "db"."""
    async with Server() as server:
        server.database("db")
        yield server


@pytest.fixture
async def target() -> AsyncIterator[Server]:
    """Another one."""
    async with Server() as server:
        server.database("db")
        yield server


@pytest.fixture
async def small() -> AsyncIterator[Server]:
    """The project's own server without a database."""
    async with Server() as server:
        yield server


@pytest.fixture
async def pouch(tmp_path: Path) -> AsyncIterator[PouchServer]:
    """A pouchdb-server of the test's own, where there is one."""
    async with pouch_server(tmp_path / "pouch") as server:
        yield server


@pytest.fixture
async def couch() -> AsyncIterator[str]:
    """The address of a new database in CouchDB, where there is one."""
    async with couch_database() as url:
        yield url
