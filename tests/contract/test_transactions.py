"""Atomicity, isolation, reading one's own writes, and conflicts, on every store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from jobs_service.errors import StoreError
from jobs_service.store import Snapshot, Store, Transaction
from jobs_service.store.base import TransactionFunction
from tests.contract.support import END, contents, number, placeholder, value_of, write


class Refusal(Exception):
    """Raised by a transaction function on purpose."""


def write_everything(tr: Transaction) -> None:
    """Do every kind of write."""
    tr.set(b"set", b"1")
    tr.clear(b"old")
    tr.clear_range(b"range/", b"range0")
    tr.add(b"sum", number(1))
    tr.set_versionstamped_key(placeholder(b"stamped/"), b"1")
    tr.set_versionstamped_value(b"stamp", placeholder())


async def test_what_a_transaction_writes_the_next_one_reads(store: Store) -> None:
    await write(store, {b"a": b"1", b"b": b"2"})

    async def both(tr: Transaction) -> list[bytes | None]:
        return await tr.get_many([b"a", b"b", b"c"])

    assert await store.read(both) == [b"1", b"2", None]
    assert await store.transact(both) == [b"1", b"2", None]


async def test_transact_returns_what_the_function_returns(store: Store) -> None:
    result = object()

    async def function(tr: Transaction) -> object:
        return result

    assert await store.transact(function) is result
    assert await store.read(function) is result


async def test_a_function_that_raises_leaves_no_trace(store: Store) -> None:
    before = {b"old": b"1", b"range/1": b"1", b"sum": number(5)}
    await write(store, before)
    refusal = Refusal()
    stamps = []

    async def refuse(tr: Transaction) -> None:
        write_everything(tr)
        stamps.append(tr.stamp)
        raise refusal

    with pytest.raises(Refusal) as caught:
        await store.transact(refuse)
    assert caught.value is refusal
    assert await contents(store) == before
    assert [stamp.value for stamp in stamps] == [None]


async def test_functions_that_raise_take_nothing_with_them(store: Store) -> None:
    def program(number: int) -> TransactionFunction[None]:
        async def run(tr: Transaction) -> None:
            tr.set(b"%03d" % number, b"")
            tr.clear(b"%03d" % (number - 1))
            if number % 2:
                raise Refusal(number)

        return run

    await write(store, {b"%03d" % number: b"old" for number in range(0, 40, 5)})
    results = await asyncio.gather(*[store.transact(program(number)) for number in range(40)], return_exceptions=True)
    assert [isinstance(result, Refusal) for result in results] == [bool(number % 2) for number in range(40)]
    found = await contents(store)
    assert all(found[b"%03d" % number] == b"" for number in range(0, 40, 2))
    assert not any(b"%03d" % (number - 1) in found for number in range(0, 40, 2))


async def test_an_exception_that_is_no_exception_leaves_no_trace_either(store: Store) -> None:
    class Unwind(BaseException):
        """Like GeneratorExit or the layer's own: not an Exception."""

    async def unwind(tr: Transaction) -> None:
        tr.set(b"a", b"1")
        raise Unwind

    with pytest.raises(Unwind):
        await store.transact(unwind)
    assert await contents(store) == {}


async def test_a_transaction_reads_its_own_writes(store: Store) -> None:
    await write(store, {b"a": b"old", b"b": b"old", b"c": b"old", b"n": number(40)})

    async def look(reads: Snapshot) -> dict[bytes, bytes | None]:
        keys = [b"a", b"b", b"c", b"d", b"n", b"m"]
        many = dict(zip(keys, await reads.get_many(keys), strict=True))
        assert {key: await reads.get(key) for key in keys} == many
        found = await reads.get_range(b"", END)
        assert dict(found) == {key: value for key, value in many.items() if value is not None}
        assert [key for key, _ in found] == sorted(dict(found))
        assert await reads.get_range(b"", END, reverse=True) == found[::-1]
        return many

    async def function(tr: Transaction) -> None:
        tr.set(b"a", b"new")
        tr.clear(b"b")
        tr.set(b"d", b"new")
        tr.add(b"n", number(2))
        tr.add(b"m", number(3))
        expected = {b"a": b"new", b"b": None, b"c": b"old", b"d": b"new", b"n": number(42), b"m": number(3)}
        assert await look(tr) == expected
        assert await look(tr.snapshot) == expected
        tr.clear_range(b"a", b"d")
        tr.set(b"b", b"again")
        tr.add(b"n", number(1))
        expected |= {b"a": None, b"b": b"again", b"c": None, b"n": number(43)}
        assert await look(tr) == expected
        assert await look(tr.snapshot) == expected

    await store.transact(function)
    assert await contents(store) == {b"b": b"again", b"d": b"new", b"n": number(43), b"m": number(3)}


async def test_a_key_added_to_after_its_range_was_cleared_is_in_ranges(store: Store) -> None:
    await write(store, {b"a": number(1), b"b": number(1)})

    async def function(tr: Transaction) -> None:
        tr.clear_range(b"a", b"z")
        assert await tr.get_range(b"", END) == []
        tr.add(b"b", number(7))
        assert await tr.get(b"b") == number(7)
        assert await tr.get_range(b"", END) == [(b"b", number(7))]

    await store.transact(function)
    assert await contents(store) == {b"b": number(7)}


async def test_the_last_write_of_a_key_counts(store: Store) -> None:
    async def function(tr: Transaction) -> None:
        tr.set(b"a", b"1")
        tr.clear(b"a")
        tr.set(b"b", b"1")
        tr.clear_range(b"b", b"c")
        tr.set(b"c", b"1")
        tr.set(b"c", b"2")
        tr.clear(b"d")
        tr.set(b"d", b"1")
        tr.clear_range(b"e", b"f")
        tr.set(b"e", b"1")
        tr.set(b"f", number(1))
        tr.add(b"f", number(1))
        tr.add(b"g", number(1))
        tr.set(b"g", b"1")
        tr.set_versionstamped_value(b"h", placeholder())
        tr.set(b"h", b"1")

    await store.transact(function)
    assert await contents(store) == {b"c": b"2", b"d": b"1", b"e": b"1", b"f": number(2), b"g": b"1", b"h": b"1"}


async def test_an_empty_or_inverted_range_clears_nothing(store: Store) -> None:
    await write(store, {b"a": b"1", b"b": b"1"})

    async def function(tr: Transaction) -> None:
        tr.clear_range(b"a", b"a")
        tr.clear_range(b"c", b"a")
        assert len(await tr.get_range(b"", END)) == 2

    await store.transact(function)
    assert await contents(store) == {b"a": b"1", b"b": b"1"}


async def test_items_are_another_way_to_write(store: Store) -> None:
    await write(store, {b"%d" % n: b"" for n in range(10)})

    async def function(tr: Transaction) -> None:
        tr[b"a"] = b"1"
        del tr[b"0"]
        del tr[b"2":b"5"]
        del tr[b"8":]
        del tr[b"1":b""]

    await store.transact(function)
    assert sorted(await contents(store)) == [b"1", b"5", b"6", b"7"]


async def test_an_empty_value_is_a_value(store: Store) -> None:
    await write(store, {b"a": b""})
    assert await value_of(store, b"a") == b""
    assert await contents(store) == {b"a": b""}


async def test_a_reading_transaction_refuses_every_write(store: Store) -> None:
    writes: list[Callable[[Transaction], None]] = [
        lambda tr: tr.set(b"a", b"1"),
        lambda tr: tr.clear(b"a"),
        lambda tr: tr.clear_range(b"a", b"b"),
        lambda tr: tr.add(b"a", number(1)),
        lambda tr: tr.set_versionstamped_key(placeholder(b"a"), b""),
        lambda tr: tr.set_versionstamped_value(b"a", placeholder()),
    ]

    async def function(tr: Transaction) -> None:
        for refused in writes:
            with pytest.raises(StoreError, match="only reads"):
                refused(tr)

    await store.read(function)
    assert await contents(store) == {}


async def test_a_transaction_is_of_no_use_after_its_end(store: Store) -> None:
    kept = []

    async def function(tr: Transaction) -> None:
        kept.append(tr)
        tr.set(b"a", b"1")

    async def failing(tr: Transaction) -> None:
        kept.append(tr)
        raise Refusal

    async def reading(tr: Transaction) -> None:
        kept.append(tr)

    await store.transact(function)
    with pytest.raises(Refusal):
        await store.transact(failing)
    await store.read(reading)
    assert len(kept) >= 3
    for tr in kept:
        with pytest.raises(StoreError, match="ended"):
            await tr.get(b"a")
        with pytest.raises(StoreError, match="ended"):
            await tr.get_range(b"", END)
        with pytest.raises(StoreError, match="ended"):
            tr.set(b"b", b"1")
    assert await contents(store) == {b"a": b"1"}


async def test_a_reader_sees_no_transaction_in_halves(store: Store) -> None:
    await write(store, {b"left": number(1000), b"right": number(0)})

    async def move(tr: Transaction) -> None:
        left = int.from_bytes(await tr.get(b"left") or b"", "little")
        right = int.from_bytes(await tr.get(b"right") or b"", "little")
        tr.set(b"left", number(left - 1))
        tr.set(b"right", number(right + 1))

    async def total(tr: Transaction) -> int:
        values = [await tr.get(b"left"), *(value for _, value in await tr.get_range(b"right", END))]
        return sum(int.from_bytes(value or b"", "little") for value in values)

    results = await asyncio.gather(
        *[call for _ in range(50) for call in (store.transact(move), store.read(total), store.transact(total))]
    )
    assert {result for result in results if result is not None} == {1000}
    assert await value_of(store, b"right") == number(50)


async def test_no_update_is_lost(store: Store) -> None:
    async def increment(tr: Transaction) -> int:
        count = int(await tr.get(b"count") or 0) + 1
        tr.set(b"count", b"%d" % count)
        return count

    counts = await asyncio.gather(*[store.transact(increment) for _ in range(60)])
    assert sorted(counts) == list(range(1, 61))
    assert await value_of(store, b"count") == b"60"


async def test_no_write_skew(store: Store) -> None:
    await write(store, {b"%d/%s" % (n, who): b"on call" for n in range(20) for who in (b"ann", b"bob")})

    def leave(pair: int, me: bytes, other: bytes) -> TransactionFunction[bool]:
        async def function(tr: Transaction) -> bool:
            if await tr.get(b"%d/%s" % (pair, other)) is None:
                return False
            tr.clear(b"%d/%s" % (pair, me))
            return True

        return function

    left = await asyncio.gather(
        *[
            store.transact(leave(pair, me, other))
            for pair in range(20)
            for me, other in ((b"ann", b"bob"), (b"bob", b"ann"))
        ]
    )
    assert sum(left) == 20
    assert sorted({key.split(b"/")[0] for key in await contents(store)}) == sorted(b"%d" % n for n in range(20))


async def test_no_phantoms(store: Store) -> None:
    def claim(room: int, guest: int) -> TransactionFunction[bool]:
        async def function(tr: Transaction) -> bool:
            if await tr.get_range(b"%d/" % room, b"%d0" % room, limit=1):
                return False
            tr.set(b"%d/%d" % (room, guest), b"")
            return True

        return function

    claimed = await asyncio.gather(*[store.transact(claim(room, guest)) for room in range(10) for guest in range(5)])
    assert sum(claimed) == 10
    assert len(await contents(store)) == 10


@pytest.mark.parametrize("by", ["key", "range"])
async def test_an_explicit_conflict_makes_a_snapshot_read_count(store: Store, by: str) -> None:
    async def increment(tr: Transaction) -> None:
        count = int(await tr.snapshot.get(b"count") or 0) + 1
        if by == "key":
            tr.add_read_conflict_key(b"count")
        else:
            tr.add_read_conflict_range(b"c", b"d")
        tr.set(b"count", b"%d" % count)

    await asyncio.gather(*[store.transact(increment) for _ in range(40)])
    assert await value_of(store, b"count") == b"40"


async def test_a_later_read_counts_though_a_snapshot_read_has_seen_the_same(store: Store) -> None:
    """Also where the value is the own atomic add's sum, of which only the store knows the one half."""

    async def increment(tr: Transaction) -> None:
        tr.add(b"count", number(1))
        assert await tr.snapshot.get(b"count") == await tr.get(b"count")
        tr.set(b"copy", await tr.get(b"count") or b"")

    await asyncio.gather(*[store.transact(increment) for _ in range(40)])
    assert await contents(store) == {b"count": number(40), b"copy": number(40)}


async def test_to_expect_keys_changes_no_answer(store: Store) -> None:
    await write(store, {b"a": b"1", b"b": b"2"})

    async def reading(tr: Transaction) -> list[bytes | None]:
        tr.snapshot.expect([b"a", b"missing"])
        tr.expect([b"b"])
        found = [await tr.get(b"b"), await tr.snapshot.get(b"a"), await tr.snapshot.get(b"missing")]
        tr.snapshot.expect([b"a"])
        tr.clear(b"a")
        return [*found, await tr.snapshot.get(b"a"), await tr.get(b"a")]

    assert await store.transact(reading) == [b"2", b"1", None, None, None]
