"""What a call of transact() does happens at most once, whatever becomes of its commits: on stores that meet such."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from jobs_service.errors import CommitUnknown, StoreError, TransactionConflict
from jobs_service.store import Store, Transaction, Watch
from tests.contract.support import contents, number, patience, value_of, write
from tests.unsure import UNKNOWN, UNSURE_KINDS, Fate, Fates, unsure_store

HAPPENED: list[Fate] = ["unanswered", "timed out"]
LOST: list[Fate] = ["lost", "late"]


@pytest.fixture
def fates() -> Fates:
    """What becomes of the store's commits."""
    return Fates()


@pytest.fixture(params=UNSURE_KINDS)
async def store(request: pytest.FixtureRequest, fates: Fates) -> AsyncIterator[Store]:
    """An open, empty store, here one whose commits may be of unknown outcome."""
    found = unsure_store(request.param, fates)
    await found.open()
    yield found
    assert not fates.coming, "a fate was not met"
    await found.close()


class Append:
    """A transaction function that appends to a list in the store what it is called, and counts an atomic add.

    Attributes:
        runs: the transactions of its runs.
    """

    def __init__(self, name: bytes) -> None:
        self.runs: list[Transaction] = []
        self._name = name

    async def __call__(self, tr: Transaction) -> bytes:
        self.runs.append(tr)
        before = await tr.get(b"list") or b""
        tr.set(b"list", before + self._name)
        tr.add(b"count", number(1))
        return before


async def assert_appended(store: Store, *names: bytes) -> None:
    """Check that the list has these names, and that nothing else was done."""
    assert await contents(store) == {b"list": b"".join(names), b"count": number(len(names))}


SEQUENCES: list[list[Fate]] = [
    ["unanswered"],
    ["lost"],
    ["lost", "lost", "unanswered"],
    ["conflict", "unanswered"],
    ["lost", "conflict", "lost"],
    ["lost", "answered"],
    ["timed out"],
    ["late"],
    ["late", "lost", "late", "timed out"],
    ["conflict", "late", "conflict", "unanswered"],
]


@pytest.mark.parametrize("sequence", SEQUENCES, ids="-".join)
async def test_a_function_takes_effect_once_and_is_run_again_only_after_a_commit_that_did_not_happen(
    store: Store, fates: Fates, sequence: list[Fate]
) -> None:
    fates.plan(sequence)
    append = Append(b"a")
    assert await store.transact(append) == b""
    await assert_appended(store, b"a")
    assert len(append.runs) == len(sequence) + (sequence[-1] in ("lost", "conflict", "late"))


@pytest.mark.parametrize("fate", HAPPENED)
async def test_an_unanswered_commit_is_not_repeated_when_others_have_written_the_same_keys_since(
    store: Store, fates: Fates, fate: Fate
) -> None:
    mine, theirs = Append(b"m"), Append(b"t")
    fates.plan([fate], lambda: store.transact(theirs))
    assert await store.transact(mine) == b""
    assert len(mine.runs) == 1
    await assert_appended(store, b"m", b"t")


@pytest.mark.parametrize("fate", LOST)
async def test_a_lost_commit_is_repeated_on_what_others_have_written_since(
    store: Store, fates: Fates, fate: Fate
) -> None:
    mine, theirs = Append(b"m"), Append(b"t")
    fates.plan([fate], lambda: store.transact(theirs))
    assert await store.transact(mine) == b"t"
    await assert_appended(store, b"t", b"m")


@pytest.mark.parametrize("fate", HAPPENED)
async def test_what_others_took_back_since_an_unanswered_commit_stays_away(
    store: Store, fates: Fates, fate: Fate
) -> None:
    async def clear(tr: Transaction) -> None:
        tr.clear_range(b"a", b"z")

    fates.plan([fate], lambda: store.transact(clear))
    append = Append(b"a")
    await store.transact(append)
    assert await contents(store) == {}
    assert len(append.runs) == 1


@pytest.mark.parametrize("fate", HAPPENED)
async def test_the_stamp_of_an_unanswered_commit_is_known_and_lies_before_those_of_later_ones(
    store: Store, fates: Fates, fate: Fate
) -> None:
    mine, theirs = Append(b"m"), Append(b"t")

    async def stamped(tr: Transaction) -> None:
        await mine(tr)
        tr.stamp_value(b"stamp", b"", b"")

    fates.plan([fate], lambda: store.transact(theirs))
    await store.transact(stamped)
    stamp = mine.runs[0].stamp.value
    assert stamp is not None
    assert stamp == await value_of(store, b"stamp")
    later = theirs.runs[0].stamp.value
    assert later is not None
    assert stamp < later


@pytest.mark.parametrize("fate", LOST)
async def test_the_stamp_of_a_lost_commit_is_that_of_the_run_that_happened(
    store: Store, fates: Fates, fate: Fate
) -> None:
    append = Append(b"a")

    async def stamped(tr: Transaction) -> None:
        await append(tr)
        tr.stamp_value(b"stamp", b"", b"")

    fates.plan([fate])
    await store.transact(stamped)
    assert [tr.stamp.value for tr in append.runs] == [None, await value_of(store, b"stamp")]


@pytest.mark.parametrize("error", [CommitUnknown("mine"), TransactionConflict("mine"), TimeoutError("mine")])
async def test_an_error_of_the_function_goes_to_the_caller_also_if_it_looks_like_that_of_a_commit(
    store: Store, error: Exception
) -> None:
    append = Append(b"a")

    async def failing(tr: Transaction) -> None:
        await append(tr)
        raise error

    with pytest.raises(type(error)) as caught:
        await store.transact(failing)
    assert caught.value is error
    assert len(append.runs) == 1
    assert await contents(store) == {}


@pytest.mark.parametrize("fate", UNKNOWN)
async def test_a_watch_of_a_transaction_whose_commit_was_unknown_fires_or_fails_when_the_value_changes(
    store: Store, fates: Fates, fate: Fate
) -> None:
    async def watching(tr: Transaction) -> Watch:
        tr.set(b"a", b"1")
        return tr.watch(b"a")

    fates.plan([fate])
    watch = await store.transact(watching)
    await write(store, {b"a": b"2"})
    async with patience():
        with suppress(StoreError):
            await watch.wait()
    assert watch.fired


@pytest.mark.parametrize("fate", UNKNOWN)
async def test_who_is_cancelled_while_nobody_knows_is_told_of_a_commit_that_happened(
    store: Store, fates: Fates, fate: Fate
) -> None:
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        reached.set()
        await go_on.wait()

    fates.plan([fate], hold)
    told: list[bytes] = []
    call = asyncio.create_task(store.transact(Append(b"a"), abandoned=told.append))
    async with patience():
        await reached.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        go_on.set()
        await store.close()
    await store.open()
    assert told == ([b""] if fate in HAPPENED else [])
    assert await contents(store) == ({b"list": b"a", b"count": number(1)} if fate in HAPPENED else {})


async def test_many_callers_at_once_each_take_effect_once(store: Store, fates: Fates) -> None:
    choose = random.Random(7)
    mixed: list[Fate] = ["answered", "conflict", *HAPPENED, *LOST]
    fates.plan(choose.choices(mixed, k=60))
    names = [b"%03d" % each for each in range(60)]

    async def caller(mine: list[bytes]) -> None:
        for name in mine:
            await store.transact(Append(name))

    async with patience(), asyncio.TaskGroup() as group:
        for place in range(6):
            group.create_task(caller(names[place::6]))
    found = await contents(store)
    listed = found[b"list"]
    assert sorted(listed[at : at + 3] for at in range(0, len(listed), 3)) == names
    assert found[b"count"] == number(60)
    assert set(fates.met) == set(mixed)


async def test_what_tells_of_unknown_commits_is_tidied_up(store: Store, fates: Fates) -> None:
    kept: list[int] = []
    for _ in range(3):
        fates.plan([*HAPPENED, *LOST] * 3)
        for _ in range(20):
            await store.transact(Append(b"a"))
        kept.append(await _all_keys(store))
    assert len(set(kept)) == 1


async def _all_keys(store: Any) -> int:
    """Return how many keys there are, the store's own and all."""
    if store.address.startswith("fdb:"):
        return len(await store.read(lambda tr: tr.get_range(b"", b"\xff")))
    versions = getattr(store, "cluster", store).versions
    return len([*versions.scan_at(versions.version, b"", b"\xff\xff", False)])
