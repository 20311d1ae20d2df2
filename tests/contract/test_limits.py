"""What a transaction may be: sizes, time, types of keys and values, the store's own keys, on every store."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from jobs_service.errors import StoreError, TransactionTooLarge, TransactionTooOld
from jobs_service.store import Limits, Store, Transaction
from tests.contract.support import END, contents, number, placeholder, value_of, write

Writes = dict[str, Callable[[Transaction], None]]


async def refused(store: Store, write: Callable[[Transaction], None], error: type[StoreError] = StoreError) -> str:
    """Check that a write is refused with one line, within a function that goes on and with one that does not."""

    async def going_on(tr: Transaction) -> None:
        tr.set(b"kept", b"1")
        with pytest.raises(error):
            write(tr)

    async def giving_up(tr: Transaction) -> None:
        tr.set(b"not kept", b"1")
        write(tr)

    before = await contents(store)
    await store.transact(going_on)
    with pytest.raises(error) as caught:
        await store.transact(giving_up)
    assert await contents(store) == before | {b"kept": b"1"}
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_limits_are_those_of_foundationdb() -> None:
    assert Limits() == Limits(key=10_000, value=100_000, transaction=10_000_000, seconds=5.0)


async def test_the_longest_key_and_the_longest_value_are_stored(store: Store) -> None:
    key, value = b"k" * store.limits.key, b"v" * store.limits.value

    async def function(tr: Transaction) -> None:
        assert tr.limits == store.limits
        tr.set(key, value)
        tr.clear_range(key + b"\x00", key + b"\x01")
        assert await tr.get(key) == value

    await store.transact(function)
    assert await contents(store) == {key: value}
    assert await value_of(store, key) == value
    assert await store.read(lambda tr: tr.get_range(key, END)) == [(key, value)]


async def test_a_longer_key_is_refused(store: Store) -> None:
    key = b"k" * (store.limits.key + 1)
    writes: Writes = {
        "set": lambda tr: tr.set(key, b""),
        "clear": lambda tr: tr.clear(key),
        "add": lambda tr: tr.add(key, number(1)),
        "versionstamped_key": lambda tr: tr.set_versionstamped_key(placeholder(key[10:]), b""),
        "versionstamped_value": lambda tr: tr.set_versionstamped_value(key, placeholder()),
    }
    for refused_write in writes.values():
        message = await refused(store, refused_write, TransactionTooLarge)
        assert str(store.limits.key + 1) in message
        assert str(store.limits.key) in message


async def test_a_longer_key_is_never_found(store: Store) -> None:
    key = b"k" * (store.limits.key + 1)

    async def function(tr: Transaction) -> None:
        assert await tr.get(key) is None
        assert await tr.get_many([key, key + b"k"]) == [None, None]
        tr.set(b"k", b"1")
        assert await tr.get(key) is None
        assert await tr.snapshot.get(key) is None

    await store.transact(function)


async def test_the_empty_key_is_refused_and_never_found(store: Store) -> None:
    await refused(store, lambda tr: tr.set(b"", b"1"), TransactionTooLarge)
    assert await value_of(store, b"") is None


async def test_a_longer_value_is_refused(store: Store) -> None:
    value = b"v" * (store.limits.value + 1)
    writes: Writes = {
        "set": lambda tr: tr.set(b"a", value),
        "add": lambda tr: tr.add(b"a", value),
        "versionstamped_key": lambda tr: tr.set_versionstamped_key(placeholder(b"a"), value),
        "versionstamped_value": lambda tr: tr.set_versionstamped_value(b"a", placeholder(value[10:])),
    }
    for refused_write in writes.values():
        message = await refused(store, refused_write, TransactionTooLarge)
        assert str(store.limits.value + 1) in message
        assert str(store.limits.value) in message


async def test_a_transaction_up_to_the_limit_is_written_and_a_larger_one_is_not(store: Store) -> None:
    value = b"v" * (store.limits.value - 100)
    fitting = store.limits.transaction // (len(value) + 3)

    def filling(count: int) -> Callable[[Transaction], Any]:
        async def function(tr: Transaction) -> None:
            for place in range(count):
                tr.set(b"%03d" % place, value)

        return function

    with pytest.raises(TransactionTooLarge, match=str(store.limits.transaction)):
        await store.transact(filling(fitting + 1))
    assert await contents(store) == {}
    await store.transact(filling(fitting))
    assert len(await contents(store)) == fitting


async def test_clearing_counts_as_well(store: Store) -> None:
    async def function(tr: Transaction) -> None:
        for _ in range(2 * store.limits.transaction // store.limits.key):
            tr.clear_range(b"a" * (store.limits.key - 1), b"b" * (store.limits.key - 1))

    with pytest.raises(TransactionTooLarge):
        await store.transact(function)


async def test_a_function_that_runs_too_long_is_refused(store: Store) -> None:
    store.limits = replace(store.limits, seconds=0.02)

    def lasting(seconds: float) -> Callable[[Transaction], Any]:
        async def function(tr: Transaction) -> None:
            tr.set(b"a", b"%g" % seconds)
            began = time.monotonic()
            while time.monotonic() - began <= seconds:
                await tr.get(b"a")

        return function

    with pytest.raises(TransactionTooOld) as caught:
        await store.transact(lasting(0.05))
    assert "0.02 s" in str(caught.value)
    assert caught.value.retryable
    store.limits = replace(store.limits, seconds=5)
    assert await contents(store) == {}
    await store.transact(lasting(0.05))
    assert await contents(store) == {b"a": b"0.05"}


async def test_nothing_but_bytes_is_written(store: Store) -> None:
    for bad in ("text", 1, None, bytearray(b"a"), memoryview(b"a")):
        writes: Writes = {
            "key": lambda tr, bad=bad: tr.set(bad, b"1"),  # type: ignore[misc]
            "value": lambda tr, bad=bad: tr.set(b"a", bad),  # type: ignore[misc]
            "clear": lambda tr, bad=bad: tr.clear(bad),  # type: ignore[misc]
            "clear_range_begin": lambda tr, bad=bad: tr.clear_range(bad, b"b"),  # type: ignore[misc]
            "clear_range_end": lambda tr, bad=bad: tr.clear_range(b"a", bad),  # type: ignore[misc]
            "add": lambda tr, bad=bad: tr.add(b"a", bad),  # type: ignore[misc]
            "versionstamped_key": lambda tr, bad=bad: tr.set_versionstamped_key(bad, b""),  # type: ignore[misc]
            "versionstamped_value": lambda tr, bad=bad: tr.set_versionstamped_value(b"a", bad),  # type: ignore[misc]
            "watch": lambda tr, bad=bad: tr.watch(bad),  # type: ignore[misc]
        }
        for refused_write in writes.values():
            assert "bytes" in await refused(store, refused_write)


async def test_nothing_but_bytes_is_read(store: Store) -> None:
    await write(store, {b"a": b"1"})

    async def function(tr: Transaction) -> None:
        for bad in ("a", 1, None, bytearray(b"a")):
            with pytest.raises(StoreError, match="bytes"):
                await tr.get(bad)  # type: ignore[arg-type]
            with pytest.raises(StoreError, match="bytes"):
                await tr.snapshot.get_many([b"a", bad])  # type: ignore[list-item]

    await store.read(function)


@pytest.mark.parametrize("key", [b"\xff", b"\xff/jobs_service/format", b"\xff\xff"])
async def test_the_stores_own_keys_are_out_of_reach(store: Store, key: bytes) -> None:
    writes: Writes = {
        "set": lambda tr: tr.set(key, b""),
        "clear": lambda tr: tr.clear(key),
        "add": lambda tr: tr.add(key, number(1)),
        "versionstamped_key": lambda tr: tr.set_versionstamped_key(placeholder(key), b""),
        "versionstamped_value": lambda tr: tr.set_versionstamped_value(key, placeholder()),
        "clear_range": lambda tr: tr.clear_range(b"a", key + b"\x00"),
    }
    for refused_write in writes.values():
        await refused(store, refused_write)

    async def reading(tr: Transaction) -> None:
        for read in (tr.get(key), tr.snapshot.get(key), tr.get_many([key]), tr.get_range(b"a", key + b"\x00")):
            with pytest.raises(StoreError, match="belongs to the store"):
                await read
        tr.set(b"a", b"1")
        with pytest.raises(StoreError, match="belongs to the store"):
            await tr.get(key)

    await store.transact(reading)


async def test_conflicts_about_the_stores_own_keys_are_refused_and_about_no_keys_are_none(store: Store) -> None:
    async def function(tr: Transaction) -> None:
        beyond = END + b"\x00"
        with pytest.raises(StoreError, match="belongs to the store"):
            tr.add_read_conflict_key(beyond)
        for begin, end in ((b"a", beyond), (beyond, b"a")):
            with pytest.raises(StoreError, match="belongs to the store"):
                tr.add_read_conflict_range(begin, end)
        tr.add_read_conflict_range(b"a", END)
        tr.add_read_conflict_range(b"b", b"b")
        tr.add_read_conflict_range(b"b", b"a")
        tr.set(b"a", b"1")

    await store.transact(function)
    assert await value_of(store, b"a") == b"1"


async def test_clearing_all_keys_leaves_the_store_working(store: Store) -> None:
    await write(store, {b"\x00": b"1", b"\xfe\xff": b"1"})

    async def function(tr: Transaction) -> None:
        tr.clear_range(b"", END)
        tr.set_versionstamped_value(b"a", placeholder())

    await store.transact(function)
    first = await contents(store)
    await store.transact(function)
    assert sorted(first) == [b"a"]
    assert (await contents(store))[b"a"] > first[b"a"]
