"""`enqueue` and `once` on connections of each library: they take part in the application's own transaction."""

from __future__ import annotations

import asyncio
import inspect
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import aiosqlite
import asyncpg
import psycopg
import psycopg2
import pytest
import sqlalchemy
from psycopg2.extras import RealDictCursor
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from jobs_service import InvalidJob, InvalidSettings, Job, JobsError, JobsService, JobState, RunningJob, outbox
from tests.outbox.server import Server
from tests.outbox.support import Place, relaying


class _RolledBack(Exception):
    """Ends a transaction."""


@asynccontextmanager
async def rolled_back(begun: Any) -> AsyncIterator[Any]:
    """Begin a transaction, and end it by an error."""
    with suppress(_RolledBack):
        async with begun as connection:
            yield connection
            raise _RolledBack


@asynccontextmanager
async def _sqlite3(place: Place) -> AsyncIterator[Any]:
    with closing(sqlite3.connect(place.path)) as connection, connection:
        connection.text_factory = bytes
        yield connection


def _dictionary(cursor: Any, row: Any) -> dict[str, Any]:
    return {cursor.description[0][0]: row[0]}


@asynccontextmanager
async def _aiosqlite(place: Place) -> AsyncIterator[Any]:
    async with aiosqlite.connect(place.path) as connection:
        connection.row_factory = _dictionary  # type: ignore[assignment]
        yield connection
        await connection.commit()


@asynccontextmanager
async def _psycopg(place: Place) -> AsyncIterator[Any]:
    with psycopg.connect(place.url, row_factory=psycopg.rows.dict_row) as connection:
        yield connection


@asynccontextmanager
async def _psycopg_async(place: Place) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(place.url) as connection:
        yield connection


@asynccontextmanager
async def _psycopg2(place: Place) -> AsyncIterator[Any]:
    with closing(psycopg2.connect(place.url, cursor_factory=RealDictCursor)) as connection, connection:
        yield connection


@asynccontextmanager
async def _asyncpg(place: Place) -> AsyncIterator[Any]:
    async with (
        asyncpg.create_pool(place.url, min_size=1) as pool,
        pool.acquire() as connection,
        connection.transaction(),
    ):
        yield connection


def _engine_url(place: Place, driver: str) -> str:
    if place.is_sqlite:
        return f"sqlite{driver}:///{place.path}"
    return place.url.replace("postgresql", f"postgresql{driver}", 1)


def _sqlalchemy(driver: str, asynchronous: bool, session: bool) -> Callable[[Place], Any]:
    @asynccontextmanager
    async def begun(place: Place) -> AsyncIterator[Any]:
        url = _engine_url(place, driver)
        if asynchronous:
            engine = create_async_engine(url)
            try:
                if session:
                    async with AsyncSession(engine) as own, own.begin():
                        yield own
                else:
                    async with engine.begin() as connection:
                        yield connection
            finally:
                await engine.dispose()
            return
        plain = sqlalchemy.create_engine(url)
        try:
            if session:
                with Session(plain) as own_session, own_session.begin():
                    yield own_session
            else:
                with plain.begin() as plain_connection:
                    yield plain_connection
        finally:
            plain.dispose()

    return begun


@asynccontextmanager
async def _django(place: Place) -> AsyncIterator[Any]:
    from django.db import connections, transaction

    from tests.django.support import database

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "yes")  # the test is a coroutine
        with database(place), transaction.atomic(using="own"):
            yield connections["own"]


LIBRARIES = {
    "sqlite3": ("sqlite", _sqlite3),
    "aiosqlite": ("sqlite", _aiosqlite),
    "sqlalchemy-sqlite": ("sqlite", _sqlalchemy("", False, False)),
    "sqlalchemy-aiosqlite-session": ("sqlite", _sqlalchemy("+aiosqlite", True, True)),
    "django-sqlite": ("sqlite", _django),
    "psycopg": ("postgres", _psycopg),
    "psycopg-async": ("postgres", _psycopg_async),
    "psycopg2": ("postgres", _psycopg2),
    "asyncpg": ("postgres", _asyncpg),
    "sqlalchemy-psycopg-session": ("postgres", _sqlalchemy("+psycopg", False, True)),
    "sqlalchemy-psycopg2": ("postgres", _sqlalchemy("+psycopg2", False, False)),
    "sqlalchemy-asyncpg": ("postgres", _sqlalchemy("+asyncpg", True, False)),
    "sqlalchemy-asyncpg-session": ("postgres", _sqlalchemy("+asyncpg", True, True)),
    "django-postgresql": ("postgres", _django),
}


@pytest.fixture(params=LIBRARIES)
def begun(request: pytest.FixtureRequest) -> tuple[Place, Callable[[], Any]]:
    """A database, and what begins a transaction in it through a library: a block with the connection."""
    kind, begin = LIBRARIES[request.param]
    place = request.getfixturevalue(kind)
    return place, lambda: begin(place)


async def _in(answer: Any) -> Any:
    return await answer if inspect.isawaitable(answer) else answer


async def test_a_job_is_added_with_the_transaction_or_not_at_all(
    begun: tuple[Place, Callable[[], Any]], jobs: JobsService
) -> None:
    place, begin = begun
    async with rolled_back(begin()) as connection:
        await _in(outbox.enqueue(connection, "receipt", {"order": 6}))
    assert place.rows() == []
    async with begin() as connection:
        id = await _in(outbox.enqueue(connection, "receipt", {"order": 7}))
        named = await _in(
            outbox.enqueue(
                connection,
                "receipt",
                8,
                id="eight",
                priority=-5,
                run_at=4_102_444_800.25,
                max_attempts=3,
                time_limit=60,
                if_exists="ignore",
            )
        )
    assert (len(id), named) == (32, "eight")
    async with relaying(jobs, place.url):
        await place.until_empty()
    job = await jobs.get("receipt", id)
    assert (job.data, job.priority, job.run_at) == ({"order": 7}, 0, None)
    job = await jobs.get("receipt", "eight")
    assert job.run_at is not None
    assert (job.data, job.priority, job.run_at.timestamp()) == (8, -5, 4_102_444_800.25)
    assert (job.max_attempts, job.time_limit) == (3, 60)


async def test_an_effect_is_noted_with_the_transaction_or_not_at_all(
    begun: tuple[Place, Callable[[], Any]], jobs: JobsService
) -> None:
    _, begin = begun
    await jobs.add("receipt", "seven")
    job = await jobs.accept("receipt")
    assert job is not None
    async with rolled_back(begin()) as connection:
        assert await _in(outbox.once(connection, job)) is True
    async with begin() as connection:
        assert await _in(outbox.once(connection, job)) is True
        assert await _in(outbox.once(connection, job)) is False
        assert await _in(outbox.once(connection, job, "another effect")) is True
    async with begin() as connection:
        assert await _in(outbox.once(connection, job)) is False


async def test_an_effect_is_noted_in_a_database_without_an_encoding(server: Server, jobs: JobsService) -> None:
    place = Place(server.make_database("SQL_ASCII"))
    place.run(outbox.schema("postgresql"))
    await jobs.add("receipt", "seven")
    job = await jobs.accept("receipt")
    assert job is not None
    with closing(place.connect()) as connection, connection.transaction():
        assert [outbox.once(connection, job), outbox.once(connection, job)] == [True, False]


async def test_missing_tables_are_an_error_that_says_how_they_are_made(
    begun: tuple[Place, Callable[[], Any]],
) -> None:
    place, begin = begun
    place.run("drop table jobs_service_outbox")
    async with AsyncExitStack() as stack:
        stack.enter_context(pytest.raises(JobsError, match="jobs-service outbox init URL makes them"))
        connection = await stack.enter_async_context(begin())
        await _in(outbox.enqueue(connection, "receipt", 7))


@pytest.mark.parametrize("connection", [None, "postgresql://", object(), sqlalchemy.create_engine("sqlite://")])
def test_what_is_no_connection_is_refused(connection: Any) -> None:
    with pytest.raises(InvalidSettings, match="allowed are connections of sqlite3"):
        outbox.enqueue(connection, "receipt", 7)


async def test_a_pool_is_refused_because_it_is_no_transaction(postgres: Place) -> None:
    async with asyncpg.create_pool(postgres.url, min_size=1) as pool:
        with pytest.raises(InvalidSettings, match="of a pool or engine take a connection"):
            outbox.enqueue(pool, "receipt", 7)


async def test_an_effect_is_not_noted_where_each_statement_is_committed_by_itself(
    sqlite: Place, postgres: Place, jobs: JobsService
) -> None:
    await jobs.add("receipt", "seven")
    job = await jobs.accept("receipt")
    assert job is not None
    with closing(sqlite3.connect(sqlite.path, isolation_level=None)) as plain:
        with pytest.raises(InvalidSettings, match=r"begin one: connection.execute\('begin'\)"):
            outbox.once(plain, job)
        plain.execute("begin")
        assert outbox.once(plain, job)
    async with aiosqlite.connect(sqlite.path, isolation_level=None) as connection:
        with pytest.raises(InvalidSettings, match="no transaction has begun"):
            outbox.once(connection, job)
    with psycopg.connect(postgres.url, autocommit=True) as pg:
        with pytest.raises(InvalidSettings, match=r"with connection.transaction\(\)"):
            outbox.once(pg, job)
        with pg.transaction():
            assert outbox.once(pg, job, "psycopg")
    with closing(psycopg2.connect(postgres.url)) as older:
        older.autocommit = True
        with pytest.raises(InvalidSettings, match=r"connection.autocommit = False"):
            outbox.once(older, job)
    async with asyncpg.create_pool(postgres.url, min_size=1) as pool, pool.acquire() as acquired:
        with pytest.raises(InvalidSettings, match=r"async with connection.transaction\(\)"):
            await outbox.once(acquired, job)
    async with _django(sqlite) as django:
        assert outbox.once(django, job, "django")
        django.in_atomic_block, atomic = False, django.in_atomic_block
        django.set_autocommit(True)
        with pytest.raises(InvalidSettings, match=r"with transaction.atomic\(\)"):
            outbox.once(django, job)
        django.set_autocommit(False)
        django.in_atomic_block = atomic


def test_a_database_of_another_kind_is_refused() -> None:
    class Connection:
        __module__ = "django.db.backends.mysql.base"
        vendor = "mysql"

    with pytest.raises(InvalidSettings, match="a connection to 'mysql': the outbox is for PostgreSQL and SQLite"):
        outbox.enqueue(Connection(), "receipt", 7)


async def test_what_no_job_can_be_is_refused_before_anything_is_written(sqlite: Place, jobs: JobsService) -> None:
    @jobs.handler("mail")
    async def mail(to: str) -> None: ...

    for refused in (
        lambda db: outbox.enqueue(db, mail, 7),
        lambda db: outbox.enqueue(db, "mail", object()),
        lambda db: outbox.enqueue(db, "mail", 7, priority="first"),
        lambda db: outbox.enqueue(db, "mail", 7, priority=1 << 63),
        lambda db: outbox.enqueue(db, "mail", 7, id=7),
        lambda db: outbox.enqueue(db, "mail", 7, if_exists="maybe"),
        lambda db: outbox.enqueue(db, "mail", 7, id="a", unique=True),
        lambda db: outbox.once(db, "mail"),  # type: ignore[call-overload]
    ):
        connection = sqlite.connect()
        with closing(connection), pytest.raises(InvalidJob):
            refused(connection)
    assert sqlite.rows() == []


async def test_once_needs_a_running_job(sqlite: Place, jobs: JobsService) -> None:
    waiting: Job = await jobs.add("receipt", "seven")
    with closing(sqlite.connect()) as connection, pytest.raises(InvalidJob, match="does not run"):
        outbox.once(connection, waiting)


@pytest.mark.parametrize(("most", "second"), [(1, "max_history of 3"), (2, "max_history of 3"), (3, "False")])
async def test_once_tells_tries_apart_or_says_that_it_cannot(
    most: int, second: str, sqlite: Place, jobs: JobsService
) -> None:
    told: list[str] = []

    @jobs.handler("receipt", max_history=most, max_attempts=2, backoff=0)
    async def receipt(job: RunningJob) -> None:
        try:
            with closing(sqlite3.connect(sqlite.path)) as connection, connection:
                connection.execute("begin")
                told.append(str(outbox.once(connection, job)))
        except InvalidJob as error:
            told.append(str(error))
        raise OSError

    await jobs.enqueue(receipt, id="a")
    running = asyncio.create_task(jobs.run())
    await jobs.wait("receipt", "a", JobState.FINISHED)
    running.cancel()
    await asyncio.wait([running])
    assert told[0] == "True"
    assert second in told[1]


def test_a_path(tmp_path: Path) -> None:
    """Django's and SQLAlchemy's form of a file's address means the same file."""
    from jobs_service.outbox.databases import database_at

    for url in ("sqlite:app.db", "sqlite:///app.db"):
        assert database_at(url).name == "sqlite:app.db"
    assert database_at("sqlite:////var/app.db").name == "sqlite:/var/app.db"
    assert database_at("postgresql+asyncpg://me:secret@host:5433/app").name == "postgresql://host:5433/app"
