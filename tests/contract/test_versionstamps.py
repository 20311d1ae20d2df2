"""Versionstamps: unique, growing in commit order, in keys and values, and not to be read back, on every store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from jobs_service.errors import StoreError, TransactionTooLarge
from jobs_service.store import KeySelector, Store, Transaction, Watch
from jobs_service.store.base import STAMP_BYTES
from tests.contract.conftest import Reopen
from tests.contract.support import END, contents, patience, placeholder, value_of, write

Parts = list[tuple[bytes, bytes, bytes]]


async def stamp_of(store: Store, key: bytes = b"stamp") -> bytes:
    """Write a versionstamped value and return the transaction's stamp."""

    async def function(tr: Transaction) -> Transaction:
        tr.set_versionstamped_value(key, placeholder())
        return tr

    stamp = (await store.transact(function)).stamp.value
    assert stamp is not None
    return stamp


async def test_the_stamp_replaces_the_placeholder(store: Store) -> None:
    async def function(tr: Transaction) -> Transaction:
        tr.set_versionstamped_key(placeholder(b"key/", b"/behind"), b"value")
        tr.set_versionstamped_key(placeholder(b"bare/"), b"")
        tr.set_versionstamped_value(b"value", placeholder(b"before/", b"/behind"))
        tr.set_versionstamped_value(b"only", placeholder())
        assert tr.stamp.value is None
        return tr

    stamp = (await store.transact(function)).stamp.value
    assert stamp is not None
    assert len(stamp) == STAMP_BYTES
    assert await contents(store) == {
        b"key/" + stamp + b"/behind": b"value",
        b"bare/" + stamp: b"",
        b"value": b"before/" + stamp + b"/behind",
        b"only": stamp,
    }


async def test_parts_around_the_stamp_may_be_given_instead_of_a_placeholder(store: Store) -> None:
    async def function(tr: Transaction) -> Transaction:
        tr.set(b"plain", b"1")
        tr.stamp_key(b"key/", b"/behind", b"value")
        tr.stamp_value(b"value", b"before/", b"/behind")
        with pytest.raises(StoreError, match="1036"):
            await tr.get(b"value")
        return tr

    stamp = (await store.transact(function)).stamp.value
    assert stamp is not None
    expected = {b"plain": b"1", b"key/" + stamp + b"/behind": b"value", b"value": b"before/" + stamp + b"/behind"}
    assert await contents(store) == expected


@pytest.mark.parametrize("alone", [True, False])
async def test_many_may_be_given_at_once(store: Store, alone: bool) -> None:
    await write(store, {b"value/1": b"old", b"value/2": b"old"})

    async def watching(tr: Transaction) -> list[Watch]:
        return [tr.watch(b"value/%d" % place) for place in range(3)]

    async def function(tr: Transaction) -> tuple[Transaction, Watch]:
        if not alone:
            tr.clear_range(b"value/", b"value0")
            tr.set(b"plain", b"1")
        own = tr.watch(b"value/1")
        tr.stamp_all(
            [(b"value/1", b"", b""), (b"value/2", b"<", b">")],
            [(b"key/", b"", b"1"), (b"key/", b"/2", b"2"), (b"key/", b"/1", b"3")],
        )
        return tr, own

    watches = await store.transact(watching)
    tr, own = await store.transact(function)
    stamp = tr.stamp.value
    assert stamp is not None
    expected = {
        b"value/1": stamp,
        b"value/2": b"<" + stamp + b">",
        b"key/" + stamp: b"1",
        b"key/" + stamp + b"/2": b"2",
        b"key/" + stamp + b"/1": b"3",
    }
    assert await contents(store) == expected | ({} if alone else {b"plain": b"1"})
    async with patience():
        await watches[1].wait()
        await watches[2].wait()
    assert not watches[0].fired
    assert not own.fired
    await write(store, {b"value/1": b"new"})
    async with patience():
        await own.wait()


async def test_many_given_at_once_are_refused_at_once(store: Store) -> None:
    many = [(b"key/", b"", b"1")]

    async def refusing(tr: Transaction) -> None:
        tr.stamp_all([(b"value", b"", b"")], many)
        raise KeyError

    with pytest.raises(KeyError):
        await store.transact(refusing)
    with pytest.raises(StoreError, match="only reads"):
        await store.read(refusing)
    long, large = b"k" * (store.limits.key - 9), b"v" * (store.limits.value - 9)
    too_much: list[tuple[Parts, Parts]] = [
        ([(b"k" * (store.limits.key + 1), b"", b"")], many),
        ([(b"value", large, b"")], many),
        ([], [*many, (long, b"", b"1")]),
        ([], [*many, (b"", long, b"1")]),
        ([], [*many, (b"key/", b"/2", b"v" * (store.limits.value + 1))]),
        ([], [(b"key/", b"%d" % place, b"v" * store.limits.value) for place in range(101)]),
    ]
    for values, keys in too_much:

        async def function(tr: Transaction, values: Parts = values, keys: Parts = keys) -> None:
            tr.stamp_all(values, keys)

        with pytest.raises(TransactionTooLarge):
            await store.transact(function)
    assert await contents(store) == {}


async def test_stamps_grow_in_the_order_of_commits(store: Store) -> None:
    stamps = [await stamp_of(store) for _ in range(20)]
    assert stamps == sorted(set(stamps))


async def test_concurrent_transactions_get_different_stamps_in_their_order(store: Store) -> None:
    async def append(tr: Transaction) -> tuple[Transaction, int]:
        count = int(await tr.get(b"count") or 0)
        tr.set(b"count", b"%d" % (count + 1))
        tr.set_versionstamped_key(placeholder(b"log/"), b"%d" % count)
        return tr, count

    results = await asyncio.gather(*[store.transact(append) for _ in range(50)])
    in_order = sorted(results, key=lambda result: result[1])
    stamps = [tr.stamp.value for tr, _ in in_order]
    assert stamps == sorted({stamp for stamp in stamps if stamp is not None})
    log = [pair for pair in (await contents(store)).items() if pair[0].startswith(b"log/")]
    assert [value for _, value in sorted(log)] == [b"%d" % count for count in range(50)]


async def test_one_transaction_has_one_stamp(store: Store) -> None:
    async def function(tr: Transaction) -> Transaction:
        for number in range(5):
            tr.set_versionstamped_key(placeholder(b"key/", b"/%d" % number), b"")
            tr.set_versionstamped_value(b"value/%d" % number, placeholder())
        return tr

    stamp = (await store.transact(function)).stamp.value
    assert stamp is not None
    expected = {b"key/" + stamp + b"/%d" % number: b"" for number in range(5)}
    assert await contents(store) == expected | {b"value/%d" % number: stamp for number in range(5)}


async def test_a_transaction_that_stamps_nothing_has_a_stamp_too_but_not_one_that_writes_nothing(store: Store) -> None:
    async def writing(tr: Transaction) -> Transaction:
        tr.set(b"a", b"1")
        return tr

    async def reading(tr: Transaction) -> Transaction:
        await tr.get(b"a")
        return tr

    before = await stamp_of(store)
    between = (await store.transact(writing)).stamp.value
    after = await stamp_of(store)
    assert between is not None
    assert before < between < after
    assert (await store.transact(reading)).stamp.value is None
    assert (await store.read(reading)).stamp.value is None


async def test_stamps_grow_over_closing_and_opening(store: Store, reopen: Reopen) -> None:
    stamps = [await stamp_of(store, b"0")]
    for number in range(3):
        again = await reopen()
        assert sorted((await contents(again)).values()) == stamps
        stamps += [await stamp_of(again, b"%d-1" % number), await stamp_of(again, b"%d-2" % number)]
    assert stamps == sorted(set(stamps))


async def test_writes_after_a_stamped_one_come_after_it(store: Store) -> None:
    async def function(tr: Transaction) -> None:
        tr.set_versionstamped_key(placeholder(b"gone/"), b"1")
        tr.clear_range(b"gone/", b"gone0")
        tr.set_versionstamped_value(b"cleared", placeholder())
        tr.clear(b"cleared")
        tr.set_versionstamped_value(b"kept", placeholder())
        tr.set(b"kept", b"1")
        tr.set_versionstamped_value(b"summed", bytes(10) + bytes(4))
        tr.add(b"summed", bytes(10))

    before = await stamp_of(store)
    await store.transact(function)
    found = await contents(store)
    assert sorted(found) == [b"kept", b"stamp", b"summed"]
    assert found[b"kept"] == b"1"
    assert found[b"summed"] > before


def selecting(tr: Transaction) -> Awaitable[object]:
    """Read from a key that a selector names."""
    return tr.get_range(KeySelector.first_greater_than(b"u"), END)


READS: list[Callable[[Transaction], Awaitable[object]]] = [
    lambda tr: tr.get(b"value"),
    lambda tr: tr.get_many([b"a", b"value"]),
    lambda tr: tr.get_range(b"", b"value\x00"),
    lambda tr: tr.get_range(b"value", b"w", limit=1),
    lambda tr: tr.get_range(b"", END, reverse=True),
    selecting,
    lambda tr: tr.get(b"key/" + bytes(5) + b"\x01" + bytes(4)),
    lambda tr: tr.get_range(b"k", b"l"),
    lambda tr: tr.get_range(b"key/\x80", b"key/\x90"),
    lambda tr: tr.snapshot.get(b"value"),
    lambda tr: tr.snapshot.get_range(b"k", b"l"),
]


@pytest.mark.parametrize("then", ["nothing", "set", "add"])
async def test_what_gets_a_stamp_cannot_be_read_back(store: Store, then: str) -> None:
    inside = b"key/" + bytes(5) + b"\x01" + bytes(4)
    await write(store, {b"a": b"1", b"value": b"old", b"z": b"1"})

    async def function(tr: Transaction) -> None:
        tr.set_versionstamped_key(placeholder(b"key/"), b"1")
        tr.set_versionstamped_value(b"value", placeholder())
        for key in (b"value", inside):
            if then == "set":
                tr.set(key, b"1")
            elif then == "add":
                tr.add(key, b"1")
        for read in READS:
            if store.address.startswith("fdb:") and read is selecting:
                continue  # The client resolves it, and refuses the commit as well.
            with pytest.raises(StoreError, match="1036"):
                await read(tr)

    await store.transact(function)
    assert len([key for key in await contents(store) if key.startswith(b"key/")]) == (1 if then == "nothing" else 2)


async def test_what_gets_no_stamp_can_be_read(store: Store) -> None:
    await write(store, {b"a": b"1", b"key.": b"1", b"key0": b"1", b"value": b"1", b"z": b"1"})

    async def function(tr: Transaction) -> None:
        tr.set_versionstamped_key(placeholder(b"key/"), b"1")
        tr.set_versionstamped_value(b"value", placeholder())
        assert await tr.get_many([b"a", b"key.", b"key0", b"value\x00", b"z"]) == [b"1", b"1", b"1", None, b"1"]
        assert await tr.get_range(b"", b"key/") == [(b"a", b"1"), (b"key.", b"1")]
        assert await tr.get_range(b"", END, limit=2) == [(b"a", b"1"), (b"key.", b"1")]
        assert await tr.get_range(b"", END, limit=1, reverse=True) == [(b"z", b"1")]
        assert await tr.get_range(b"key0", b"value") == [(b"key0", b"1")]
        tr.clear(b"value")
        assert await tr.get(b"value") is None
        assert await tr.get_range(b"key0", b"w") == [(b"key0", b"1")]
        tr.clear_range(b"key/", b"key0")
        assert await tr.get_range(b"k", b"l") == [(b"key.", b"1"), (b"key0", b"1")]

    await store.transact(function)
    assert sorted(await contents(store)) == [b"a", b"key.", b"key0", b"z"]


@pytest.mark.parametrize(
    "operand",
    [b"", b"\x00\x00\x00\x00", bytes(9) + bytes(4), bytes(10) + b"\x01\x00\x00\x00", bytes(10) + b"\xff\xff\xff\xff"],
)
async def test_an_operand_without_room_for_the_stamp_is_refused(store: Store, operand: bytes) -> None:
    async def function(tr: Transaction) -> None:
        with pytest.raises(StoreError, match="versionstamped key"):
            tr.set_versionstamped_key(operand, b"1")
        with pytest.raises(StoreError, match="versionstamped value"):
            tr.set_versionstamped_value(b"a", operand)

    await store.transact(function)
    assert await contents(store) == {}


async def test_a_refused_transaction_takes_no_stamp_from_others(store: Store) -> None:
    async def refuse(tr: Transaction) -> None:
        tr.set_versionstamped_value(b"stamp", placeholder())
        raise KeyError

    before = await stamp_of(store)
    with pytest.raises(KeyError):
        await store.transact(refuse)
    assert await value_of(store, b"stamp") == before
    assert await stamp_of(store) > before
