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
import structlog

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
def test_what_the_environment_sets_changes_nothing(whole: Busy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBS_SERVICE_ACTIVITY_SAMPLES", "5")
    monkeypatch.setenv("JOBS_SERVICE_NOTIFY_HOLDOFF", "3")
    assert Busy(SEED).digest == whole.digest


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


@pytest.mark.parametrize(("ahead", "waits"), [(0, 100), (40, 60), (-40, 140)])
def test_a_scheduled_job_comes_due_by_the_clock_of_who_looks(ahead: float, waits: float) -> None:
    async def main(world: World) -> float:
        accepted: list[float] = []

        async def work(process: Process) -> None:
            async with process.service(supervise=False) as jobs:
                await jobs.set_type_timeout("t", 10)
                await jobs.add("t", "job", run_at=EPOCH + 100)
                job = await jobs.accept("t")
                assert job is not None
                accepted.append(world.loop.time())

        await world.start("worker", work, ahead=ahead).ended()
        return accepted[0]

    assert waits <= simulate(main) <= waits + 1


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


def test_a_program_that_fails_says_why_and_one_that_is_asked_to_stop_stops() -> None:
    async def main(world: World) -> None:
        async def failing(process: Process) -> None:
            raise ValueError("no luck")

        async def endless(process: Process) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                world.note("cleaned up", process)

        failed, stopped = world.start("failing", failing), world.start("endless", endless)
        await failed.ended()
        assert repr(failed.failure) == "ValueError('no luck')"
        await asyncio.sleep(0)
        stopped.request_stop()
        await stopped.ended()
        assert stopped.failure is None
        assert not failed.alive
        assert not stopped.alive

    world = World()
    world.run(main)
    events = " ".join(world.events)
    assert "failing.1: failed: ValueError('no luck')" in events
    assert "endless.1: cleaned up" in events


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


def test_what_main_returns_or_raises_is_the_worlds_result() -> None:
    async def returning(world: World) -> int:
        return 42

    async def raising(world: World) -> None:
        world.start("victim", Victim(world))
        await asyncio.sleep(1)
        raise ValueError("no luck")

    assert World().run(returning) == 42
    with pytest.raises(ValueError, match="no luck"):
        World().run(raising)


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


def test_exceptions_that_reach_nobody_are_collected() -> None:
    async def main(world: World) -> None:
        async def failing() -> None:
            raise ValueError("nobody looks")

        async def program(process: Process) -> None:
            task = asyncio.create_task(failing())
            await asyncio.sleep(1)
            del task
            gc.collect()  # where the traceback keeps the task, nobody else would
            asyncio.get_running_loop().call_soon(lambda: 1 // 0)
            await asyncio.sleep(1)

        await world.start("careless", program).ended()

    world = World()
    world.run(main)
    assert len(world.unhandled) == 2
    assert "ValueError('nobody looks')" in world.unhandled[0]
    assert "ZeroDivisionError" in world.unhandled[1]
    assert sum("careless.1: unhandled" in event for event in world.events) == 2


def test_tasks_that_nobody_waits_for_are_left_behind() -> None:
    async def main(world: World) -> None:
        async def program(process: Process) -> None:
            asyncio.get_running_loop().stray = asyncio.create_task(  # type: ignore[attr-defined]
                asyncio.sleep(100), name="stray"
            )

        await world.start("careless", program).ended()
        assert world.left_behind() == ["stray"]
        await asyncio.sleep(200)
        assert world.left_behind() == []

    simulate(main)


def test_the_services_log_is_noted_with_its_process_and_printed_nowhere(capsys: pytest.CaptureFixture[str]) -> None:
    async def main(world: World) -> None:
        async def work(process: Process) -> None:
            async with process.service() as jobs:
                await jobs.set_type_timeout("t", 10)
                structlog.get_logger("test").warning("look here", n=1)
                try:
                    raise ValueError("no luck")
                except ValueError:
                    structlog.get_logger("test").exception("failed")

        await world.start("worker", work).ended()

    before = structlog.get_config()
    world = World(log_level=10)
    world.run(main)
    events = [event.split(maxsplit=1)[1] for event in world.events]
    assert "worker.1: look here n=1" in events
    assert "worker.1: failed error=ValueError('no luck')" in events
    assert any(event.startswith("worker.1: service_opened") for event in events)
    assert structlog.get_config() == before
    output = capsys.readouterr()
    assert output.out == output.err == ""


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
