"""The virtual-time loop that other tests rely on, tested by itself."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.virtual_time import EPOCH, Deadlock, VirtualTimeLoop, cancel_at_every_step, in_virtual_time, run_virtual


def virtual_loop() -> VirtualTimeLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    return loop


@in_virtual_time
async def test_a_day_of_sleep_moves_the_clock_by_exactly_a_day() -> None:
    loop = virtual_loop()
    await asyncio.sleep(86_400.1)
    assert loop.time() == 86_400.1
    assert loop.wall_time() == EPOCH + 86_400.1


@in_virtual_time
async def test_two_tasks_that_wait_for_less_than_the_resolution_of_the_clock_go_on_in_time() -> None:
    """asyncio fires such timers at once; with a clock that stood still the two would wake each other for ever."""
    loop = virtual_loop()
    rest = 2.0**-40
    end = loop.time() + 10 * rest
    rounds = [0, 0]

    async def wait_until_the_end(number: int) -> None:
        for _ in range(number):
            await asyncio.sleep(0)  # one is ready whenever the other waits
        while loop.time() < end:
            rounds[number] += 1
            assert rounds[number] < 1000, "the clock stands still"
            await asyncio.sleep(rest)

    await asyncio.gather(wait_until_the_end(0), wait_until_the_end(1))
    assert max(rounds) <= 11


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


def test_cancelling_at_every_step_reaches_every_await() -> None:
    reached: list[int] = []

    async def scenario() -> None:
        place = 0
        try:
            await asyncio.sleep(0)
            place = 1
            await asyncio.sleep(10)
            place = 2
            await asyncio.sleep(0)
            place = 3
        finally:
            reached.append(place)

    steps = list(cancel_at_every_step(scenario))
    assert len(reached) == len(steps) - 1  # the first one is canceled before it begins
    assert sorted(set(reached)) == [0, 1, 2, 3]
    assert reached[-1] == 3
