"""What a transaction function may await, and what becomes of a caller that is cancelled, on every store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from jobs_service.errors import CommitUnknown, StoreError, TransactionConflict
from jobs_service.store import Store, Transaction
from jobs_service.store.base import TransactionFunction
from tests.contract.support import contents, value_of, write
from tests.stores import StoreKind


@pytest.fixture
def driven(store_kind: StoreKind, store: Store) -> Store:
    """An open, empty store that drives its functions from end to end without suspending them."""
    if store_kind.suspends:
        pytest.skip("its functions may suspend: what they await then is not seen")
    return store


async def _wait_for_an_event() -> None:
    await asyncio.Event().wait()


async def _wait_for_a_task() -> None:
    task = asyncio.current_task()
    assert task is not None
    await asyncio.wait([task])


async def _wait_with_a_timeout() -> None:
    async with asyncio.timeout(1):
        await asyncio.sleep(0.1)


async def _wait_for_a_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(0))


async def _take_a_lock() -> None:
    lock = asyncio.Lock()
    async with lock, lock:
        pass


FOREIGN: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
    "asyncio.sleep(0)": lambda: asyncio.sleep(0),
    "asyncio.sleep(1)": lambda: asyncio.sleep(1),
    "anyio.lowlevel.checkpoint()": lambda: anyio.lowlevel.checkpoint(),
    "anyio.sleep(1)": lambda: anyio.sleep(1),
    "asyncio.Event().wait()": _wait_for_an_event,
    "asyncio.Lock": _take_a_lock,
    "asyncio.wait": _wait_for_a_task,
    "asyncio.timeout": _wait_with_a_timeout,
    "asyncio.TaskGroup": _wait_for_a_group,
}


@pytest.mark.parametrize("wait", FOREIGN.values(), ids=FOREIGN.keys())
@pytest.mark.parametrize("call", ["transact", "read"])
async def test_awaiting_anything_else_is_an_error_that_says_so(
    driven: Store, wait: Callable[[], Coroutine[Any, Any, Any]], call: str
) -> None:
    unwound = []

    async def function(tr: Transaction) -> None:
        if call == "transact":
            tr.set(b"a", b"1")
        try:
            await wait()
        finally:
            unwound.append(True)

    with pytest.raises(StoreError, match="may await nothing but its transaction") as caught:
        await getattr(driven, call)(function)
    assert "\n" not in str(caught.value)
    assert unwound
    assert await contents(driven) == {}


@pytest.mark.parametrize("call", ["transact", "read"])
async def test_a_function_that_keeps_awaiting_while_it_unwinds_gets_the_same_error(driven: Store, call: str) -> None:
    async def function(tr: Transaction) -> None:
        try:
            await asyncio.sleep(0)
        finally:
            await asyncio.sleep(0)

    with pytest.raises(StoreError, match="may await nothing but its transaction"):
        await getattr(driven, call)(function)


@pytest.mark.parametrize("call", ["transact", "read"])
@pytest.mark.parametrize("result", [None, b"value"])
async def test_a_plain_function_is_refused(store: Store, call: str, result: bytes | None) -> None:
    with pytest.raises(StoreError, match="must return a coroutine"):
        await getattr(store, call)(lambda tr: result)


async def test_a_transaction_within_a_transaction_is_refused(driven: Store) -> None:
    async def inner(tr: Transaction) -> None:
        tr.set(b"inner", b"1")

    async def outer(tr: Transaction) -> None:
        tr.set(b"outer", b"1")
        await driven.transact(inner)

    with pytest.raises(StoreError):
        await driven.transact(outer)
    await write(driven, {b"after": b"1"})
    assert await contents(driven) == {b"after": b"1"}


async def test_errors_of_the_functions_own_pass_through_unchanged(store: Store) -> None:
    errors: list[BaseException] = [RuntimeError("no luck"), TimeoutError("mine"), asyncio.CancelledError("mine")]
    # Nor does the store take them for its own: there is no conflict, and nothing to find out.
    errors += [StopAsyncIteration(), TransactionConflict("mine"), CommitUnknown("mine")]
    for error in errors:

        async def function(tr: Transaction, error: BaseException = error) -> None:
            await tr.get(b"a")
            raise error

        for call in (store.transact, store.read):
            with pytest.raises(type(error)) as caught:
                await call(function)
            assert str(caught.value) == str(error)


async def test_a_caller_cancelled_before_its_turn_writes_nothing(store: Store) -> None:
    ran = []

    async def function(tr: Transaction) -> None:
        ran.append(tr)
        tr.set(b"a", b"1")

    task = asyncio.create_task(store.transact(function))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await write(store, {b"b": b"1"})
    assert not ran
    assert await contents(store) == {b"b": b"1"}


@pytest.mark.parametrize("steps", range(8))
async def test_a_cancelled_call_tells_of_its_commit_or_has_none(store: Store, steps: int) -> None:
    """Cancelled at any time: what is written was either answered, or told to `abandoned`, and once only."""
    told: list[int] = []

    def program(number: int) -> TransactionFunction[int]:
        async def function(tr: Transaction) -> int:
            tr.set(b"%03d" % number, b"")
            return number

        return function

    calls = [asyncio.create_task(store.transact(program(number), abandoned=told.append)) for number in range(30)]
    for _ in range(steps):
        await asyncio.sleep(0 if steps % 2 else 0.0003)
    for call in calls[::2]:
        call.cancel()
    results = await asyncio.gather(*calls, return_exceptions=True)
    # A later transaction's answer comes after what there is to tell about earlier ones.
    await write(store, {b"z": b"1"})
    answered = [result for result in results if isinstance(result, int)]
    assert all(isinstance(result, int | asyncio.CancelledError) for result in results)
    assert set(range(1, 30, 2)) <= set(answered)
    assert sorted(answered + told) == sorted(int(key) for key in await contents(store) if key != b"z")


async def test_a_cancelled_reader_leaves_nothing_behind(store: Store) -> None:
    await write(store, {b"a": b"1"})
    calls = [asyncio.create_task(store.read(lambda tr: tr.get(b"a"))) for _ in range(10)]
    await asyncio.sleep(0)
    for call in calls:
        call.cancel()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert all(result == b"1" or isinstance(result, asyncio.CancelledError) for result in results)
    assert await value_of(store, b"a") == b"1"
