"""Rows of the application in the store's transactions: one commit with the keys, and nobody else's concern."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from jobs_service import EndedJob, JobsService, RunningJob, WorkerConflict
from jobs_service.errors import StoreError, TransactionTooOld
from jobs_service.layer.transaction import JobTransaction
from jobs_service.store import Store, Transaction
from jobs_service.store.base import Limits, TransactionFunction
from jobs_service.store.sqlite import SqliteStore
from tests.contract.support import contents
from tests.store.sqlite.application import Application, signing_up
from tests.stores import EVERY_KIND, StoreKind

ENDLESS = "insert into users (mail) with recursive c (x) as (select 1 union all select x + 1 from c) select x from c"
ENDLESS_READ = "with recursive c (x) as (select 1 union all select x + 1 from c) select max(x) from c"


def saying(statement: str, *parameters: Any) -> TransactionFunction[list[tuple[Any, ...]]]:
    """Return a function that runs one statement."""

    async def function(tr: Transaction) -> list[tuple[Any, ...]]:
        return await tr.sql(statement, *parameters)

    return function


async def test_rows_and_keys_are_one_commit(store: SqliteStore, application: Application) -> None:
    assert await store.transact(signing_up("ada")) == [(1,)]
    assert application.mails == ["ada"]
    assert await contents(store) == {b"ada": b"1"}


async def test_a_function_sees_its_own_rows_and_nobody_else_does_before_the_commit(
    store: SqliteStore, application: Application
) -> None:
    async def function(tr: Transaction) -> list[tuple[Any, ...]]:
        await tr.sql("insert into users (mail) values (:mail)", {"mail": "ada"})
        assert application.mails == []
        return await tr.sql("select mail from users")

    assert await store.transact(function) == [("ada",)]


async def test_who_fails_has_no_effect_and_who_shares_the_commit_loses_nothing(
    store: SqliteStore, application: Application
) -> None:
    async def raising(tr: Transaction) -> None:
        await signing_up("nobody")(tr)
        raise LookupError

    results = await asyncio.gather(
        store.transact(signing_up("ada")),
        store.transact(raising),
        store.transact(signing_up("ada", b"second")),
        store.transact(signing_up("bob")),
        return_exceptions=True,
    )
    assert [type(each) for each in results] == [list, LookupError, sqlite3.IntegrityError, list]
    assert str(results[2]) == "UNIQUE constraint failed: users.mail"
    assert application.mails == ["ada", "bob"]
    assert await contents(store) == {b"ada": b"1", b"bob": b"1"}


async def test_who_catches_the_error_of_a_statement_goes_on(store: SqliteStore, application: Application) -> None:
    async def function(tr: Transaction) -> None:
        await tr.sql("insert into users (mail) values ('ada')")
        with pytest.raises(sqlite3.IntegrityError):
            await tr.sql("insert into users (mail) values ('bob'), ('ada')")
        await tr.sql("insert into users (mail) values ('eve')")

    await store.transact(function)
    assert application.mails == ["ada", "eve"]


async def test_a_constraint_that_the_commit_checks_fails_only_who_violates_it(
    store: SqliteStore, application: Application
) -> None:
    runs: list[str] = []

    async def posting(tr: Transaction) -> None:
        runs.append("posting")
        tr.set(b"post", b"1")
        await tr.sql("insert into posts values (77)")

    async def counted(tr: Transaction) -> None:
        runs.append("counted")
        await signing_up("ada")(tr)

    results = await asyncio.gather(store.transact(counted), store.transact(posting), return_exceptions=True)
    assert [type(each) for each in results] == [type(None), sqlite3.IntegrityError]
    assert str(results[1]) == "FOREIGN KEY constraint failed"
    assert sorted(runs)[0] == "counted"  # more than once, if both have shared the commit
    assert application.mails == ["ada"]
    assert application.rows("select * from posts") == []
    assert await contents(store) == {b"ada": b"1"}


@pytest.mark.parametrize("caught", [False, True])
async def test_a_statement_that_has_sqlite_roll_back_everything_fails_only_its_own_function(
    store: SqliteStore, application: Application, caught: bool
) -> None:
    async def rolling_back(tr: Transaction) -> None:
        await signing_up("nobody")(tr)
        try:
            await tr.sql("insert or rollback into users (mail) values ('nobody')")
        except sqlite3.IntegrityError:
            if not caught:
                raise
            with pytest.raises(sqlite3.IntegrityError):
                await tr.sql("insert into users (mail) values ('late')")

    results = await asyncio.gather(
        store.transact(signing_up("ada")),
        store.transact(rolling_back),
        store.transact(signing_up("bob")),
        return_exceptions=True,
    )
    assert [type(each) for each in results] == [list, sqlite3.IntegrityError, list]
    assert application.mails == ["ada", "bob"]
    assert await contents(store) == {b"ada": b"1", b"bob": b"1"}


async def test_a_statement_without_an_end_is_interrupted(store: SqliteStore, application: Application) -> None:
    store.limits = Limits(key=store.limits.key, seconds=0.2)
    results = await asyncio.gather(
        store.transact(signing_up("ada")),
        store.transact(saying(ENDLESS)),
        store.transact(saying(ENDLESS_READ)),
        store.transact(signing_up("bob")),
        return_exceptions=True,
    )
    assert [type(each) for each in results] == [list, TransactionTooOld, TransactionTooOld, list]
    assert application.mails == ["ada", "bob"]


REFUSED = {
    "begin": "cannot begin, commit or roll back",
    "commit": "cannot begin, commit or roll back",
    "rollback": "cannot begin, commit or roll back",
    "savepoint mine": "cannot begin, commit or roll back",
    "release rows": "cannot begin, commit or roll back",
    "begin immediate": "cannot begin, commit or roll back",
    "attach ':memory:' as other": "cannot attach or detach files",
    "pragma journal_mode = delete": "cannot use pragma journal_mode",
    "pragma writable_schema = on": "cannot use pragma writable_schema",
    "delete from jobs_service_keys": "cannot change jobs_service_keys",
    "drop table jobs_service_keys": "cannot change jobs_service_keys",
    "alter table jobs_service_keys rename to mine": "cannot change jobs_service_keys",
    "insert into jobs_service_keys values (x'01', x'02')": "cannot change jobs_service_keys",
    "create trigger mine after insert on jobs_service_keys begin select 1; end": "cannot change jobs_service_keys",
}


@pytest.mark.parametrize("statement", REFUSED)
async def test_what_is_not_the_functions_to_decide_is_refused_in_one_line(store: SqliteStore, statement: str) -> None:
    for said in (statement, f" {statement}", f"-- a comment\n{statement}"):
        with pytest.raises(StoreError, match=rf"^tx\.sql\(\) {REFUSED[statement]}[^\n]*$"):
            await store.transact(saying(said))
    await store.transact(saying("create table mine (x)"))
    assert await store.transact(saying("select count(*) from mine")) == [(0,)]


@pytest.mark.parametrize("statement", [None, b"select 1", 7, ["select 1"]])
async def test_what_is_no_text_is_refused(store: SqliteStore, statement: Any) -> None:
    with pytest.raises(StoreError, match="takes SQL text"):
        await store.transact(saying(statement))


@pytest.mark.parametrize("statement", ["select nothing from nowhere", "nonsense", "select ?", "select 1; select 2"])
async def test_the_errors_of_statements_are_sqlites_own(store: SqliteStore, statement: str) -> None:
    with pytest.raises(sqlite3.Error):
        await store.transact(saying(statement))
    await store.transact(saying("create table mine (x)"))


async def test_rows_are_for_transactions_that_write_while_they_last(
    store: SqliteStore, application: Application
) -> None:
    kept: list[Transaction] = []

    async def keep(tr: Transaction) -> None:
        kept.append(tr)
        await signing_up("ada")(tr)

    with pytest.raises(StoreError, match="only reads"):
        await store.read(signing_up("nobody"))
    await store.transact(keep)
    with pytest.raises(StoreError, match="has ended"):
        await signing_up("nobody")(kept[0])
    assert application.mails == ["ada"]


@pytest.mark.parametrize("kind", [each for each in EVERY_KIND if "sqlite" not in str(each)])
async def test_other_stores_say_in_one_line_who_has_rows(kind: StoreKind, tmp_path: Path) -> None:
    store: Store = kind.make(tmp_path)
    await store.open()
    with pytest.raises(StoreError, match=r"^this store has no tables: tx\.sql\(\) needs an sqlite:PATH store$"):
        await store.transact(saying("select 1"))
    await store.close()


# With jobs


async def test_a_row_and_its_job_are_there_together_or_not_at_all(path: Path, application: Application) -> None:
    async def sign_up(tx: JobTransaction) -> None:
        await tx.sql("insert into users (mail) values (?)", "ada")
        await tx.add("email", "welcome-ada")

    async with JobsService(f"sqlite:{path}") as jobs:
        await jobs.set_type_timeout("email", 60)
        await jobs.transact(sign_up)
        with pytest.raises(sqlite3.IntegrityError):
            await jobs.transact(sign_up)
        await jobs.remove("email", "welcome-ada")
        with pytest.raises(sqlite3.IntegrityError):
            await jobs.transact(sign_up)
        assert [job async for job in jobs.list("email")] == []
    assert application.mails == ["ada"]


async def test_the_rows_of_a_handler_are_there_with_the_end_of_its_job(path: Path, application: Application) -> None:
    runs: list[RunningJob] = []
    async with JobsService(f"sqlite:{path}") as jobs:

        @jobs.handler("email", max_attempts=2, backoff=0)
        async def email(job: RunningJob) -> EndedJob[int]:
            runs.append(job)

            async def done(tx: JobTransaction) -> int:
                await tx.sql("insert into users (mail) values (?)", f"ada-{len(runs)}")
                if len(runs) == 1:
                    raise LookupError
                return 7

            return await job.finish_with(done)

        running = asyncio.create_task(jobs.run())
        added = await jobs.enqueue(email)
        ended = await jobs.wait("email", added.id, "finished", timeout=60)
        running.cancel()
        await asyncio.wait([running])
        assert (ended.state, ended.result) == ("finished", 7)
    assert application.mails == ["ada-2"]


async def test_a_worker_that_lost_its_job_writes_no_rows(path: Path, application: Application) -> None:
    def ending(job: RunningJob, mail: str) -> Callable[[JobTransaction], Coroutine[Any, Any, None]]:
        async def function(tx: JobTransaction) -> None:
            await tx.sql("insert into users (mail) values (?)", mail)
            await tx.finish(job)

        return function

    async with JobsService(f"sqlite:{path}", supervise=False) as jobs:
        await jobs.set_type_timeout("email", 60)
        await jobs.add("email", "welcome-ada")
        job = await jobs.accept("email", timeout=0)
        assert job is not None
        await jobs.transact(ending(job, "ada"))
        with pytest.raises(WorkerConflict):
            await jobs.transact(ending(job, "eve"))
    assert application.mails == ["ada"]
