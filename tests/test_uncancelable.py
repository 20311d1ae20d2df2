"""Work that goes on to its end although its caller is canceled."""

from __future__ import annotations

import asyncio

import pytest

from jobs_service.uncancelable import through_cancellation


async def test_work_ends_before_the_cancellation_is_raised() -> None:
    go, steps = asyncio.Event(), list[str]()

    async def work() -> None:
        await go.wait()
        steps.append("done")

    task = asyncio.create_task(through_cancellation(work()))
    for _ in range(3):
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    go.set()
    await asyncio.wait([task])
    assert task.cancelled()
    assert steps == ["done"]


async def test_an_error_is_raised_unless_the_caller_was_canceled() -> None:
    async def work() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await through_cancellation(work())


async def test_a_cancellation_is_raised_although_the_work_has_failed_and_tells_of_that() -> None:
    go = asyncio.Event()

    async def work() -> None:
        await go.wait()
        raise ValueError("no")

    task = asyncio.create_task(through_cancellation(work()))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    go.set()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert repr(caught.value.__cause__) == "ValueError('no')"
