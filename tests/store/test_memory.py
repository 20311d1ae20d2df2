"""The memory store's own: explicit transactions, and what is kept for them. Conflicts: test_memory_interleaving.py."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from jobs_service.errors import StoreError
from jobs_service.settings import Settings
from jobs_service.sources import Sources
from jobs_service.store import Transaction
from jobs_service.store.memory import Faults, MemoryStore
from tests.contract.support import value_of, write
from tests.virtual_time import cancel_at_every_step, run_virtual


@asynccontextmanager
async def opened(faults: Faults | None = None, *, seed: int = 0) -> AsyncIterator[MemoryStore]:
    """Open a store that holds a, b and c, and close it."""
    store = MemoryStore(settings=Settings(), sources=Sources(seed))
    await store.open()
    await write(store, {b"a": b"1", b"b": b"1", b"c": b"1"})
    store.faults = faults
    yield store
    await store.close()


async def increment(tr: Transaction) -> int:
    """Count up."""
    count = int(await tr.get(b"count") or 0) + 1
    tr.set(b"count", b"%d" % count)
    return count


# Explicit transactions


async def test_an_ended_transaction_cannot_commit_and_ending_it_again_does_nothing() -> None:
    async with opened() as store:
        tr = store.begin()
        tr.set(b"mine", b"1")
        watch = tr.watch(b"a")
        tr.end()
        tr.end()
        for again in (tr, store.begin()):
            again.end()
            with pytest.raises(StoreError, match="ended"):
                again.commit()
        with pytest.raises(StoreError, match="did not commit"):
            await watch.wait()
        assert await value_of(store, b"mine") is None


async def test_a_watch_made_on_an_old_state_fires_at_once() -> None:
    async with opened() as store:
        for commits in (False, True):
            tr = store.begin()
            watch = tr.watch(b"a")
            if commits:
                tr.set(b"mine", b"1")
            await write(store, {b"a": b"%d" % (2 + commits)})
            tr.commit()
            assert watch.fired
            await watch.wait()


# What is kept


async def test_nothing_is_kept_for_a_transaction_that_was_forgotten() -> None:
    async with opened() as store:
        forgotten = store.begin()
        watch = forgotten.watch(b"a")
        await write(store, {b"a": b"2"})
        assert store.versions.kept
        del forgotten
        gc.collect()
        assert store.versions.kept == 0
        with pytest.raises(StoreError, match="did not commit"):
            await watch.wait()


async def test_no_more_is_kept_than_open_transactions_can_see() -> None:
    """Readers come and go while others write: what is kept depends on how far they reach back, not on history."""
    async with opened() as store:
        readers = [store.begin() for _ in range(10)]
        for count in range(2000):
            tr = store.begin()
            tr.set(b"a", b"%d" % count)
            tr.set(b"%d" % count, b"")
            tr.clear_range(b"%d" % (count - 20), b"%d\x00" % (count - 20))
            tr.commit()
            readers.pop(0).end()
            readers.append(store.begin())
            # The oldest reader began ten commits ago; each has left three past values, a commit and a range.
            assert store.versions.kept <= 10 * 5
        for reader in readers[::-1]:
            reader.end()
        assert store.versions.kept == 0


# Calls


def test_a_run_can_be_repeated_exactly() -> None:
    async def main() -> tuple[list[int], float]:
        order: list[int] = []

        async with opened(seed=7) as store:

            async def caller(place: int) -> None:
                for _ in range(3):
                    await store.transact(increment)
                    order.append(place)

            await asyncio.gather(*[caller(place) for place in range(10)])
        return order, asyncio.get_running_loop().time()

    first = run_virtual(main())
    assert run_virtual(main()) == first
    assert len(first[0]) == 30


def test_a_call_cancelled_at_any_step_has_committed_or_not() -> None:
    outcomes = set()
    told: list[int] = []
    stores: list[MemoryStore] = []
    answers: list[int] = []

    async def scenario() -> None:
        async with opened() as store:
            stores.append(store)
            try:
                answers.append(await store.transact(increment, abandoned=told.append))
            finally:
                assert store.versions.kept == 0

    for _ in cancel_at_every_step(scenario):
        if stores:
            count = stores.pop().versions.get(b"count")
            outcomes.add((count, bool(answers)))
        answers.clear()
    assert outcomes == {(None, False), (b"1", True)}
    assert not told
