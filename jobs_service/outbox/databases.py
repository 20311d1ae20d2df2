"""Databases with an outbox, as the relay and the command line use them: PostgreSQL by psycopg, and SQLite files."""

from __future__ import annotations

import abc
import asyncio
import fcntl
import json
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar
from urllib.parse import urlsplit

from jobs_service.errors import InvalidSettings, JobsError, in_one_line, shown
from jobs_service.outbox.connections import is_about_missing_table, missing_tables
from jobs_service.outbox.rows import COLUMNS, Row
from jobs_service.outbox.tables import CHANNEL, POSTGRESQL, SQLITE, VERSION, schema, statement

if TYPE_CHECKING:
    import psycopg

T = TypeVar("T")

OncePlace: TypeAlias = tuple[str, str, str]
"""Type, id and key of a row of jobs_service_once."""

POLL: Final = 1.0
"""Seconds after which a relay looks for rows that nobody has told it of."""

_LOOK_EVERY: Final = 0.05
"""Seconds between two looks at a SQLite file's number of changes."""
_BUSY: Final = 5.0
"""Seconds to wait for a lock of another connection to a SQLite file."""
_CONNECT_WITHIN: Final = 10
_LONGEST_REASON: Final = 500
_GONE: Final = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
"""After 25 s without an answer each side takes the other for gone."""
_DURABLE: Final = (
    "select set_config('synchronous_commit', 'on', false) where current_setting('synchronous_commit') = 'off'"
)


class DatabaseAway(JobsError):
    """The database does not answer, or its tables are not those of this version; the message says which."""


class Lag(NamedTuple):
    """The rows of an outbox.

    Attributes:
        rows: those that wait to be moved.
        oldest: seconds for which the first of them has waited; None without any.
        set_aside: those that cannot be a job.
    """

    rows: int
    oldest: float | None
    set_aside: int


class SetAside(NamedTuple):
    """A row that cannot be a job.

    Attributes:
        seq: its number.
        type: of the job.
        id: of the job; None for the row's own.
        reason: why it cannot be one.
    """

    seq: int
    type: str
    id: str | None
    reason: str


class Session(abc.ABC):
    """A connection to a database with an outbox. Every statement is a transaction of its own."""

    @abc.abstractmethod
    async def run(self, sql: str, **values: Any) -> list[Any]:
        """Execute a statement of `tables.statement`, and return its rows. A list is a value for `<among>`."""

    @abc.abstractmethod
    async def make_tables(self) -> None:
        """Make the tables that are missing."""

    @abc.abstractmethod
    async def lock(self, outbox: str) -> bool:
        """Try to become the only relay of this outbox, as long as the session lasts; return whether it is."""

    @abc.abstractmethod
    async def wait(self) -> None:
        """Return when there may be new rows, after POLL at the latest."""

    async def outbox(self) -> str:
        """Return the identity of this outbox.

        Raises:
            DatabaseAway: the tables are of another version.
        """
        rows = await self.run("select version, id from jobs_service_tables")
        if len(rows) != 1 or rows[0][0] != VERSION:
            versions = ", ".join(str(version) for version, _ in rows) or "none"
            raise DatabaseAway(f"its tables are of version {versions}; this program has version {VERSION}")
        return str(rows[0][1])

    async def rows(self, limit: int) -> list[Row]:
        """Return the first rows that wait to be moved."""
        sql = f"select {COLUMNS} from jobs_service_outbox where reason is null order by seq limit :most"
        return [Row(*row) for row in await self.run(sql, most=limit)]

    async def remove(self, seqs: Sequence[int]) -> None:
        """Remove rows by their numbers."""
        if seqs:
            await self.run("delete from jobs_service_outbox where seq <among :seqs>", seqs=[*seqs])

    async def remove_moved(self, tokens: Sequence[str]) -> None:
        """Remove rows by their tokens: a search through the whole table."""
        if tokens:
            await self.run("delete from jobs_service_outbox where token <among :tokens>", tokens=[*tokens])

    async def set_aside(self, seq: int, reason: str) -> None:
        """Note why a row cannot be a job."""
        text = in_one_line(reason, _LONGEST_REASON)
        await self.run("update jobs_service_outbox set reason = :reason where seq = :seq", reason=text, seq=seq)

    async def lag(self) -> Lag:
        """Count the rows."""
        # By the index of those that wait, and by counting: a reason stands behind the data, however long these are.
        table = "from jobs_service_outbox"
        waiting = f"{table} where reason is null"
        first = f"select <age created_at> {waiting} order by seq limit 1"
        numbers = f"select (select count(*) {waiting}) as waiting, (select count(*) {table}) as number"
        sql = f"select waiting, ({first}), number - waiting from ({numbers}) as counted"
        [[rows, oldest, aside]] = await self.run(sql)
        return Lag(rows, None if oldest is None else max(float(oldest), 0.0), aside)

    async def rows_set_aside(self, limit: int) -> list[SetAside]:
        """Return the first rows that cannot be jobs."""
        sql = "select seq, type, id, reason from jobs_service_outbox where reason is not null order by seq limit :most"
        return [SetAside(seq, *map(_as_text, values)) for seq, *values in await self.run(sql, most=limit)]

    async def retry(self, seqs: Iterable[int] | None = None) -> int:
        """Have rows that were set aside tried again, all for None; return their number."""
        sql = "update jobs_service_outbox set reason = null where reason is not null"
        if seqs is None:
            return len(await self.run(f"{sql} returning seq"))
        return len(await self.run(f"{sql} and seq <among :seqs> returning seq", seqs=[*seqs]))

    async def types_set_aside(self, reason: str) -> list[str]:
        """Return the types of the rows that were set aside for a reason that begins with some words."""
        sql = "select distinct type from jobs_service_outbox where reason like :like"
        return [type for (type,) in await self.run(sql, like=f"{reason}%")]

    async def retry_types(self, types: Sequence[str], reason: str) -> None:
        """Have the rows of types tried again that were set aside for such a reason."""
        sql = "update jobs_service_outbox set reason = null where reason like :like and type <among :types>"
        await self.run(sql, like=f"{reason}%", types=[*types])

    async def noted_before(self, seconds: float, after: OncePlace, limit: int) -> list[OncePlace]:
        """Return jobs whose effects were noted so many seconds ago or earlier, in order, after a given one."""
        sql = (
            "select type, id, key from jobs_service_once where <age at> >= :seconds"
            " and (type, id, key) > (:type, :id, :key) order by type, id, key limit :most"
        )
        type, id, key = after
        return [tuple(row) for row in await self.run(sql, seconds=seconds, type=type, id=id, key=key, most=limit)]

    async def forget(self, places: Sequence[OncePlace], seconds: float) -> None:
        """Remove the notes of effects, but those that are newer."""
        if not places:
            return
        values = {
            f"{name}{number}": each
            for number, place in enumerate(places)
            for name, each in zip("tik", place, strict=True)
        }
        among = ", ".join(f"(:t{number}, :i{number}, :k{number})" for number in range(len(places)))
        sql = f"delete from jobs_service_once where (type, id, key) in (values {among}) and <age at> >= :seconds"
        await self.run(sql, seconds=seconds, **values)


class Database(abc.ABC):
    """A database, known by its address.

    Attributes:
        name: its address without user and password.
    """

    name: str

    @abc.abstractmethod
    def session(self) -> AbstractAsyncContextManager[Session]:
        """Return a block with a connection. Errors of the database come out of it as DatabaseAway."""


def database_at(url: str) -> Database:
    """Return the database at an address.

    Args:
        url: `postgresql://...` as libpq takes it, or `sqlite:PATH`.

    Raises:
        InvalidSettings: another address, or the driver is not installed.
    """
    scheme, colon, rest = url.partition(":")
    kind = scheme.partition("+")[0]
    if colon and kind in (POSTGRESQL, "postgres"):
        return _PostgresDatabase(f"{kind}:{rest}")
    if colon and kind == SQLITE and rest.strip("/"):
        # SQLAlchemy and Django write sqlite:///app.db, and sqlite:////var/app.db from the root on.
        return _SqliteDatabase(rest[3:] if rest.startswith("///") else rest)
    raise InvalidSettings(f"outbox {shown(url)}: allowed are postgresql://USER@HOST/DATABASE and sqlite:PATH")


# PostgreSQL


class _PostgresDatabase(Database):
    def __init__(self, url: str) -> None:
        try:
            import psycopg
            from psycopg.conninfo import conninfo_to_dict
        except ImportError:
            raise InvalidSettings(
                "an outbox on PostgreSQL needs psycopg: pip install 'jobs-service[postgres]'"
            ) from None
        try:
            conninfo_to_dict(url)
            split = urlsplit(url)
        except (psycopg.Error, ValueError) as error:
            raise InvalidSettings(f"outbox: {in_one_line(str(error), 200)}") from None
        self._url = url
        self.name = f"postgresql://{split.netloc.rpartition('@')[2]}{split.path}"

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        import psycopg
        from psycopg.adapt import Loader

        class AnyText(Loader):
            """Text of a database without an encoding: bytes that are no UTF-8 must not keep rows from being read."""

            def load(self, data: Any) -> str:
                return bytes(data).decode(errors="surrogateescape")

        options: dict[str, Any] = {
            "connect_timeout": _CONNECT_WITHIN,
            "autocommit": True,
            "client_encoding": "UTF8",
            **_GONE,
        }
        with _away((psycopg.Error, OSError)):
            async with await psycopg.AsyncConnection.connect(self._url, **options) as connection:
                session = _PostgresSession(connection)
                if connection.info.parameter_status("server_encoding") == "SQL_ASCII":
                    await connection.execute("set client_encoding = 'SQL_ASCII'")
                    connection.adapters.register_loader("text", AnyText)
                # A row that was removed must stay so: by then nobody knows which rows were moved before.
                await connection.execute(_DURABLE)
                # The server frees the lock of a relay whose machine is gone as soon.
                for name, value in _GONE.items():
                    with suppress(psycopg.errors.ObjectNotInPrerequisiteState, psycopg.errors.InvalidParameterValue):
                        await connection.execute(f"set tcp_{name} = {value}")
                yield session


class _PostgresSession(Session):
    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection

    async def run(self, sql: str, **values: Any) -> list[Any]:
        text, parameters = statement(sql, POSTGRESQL, "format", values)
        cursor = await self._connection.execute(text, parameters)
        return [] if cursor.description is None else await cursor.fetchall()

    async def make_tables(self) -> None:
        async with self._connection.transaction():
            # Of two that do this at once, `if not exists` would let one fail.
            await self._connection.execute("select pg_advisory_xact_lock(hashtext('jobs_service_tables'))")
            await self._connection.execute(schema(POSTGRESQL))

    async def lock(self, outbox: str) -> bool:
        [[is_ours]] = await self.run("select pg_try_advisory_lock(hashtextextended(:outbox, 0))", outbox=outbox)
        if is_ours:
            await self._connection.execute(f"listen {CHANNEL}")
        return bool(is_ours)

    async def wait(self) -> None:
        async with aclosing(self._connection.notifies(timeout=POLL, stop_after=1)) as told:
            async for _ in told:
                pass


def _as_text(value: Any) -> Any:
    """Return a value as people read it: in SQLite a column may have anything, and text be no UTF-8."""
    if value is None:
        return None
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else shown(value)


# SQLite


class _SqliteDatabase(Database):
    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self.name = f"{SQLITE}:{path}"

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        # One thread: statements may wait for the locks of others.
        thread = ThreadPoolExecutor(1, "outbox")
        try:
            with _away((sqlite3.Error, OSError)):
                session = _SqliteSession(self._path, thread)
                try:
                    await session.open()
                    yield session
                finally:
                    await session.close()
        finally:
            thread.shutdown(wait=False)


class _SqliteSession(Session):
    def __init__(self, path: Path, thread: ThreadPoolExecutor) -> None:
        self._path = path
        self._thread = thread
        self._connection: sqlite3.Connection | None = None
        self._lock: int | None = None
        self._version = -1
        self._identity: tuple[int, int] | None = None

    async def open(self) -> None:
        await self._in_thread(self._open)

    def _open(self) -> None:
        if not self._path.is_file():
            raise FileNotFoundError(f"there is no file {self._path}")
        self._identity = self._inode()
        self._connection = sqlite3.connect(self._path, timeout=_BUSY, isolation_level=None, check_same_thread=False)
        # Any bytes may be in a column; those that are no text must not keep others from being read.
        self._connection.text_factory = lambda raw: raw.decode(errors="surrogateescape")

    async def close(self) -> None:
        await asyncio.shield(self._in_thread(self._close))

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._lock is not None:
            os.close(self._lock)

    async def run(self, sql: str, **values: Any) -> list[Any]:
        lists = {name: json.dumps(value) for name, value in values.items() if isinstance(value, list)}
        text, parameters = statement(sql, SQLITE, "question", {**values, **lists})
        return await self._in_thread(self._run, text, parameters)

    def _run(self, text: str, parameters: Any) -> list[Any]:
        assert self._connection is not None
        return self._connection.execute(text, parameters).fetchall()

    async def make_tables(self) -> None:
        await self._in_thread(self._make_tables)

    def _make_tables(self) -> None:
        assert self._connection is not None
        self._connection.executescript(f"begin immediate; {schema(SQLITE)} commit;")

    async def lock(self, outbox: str) -> bool:
        # A file of its own: closing any other descriptor of the database would drop the locks of this process's
        # connections.
        if self._lock is None:
            self._lock = os.open(f"{self._path}-outbox-lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _inode(self) -> tuple[int, int]:
        found = os.stat(self._path)
        return found.st_dev, found.st_ino

    async def wait(self) -> None:
        if await self._in_thread(self._inode) != self._identity:
            raise OSError(f"{self._path} is another file now")
        # The version is that of the last wait: rows may also have come since then, while others were moved.
        before = self._version
        for _ in range(round(POLL / _LOOK_EVERY)):
            [[self._version]] = await self.run("pragma data_version")  # grows with the commits of all others
            if self._version != before:
                return
            await asyncio.sleep(_LOOK_EVERY)

    async def _in_thread(self, function: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)


@contextmanager
def _away(errors: tuple[type[Exception], ...]) -> Iterator[None]:
    try:
        yield
    except errors as error:
        if is_about_missing_table(error):
            raise DatabaseAway(str(missing_tables(error))) from error
        raise DatabaseAway(in_one_line(str(error) or type(error).__name__, _LONGEST_REASON)) from error
