"""The pages on transactions and on waiting: their examples, on a service of their own."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

from jobs_service import JobsService
from jobs_service.store.base import Transaction
from jobs_service.store.memory import MemoryStore
from tests.docs.pages import examples, section
from tests.docs.running import run

PLACE_ORDER, WORKER, SIGN_UP, WITHIN = examples("docs/transactions.md")
FOLLOW, LEAVE = examples("docs/waiting.md")


async def test_your_data_and_a_job_are_written_together(jobs: JobsService) -> None:
    await run(PLACE_ORDER, jobs=jobs)
    assert await jobs.transact(lambda tx: tx.kv.get(b"orders/42")) == b'{"total": 99}'
    assert (await jobs.get("email", "receipt-42")).data == {"order": 42}


async def test_a_workers_effect_is_written_with_the_end_of_its_job(jobs: JobsService) -> None:
    await jobs.add("email", "receipt-42")
    await run(WORKER, jobs=jobs)
    assert (await jobs.get("email", "receipt-42")).state == "finished"
    assert await jobs.transact(lambda tx: tx.kv.get(b"mails")) == (1).to_bytes(8, "little")


async def test_a_row_and_its_job_are_written_together(tmp_path: Path) -> None:
    printed: list[object] = []
    with closing(sqlite3.connect(tmp_path / "app.db")) as application:
        application.execute("create table users (id integer primary key, mail text unique)")
        async with JobsService(f"sqlite:{tmp_path / 'app.db'}") as jobs:
            await jobs.set_type_timeout("email", 60)
            for _ in range(2):
                await run(SIGN_UP, jobs=jobs, print=printed.append)
            assert [job.id async for job in jobs.list("email")] == ["welcome-1"]
        assert application.execute("select * from users").fetchall() == [(1, "ada@example.org")]
    assert printed == ["she has signed up already"]


async def test_plain_code_adds_a_job_over_a_transaction_of_its_own(jobs: JobsService) -> None:
    # `fdb.transactional` gives the function a transaction and commits it; the memory store's own one is driven here.
    made = await run(WITHIN, jobs=jobs, fdb=SimpleNamespace(transactional=lambda function: function))
    assert isinstance(jobs.store, MemoryStore)
    transaction = jobs.store.begin()
    made["place_order_by_hand"](transaction, b"an order")
    transaction.commit()
    assert (await jobs.get("email", "receipt-42")).data == {"order": 42}
    assert await jobs.transact(lambda tx: tx.kv.get(b"orders/42")) == b"an order"


async def test_a_job_is_followed_to_its_end(jobs: JobsService) -> None:
    printed: list[tuple[object, ...]] = []
    await jobs.add("email", "receipt-42", {"order": 42})

    async def work() -> None:
        job = await jobs.accept("email")
        assert job is not None
        await job.finish()

    worker = asyncio.create_task(work())
    await run(FOLLOW, jobs=jobs, print=lambda *told: printed.append(told))
    await worker
    assert printed[-1] == ("finished", {"order": 42})


async def test_a_subscription_is_left_early(jobs: JobsService) -> None:
    await jobs.add("email", "receipt-42")
    await jobs.accept("email")
    await run(LEAVE, jobs=jobs)
    assert not jobs._hub.types()


def test_what_the_page_says_of_your_own_keys_is_there() -> None:
    told = section("docs/transactions.md", "Your own keys")
    named = re.findall(r"tx\.kv\.([a-z_]+)", told)
    assert named
    assert {*named} <= {*dir(Transaction)}
