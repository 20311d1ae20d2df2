"""Watches: fire when a key's value has changed, and for nothing else that these tests do, on every store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from jobs_service.errors import StoreError, TransactionTooLarge
from jobs_service.store import Store, Transaction, Watch
from tests.contract.support import contents, number, patience, placeholder, value_of, write


async def watch(store: Store, key: bytes) -> Watch:
    """Return a live watch."""

    async def function(tr: Transaction) -> Watch:
        return tr.watch(key)

    return await store.transact(function)


async def all_earlier_watches_had_their_chance(store: Store) -> None:
    """Return when a watch made now has fired: so have those that an earlier commit fires."""
    last = await watch(store, b"last")
    await write(store, {b"last": (await value_of(store, b"last") or b"") + b"."})
    async with patience():
        await last.wait()


CHANGES: dict[str, Callable[[Transaction], None]] = {
    "set": lambda tr: tr.set(b"key", b"new"),
    "clear": lambda tr: tr.clear(b"key"),
    "clear_range": lambda tr: tr.clear_range(b"k", b"l"),
    "add": lambda tr: tr.add(b"key", number(1)),
    "versionstamped_value": lambda tr: tr.set_versionstamped_value(b"key", placeholder()),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
@pytest.mark.parametrize("made_in", ["read", "transact", "a_transaction_that_writes"])
async def test_a_change_by_another_transaction_fires(
    store: Store, change: Callable[[Transaction], None], made_in: str
) -> None:
    await write(store, {b"key": b"old"})

    async def function(tr: Transaction) -> Watch:
        if made_in == "a_transaction_that_writes":
            tr.set(b"other", b"1")
        return tr.watch(b"key")

    async def changing(tr: Transaction) -> None:
        change(tr)

    watched = await (store.read if made_in == "read" else store.transact)(function)
    await all_earlier_watches_had_their_chance(store)
    assert not watched.fired
    await store.transact(changing)
    async with patience():
        await watched.wait()
    assert watched.fired


async def test_a_key_that_begins_to_exist_fires(store: Store) -> None:
    watched = await watch(store, b"key")
    await write(store, {b"key": b""})
    async with patience():
        await watched.wait()


async def test_other_keys_do_not_fire(store: Store) -> None:
    await write(store, {b"key": b"1"})
    watched = await watch(store, b"key")

    async def function(tr: Transaction) -> None:
        tr.set(b"ke", b"1")
        tr.set(b"key\x00", b"1")
        tr.clear_range(b"key\x00", b"z")
        tr.clear_range(b"a", b"key")
        tr.set_versionstamped_key(placeholder(b"key"), b"1")

    await store.transact(function)
    await all_earlier_watches_had_their_chance(store)
    assert not watched.fired
    watched.cancel()


@pytest.mark.parametrize("order", ["watch_first", "write_first"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
async def test_own_writes_do_not_fire_but_the_next_ones_do(
    store: Store, change: Callable[[Transaction], None], order: str
) -> None:
    await write(store, {b"key": b"old"})

    async def function(tr: Transaction) -> Watch:
        if order == "write_first":
            change(tr)
        watched = tr.watch(b"key")
        if order == "watch_first":
            change(tr)
        return watched

    watched = await store.transact(function)
    await all_earlier_watches_had_their_chance(store)
    assert not watched.fired
    await write(store, {b"key": b"next"})
    async with patience():
        await watched.wait()


async def test_a_watch_among_keys_that_get_a_stamp_fires(store: Store) -> None:
    """The watched key lies where a versionstamped key may come to lie, but has a value of its own."""
    key = b"log/" + bytes(9) + b"\x00"
    await write(store, {key: b"old"})

    async def function(tr: Transaction) -> Watch:
        tr.set_versionstamped_key(placeholder(b"log/"), b"")
        return tr.watch(key)

    watched = await store.transact(function)
    await all_earlier_watches_had_their_chance(store)
    # What such a key holds cannot be read in its transaction: there the watch may fire for nothing.
    assert not watched.fired or store.address.startswith("fdb:")
    await store.transact(lambda tr: clear(tr, key))
    async with patience():
        await watched.wait()


async def clear(tr: Transaction, key: bytes) -> None:
    """Clear a key."""
    tr.clear(key)


async def test_all_watches_on_a_key_fire(store: Store) -> None:
    watches = [await watch(store, b"key") for _ in range(3)]

    async def three(tr: Transaction) -> list[Watch]:
        return [tr.watch(b"key") for _ in range(3)]

    watches += await store.transact(three)
    await write(store, {b"key": b"1"})
    async with patience():
        for watched in watches:
            await watched.wait()


async def test_many_wait_for_one_watch_and_late_ones_wait_no_more(store: Store) -> None:
    watched = await watch(store, b"key")
    called = []
    watched.on_fire(lambda: called.append(watched.fired))
    async with patience(), asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(watched.wait())
        await write(store, {b"key": b"1"})
    async with patience():
        await watched.wait()
    assert called == [True]


async def test_a_canceled_watch_does_not_fire(store: Store) -> None:
    canceled = await watch(store, b"key")
    other = await watch(store, b"key")
    canceled.cancel()
    canceled.cancel()
    await write(store, {b"key": b"1"})
    async with patience():
        await other.wait()
    await all_earlier_watches_had_their_chance(store)
    assert not canceled.fired
    other.cancel()


async def test_closing_the_store_fails_the_watches(store: Store) -> None:
    watched = await watch(store, b"key")
    async with patience(), asyncio.TaskGroup() as group:
        waiting = group.create_task(outcome(watched))
        await asyncio.sleep(0)
        await store.close()
        assert isinstance(await waiting, StoreError)
    with pytest.raises(StoreError, match="closed"):
        await watched.wait()


async def outcome(watched: Watch) -> StoreError | None:
    """Wait for a watch and return the error with which it was lost."""
    try:
        await watched.wait()
    except StoreError as error:
        return error
    return None


async def test_a_watch_of_a_transaction_that_did_not_commit_is_lost(store: Store) -> None:
    watches = []

    async def function(tr: Transaction) -> None:
        watches.append(tr.watch(b"key"))
        raise KeyError

    for call in (store.transact, store.read):
        with pytest.raises(KeyError):
            await call(function)
    async with patience():
        for watched in watches:
            assert isinstance(await outcome(watched), StoreError)


@pytest.mark.parametrize("key", [b"", b"\xff", b"\xff/anything"])
async def test_keys_that_nothing_can_have_cannot_be_watched(store: Store, key: bytes) -> None:
    async def function(tr: Transaction) -> Watch:
        return tr.watch(key)

    with pytest.raises(StoreError):
        await store.transact(function)
    with pytest.raises(StoreError):
        await store.read(function)


async def test_a_key_too_long_cannot_be_watched(store: Store) -> None:
    async def function(tr: Transaction) -> Watch:
        return tr.watch(b"k" * (store.limits.key + 1))

    with pytest.raises(TransactionTooLarge):
        await store.transact(function)
    assert await contents(store) == {}


@pytest.mark.parametrize("look_in", ["read", "transact"])
async def test_who_looks_and_watches_in_one_transaction_misses_nothing(store: Store, look_in: str) -> None:
    """Watchers wait for the last value while others write as fast as they can: none waits for ever."""
    last = b"%d" % 60

    async def look(tr: Transaction) -> tuple[bytes | None, Watch]:
        value = await tr.get(b"key")
        return value, tr.watch(b"key")

    async def follow() -> list[bytes | None]:
        seen = []
        while True:
            value, watched = await (store.read if look_in == "read" else store.transact)(look)
            seen.append(value)
            if value == last:
                watched.cancel()
                return seen
            await watched.wait()

    async with patience(), asyncio.TaskGroup() as group:
        followers = [group.create_task(follow()) for _ in range(5)]
        for count in range(1, 61):
            await write(store, {b"key": b"%d" % count})
            if count % 20 == 0:
                await asyncio.sleep(0.001)
    for follower in followers:
        seen = [int(value or 0) for value in follower.result()]
        assert seen == sorted(seen)
