"""One statement on an application's own connection, whichever library it is of, inside the application's transaction.

A library is known by the module of the connection's class: none is imported.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final, Protocol

from jobs_service.errors import InvalidSettings, JobsError, a_kind_of, in_one_line, shown
from jobs_service.outbox.tables import POSTGRESQL, SQLITE, statement

_NEEDED: Final = {
    "sqlite3": "cursor",
    "aiosqlite": "execute_fetchall",
    "psycopg": "cursor",
    "psycopg2": "cursor",
    "asyncpg": "is_in_transaction",  # which a pool has not: on it, each statement is a transaction of its own
    "sqlalchemy": "execute",
    "django": "vendor",
}
"""The libraries, and an attribute of their connections that no cursor, pool or engine has."""

_BEGUN: Final = {
    "sqlite3": "connection.execute('begin')",
    "aiosqlite": "await connection.execute('begin')",
    "psycopg": "with connection.transaction()",
    "psycopg2": "connection.autocommit = False",
    "asyncpg": "async with connection.transaction()",
    "django": "with transaction.atomic()",
}
"""Code that begins a transaction where each statement would be one of its own, for a message."""

_LONGEST_REASON: Final = 200
_NO_TABLE: Final = "42P01"
"""PostgreSQL's SQLSTATE of a table that is not there."""


class AsyncConnection(Protocol):
    """A connection or session whose `execute` is awaited."""

    def execute(self, statement: Any, /, *args: Any, **options: Any) -> Awaitable[Any]: ...


def first_value(connection: Any, sql: str, values: Mapping[str, Any]) -> Any:
    """Execute a statement that returns at most one row, and return its first value; None without a row.

    Args:
        connection: of sqlite3, aiosqlite, psycopg, psycopg2, asyncpg or Django, or a connection or session of
            SQLAlchemy.
        sql, values: as for `tables.statement`.

    Returns:
        The value; of an asynchronous library, an awaitable of it.

    Raises:
        InvalidSettings: a connection of another kind.
        JobsError: the tables are not there.
    """
    library = _library(connection)
    with _explained():
        if library == "sqlalchemy":
            return _of_sqlalchemy(connection, sql, values)
        if library == "asyncpg":
            text, parameters = statement(sql, POSTGRESQL, "numbered", values)
            return _awaited(connection.fetch(text, *parameters), _first_of)
        if library == "aiosqlite":
            text, parameters = statement(sql, SQLITE, "question", values)
            return _awaited(connection.execute_fetchall(text, parameters), _first_of)
        if library == "psycopg":
            text, parameters = statement(sql, POSTGRESQL, "format", values)
            cursor = connection.cursor(row_factory=import_module("psycopg.rows").tuple_row)
            executed = cursor.execute(text, parameters)
            return _fetched(executed) if inspect.isawaitable(executed) else _value(cursor.fetchone())
        if library == "sqlite3":
            text, parameters = statement(sql, SQLITE, "question", values)
            cursor = connection.cursor()
            cursor.row_factory = None
            return _value(cursor.execute(text, parameters).fetchone())
        dialect = POSTGRESQL if library == "psycopg2" else _known(connection.vendor)
        text, parameters = statement(sql, dialect, "format", values)
        with connection.cursor() as cursor:
            cursor.execute(text, parameters)
            return _value(cursor.fetchone())


def _library(connection: Any) -> str:
    for each in type(connection).__mro__:
        root = each.__module__.partition(".")[0]
        if root in _NEEDED and hasattr(connection, _NEEDED[root]):
            return root
    raise InvalidSettings(
        f"{shown(connection)}: {a_kind_of(connection)}; allowed are connections of sqlite3, aiosqlite, psycopg, "
        "psycopg2, asyncpg and Django, and connections and sessions of SQLAlchemy; of a pool or engine take a "
        "connection, and begin a transaction on it"
    )


def check_transaction(connection: Any) -> None:
    """Refuse a connection on which the next statement would be committed by itself.

    Args:
        connection: as for `first_value`. One of SQLAlchemy is taken as it is: it begins transactions by itself.

    Raises:
        InvalidSettings: no transaction has begun there, and none begins with the next statement.
    """
    library = _library(connection)
    if library == "asyncpg":
        alone = not connection.is_in_transaction()
    elif library == "django":
        alone = not connection.in_atomic_block and connection.get_autocommit()
    elif library in ("psycopg", "psycopg2"):
        alone = connection.autocommit and not connection.info.transaction_status
    elif library in ("sqlite3", "aiosqlite"):
        autocommit = getattr(connection, "autocommit", None)  # True, False or, before Python 3.12 always, as of old
        commits = autocommit is True or (autocommit is not False and connection.isolation_level is None)
        alone = commits and not connection.in_transaction
    else:
        return
    if alone:
        raise InvalidSettings(
            "no transaction has begun on this connection, so that the note of an effect and the effect would be two "
            f"commits; begin one: {_BEGUN[library]}"
        )


def _of_sqlalchemy(connection: Any, sql: str, values: Mapping[str, Any]) -> Any:
    bound = connection if hasattr(connection, "dialect") else connection.get_bind()
    text, parameters = statement(sql, _known(bound.dialect.name), "named", values)
    answer = connection.execute(import_module("sqlalchemy").text(text), parameters)
    return _awaited(answer, _first_row) if inspect.isawaitable(answer) else _first_row(answer)


def _known(dialect: str) -> str:
    if dialect not in (POSTGRESQL, SQLITE):
        raise InvalidSettings(f"a connection to {shown(dialect)}: the outbox is for PostgreSQL and SQLite")
    return dialect


async def _awaited(answer: Awaitable[Any], value: Callable[[Any], Any]) -> Any:
    with _explained():
        return value(await answer)


async def _fetched(executed: Awaitable[Any]) -> Any:
    with _explained():
        return _value(await (await executed).fetchone())


def _first_row(result: Any) -> Any:
    return _value(result.first())


def _first_of(rows: Any) -> Any:
    return _value(next(iter(rows), None))


def _value(row: Any) -> Any:
    # An application's connection may have dictionaries for rows.
    return None if row is None else next(iter(row.values() if isinstance(row, Mapping) else row))


@contextmanager
def _explained() -> Iterator[None]:
    """Say of an error about a missing table how the tables are made."""
    try:
        yield
    except Exception as error:
        if not is_about_missing_table(error):
            raise
        raise missing_tables(error) from error


def missing_tables(error: BaseException) -> JobsError:
    """Return the error for missing tables, with the words of the database's own."""
    why = in_one_line(str(error), _LONGEST_REASON)
    return JobsError(f"the tables of the outbox are missing; jobs-service outbox init URL makes them: {why}")


def is_about_missing_table(error: BaseException) -> bool:
    """Whether a table of the outbox is missing, according to an error of any of the libraries."""
    each: BaseException | None = error
    while each is not None:
        state = getattr(each, "sqlstate", None) or getattr(each, "pgcode", None)
        if state == _NO_TABLE or "no such table: jobs_service_" in str(each):
            return True
        each = getattr(each, "orig", None) or each.__cause__
    return False
