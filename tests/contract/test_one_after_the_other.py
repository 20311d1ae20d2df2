"""transact_after: a call whose writes come after those of another call, or not at all, on every store."""

from __future__ import annotations

import asyncio

import pytest

from jobs_service.store import Store, Transaction
from tests.contract.support import contents, value_of


async def append(tr: Transaction, text: bytes) -> bytes:
    """Append to what the key holds, and return what it holds then."""
    found = (await tr.get(b"text") or b"") + text
    tr.set(b"text", found)
    return found


async def test_nothing_is_written_before_the_other_call_has_ended(store: Store) -> None:
    other: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    call = asyncio.create_task(store.transact_after(other, lambda tr: append(tr, b"b")))
    assert await store.transact(lambda tr: append(tr, b"a")) == b"a"
    assert not call.done()
    other.set_result(None)
    assert await call == b"ab"
    assert await value_of(store, b"text") == b"ab"


async def test_a_chain_of_calls_takes_effect_in_its_order(store: Store) -> None:
    stamps: list[bytes] = []

    async def stamp(tr: Transaction, name: bytes) -> None:
        tr.stamp_value(name, b"", b"")

    first = asyncio.create_task(store.transact(lambda tr: stamp(tr, b"000")))
    calls: list[asyncio.Task[None]] = [first]
    names = [b"%03d" % number for number in range(20)]
    for name in names[1:]:
        after = store.transact_after(calls[-1], lambda tr, name=name: stamp(tr, name))  # type: ignore[misc]
        calls.append(asyncio.create_task(after))
    await asyncio.gather(*calls)
    found = await contents(store)
    stamps = [found[name] for name in names]
    assert stamps == sorted(stamps)
    assert len(set(stamps)) == len(names)


async def test_nothing_is_written_when_the_other_call_has_failed(store: Store) -> None:
    async def fail(tr: Transaction) -> None:
        await tr.get(b"text")
        raise LookupError("the first")

    first = asyncio.create_task(store.transact(fail))
    second = asyncio.create_task(store.transact_after(first, lambda tr: append(tr, b"b")))
    with pytest.raises(LookupError, match="the first"):
        await second
    assert first.done()
    assert await contents(store) == {}


async def test_whoever_is_canceled_while_it_waits_writes_nothing_and_leaves_the_other_alone(store: Store) -> None:
    other: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    call = asyncio.create_task(store.transact_after(other, lambda tr: append(tr, b"b")))
    await store.transact(lambda tr: append(tr, b"a"))
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert not other.done()
    assert await value_of(store, b"text") == b"a"
