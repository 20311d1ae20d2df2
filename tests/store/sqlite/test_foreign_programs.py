"""Other programs at the file of a store that is in use: the sqlite3 shell, and a schema migration by Django."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import closing
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from jobs_service import JobsService, Settings
from jobs_service.errors import StoreUnavailable
from jobs_service.store import sqlite as module
from jobs_service.verifying import Verification
from tests.store.sqlite.application import Application

SHELL = "sqlite3"
HAS_SHELL = pytest.mark.skipif(shutil.which(SHELL) is None, reason="the sqlite3 shell is not installed")
MIGRATION = """
import sys
import django
from django.conf import settings
settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": sys.argv[1]}})
django.setup()
from django.db import connection, models

class Order(models.Model):
    paid = models.BooleanField(default=False)
    class Meta:
        app_label = "shop"

with connection.schema_editor() as editor:
    editor.create_model(Order)
for number in range(100):
    Order.objects.create(paid=bool(number % 2))
was, field = Order._meta.get_field("paid"), models.IntegerField(default=7)
field.set_attributes_from_name("paid")
with connection.schema_editor() as editor:  # makes the table anew, as it does for most changes of a column
    editor.alter_field(Order, was, field)
"""


async def program(*command: str) -> Process:
    """Start another program."""
    return await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=PIPE)


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(
            [SHELL, "-cmd", ".timeout 60000", "{}", "vacuum; pragma integrity_check"], marks=HAS_SHELL, id="vacuum"
        ),
        pytest.param([sys.executable, "-c", MIGRATION, "{}"], id="django"),
    ],
)
async def test_what_another_program_does_meanwhile_loses_nothing(path: Path, command: list[str]) -> None:
    with Application(path) as application:
        application.rows("insert into users (mail) values ('ada')")
    async with JobsService(f"sqlite:{path}", settings=Settings(transaction_timeout=60)) as jobs:
        await jobs.set_type_timeout("email", 60)
        foreign = await program(*(word.format(path) if word == "{}" else word for word in command))
        ended = asyncio.create_task(foreign.communicate())
        added = 0
        while not ended.done() or added < 50:
            await jobs.add("email", f"{added}", "x" * 2_000)
            added += 1
        out, errors = await ended
        assert (foreign.returncode, errors) == (0, b"")
        assert out in (b"ok\n", b"")
        assert {job.id async for job in jobs.list("email")} == {f"{number}" for number in range(added)}
        verification = Verification(jobs.store, await jobs.store.prefix())
        assert [fault async for fault in verification.faults()] == []
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("select mail from users").fetchall() == [("ada",)]
        if MIGRATION in command:
            assert connection.execute("select count(*), sum(paid) from shop_order").fetchall() == [(100, 50)]


@HAS_SHELL
async def test_while_the_shell_holds_its_write_transaction_reads_go_on_and_writes_say_why_they_wait(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LONG", 0.0)
    async with JobsService(f"sqlite:{path}", settings=Settings(transaction_timeout=0.5), supervise=False) as jobs:
        await jobs.set_type_timeout("email", 60)
        await jobs.add("email", "before")
        shell = await program(SHELL, str(path))
        assert shell.stdin is not None
        assert shell.stdout is not None
        shell.stdin.write(b"begin immediate; create table theirs (x); select 'has begun';\n")
        assert await shell.stdout.readline() == b"has begun\n"
        with capture_logs() as logged, pytest.raises(StoreUnavailable, match="did not answer within"):
            await jobs.add("email", "meanwhile")
        assert [entry["event"] for entry in logged] == ["store_locked"]
        assert (await jobs.get("email", "before")).id == "before"
        shell.stdin.write(b"commit; select 'has ended';\n")
        assert await shell.stdout.readline() == b"has ended\n"
        await jobs.add("email", "after")
        await shell.communicate(b".quit\n")
        assert [job.id async for job in jobs.list("email")] == ["after", "before"]
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("select count(*) from theirs").fetchall() == [(0,)]
