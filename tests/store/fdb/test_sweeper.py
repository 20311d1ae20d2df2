"""The removal of marks that killed processes have left."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import fdb

from jobs_service.sources import Sources
from jobs_service.store import Transaction
from jobs_service.store.commit_marks import HAPPENED, Marks
from jobs_service.store.fdb import FdbStore
from jobs_service.store.fdb.sweeper import MarkSweeper, _Page
from jobs_service.store.fdb.transaction import FdbTransaction
from tests.contract.support import value_of, write
from tests.store.fdb.clusters import CLUSTER, cluster_test
from tests.store.fdb.test_committer import SECOND, add_one, opened
from tests.store.fdb.test_store import make


class Left:
    """Marks that processes have left which were killed.

    Args:
        store: on whose cluster.
    """

    def __init__(self, store: FdbStore) -> None:
        self._store = store

    async def leave(self, *names: bytes, age: int, tail: bytes = HAPPENED) -> None:
        """Leave some, so many versions old."""
        assert self._store.marks is not None
        prefix = self._store.marks.prefix

        async def function(transaction: Transaction) -> None:
            assert isinstance(transaction, FdbTransaction)
            value = (await transaction.read_version() - age).to_bytes(8, "big") + b"\x00\x00" + tail
            for name in names:
                transaction.set(prefix + name, value)

        await self._store.transact(function)

    async def found(self) -> dict[bytes, bytes]:
        """Return those that are there, by their names of one letter and more."""
        assert self._store.marks is not None
        marks = self._store.marks
        pairs = await self._store.read(lambda transaction: transaction.get_range(marks.prefix, marks.end))
        return {key[len(marks.prefix) :]: value for key, value in pairs if len(key) < len(marks.prefix) + 10}


@asynccontextmanager
async def sweeping() -> AsyncIterator[tuple[FdbStore, MarkSweeper, Left]]:
    """A store in whose cluster marks are old after a second, so that a cluster that was just made can have some."""
    async with opened(make()) as store:
        assert store.marks is not None
        marks = store._marks = Marks(store.marks.prefix, Sources().token, lifetime=SECOND)

        async def clear(transaction: Transaction) -> None:
            transaction.clear_range(marks.prefix, marks.end)

        await store.transact(clear)
        yield store, MarkSweeper(store, Sources()), Left(store)
        await store.transact(clear)


@cluster_test
async def test_old_marks_of_all_processes_are_removed_however_many_there_are_and_young_ones_are_not() -> None:
    async with sweeping() as (_, sweeper, left):
        names = [bytes([first]) + b"%03d" % place for first in (0, 1, 254, 255) for place in range(700)]
        await left.leave(*names, age=2 * SECOND)
        await left.leave(b"tombstone", age=2 * SECOND, tail=b"")
        await left.leave(b"earlier", age=2 * SECOND, tail=bytes(8))
        await left.leave(b"young", b"\xff young", age=-3600 * SECOND)
        await left.leave(b"tomb", age=-3600 * SECOND, tail=b"")
        await sweeper.sweep()
        found = await left.found()
        assert found.keys() - {b""} == {b"young", b"\xff young", b"tomb"}


@cluster_test
async def test_a_command_that_ends_soon_removes_its_own_marks_and_looks_at_no_others() -> None:
    async with sweeping() as (store, _, left):
        await left.leave(b"old", age=2 * SECOND)
        short = make()
        await short.open()
        await asyncio.gather(*[short.transact(add_one) for _ in range(10)])
        assert short.marks is not None
        prefix, end = short.marks.prefix, short.marks.end
        await short.close()
        await store.close()
        await store.open()
        await store.prefix()
        assert [key for key, _ in await store.read(lambda tr: tr.get_range(prefix, end))] == [prefix + b"old"]


@cluster_test
async def test_a_mark_that_is_written_anew_while_it_is_swept_stays() -> None:
    async with opened(make()) as store:
        await store.prefix()
        assert store.marks is not None
        marks = Marks(store.marks.prefix, random.randbytes, lifetime=0)
        mark, fresh = marks.prefix + b"\x01 of somebody else", (2**63).to_bytes(8, "big") + b"\0\0" + HAPPENED
        await write(store, {mark: bytes(10) + HAPPENED})
        fdb.api_version(730)
        runs = 0

        async def sweep(transaction: Transaction) -> None:
            nonlocal runs
            runs += 1
            await _Page(marks, mark)(transaction)
            if runs == 1:  # what is between the look and the commit, on a thread of the client's
                native = fdb.open(CLUSTER).create_transaction()
                native[mark] = fresh
                native.commit().wait()

        await store.transact(sweep)
        assert (runs, await value_of(store, mark)) == (2, fresh)
        await store.transact(lambda tr: _clear(tr, mark))


async def _clear(transaction: Transaction, key: bytes) -> None:
    transaction.clear(key)
