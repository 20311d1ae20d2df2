"""An application with tables of its own in the file of a store."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from jobs_service.store import Transaction
from jobs_service.store.base import TransactionFunction

TABLES = """
create table if not exists users (id integer primary key, mail text not null unique);
create table if not exists posts (user integer not null references users (id) deferrable initially deferred);
"""


class Application:
    """Its connection: a context manager.

    Args:
        path: path of the file.
    """

    def __init__(self, path: Path) -> None:
        self.connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self.connection.executescript(TABLES)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.connection.close()

    def rows(self, statement: str) -> list[Any]:
        """Run a statement and return its rows."""
        return self.connection.execute(statement).fetchall()

    @property
    def mails(self) -> list[str]:
        """The mails of the users, in order."""
        return [mail for (mail,) in self.rows("select mail from users order by mail")]


def signing_up(mail: str, key: bytes | None = None) -> TransactionFunction[list[tuple[Any, ...]]]:
    """Return a function that inserts a user and sets a key of the same name."""

    async def function(tr: Transaction) -> list[tuple[Any, ...]]:
        tr.set(mail.encode() if key is None else key, b"1")
        return await tr.sql("insert into users (mail) values (?) returning id", mail)

    return function
