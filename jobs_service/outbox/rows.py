"""`enqueue`: one INSERT in the application's own transaction; and the job that a row of the table stands for."""

from __future__ import annotations

import functools
from collections.abc import Coroutine, Mapping
from typing import Any, Final, NamedTuple, overload

from jobs_service import json_data, names
from jobs_service.arguments import IfExists, exact_int, exact_number
from jobs_service.durations import Duration
from jobs_service.errors import InvalidJob, JobTooLarge, a_kind_of, shown
from jobs_service.layer.creation import handler_of, wanted
from jobs_service.layer.keyspace import pack_id
from jobs_service.model import UNSET, JobId, Priority
from jobs_service.model.enqueueing import UNIQUE, Enqueueable, How, When
from jobs_service.outbox.connections import AsyncConnection, first_value
from jobs_service.outbox.tables import RULES
from jobs_service.sources import Sources

_INSERT: Final = (
    "insert into jobs_service_outbox"
    " (token, type, id, data, priority, run_at, if_exists, max_attempts, time_limit, unique_for)"
    " values (:token, :type, :id, :data, :priority, <from_seconds :run_at>, :if_exists, :max_attempts,"
    " cast(:time_limit as <number>), cast(:unique_for as <number>)) <notify>"
)
_TOKEN_BYTES: Final = 16
_LARGEST: Final = 1 << 63

MOST_CHARACTERS: Final = 1_000_000
"""Longer data are not read: no job takes a tenth of that."""


# Into the table


@overload
def enqueue(
    connection: AsyncConnection, handler: Any, args: Any = UNSET, **options: Any
) -> Coroutine[Any, Any, str]: ...


@overload
def enqueue(connection: object, handler: Any, args: Any = UNSET, **options: Any) -> str: ...


def enqueue(
    connection: Any,
    handler: Any,
    args: Any = UNSET,
    *,
    id: JobId | None = None,
    priority: Priority = 0,
    run_at: When | None = None,
    delay: Duration | None = None,
    unique: str | bool | None = None,
    max_attempts: int | None = None,
    time_limit: Duration | None = None,
    if_exists: IfExists | None = None,
    unique_for: Duration | None = None,
    **arguments: Any,
) -> Any:
    """Add a job in a transaction of the application's own database: one INSERT, which is rolled back with the rest.

    A relay moves it into the store once the transaction is committed.

    Args:
        connection: a connection of sqlite3, aiosqlite, psycopg, psycopg2, asyncpg or Django (`django.db.connection`),
            or a connection or session of SQLAlchemy; to PostgreSQL or SQLite.
        handler, args, arguments: as for JobsService.enqueue.
        id, run_at, delay, unique, max_attempts, time_limit, unique_for: as for JobsService.enqueue.
        priority: an integer; lower runs first.
        if_exists: as for JobsService.enqueue; where it is "error", and the job exists when the row is moved, the row is
            set aside.

    Returns:
        The id of the job, as text; of an asynchronous library, a coroutine of it.

    Raises:
        InvalidJob: arguments that do not fit the handler, or are invalid for a job.
        JobTooLarge: more than any store takes.
        InvalidSettings: a connection of another kind, or to another database.
        JobsError: the tables are missing.
    """
    how = How(id, priority, run_at, delay, unique, max_attempts, time_limit, if_exists, unique_for)
    values = _values(handler, args, arguments, how)
    token = values["id"] or values["token"]
    answer = first_value(connection, _INSERT, values)
    return _after(answer, token) if hasattr(answer, "__await__") else token


@functools.cache
def own_sources() -> Sources:
    """Return time and randomness: making them takes longer than the rest of a call."""
    return Sources()


async def _after(answer: Any, id: str) -> str:
    await answer
    return id


def _values(handler: Any, args: Any, arguments: dict[str, Any], how: How) -> dict[str, Any]:
    """Return the columns of a row by name, checked."""
    sources = own_sources()
    resolved = handler_of(handler, {})
    found = wanted(resolved, args, arguments, how, sources)
    spec, number = found.spec, exact_int(how.priority)
    if number is None or not -_LARGEST <= number < _LARGEST:
        refused = f"priority {shown(how.priority)}: the outbox takes integers of 8 bytes"
        raise InvalidJob(refused).about(resolved.type, found.id)
    pack_id(found.id)
    is_named = how.id is not None or found.rule == "unique"
    most, seconds = (None, None) if spec.limits is None else json_data.decode(spec.limits)[:2]
    return {
        "token": sources.token(_TOKEN_BYTES).hex() if is_named else found.id,
        "type": names.shown(resolved.type),
        "id": names.shown(found.id) if is_named else None,
        "data": spec.json.decode() if spec.json else None,
        "priority": number,
        "run_at": spec.run_at,
        "if_exists": found.rule,
        "max_attempts": most,
        "time_limit": seconds,
        "unique_for": spec.unique_for or None,
    }


# From the table


class Row(NamedTuple):
    """A row of the table as it was read; SQLite may have any kind of value in any column.

    Attributes:
        seq: its place in the order.
        token: its random identity.
        data: the job's JSON; None also if it is too long to be read.
        length: the characters of the data.
        type, id, priority, run_at, if_exists, max_attempts, time_limit, unique_for: as in the table, times in seconds
            since the epoch.
    """

    seq: int
    token: Any
    type: Any
    id: Any
    data: Any
    length: Any
    priority: Any
    run_at: Any
    if_exists: Any
    max_attempts: Any
    time_limit: Any
    unique_for: Any


COLUMNS: Final = (
    f"seq, token, type, id, case when length(data) <= {MOST_CHARACTERS} then data end, length(data), priority,"
    " <seconds run_at>, if_exists, max_attempts, time_limit, unique_for"
)


class WantedRow(NamedTuple):
    """A row whose values are those of a job, as far as that is known without the store.

    Attributes:
        seq, token: of the row.
        type: of the job, as text.
        args: its data.
        options: of its `enqueue`.
        size: characters of its data.
    """

    seq: int
    token: str
    type: str
    args: Any
    options: dict[str, Any]
    size: int


def wanted_row(row: Row) -> WantedRow:
    """Return the job that a row stands for.

    Raises:
        InvalidJob, JobTooLarge: the row cannot be a job; the message says why.
    """
    data = row.data
    if data is None and row.length:
        raise JobTooLarge(f"its data have {row.length} characters, which no job takes")
    options = {
        "priority": row.priority,
        "run_at": _seconds("run_at", row.run_at),
        "max_attempts": row.max_attempts,
        "time_limit": _seconds("time_limit", row.time_limit),
    }
    if exact_int(row.priority) is None:
        raise InvalidJob(f"priority {shown(row.priority)}: {a_kind_of(row.priority)}; the column takes integers")
    if row.if_exists not in RULES:
        raise InvalidJob(f"if_exists {shown(row.if_exists)}: allowed are {', '.join(map(repr, RULES))}")
    id = row.token if row.id is None else _parsed("id", row.id)
    if row.if_exists == "unique":
        if not isinstance(id, str) or not id.startswith(UNIQUE) or id == UNIQUE:
            raise InvalidJob(f"id {shown(id)}: with if_exists 'unique' it begins with {UNIQUE!r}, and a key follows")
        options |= {"unique": id.removeprefix(UNIQUE), "unique_for": _seconds("unique_for", row.unique_for)}
    else:
        # No other row has the token: a job of that id is this row's.
        options |= {"id": id, "if_exists": "ignore" if row.id is None else row.if_exists}
    args = UNSET if data is None else _decoded(data)
    return WantedRow(row.seq, _text("token", row.token), _text("type", row.type), args, options, len(data or ""))


class RowHandlers(dict[str, Enqueueable[Any, Any]]):
    """Handlers by the texts of types, each made once for many rows.

    Args:
        known: the handlers of this program, by packed type.
    """

    def __init__(self, known: Mapping[bytes, Enqueueable[Any, Any]]) -> None:
        super().__init__()
        self._known = known

    def __missing__(self, type: str) -> Enqueueable[Any, Any]:
        handler = self[type] = handler_of(_parsed("type", type), self._known)
        return handler


def _text(column: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidJob(f"{column} {shown(value)}: {a_kind_of(value)}; the column takes text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidJob(f"{column} {shown(value)}: not UTF-8") from None
    return value


def _parsed(column: str, value: Any) -> Any:
    try:
        return names.parsed(_text(column, value))
    except ValueError as error:
        raise InvalidJob(f"{column}: {error}") from None


def _seconds(column: str, value: Any) -> float | None:
    try:
        number = exact_number(value)
    except OverflowError:
        number = None
    if number is None and value is not None:
        raise InvalidJob(f"{column} {shown(value)}: {a_kind_of(value)}; allowed are numbers")
    return number


def _decoded(data: Any) -> Any:
    try:
        return json_data.parsed(_text("data", data))
    except ValueError as error:
        raise InvalidJob(f"data: {error}") from None
