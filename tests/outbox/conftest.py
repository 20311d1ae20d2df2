"""Databases with the tables of the outbox, and a service beside them."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest

from jobs_service import JobsService, Settings, outbox
from tests.outbox.server import Server, programs
from tests.outbox.support import Place


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A PostgreSQL server."""
    bin = programs()
    if bin is None:
        pytest.skip("PostgreSQL is not installed (on Debian: apt-get install postgresql)")
    server = Server(bin)
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture
def postgres(server: Server) -> Place:
    """A database on PostgreSQL."""
    url = server.make_database()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(outbox.schema("postgresql"))
    return Place(url)


@pytest.fixture
def sqlite(tmp_path: Path) -> Place:
    """A SQLite file."""
    connection = sqlite3.connect(tmp_path / "app.db")
    connection.executescript(outbox.schema("sqlite"))
    connection.close()
    return Place(f"sqlite:{tmp_path / 'app.db'}")


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest) -> Place:
    """A database of each kind."""
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Place)
    return found


@pytest.fixture
async def jobs() -> AsyncIterator[JobsService]:
    """A service with a type "receipt"."""
    async with JobsService("memory:", settings=Settings(notify_holdoff=0.01)) as jobs:
        await jobs.set_type_timeout("receipt", 60)
        yield jobs
