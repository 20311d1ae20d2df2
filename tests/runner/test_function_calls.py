"""How functions are called, by themselves: a coroutine step by step, a plain function in a thread."""

from __future__ import annotations

import asyncio

import pytest

from jobs_service.runner.functions import BLOCKED, Steps, in_thread
from tests.runner.support import PATIENCE_OF_THREADS, Signals
from tests.virtual_time import in_virtual_time


async def test_steps_pass_on_values_errors_and_cancellations() -> None:
    blocked: list[float] = []

    async def returns() -> int:
        await asyncio.sleep(0)
        return 7

    async def raises() -> None:
        await asyncio.sleep(0)
        raise KeyError("a")

    async def waits() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            return f"canceled: {error}"
        return "never"

    async def main(coroutine: Steps) -> object:
        return await coroutine

    assert await Steps(returns(), blocked.append) == 7
    with pytest.raises(KeyError, match="a"):
        await Steps(raises(), blocked.append)
    task = asyncio.create_task(main(Steps(waits(), blocked.append)))
    await asyncio.sleep(0)
    task.cancel("why")
    assert await task == "canceled: why"
    assert blocked == []


@in_virtual_time
async def test_only_steps_are_timed_and_not_what_they_wait_for() -> None:
    loop = asyncio.get_running_loop()
    blocked: list[float] = []

    def pass_time(seconds: float) -> None:
        loop._now += seconds  # type: ignore[attr-defined]

    async def work() -> None:
        await asyncio.sleep(100)
        pass_time(0.99 * BLOCKED)
        await asyncio.sleep(100)
        pass_time(BLOCKED)
        await asyncio.sleep(100)
        pass_time(5)
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011 - it has no message
        await Steps(work(), blocked.append)
    assert blocked == pytest.approx([BLOCKED, 5])


async def test_steps_of_a_loop_that_is_gone_end_quietly() -> None:
    closed: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            closed.append("closed")

    async def main() -> None:
        await Steps(work(), lambda _: None)

    coroutine = main()
    coroutine.send(None)
    coroutine.close()
    assert closed == ["closed"]


async def test_a_thread_is_waited_for_although_its_caller_is_canceled_with_a_reason() -> None:
    signals = Signals()
    cancellations: list[str] = []

    def work() -> str:
        signals.begin()
        signals.go.wait(PATIENCE_OF_THREADS)
        return "done"

    task = asyncio.create_task(in_thread(work, lambda: cancellations.append("canceled")))
    await signals.begun.wait()
    for _ in range(2):
        task.cancel("stopped")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert (cancellations, task.done()) == (["canceled", "canceled"], False)
    signals.go.set()
    assert await task == "done"


async def test_a_thread_is_let_go_when_the_loop_ends() -> None:
    signals = Signals()
    task = asyncio.create_task(in_thread(lambda: signals.go.wait(PATIENCE_OF_THREADS), lambda: None))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    signals.go.set()
