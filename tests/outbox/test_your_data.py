"""The page about your data and your jobs: its examples, each with a relay and a runner, on real databases."""

from __future__ import annotations

import asyncio
import inspect
import shlex
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import sqlalchemy
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from jobs_service import JobsService, outbox
from tests.docs.pages import examples, rows, section
from tests.docs.running import run
from tests.outbox.support import Place, relaying
from tests.outbox.test_kills import daemon
from tests.service.support import eventually

KEYS, IN_STORE, SQLITE, PSYCOPG, ASYNCPG, SQLALCHEMY, DJANGO, LOCKED, WAITING = examples("docs/your-data.md")
SQLITE_COMMANDS, POSTGRESQL_COMMANDS, SET_ASIDE = examples("docs/your-data.md", "sh")
[INSERT] = examples("docs/your-data.md", "sql")


@pytest.fixture
def shop(place: Place) -> Place:
    """A database with an order that is not paid."""
    kind = "integer" if place.is_sqlite else "boolean"
    place.run(f"create table orders (id integer primary key, paid {kind} not null)")
    place.run("create table receipts (number integer primary key)")
    place.run(f"insert into orders (id, paid) values (7, {'0' if place.is_sqlite else 'false'})")
    return place


async def assert_paid_with_one_receipt(pay: Any, jobs: JobsService, shop: Place) -> None:
    """Pay an order, and wait for its receipt."""
    paid = pay(7)
    if inspect.isawaitable(paid):
        await paid
    async with jobs, relaying(jobs, shop.url):
        running = asyncio.create_task(jobs.run())

        async def is_sent() -> bool:
            return shop.run("select number from receipts") == [(7,)]

        await eventually(is_sent)
        running.cancel()
        await asyncio.wait([running])
    assert [bool(paid) for (paid,) in shop.run("select paid from orders")] == [True]


async def test_keys_of_the_store() -> None:
    async with JobsService("memory:") as jobs:
        await jobs.set_type_timeout("receipt", 60)
        await run(KEYS, jobs=jobs)
        running = asyncio.create_task(jobs.run())
        [job] = [job async for job in jobs.list("receipt")]
        await jobs.wait("receipt", job.id, "finished", timeout=60)
        running.cancel()
        await asyncio.wait([running])
        assert await jobs.transact(lambda tx: tx.kv.get(b"receipts/7")) == b"sent"


async def test_rows_in_the_file_of_the_store_also_by_plain_code(sqlite: Place) -> None:
    sqlite.run("create table orders (id integer primary key, paid integer not null)")
    sqlite.run("create table receipts (number integer primary key)")
    sqlite.run("insert into orders (id, paid) values (7, 0)")
    async with JobsService(sqlite.url) as jobs:
        await jobs.set_type_timeout("receipt", 60)
        await run(IN_STORE, jobs=jobs)
        await asyncio.to_thread(sqlite.enqueue, "receipt", 8)
        async with relaying(jobs, sqlite.url):
            running = asyncio.create_task(jobs.run())

            async def are_sent() -> bool:
                return sqlite.run("select number from receipts order by number") == [(7,), (8,)]

            await eventually(are_sent)
            running.cancel()
            await asyncio.wait([running])
    assert sqlite.run("select paid from orders") == [(1,)]


async def test_a_sqlite_file(sqlite: Place, monkeypatch: pytest.MonkeyPatch, shop: Place) -> None:
    if not shop.is_sqlite:
        pytest.skip("the example is for a file")
    monkeypatch.setenv("JOBS_SERVICE_STORE", "memory:")
    monkeypatch.chdir(Path(shop.path).parent)
    names = await run(SQLITE)
    await assert_paid_with_one_receipt(names["pay"], names["jobs"], shop)


async def test_psycopg(shop: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    if shop.is_sqlite:
        pytest.skip("the example is for PostgreSQL")
    monkeypatch.setenv("JOBS_SERVICE_STORE", "memory:")
    names = await run(PSYCOPG)
    names["SHOP"] = shop.url
    await assert_paid_with_one_receipt(names["pay"], names["jobs"], shop)


async def test_a_program_waits_for_the_job_of_a_row(shop: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    if shop.is_sqlite:
        pytest.skip("the example is for PostgreSQL")
    monkeypatch.setenv("JOBS_SERVICE_STORE", "memory:")
    names = await run(PSYCOPG + WAITING)
    names["SHOP"] = shop.url
    async with names["jobs"] as jobs:
        running = asyncio.create_task(jobs.run())
        await names["pay_and_wait"](7)
        async with relaying(jobs, shop.url):  # it comes second, and finds a job that has ended
            await shop.until_empty()
        running.cancel()
        await asyncio.wait([running])
        [job] = [job async for job in jobs.list("receipt")]
        assert (job.id, job.attempts) == ("order-7", 1)
    assert shop.run("select number from receipts") == [(7,)]


async def test_asyncpg(shop: Place) -> None:
    if shop.is_sqlite:
        pytest.skip("the example is for PostgreSQL")
    async with asyncpg.create_pool(shop.url, min_size=1) as pool:
        jobs = JobsService("memory:")
        names = await run(ASYNCPG, jobs=jobs, pool=pool, outbox=outbox)
        await assert_paid_with_one_receipt(names["pay"], jobs, shop)


async def test_sqlalchemy(shop: Place) -> None:
    class Base(DeclarativeBase):
        pass

    class Order(Base):
        __tablename__ = "orders"
        id: Mapped[int] = mapped_column(primary_key=True)
        paid: Mapped[bool]

    class Receipt(Base):
        __tablename__ = "receipts"
        number: Mapped[int] = mapped_column(primary_key=True)

    url = f"sqlite:///{shop.path}" if shop.is_sqlite else shop.url.replace("postgresql", "postgresql+psycopg", 1)
    engine = sqlalchemy.create_engine(url)
    jobs = JobsService("memory:")
    names = await run(SQLALCHEMY, jobs=jobs, outbox=outbox, Session=sessionmaker(engine), Order=Order, Receipt=Receipt)
    try:
        await assert_paid_with_one_receipt(names["pay"], jobs, shop)
    finally:
        engine.dispose()


PROJECT = f"""
import django
from django.conf import settings

DATABASES = {{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": "app.db"}}}}
{LOCKED}
settings.configure(
    DATABASES=DATABASES,
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
)
django.setup()
from django.db import connection, models, transaction
from jobs_service import JobsService, outbox


class Order(models.Model):
    paid = models.BooleanField()

    class Meta:
        app_label, db_table = "shop", "orders"


class Receipt(models.Model):
    number = models.IntegerField(primary_key=True)

    class Meta:
        app_label, db_table = "shop", "receipts"


jobs = JobsService("lmdb:store")
"""


async def test_django(shop: Place) -> None:
    if not shop.is_sqlite:
        pytest.skip("the project is on SQLite")
    directory = Path(shop.path).parent
    (directory / "app.py").write_text(f"{PROJECT}\n\n{DJANGO}")
    await asyncio.to_thread(subprocess.run, [sys.executable, "-c", "import app; app.pay(7)"], cwd=directory, check=True)

    async def is_sent() -> bool:
        return shop.run("select number from receipts") == [(7,)]

    async with daemon(directory, shop, "app:jobs"):
        await eventually(is_sent)


def words(commands: str) -> list[list[str]]:
    """Return the words of command lines behind the name of the program."""
    return [shlex.split(line, comments=True)[1:] for line in commands.splitlines()]


def test_the_commands(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "app.db").close()
    (tmp_path / "app.db").touch()
    init, serve = words(SQLITE_COMMANDS)
    show, retry = words(SET_ASIDE)
    for command, code in ((init, 0), (show, 0), (retry, 1)):
        done = subprocess.run([sys.executable, "-m", "jobs_service", *command], cwd=tmp_path, capture_output=True)
        assert done.returncode == code, done.stderr
    assert serve == ["serve", "app:jobs", "--outbox", "sqlite:app.db"]
    assert [line[-1] for line in words(POSTGRESQL_COMMANDS)] == ["postgresql://app@db.example.org/shop"] * 2
    assert 'SHOP = "postgresql://app@db.example.org/shop"' in PSYCOPG


async def test_the_insert(postgres: Place, jobs: JobsService) -> None:
    postgres.run(INSERT)
    async with relaying(jobs, postgres.url):
        await postgres.until_empty()
    assert [job.data async for job in jobs.list("receipt")] == [7]


def test_every_column_has_its_row(sqlite: Place) -> None:
    table = rows(section("docs/your-data.md", "Rows in any language"), "column")
    named = {name.strip("` ") for row in table for name in row[0].split(",")}
    with closing(sqlite.connect()) as connection:
        assert named == {row[1] for row in connection.execute("pragma table_info(jobs_service_outbox)")}
