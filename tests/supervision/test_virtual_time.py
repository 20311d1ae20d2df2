"""The virtual-time loop that other tests rely on, tested by itself."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.virtual_time import Deadlock, VirtualTimeLoop, in_virtual_time, run_virtual


def virtual_loop() -> VirtualTimeLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    return loop


async def wait_for_nothing() -> None:
    await asyncio.get_running_loop().create_future()


def test_a_wait_for_nothing_is_a_deadlock_that_names_the_task_and_the_line() -> None:
    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(wait_for_nothing(), name="stuck")

    with pytest.raises(Deadlock, match=r"stuck: wait_for_nothing \(.*test_virtual_time.py:\d+\)"):
        run_virtual(main())


def test_tasks_left_behind_are_an_error() -> None:
    tasks = []

    async def main() -> None:
        tasks.append(asyncio.create_task(asyncio.sleep(1), name="forgotten"))

    with pytest.raises(AssertionError, match="forgotten"):
        run_virtual(main())
    assert tasks[0].cancelled()


@in_virtual_time
async def test_the_clock_stands_still_while_a_thread_works() -> None:
    loop = virtual_loop()
    release = threading.Event()
    loop.call_later(60, release.set)  # would end the thread, if the clock jumped
    work = asyncio.create_task(asyncio.to_thread(release.wait, 0.05))
    assert await work is False
    assert loop.time() == 0
    release.set()


@in_virtual_time
async def test_an_announced_thread_is_waited_for() -> None:
    loop = virtual_loop()
    answer = loop.create_future()
    started = threading.Event()

    def answer_later() -> None:
        started.wait()
        loop.call_soon_threadsafe(answer.set_result, 42)

    thread = threading.Thread(target=answer_later)
    thread.start()
    with loop.outside():
        loop.call_later(0, started.set)
        assert await answer == 42
    thread.join()
