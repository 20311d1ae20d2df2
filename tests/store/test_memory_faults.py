"""Faults of the memory store, and what callers learn of them."""

from __future__ import annotations

import asyncio

import pytest

from jobs_service.errors import CommitUnknown, StoreUnavailable, TransactionConflict
from jobs_service.settings import Settings
from jobs_service.store import Transaction, Watch
from jobs_service.store.memory import Faults, MemoryTransaction
from tests.contract.support import value_of
from tests.store.test_memory import increment, opened
from tests.virtual_time import in_virtual_time


class Once(Faults):
    """Raises an error once, before or after the commit.

    Args:
        where: the method that raises.
        error: what it raises.
    """

    def __init__(self, where: str, error: Exception) -> None:
        self._where = where
        self._errors = [error]

    async def before_commit(self, transaction: MemoryTransaction) -> None:
        self._raise("before_commit")

    async def after_commit(self, transaction: MemoryTransaction) -> None:
        self._raise("after_commit")

    def _raise(self, where: str) -> None:
        if where == self._where and self._errors:
            raise self._errors.pop()


@pytest.mark.parametrize(
    ("faults", "runs"),
    [
        (Faults(), 1),
        (Once("before_commit", TransactionConflict("injected")), 2),
        (Once("before_commit", CommitUnknown("injected")), 2),
        (Once("after_commit", CommitUnknown("injected")), 1),
    ],
    ids=["none", "conflict", "unknown_and_not_committed", "unknown_and_committed"],
)
@in_virtual_time
async def test_a_function_takes_effect_once_and_is_run_again_only_when_its_commit_has_not_happened(
    faults: Faults, runs: int
) -> None:
    async with opened(faults) as store:
        seen: list[bytes | None] = []

        async def function(tr: Transaction) -> int:
            seen.append(await tr.get(b"count"))
            return await increment(tr)

        assert await store.transact(function) == 1
        assert await value_of(store, b"count") == b"1"
        assert seen == [None] * runs


class Away(Faults):
    """Nobody answers, at one place.

    Args:
        where: the method that waits.
    """

    def __init__(self, where: str) -> None:
        self._where = where

    async def before_begin(self) -> None:
        await self._wait("before_begin")

    async def before_commit(self, transaction: MemoryTransaction) -> None:
        await self._wait("before_commit")

    async def after_commit(self, transaction: MemoryTransaction) -> None:
        await self._wait("after_commit")

    async def _wait(self, where: str) -> None:
        if where == self._where:
            await asyncio.Event().wait()


@pytest.mark.parametrize("where", ["before_begin", "before_commit", "after_commit"])
@in_virtual_time
async def test_a_store_that_is_away_is_unavailable_after_the_time_limit(where: str) -> None:
    async with opened() as store:
        loop = asyncio.get_running_loop()
        watch = await store.transact(watch_count)
        store.faults = Away(where)
        told: list[int] = []
        calls = [store.transact(increment, abandoned=told.append)]
        if where == "before_begin":
            calls.append(store.read(increment))
        began = loop.time()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(result) for result in results] == [StoreUnavailable] * len(calls)
        assert loop.time() - began == pytest.approx(Settings().transaction_timeout)
        store.faults = None
        assert await value_of(store, b"count") == (b"1" if where == "after_commit" else None)
        assert watch.fired == (where == "after_commit")
        assert told == ([1] if where == "after_commit" else [])
        await store.transact(increment)


async def watch_count(tr: Transaction) -> Watch:
    """Watch the counter."""
    return tr.watch(b"count")


class Always(Faults):
    """Every commit conflicts."""

    async def before_commit(self, transaction: MemoryTransaction) -> None:
        raise TransactionConflict("injected")


@in_virtual_time
async def test_conflicts_without_end_make_the_store_unavailable_after_the_time_limit() -> None:
    async with opened(Always()) as store:
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(StoreUnavailable, match="injected") as caught:
            await store.transact(increment)
        assert isinstance(caught.value.__cause__, TransactionConflict)
        assert 0 <= loop.time() - began - Settings().transaction_timeout < 0.1
        store.faults = None
        assert await value_of(store, b"count") is None


@in_virtual_time
async def test_who_is_cancelled_while_the_answer_is_on_its_way_is_told_of_the_commit() -> None:
    async with opened(Away("after_commit")) as store:
        told: list[int] = []
        call = asyncio.create_task(store.transact(increment, abandoned=told.append))
        await asyncio.sleep(1)
        assert not told
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert told == [1]
        assert await value_of(store, b"count") == b"1"


@pytest.mark.parametrize("where", ["before_begin", "before_commit"])
@in_virtual_time
async def test_who_is_cancelled_before_the_commit_has_written_nothing(where: str) -> None:
    async with opened(Away(where)) as store:
        told: list[int] = []
        call = asyncio.create_task(store.transact(increment, abandoned=told.append))
        await asyncio.sleep(1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        store.faults = None
        assert not told
        assert await value_of(store, b"count") is None
        assert store.versions.kept == 0
