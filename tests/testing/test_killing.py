"""Processes of a world that are killed or paused."""

from __future__ import annotations

import asyncio
import gc

import pytest

from jobs_service.testing import Deadlock, Process, World
from tests.shares import share
from tests.testing.support import connected, write
from tests.testing.victims import Victim


def lines_after(world: World, what: str) -> list[str]:
    """Return what was noted of the victim after an event."""
    events = [event.split(maxsplit=1)[1] for event in world.events]
    return [event for event in events[events.index(what) + 1 :] if event.startswith("victim.1")]


# Killing


@pytest.mark.unmeasured
@pytest.mark.parametrize("seed", share(range(60), 4))
def test_of_a_killed_process_no_line_runs_again_not_even_a_finally(seed: int) -> None:
    async def main(world: World) -> None:
        victim = world.start("victim", Victim(world))
        until = world.choices.stream("test").uniform(0, 1) ** 3
        while world.loop.time() < until or world.loop.steps < seed:  # noqa: ASYNC110 - a step of the loop each
            await asyncio.sleep(0 if world.loop.steps < seed else 0.001)
        victim.kill()
        assert not victim.alive
        assert world.left_behind() == []
        await victim.ended()
        async with connected(world) as store:
            for count in range(10):
                await write(store, b"a", b"%d" % count)
                await asyncio.sleep(1)
        gc.collect()
        assert world.cluster.idle

    world = World(seed, latency=0.002, rates={"suspend": 0.3})
    world.run(main)
    gc.collect()
    assert lines_after(world, "victim.1: killed") == []
    assert world.unhandled == []


def test_a_process_that_kills_itself_goes_no_further_than_its_next_await() -> None:
    async def main(world: World) -> None:
        async def program(process: Process) -> None:
            try:
                process.kill()
                world.note("still here", process)
                asyncio.get_running_loop().call_soon(world.note, "callback", process)
                left = [asyncio.create_task(asyncio.sleep(1))]
                left.clear()
                await asyncio.sleep(0)
                world.note("still here after an await", process)
            finally:
                world.note("finally", process)

        process = world.start("victim", program)
        await process.ended()
        await asyncio.sleep(10)

    world = World()
    world.run(main)
    gc.collect()
    assert lines_after(world, "victim.1: killed") == ["victim.1: still here"]
    assert world.unhandled == []


# Pausing


def test_a_paused_process_stands_still_and_finds_its_timers_due_afterwards() -> None:
    async def main(world: World) -> None:
        process = world.start("victim", Victim(world))
        await asyncio.sleep(2.5)
        process.pause()
        assert process.alive
        assert not process.running
        before = len(world.events)
        await asyncio.sleep(10)
        assert len(world.events) == before
        process.go_on()
        await asyncio.sleep(0)
        assert world.loop.time() == 12.5
        await asyncio.sleep(1)

    world = World()
    world.run(main)
    after = lines_after(world, "victim.1: goes on")
    assert "victim.1: timer" in after[:20]  # It was due in the meantime.
    assert after.count("victim.1: beat") > 90


def test_a_process_that_is_paused_for_ever_is_a_deadlock_that_says_so() -> None:
    async def main(world: World) -> None:
        async def program(process: Process) -> None:
            await asyncio.sleep(3)

        process = world.start("sleeper", program)
        await asyncio.sleep(1)
        process.pause()
        await process.ended()

    with pytest.raises(Deadlock) as caught:
        World().run(main)
    assert "sleeper.1 (paused), sleeper.1: " in str(caught.value)
