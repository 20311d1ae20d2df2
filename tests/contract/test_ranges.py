"""Order of keys, ranges, selectors, limits and reverse, on every store."""

from __future__ import annotations

from itertools import product

import pytest

from jobs_service.errors import StoreError
from jobs_service.store import KeySelector, Store, Transaction
from tests.contract.model import Model
from tests.contract.support import END, write

KEYS = [b"\x00", b"\x00\x00", b"a", b"a\x00", b"a\x00\xff", b"ab", b"b", b"\x7f", b"\x80", b"\xfe", b"\xfe\xff\xff"]


async def test_keys_are_in_the_order_of_their_bytes(store: Store) -> None:
    await write(store, {key: key for key in reversed(KEYS)})

    async def both_ways(tr: Transaction) -> tuple[list[bytes], list[bytes]]:
        forwards = await tr.get_range(b"", END)
        backwards = await tr.get_range(b"", END, reverse=True)
        assert all(key == value for key, value in forwards + backwards)
        return [key for key, _ in forwards], [key for key, _ in backwards]

    assert await store.read(both_ways) == (sorted(KEYS), sorted(KEYS)[::-1])
    assert await store.transact(both_ways) == (sorted(KEYS), sorted(KEYS)[::-1])


async def test_a_range_contains_its_begin_and_not_its_end(store: Store) -> None:
    await write(store, {b"a": b"", b"b": b"", b"c": b""})

    async def between(tr: Transaction) -> list[list[bytes]]:
        bounds = [(b"a", b"c"), (b"a\x00", b"c\x00"), (b"b", b"b"), (b"c", b"a"), (b"", b"a"), (b"c", END), (END, END)]
        return [[key for key, _ in await tr.get_range(begin, end)] for begin, end in bounds]

    expected = [[b"a", b"b"], [b"b", b"c"], [], [], [], [b"c"], []]
    assert await store.read(between) == expected


async def test_a_limit_counts_from_the_side_where_the_range_begins(store: Store) -> None:
    await write(store, {b"%d" % n: b"" for n in range(10)})

    async def some(tr: Transaction) -> list[list[bytes]]:
        ranges = [(limit, reverse) for limit in (1, 3, 8, 9, 0) for reverse in (False, True)]
        return [
            [key for key, _ in await tr.get_range(b"1", b"9", limit=limit, reverse=reverse)]
            for limit, reverse in ranges
        ]

    keys = [b"%d" % n for n in range(1, 9)]
    assert await store.read(some) == [way for limit in (1, 3, 8, 8, 8) for way in (keys[:limit], keys[::-1][:limit])]


async def test_long_ranges_come_whole(store: Store) -> None:
    pairs = {b"%05d" % n: b"x" * 100 for n in range(3000)}
    await write(store, pairs)

    async def function(tr: Transaction) -> None:
        tr.clear_range(b"01000", b"02000")
        tr.set(b"01500", b"new")
        expected = sorted({key: value for key, value in pairs.items() if not b"01000" <= key < b"02000"}.items())
        expected.insert(1000, (b"01500", b"new"))
        assert await tr.get_range(b"", END) == expected
        assert await tr.get_range(b"", END, reverse=True) == expected[::-1]
        assert await tr.get_range(b"00900", END, limit=200) == expected[900:1100]

    await store.transact(function)


@pytest.mark.parametrize("own_writes", [False, True], ids=["committed", "with_own_writes"])
async def test_every_selector_names_the_key_that_it_should(store: Store, own_writes: bool) -> None:
    committed = {b"b": b"", b"d": b"", b"f": b"", b"h": b""}
    await write(store, committed)
    model = Model(committed)

    async def function(tr: Transaction) -> None:
        if own_writes:
            for reader in (tr, model):
                reader.set(b"a", b"")
                reader.set(b"e", b"")
                reader.clear(b"f")
        for key, offset in product([b"", b"a", b"b", b"c", b"e", b"f", b"h", b"i", END], range(-5, 6)):
            for make in (
                KeySelector.last_less_than,
                KeySelector.last_less_or_equal,
                KeySelector.first_greater_than,
                KeySelector.first_greater_or_equal,
            ):
                selector = make(key) + offset
                named = model.resolve(selector)
                assert await tr.get_range(selector, END) == model.get_range(named, END, 0, False), selector
                assert await tr.get_range(b"", selector) == model.get_range(b"", named, 0, False), selector

    await store.transact(function)


def test_selectors_move_by_whole_keys() -> None:
    assert KeySelector.last_less_than(b"k") == KeySelector(b"k", False, 0)
    assert KeySelector.last_less_or_equal(b"k") == KeySelector(b"k", True, 0)
    assert KeySelector.first_greater_or_equal(b"k") == KeySelector(b"k", False, 1)
    assert KeySelector.first_greater_than(b"k") == KeySelector(b"k", True, 1)
    assert KeySelector.first_greater_than(b"k") + 2 - 3 == KeySelector(b"k", True, 0)


async def test_bounds_may_be_longer_than_any_key(store: Store) -> None:
    await write(store, {b"a": b"1", b"b": b"2", b"c": b"3"})
    long = b"b" * (store.limits.key + 10)

    async def function(tr: Transaction) -> None:
        assert await tr.get_range(b"", long) == [(b"a", b"1"), (b"b", b"2")]
        assert await tr.get_range(long, END) == [(b"c", b"3")]
        assert await tr.get_range(b"", long, reverse=True, limit=1) == [(b"b", b"2")]
        assert await tr.get_range(KeySelector.last_less_than(long), END) == [(b"b", b"2"), (b"c", b"3")]
        assert await tr.get_range(KeySelector.first_greater_than(long), END) == [(b"c", b"3")]

    await store.transact(function)
    await store.read(function)


@pytest.mark.parametrize(
    ("begin", "end", "limit"),
    [
        ("a", b"b", 0),
        (b"a", None, 0),
        (b"a", b"\xff\x00", 0),
        (b"\xff\xff", b"\xff\xff", 0),
        (KeySelector.first_greater_than(b"\xff\x00"), END, 0),
        (b"a", KeySelector.last_less_than(b"\xff\xff"), 0),
        (b"a", b"b", -1),
    ],
)
async def test_bad_bounds_and_limits_are_refused(store: Store, begin: bytes, end: bytes, limit: int) -> None:
    async def function(tr: Transaction) -> None:
        with pytest.raises(StoreError):
            await tr.get_range(begin, end, limit=limit)
        with pytest.raises(StoreError):
            await tr.snapshot.get_range(begin, end, limit=limit)

    await store.read(function)
    await store.transact(function)
