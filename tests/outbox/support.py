"""Databases as tests use them: by plain statements, and through each library."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from typing import Any

import psycopg

from jobs_service import JobsService, outbox
from tests.service.support import eventually


@dataclass(frozen=True)
class Place:
    """A database with the tables of the outbox.

    Attributes:
        url: its address.
    """

    url: str

    @property
    def is_sqlite(self) -> bool:
        """Whether it is a SQLite file."""
        return self.url.startswith("sqlite:")

    @property
    def path(self) -> str:
        """The SQLite file."""
        return self.url.removeprefix("sqlite:")

    def connect(self) -> Any:
        """Return a connection of the plainest library, which commits each statement at once."""
        if self.is_sqlite:
            return sqlite3.connect(self.path, timeout=60, isolation_level=None)
        return psycopg.connect(self.url, autocommit=True)

    def run(self, sql: str, *values: Any) -> list[Any]:
        """Execute a statement, with `?` for each value; return its rows."""
        with closing(self.connect()) as connection:
            cursor = connection.execute(sql if self.is_sqlite else sql.replace("?", "%s"), values)
            return [] if cursor.description is None else [tuple(row) for row in cursor.fetchall()]

    def insert(self, **columns: Any) -> int:
        """Insert a row into the outbox as a program in any language does; return its number."""
        names, marks = ", ".join(columns), ", ".join("?" for _ in columns)
        sql = f"insert into jobs_service_outbox ({names}) values ({marks}) returning seq"
        [[seq]] = self.run(sql, *columns.values())
        return int(seq)

    def enqueue(self, *args: Any, **options: Any) -> str:
        """Call `outbox.enqueue` in a transaction of its own."""
        with closing(self.connect()) as connection:
            id: str = outbox.enqueue(connection, *args, **options)
            return id

    def enqueue_many(self, every: Iterable[Any]) -> None:
        """Add a receipt for each of many arguments, in one transaction."""
        with closing(self.connect()) as connection:
            connection.execute("begin")
            for args in every:
                outbox.enqueue(connection, "receipt", args)
            connection.execute("commit")

    def rows(self) -> list[Any]:
        """Return type, id, data and reason of all rows."""
        return self.run("select type, id, data, reason from jobs_service_outbox order by seq")

    async def until_empty(self) -> None:
        """Return when no row waits to be moved."""
        with closing(self.connect()) as connection:

            async def is_empty() -> bool:
                count = "select count(*) from jobs_service_outbox where reason is null"
                return bool(connection.execute(count).fetchone() == (0,))

            await eventually(is_empty)


@asynccontextmanager
async def relaying(jobs: JobsService, *urls: str) -> AsyncIterator[None]:
    """Run relays while the block runs."""
    tasks = [asyncio.create_task(outbox.relay(jobs, url)) for url in urls]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(each, asyncio.CancelledError) for each in ended), ended
