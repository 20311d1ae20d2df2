"""The simulated loop: virtual time, and a schedule drawn from a seed."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from jobs_service.testing import Choices, Plan, SimulatedLoop
from jobs_service.testing.loop import describe
from tests.shares import share
from tests.virtual_time import VirtualTimeLoop

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T], *, seed: int = 0, disorder: float = 1.0, most_steps: int = 100_000) -> T:
    """Run a coroutine on a new loop."""
    loop = SimulatedLoop(Choices(Plan(seed), disorder=disorder), most_steps=most_steps)
    try:
        return loop.run_until_complete(main)
    finally:
        loop.close()


# Time


def test_time_jumps_to_the_next_timer_and_is_exact() -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        times = [loop.time()]
        for seconds in (0.001, 7200, 0.5, 0):
            await asyncio.sleep(seconds)
            times.append(loop.time())
        assert isinstance(loop, SimulatedLoop)
        assert loop.steps < 20
        return times

    assert run(main()) == [0, 0.001, 7200.001, 7200.501, 7200.501]


# Schedule


async def tasks_of_two_steps() -> str:
    """Return in which order two tasks took their two steps each."""
    order: list[str] = []

    async def steps(name: str) -> None:
        order.append(name)
        await asyncio.sleep(0)
        order.append(name.upper())

    await asyncio.gather(steps("a"), steps("b"))
    return "".join(order)


def test_every_interleaving_happens_and_no_impossible_one() -> None:
    legal = {"aAbB", "abAB", "abBA", "baAB", "baBA", "bBaA"}
    assert {run(tasks_of_two_steps(), seed=seed) for seed in range(200)} == legal


def test_callbacks_of_one_moment_run_in_every_order() -> None:
    async def main() -> tuple[int, ...]:
        order: list[int] = []
        loop = asyncio.get_running_loop()
        for number in range(3):
            loop.call_at(1, order.append, number)
        await asyncio.sleep(2)
        return tuple(order)

    assert {run(main(), seed=seed) for seed in range(100)} == set(itertools.permutations(range(3)))


class Script:
    """A program that does a bit of everything that asyncio's order of callbacks shows in, and notes what runs when."""

    def __init__(self, seed: int) -> None:
        self.run_data: list[tuple[float, str]] = []
        self._seed = seed
        self._names = itertools.count()

    def note(self, text: str) -> None:
        self.run_data.append((asyncio.get_running_loop().time(), text))

    async def main(self) -> None:
        self._event = asyncio.Event()
        self._queue: asyncio.Queue[str] = asyncio.Queue()
        self._lock = asyncio.Lock()
        async with asyncio.timeout(50):
            async with asyncio.TaskGroup() as group:
                for number in range(4):
                    group.create_task(self.actor(f"{number}", 2))

    async def actor(self, name: str, depth: int) -> None:
        draws = random.Random(f"{self._seed}/{name}")
        for step in range(6):
            self.note(f"{name}.{step}")
            try:
                await self.act(f"{name}.{step}", draws, depth)
            except TimeoutError:
                self.note(f"{name}.{step} timed out")

    async def act(self, name: str, draws: random.Random, depth: int) -> None:
        loop = asyncio.get_running_loop()
        later = draws.choice([0, 0, 1 / 1024, 1 / 512, 1])
        choice = draws.randrange(9)
        if choice == 0:
            await asyncio.sleep(later)
        elif choice == 1:
            loop.call_soon(self.note, f"{name} soon")
            loop.call_later(later, self.note, f"{name} later")
        elif choice == 2:
            loop.call_later(0, self.note, f"{name} at once")
            loop.call_soon(loop.call_soon, self.note, f"{name} soon after")
        elif choice == 3:
            async with asyncio.timeout(later):
                await self._event.wait()
        elif choice == 4:
            self._event.set()
            self._event.clear()
        elif choice == 5:
            self._queue.put_nowait(name)
        elif choice == 6:
            self.note(f"{name} got {await asyncio.wait_for(self._queue.get(), 0.5)}")
        elif choice == 7:
            async with self._lock:
                await asyncio.sleep(later)
        elif depth:
            children = [asyncio.create_task(self.actor(f"{name}/{n}", depth - 1)) for n in range(2)]
            try:
                done, _ = await asyncio.wait(
                    children, return_when=asyncio.FIRST_COMPLETED, timeout=draws.choice([0, 1, None])
                )
                self.note(f"{name} has {[child in done for child in children]}")
            finally:
                for child in children:
                    child.cancel()
                await asyncio.gather(*children, return_exceptions=True)


@pytest.mark.parametrize("seed", share(range(20), 4))
def test_without_disorder_the_order_is_asyncios_own(seed: int) -> None:
    expected, script = Script(seed), Script(seed)
    loop = VirtualTimeLoop()
    try:
        loop.run_until_complete(expected.main())
    finally:
        loop.close()
    run(script.main(), disorder=0)
    assert script.run_data == expected.run_data
    assert len(script.run_data) > 20


def traced(seed: int) -> list[str]:
    """Return every callback that a script runs, in order."""
    loop = SimulatedLoop(Choices(Plan(seed), disorder=1.0))
    trace: list[str] = []
    loop.trace = lambda handle: trace.append(f"{loop.time()} {describe(handle)}")
    script = Script(0)
    try:
        loop.run_until_complete(script.main())
    finally:
        loop.close()
    return trace + [f"{time} {text}" for time, text in script.run_data]


def test_the_same_seed_is_the_same_run_callback_for_callback() -> None:
    assert traced(3) == traced(3)
    assert len({tuple(traced(seed)) for seed in range(10)}) == 10


def test_sets_of_tasks_are_in_the_order_in_which_the_tasks_were_made() -> None:
    async def main() -> list[str]:
        tasks = {asyncio.create_task(asyncio.sleep(1), name=f"{number}") for number in range(50)}
        done, _ = await asyncio.wait(tasks)
        assert done == tasks
        return [task.get_name() for task in done]

    assert run(main(), seed=1) == run(main(), seed=2)


# No threads


def test_work_for_an_executor_is_done_on_the_loop() -> None:
    async def main() -> None:
        assert await asyncio.to_thread(threading.current_thread) is threading.current_thread()
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 // 0)

    run(main())
