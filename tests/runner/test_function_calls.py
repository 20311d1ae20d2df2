"""How functions are called, by themselves: a coroutine step by step, a plain function in a thread."""

from __future__ import annotations

import asyncio

import pytest

from jobs_service.runner.functions import Steps, in_thread
from tests.runner.support import PATIENCE_OF_THREADS, Signals


async def test_steps_of_a_loop_that_is_gone_end_quietly() -> None:
    closed: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            closed.append("closed")

    async def main() -> None:
        await Steps(work(), lambda _: None, asyncio.current_task())

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
