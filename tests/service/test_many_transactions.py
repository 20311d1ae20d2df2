"""Very many calls of `transact` at once: they wait for each other instead of being refused."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from jobs_service import JobsService, JobTransaction, Settings, StoreUnavailable
from jobs_service.store.embedded import Deadlines, ThreadCall
from tests.runner.support import Weather, opened, store_of
from tests.virtual_time import in_virtual_time

MANY = 3000


def take_a_moment(seconds: float) -> None:
    time.sleep(seconds)


async def test_more_than_the_store_does_within_the_time_limit_of_one_are_all_done(tmp_path: Path) -> None:
    async def add_one(tx: JobTransaction) -> None:
        take_a_moment(0.01)  # on the store's thread: all together take longer than each may
        tx.kv.add(b"count", (1).to_bytes(8, "little"))

    async with JobsService(f"lmdb:{tmp_path}/store", settings=Settings(transaction_timeout=1), supervise=False) as jobs:
        await asyncio.gather(*(jobs.transact(add_one) for _ in range(200)))

        async def count(tx: JobTransaction) -> bytes | None:
            return await tx.kv.get(b"count")

        assert await jobs.transact(count) == (200).to_bytes(8, "little")


async def test_the_first_of_many_slow_functions_is_answered_before_the_last_has_begun(tmp_path: Path) -> None:
    """They share commits, but only for a part of the time limit: else the first would be refused, its effect open."""
    begun: list[int] = []

    async with JobsService(f"lmdb:{tmp_path}/store", supervise=False) as jobs:

        async def slow(number: int) -> None:
            async def function(tx: JobTransaction) -> None:
                begun.append(number)
                take_a_moment(0.1)
                tx.kv.add(b"count", (1).to_bytes(8, "little"))

            await jobs.transact(function)

        calls = [asyncio.create_task(slow(number)) for number in range(15)]  # no more than are let in at once
        await calls[0]
        assert len(begun) < 15
        await asyncio.gather(*calls)


@in_virtual_time
async def test_who_waits_for_a_store_that_does_not_answer_is_refused_after_the_same_time() -> None:
    async def nothing(tx: JobTransaction) -> None:
        """Do nothing."""

    async with opened(supervise=False, transaction_timeout=10.0) as jobs:
        store_of(jobs).faults = weather = Weather()
        weather.leave()
        loop = asyncio.get_running_loop()
        began = loop.time()
        found = await asyncio.gather(*(jobs.transact(nothing) for _ in range(MANY)), return_exceptions=True)
        assert {type(each) for each in found} == {StoreUnavailable}
        assert loop.time() - began == 10.0
        assert "which has not begun" in str(found[-1])
        store_of(jobs).faults = None
        await jobs.transact(nothing)


@in_virtual_time
async def test_a_canceled_call_that_waited_leaves_its_place_to_others() -> None:
    async def nothing(tx: JobTransaction) -> None:
        """Do nothing."""

    async with opened(supervise=False) as jobs:
        calls = [asyncio.create_task(jobs.transact(nothing)) for _ in range(MANY)]
        await asyncio.sleep(0)
        for call in calls[::2]:
            call.cancel()
        await asyncio.wait(calls)
        assert not any(call.cancelled() for call in calls[1::2])
        await asyncio.gather(*(jobs.transact(nothing) for _ in range(MANY)))


@in_virtual_time
async def test_a_request_that_a_thread_has_answered_is_not_called_late() -> None:
    loop = asyncio.get_running_loop()
    deadlines = Deadlines(loop, 1.0, "store", "; it had begun and may still take effect")

    async def nothing(_: object) -> None:
        """Do nothing."""

    answered, begun, waiting = (ThreadCall(nothing, loop.create_future(), loop.time() + 1.0, None) for _ in range(3))
    for request in (answered, begun, waiting):
        deadlines.watch_over(request)
    assert answered.take()
    assert begun.take()
    answered.is_answered = True
    begun_future, waiting_future = begun.future, waiting.future
    await asyncio.sleep(2)
    assert not answered.future.done()
    assert "may still take effect" in str(begun_future.exception())
    assert "may still take effect" not in str(waiting_future.exception())
