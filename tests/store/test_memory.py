"""The memory store's own: explicit transactions, when they conflict, what is kept for them, faults."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from jobs_service.errors import StoreError, TransactionConflict
from jobs_service.settings import Settings
from jobs_service.sources import Sources
from jobs_service.store import Transaction, Watch
from jobs_service.store.memory import Faults, MemoryStore, MemoryTransaction
from tests.contract.support import END, placeholder, value_of, write
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


async def test_a_transaction_reads_the_state_of_its_beginning() -> None:
    async with opened() as store:
        old = store.begin()
        await write(store, {b"a": b"2", b"d": b"2"})
        middle = store.begin()
        await store.transact(lambda tr: clear(tr, b"", END))
        await write(store, {b"e": b"3"})
        new = store.begin()
        states = {
            old: {b"a": b"1", b"b": b"1", b"c": b"1"},
            middle: {b"a": b"2", b"b": b"1", b"c": b"1", b"d": b"2"},
            new: {b"e": b"3"},
        }
        for tr, state in states.items():
            assert dict(await tr.get_range(b"", END)) == state
            assert await tr.get_range(b"", END, reverse=True) == sorted(state.items(), reverse=True)
            assert await tr.get_range(b"b", b"e", limit=1) == sorted(state.items())[1:2]
            assert {key: await tr.get(key) for key in state} == state
            assert await tr.get(b"f") is None
            tr.end()


async def clear(tr: Transaction, begin: bytes, end: bytes) -> None:
    """Clear a range."""
    tr.clear_range(begin, end)


def _get_a(tr: MemoryTransaction) -> None:
    tr.get_now(b"a", tr.conflicts)


def _get_range(begin: bytes, end: bytes, limit: int = 0, reverse: bool = False) -> Callable[[MemoryTransaction], None]:
    def read(tr: MemoryTransaction) -> None:
        tr.get_range_now(begin, end, limit, reverse, tr.conflicts)

    return read


def _snapshot_reads(tr: MemoryTransaction) -> None:
    tr.get_now(b"a", None)
    tr.get_range_now(b"", END, 0, False, None)


def _in_turn(*steps: Callable[[MemoryTransaction], None]) -> Callable[[MemoryTransaction], None]:
    def run(tr: MemoryTransaction) -> None:
        for step in steps:
            step(tr)

    return run


READS: dict[str, Callable[[MemoryTransaction], None]] = {
    "get": _get_a,
    "range": _get_range(b"", END),
    "empty_range": _get_range(b"x", b"y"),
    "limited": _get_range(b"", END, 1),
    "limited_reverse": _get_range(b"", END, 1, True),
    "conflict_key": lambda tr: tr.add_read_conflict_key(b"a"),
    "conflict_range": lambda tr: tr.add_read_conflict_range(b"", b"b"),
    "no_conflict_range": lambda tr: tr.add_read_conflict_range(b"a", b"a"),
    "inverted_conflict_range": lambda tr: tr.add_read_conflict_range(b"a\x00", b"a"),
    "own_add_read_back": _in_turn(lambda tr: tr.add(b"a", b"1"), _get_a),
    "own_add_in_snapshot": _in_turn(lambda tr: tr.add(b"a", b"1"), _snapshot_reads),
    "own_value": _in_turn(lambda tr: tr.set(b"a", b"x"), _get_a),
    "own_clear": _in_turn(lambda tr: tr.clear_range(b"", b"b"), _get_a),
    "snapshot": _snapshot_reads,
    "nothing": lambda tr: None,
}
WRITES: dict[str, Callable[[Transaction], None]] = {
    "set_a": lambda tr: tr.set(b"a", b"2"),
    "add_a": lambda tr: tr.add(b"a", b"2"),
    "clear_a": lambda tr: tr.clear(b"a"),
    "stamp_a": lambda tr: tr.set_versionstamped_value(b"a", placeholder()),
    "clear_range": lambda tr: tr.clear_range(b"", b"b"),
    "set_b": lambda tr: tr.set(b"b", b"2"),
    "set_c": lambda tr: tr.set(b"c", b"2"),
    "insert_x": lambda tr: tr.set(b"x1", b"2"),
    "insert_stamped_x": lambda tr: tr.set_versionstamped_key(placeholder(b"x"), b"2"),
    "clear_nothing_in_x": lambda tr: tr.clear_range(b"x", b"y"),
}
_OF_A = {"set_a", "add_a", "clear_a", "stamp_a", "clear_range"}
_OF_X = {"insert_x", "insert_stamped_x", "clear_nothing_in_x"}
CONFLICTS = {
    "get": _OF_A,
    "range": set(WRITES),
    "empty_range": _OF_X,
    "limited": _OF_A,
    "limited_reverse": {"set_c"} | _OF_X,
    "conflict_key": _OF_A,
    "conflict_range": _OF_A,
    "own_add_read_back": _OF_A,
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("read", READS)
async def test_a_commit_fails_exactly_if_something_read_was_written_meanwhile(read: str, write: str) -> None:
    async with opened() as store:
        # What is kept for an older one, about the same keys, must not decide.
        store.begin()
        for key in (b"a", b"b", b"c", b"x"):
            earlier = store.begin()
            earlier.clear_range(key, key + b"\x00")
            earlier.set(key, b"1")
            earlier.commit()
        await store.transact(lambda tr: clear(tr, b"x", b"y"))
        tr = store.begin()
        READS[read](tr)
        other = store.begin()
        WRITES[write](other)
        other.commit()
        tr.set(b"mine", b"1")
        if write in CONFLICTS.get(read, ()):
            with pytest.raises(TransactionConflict):
                tr.commit()
            assert await value_of(store, b"mine") is None
            assert not tr.committed
            assert tr.stamp.value is None
        else:
            tr.commit()
            assert await value_of(store, b"mine") == b"1"


@pytest.mark.parametrize("write", WRITES)
async def test_what_was_committed_before_the_beginning_is_no_conflict(write: str) -> None:
    async with opened() as store:
        keeper = store.begin()
        other = store.begin()
        WRITES[write](other)
        other.commit()
        tr = store.begin()
        READS["range"](tr)
        tr.set(b"mine", b"1")
        tr.commit()
        keeper.end()


async def test_a_transaction_that_writes_nothing_never_conflicts() -> None:
    async with opened() as store:
        tr = store.begin()
        await tr.get(b"a")
        await write(store, {b"a": b"2"})
        tr.commit()
        assert tr.committed
        assert tr.stamp.value is None


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


async def test_watches_fire_in_the_order_in_which_they_were_made() -> None:
    async with opened() as store:
        fired: list[int] = []

        async def watching(tr: Transaction) -> list[Watch]:
            return [tr.watch(b"ab"[place % 2 :][:1]) for place in range(10)]

        for place, watch in enumerate(await store.transact(watching)):
            watch.on_fire(lambda place=place: fired.append(place))  # type: ignore[misc]
        await write(store, {b"b": b"2", b"a": b"2"})
        assert fired == [1, 3, 5, 7, 9, 0, 2, 4, 6, 8]


# What is kept


async def test_nothing_is_kept_when_nobody_reads_the_past() -> None:
    async with opened() as store:
        for _ in range(1000):
            tr = store.begin()
            tr.set(b"a", b"2")
            tr.clear(b"b")
            tr.clear_range(b"c", b"d")
            tr.commit()
            assert store.versions.kept == 0


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


async def test_a_long_reader_sees_its_state_through_a_deep_history() -> None:
    async with opened() as store:
        reader = store.begin()
        middles = []
        for count in range(5000):
            tr = store.begin()
            tr.set(b"a", b"%d" % count)
            tr.commit()
            if count % 1000 == 500:
                middles.append((count, store.begin()))
        assert await reader.get(b"a") == b"1"
        assert await reader.get_range(b"", END) == [(b"a", b"1"), (b"b", b"1"), (b"c", b"1")]
        for count, middle in middles:
            assert await middle.get(b"a") == b"%d" % count
        reader.end()
        assert 0 < store.versions.kept < 2 * 4600
        for count, middle in middles:
            assert await middle.get(b"a") == b"%d" % count
            middle.end()
        assert store.versions.kept == 0


async def test_calls_keep_nothing_after_their_end() -> None:
    async with opened() as store:

        async def refuse(tr: Transaction) -> None:
            await increment(tr)
            raise KeyError

        calls: list[asyncio.Task[object]] = [asyncio.create_task(store.transact(increment)) for _ in range(30)]
        calls += [asyncio.create_task(store.transact(refuse)) for _ in range(10)]
        calls += [asyncio.create_task(store.read(lambda tr: tr.get(b"count"))) for _ in range(10)]
        for _ in range(2):
            await asyncio.sleep(0)
        for call in calls[::7]:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        assert store.versions.kept == 0


# Calls


async def test_concurrent_calls_meet_conflicts() -> None:
    async with opened() as store:
        runs = []

        async def function(tr: Transaction) -> int:
            runs.append(tr)
            return await increment(tr)

        await asyncio.gather(*[store.transact(function) for _ in range(20)])
        assert await value_of(store, b"count") == b"20"
        assert len(runs) > 20


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


def test_it_can_be_opened_again_on_another_loop() -> None:
    store = MemoryStore(settings=Settings(), sources=Sources(0))

    async def main() -> int:
        await store.open()
        count = await store.transact(increment)
        await store.close()
        return count

    assert [asyncio.run(main()) for _ in range(3)] == [1, 2, 3]


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
