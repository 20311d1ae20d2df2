"""What the FoundationDB store does that each call takes effect once: handles of its own, and marks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import fdb
import pytest

from jobs_service.sources import Sources
from jobs_service.store import Transaction
from jobs_service.store.commit_marks import Mark
from jobs_service.store.fdb import FdbStore
from jobs_service.store.fdb.client import COMMIT_UNKNOWN_RESULT
from jobs_service.store.fdb.transaction import FdbTransaction
from tests.contract.support import number, value_of
from tests.fdb_stores import Fated, UnsureFdbStore
from tests.store.fdb.clusters import CLUSTER, cluster_test
from tests.store.fdb.test_store import KEY, OTHER, make, write_nothing
from tests.stores import plain_settings
from tests.system.fdb_server import FdbServer, missing
from tests.unsure import UNKNOWN, Fates

SECOND = 1_000_000
"""Versions."""

server_test = pytest.mark.skipif(missing() is not None, reason=str(missing()))


@asynccontextmanager
async def opened(store: FdbStore) -> AsyncIterator[FdbStore]:
    """Have a store open, without keys of earlier tests."""
    await store.open()
    try:
        await write_nothing(store)
        yield store
    finally:
        await store.close()


async def add_one(transaction: Transaction) -> None:
    """Count without a read: nothing but the store keeps this from being done twice."""
    transaction.add(KEY, number(1))


async def count(store: FdbStore) -> int:
    """Return how often that was done."""
    return int.from_bytes(await value_of(store, KEY) or b"", "little")


# The handle


@pytest.fixture
def application() -> Any:
    """The handle that an application has of the same cluster, with options that a store must not have."""
    fdb.api_version(730)
    database = fdb.open(CLUSTER)
    database.options.set_transaction_timeout(1)
    database.options.set_transaction_retry_limit(0)
    database.options.set_snapshot_ryw_disable()
    yield database
    database.options.set_transaction_timeout(0)
    database.options.set_transaction_retry_limit(-1)
    database.options.set_snapshot_ryw_enable()


@cluster_test
async def test_options_that_the_application_sets_on_its_handle_do_not_concern_the_store(application: Any) -> None:
    async with opened(make()) as store:

        async def function(transaction: Transaction) -> bytes | None:
            for _ in range(50):
                await transaction.get(OTHER)
            transaction.set(KEY, b"own")
            return await transaction.snapshot.get(KEY)

        assert await store.transact(function) == b"own"
        assert store.metrics()["retries"] == 0


# Commits of unknown outcome


class Interrupted(FdbStore):
    """A store whose server stands still for a while as soon as a commit is on its way."""

    def __init__(self, server: FdbServer) -> None:
        super().__init__(str(server.cluster_file), settings=plain_settings(), sources=Sources())
        self._server = server
        self.commits = 0

    def _submit(self, transaction: FdbTransaction) -> tuple[Any, Any]:
        assert self._loop is not None
        self.commits += 1
        stop_after = self.commits % 4 / 1000
        self._loop.call_later(stop_after, self._server.stop)
        self._loop.call_later(stop_after + 0.3, self._server.go_on)
        return super()._submit(transaction)


@server_test
@pytest.mark.timeout(120)
async def test_calls_take_effect_once_while_the_server_stands_still_and_the_application_has_a_time_limit(
    tmp_path: Path,
) -> None:
    with FdbServer(tmp_path) as server:
        fdb.api_version(730)
        application = fdb.open(str(server.cluster_file))
        application.options.set_transaction_timeout(100)
        async with opened(Interrupted(server)) as store:
            before = await count(store)
            for _ in range(12):
                await store.transact(add_one)
            assert await count(store) - before == 12


@cluster_test
async def test_two_stores_with_the_same_memory_do_not_take_each_others_commits_for_their_own() -> None:
    fates = [Fates(), Fates()]
    settings = plain_settings()
    one, twin = (UnsureFdbStore(CLUSTER, each, settings=settings, sources=Sources()) for each in fates)
    async with opened(one), opened(twin):
        assert one.marks is not None
        twin._marks = one.marks.cloned(Sources().token)
        choose = random.Random(38)
        for round in range(40):
            for each in fates:
                each.plan([choose.choice(UNKNOWN)])
            await asyncio.gather(one.transact(add_one), twin.transact(add_one))
            assert await count(one) == 2 * (round + 1)


class LosesTombstone(UnsureFdbStore):
    """A store whose first tombstone for a commit is lost, of which nobody knows; the commit arrives just then."""

    async def _find_out(self, mark: Mark, began: int) -> bytes | None:
        late, database = self._late.pop(mark.key), self._database

        class Losing:
            @staticmethod
            def create_transaction() -> Any:
                native = database.create_transaction()
                native.commit = lose
                self._database = database
                return native

        def lose() -> Any:
            late.commit().wait()
            return Fated(None, COMMIT_UNKNOWN_RESULT)

        self._database = Losing
        return await super()._find_out(mark, began)


@cluster_test
async def test_a_tombstone_of_which_nobody_knows_whether_it_is_there_is_looked_for() -> None:
    fates = Fates()
    async with opened(LosesTombstone(CLUSTER, fates, settings=plain_settings(), sources=Sources())) as store:
        fates.plan(["late"])
        await store.transact(add_one)
        assert await count(store) == 1
        assert store.metrics()["unknown_commits_happened"] == 1
