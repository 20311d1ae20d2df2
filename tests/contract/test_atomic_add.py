"""The atomic add: little-endian, as wide as its operand, without conflicts, on every store."""

from __future__ import annotations

import asyncio

import pytest

from jobs_service.store import Store, Transaction
from tests.contract.support import END, contents, number, value_of, write

CASES = {
    "missing": (None, b"\x05\x00", b"\x05\x00"),
    "sum": (b"\x01\x02", b"\x03\x04", b"\x04\x06"),
    "carry": (b"\xff\x00", b"\x01\x00", b"\x00\x01"),
    "wraps": (b"\xff\xff", b"\x02\x00", b"\x01\x00"),
    "minus_one": (b"\x05\x00", b"\xff\xff", b"\x04\x00"),
    "shorter_value_is_extended": (b"\xff", b"\x01\x00\x00", b"\x00\x01\x00"),
    "longer_value_is_cut": (b"\x01\x02\x03\x04", b"\x01\x00", b"\x02\x02"),
    "empty_value": (b"", b"\x01\x00", b"\x01\x00"),
    "empty_operand": (b"\x01\x02", b"", b""),
    "empty_operand_on_missing": (None, b"", b""),
    "wide": (b"\xff" * 30, b"\x01" + bytes(31), bytes(30) + b"\x01\x00"),
}


@pytest.mark.parametrize(("value", "operand", "expected"), CASES.values(), ids=CASES.keys())
async def test_the_sum_is_as_wide_as_the_operand(
    store: Store, value: bytes | None, operand: bytes, expected: bytes
) -> None:
    """Also as the transaction itself reads it, over a committed value and over an own one."""
    if value is not None:
        await write(store, {b"committed": value})

    async def function(tr: Transaction) -> None:
        if value is not None:
            tr.set(b"own", value)
        for key in (b"committed", b"own"):
            tr.add(key, operand)
        assert await tr.get_many([b"committed", b"own"]) == [expected, expected]
        assert await tr.get_range(b"", END) == [(b"committed", expected), (b"own", expected)]

    await store.transact(function)
    assert await contents(store) == {b"committed": expected, b"own": expected}


async def test_adds_of_different_widths_happen_one_after_the_other(store: Store) -> None:
    await write(store, {b"n": b"\xff\xff\xff\xff"})

    async def function(tr: Transaction) -> None:
        tr.add(b"n", b"\x01")
        tr.add(b"n", b"\x01\x01")
        tr.add(b"n", b"\x01\x01")
        tr.add(b"n", b"\x01\x00\x00")
        assert await tr.get(b"n") == b"\x03\x02\x00"
        tr.add(b"n", b"\xff\xff\xff")
        assert await tr.get(b"n") == b"\x02\x02\x00"

    await store.transact(function)
    assert await value_of(store, b"n") == b"\x02\x02\x00"


async def test_concurrent_adds_all_count_and_none_is_run_again(store: Store) -> None:
    runs = []

    async def function(tr: Transaction) -> None:
        runs.append(tr)
        tr.add(b"n", number(1))

    await asyncio.gather(*[store.transact(function) for _ in range(50)])
    assert await value_of(store, b"n") == number(50)
    assert len(runs) == 50


async def test_an_add_that_is_read_back_is_a_read(store: Store) -> None:
    async def function(tr: Transaction) -> None:
        tr.add(b"n", number(1))
        tr.set(b"copy", await tr.get(b"n") or b"")

    await asyncio.gather(*[store.transact(function) for _ in range(30)])
    assert await contents(store) == {b"n": number(30), b"copy": number(30)}
