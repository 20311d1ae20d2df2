"""The simulated world: the same seed is the same run; processes die, stand still, and have clocks of their own."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from jobs_service.testing import EPOCH, Deadlock, Livelock, Plan, Process, World
from jobs_service.testing.loop import SimulatedTask
from tests.testing.busy import Busy
from tests.testing.support import simulate
from tests.testing.victims import Victim

ROOT = Path(__file__).parents[2]
SEED = 5


@pytest.fixture(scope="module")
def whole() -> Busy:
    """A run of everything, with which others are compared."""
    return Busy(SEED)


# The same seed


@pytest.mark.unmeasured
def test_the_same_seed_is_the_same_run_and_another_seed_another(whole: Busy) -> None:
    first, again, other = whole, Busy(SEED), Busy(SEED + 1)
    assert list(first.world.events) == list(again.world.events)
    assert first.digest == again.digest
    assert first.world.choices.faults == again.world.choices.faults
    assert first.digest != other.digest
    # It was worth comparing.
    assert first.run_data > 100
    assert first.world.loop.steps > 5000
    assert len({fault.split(":")[0] for fault in first.world.choices.faults}) > 6


@pytest.mark.unmeasured
def test_the_same_seed_is_the_same_run_in_other_processes_with_other_hashes(whole: Busy) -> None:
    def digest(hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-m", "tests.testing.busy", str(SEED)]
        return subprocess.run(
            command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip()

    assert {digest("1"), digest("2")} == {whole.digest}


@pytest.mark.unmeasured
def test_a_plan_of_all_that_happened_is_the_same_run(whole: Busy) -> None:
    choices = whole.world.choices
    plan = Plan(SEED, faults=frozenset(choices.faults), deviations=frozenset(choices.deviations))
    assert Busy(plan).digest == whole.digest


@pytest.mark.unmeasured
def test_a_run_with_less_in_it_begins_as_the_whole_did(whole: Busy) -> None:
    choices = whole.world.choices
    half = Busy(Plan(SEED, faults=frozenset(choices.faults[:5]), deviations=frozenset(choices.deviations[:100])))
    assert half.world.choices.faults == choices.faults[:5]
    assert set(half.world.choices.deviations) <= set(choices.deviations[:100])


# Clocks


def test_each_process_has_a_clock_of_its_own_that_may_jump() -> None:
    async def main(world: World) -> None:
        async def program(process: Process) -> None:
            await asyncio.Event().wait()

        right, ahead = world.start("a", program), world.start("b", program, ahead=3600)
        await asyncio.sleep(10)
        assert right.clock.wall_time() == right.sources.wall_time() == EPOCH + 10
        assert ahead.sources.wall_time() == EPOCH + 3610
        right.clock.ahead = -60
        assert right.sources.wall_time() == EPOCH - 50
        assert ahead.sources.wall_time() == EPOCH + 3610

    simulate(main)


def test_processes_draw_different_tokens_and_the_same_ones_in_every_run() -> None:
    async def main(world: World) -> list[bytes]:
        async def program(process: Process) -> None:
            pass

        processes = [world.start(name, program) for name in ("a", "b", "a")]
        return [process.sources.token(16) for process in processes]

    tokens = simulate(main)
    assert len(set(tokens)) == 3
    assert simulate(main) == tokens
    assert set(simulate(main, 1)).isdisjoint(tokens)


# Ends


def test_processes_that_are_left_are_stopped_at_the_end_also_paused_ones() -> None:
    async def main(world: World) -> None:
        victim, paused = world.start("victim", Victim(world)), world.start("paused", Victim(world))
        await asyncio.sleep(1)
        paused.pause()
        await asyncio.sleep(1)
        assert victim.alive

    world = World()
    world.run(main)
    assert world.unhandled == []
    events = [event.split(maxsplit=1)[1] for event in world.events]
    assert {"victim.1: ended", "paused.1: ended", "victim.1: left outer", "paused.1: left outer"} <= set(events)
    assert world.cluster.idle


def test_a_deadlock_says_whose_tasks_wait_where_and_leaves_out_the_dead() -> None:
    async def main(world: World) -> None:
        async def program(process: Process) -> None:
            await asyncio.Event().wait()

        dead, process = world.start("dead", program), world.start("living", program)
        await asyncio.sleep(1)
        dead.kill()
        await process.ended()

    with pytest.raises(Deadlock) as caught:
        World().run(main)
    lines = str(caught.value).splitlines()
    assert lines[0] == "nothing is ready and no timer is set at 1.000 s; waiting:"
    assert [line.strip().split(": ")[0] for line in lines[1:]] == ["living.1, living.1", "main"]
    assert "Event.wait" in lines[1]
    assert "Process.ended" in lines[2] or "Event.wait" in lines[2]


def test_a_livelock_says_who_went_round_in_circles() -> None:
    async def main(world: World) -> None:
        async def program(process: Process) -> None:
            for _ in itertools.count():
                await asyncio.sleep(0)

        await world.start("whirling", program).ended()

    with pytest.raises(Livelock) as caught:
        World(most_steps=3000).run(main)
    assert str(caught.value).startswith("more than 3000 steps at 0.000 s")
    assert "whirling.1: " in str(caught.value)


def tasks_alive() -> int:
    """Return how many simulated tasks and worlds there are."""
    gc.collect()
    # By the type, which no object can lie about; other tests' objects do.
    return sum(issubclass(type(each), SimulatedTask | World | Process) for each in gc.get_objects())


@pytest.mark.unmeasured
def test_worlds_leave_nothing_behind_and_say_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    def one(seed: int) -> None:
        async def main(world: World) -> None:
            victims = [world.start("victim", Victim(world)) for _ in range(3)]
            await asyncio.sleep(world.choices.stream("test").uniform(0, 0.1))
            victims[0].kill()
            victims[1].pause()
            world.start("victim", Victim(world))
            await asyncio.sleep(0.1)
            if seed % 4 == 1:
                raise ValueError("on purpose")
            if seed % 4 == 2:
                victims[2].pause()
                await asyncio.Event().wait()
            victims[2].kill()

        world = World(seed, rates={"suspend": 0.2, "slow_answer": 0.1}, most_steps=3000)
        if seed % 4 == 1:
            with pytest.raises(ValueError, match="on purpose"):
                world.run(main)
        elif seed % 4 == 2:
            with pytest.raises((Deadlock, Livelock)):
                world.run(main)
        else:
            world.run(main)
            assert world.unhandled == []

    before = tasks_alive()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for seed in range(60):
            one(seed)
    assert tasks_alive() == before
    output = capsys.readouterr()
    assert output.out == output.err == ""
