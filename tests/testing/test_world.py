"""The simulated world: the same seed is the same run; processes die, stand still, and have clocks of their own."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import subprocess
import sys
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog

from jobs_service import JobsService
from jobs_service.testing import EPOCH, Deadlock, Livelock, Plan, Process, World
from jobs_service.testing.loop import SimulatedTask
from tests.testing.busy import Busy
from tests.testing.support import connected, read, simulate, watch, write

ROOT = Path(__file__).parents[2]

# The same seed

SEED = 5


@pytest.fixture(scope="module")
def whole() -> Busy:
    """A run of everything, with which others are compared."""
    return Busy(SEED)


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


# Killing


@asynccontextmanager
async def noted(world: World, process: Process, name: str) -> AsyncIterator[None]:
    """Note that something was entered and left, from a generator and from a plain `finally`."""
    world.note(f"enter {name}", process)
    try:
        yield
    finally:
        world.note(f"leave {name}", process)
        await asyncio.sleep(0)
        world.note(f"left {name}", process)


class Victim:
    """A program that is in the middle of a lot, and notes every line that it runs."""

    def __init__(self, world: World) -> None:
        self.world = world

    async def __call__(self, process: Process) -> None:
        self.process = process
        loop = asyncio.get_running_loop()
        loop.call_later(3, self.note, "timer")
        async with noted(self.world, process, "outer"):
            try:
                async with process.service() as jobs, asyncio.TaskGroup() as group:
                    await jobs.set_type_timeout("t", 60)
                    group.create_task(self.beat())
                    group.create_task(self.generate())
                    group.create_task(self.follow(jobs))
                    group.create_task(self.work(jobs))
                    group.create_task(asyncio.to_thread(self.note, "thread"))
            finally:
                self.note("finally")

    def note(self, text: str) -> None:
        self.world.note(text, self.process)

    async def beat(self) -> None:
        while True:
            self.note("beat")
            try:
                await asyncio.sleep(0.01)
            finally:
                self.note("after beat")

    async def numbers(self) -> AsyncIterator[int]:
        try:
            for number in range(10**9):
                await asyncio.sleep(0.005)
                yield number
        finally:
            self.note("generator closed")
            await asyncio.sleep(0)
            self.note("generator closed, and waited")

    async def generate(self) -> None:
        async for number in self.numbers():
            self.note(f"number {number}")
            await asyncio.sleep(0.005)

    async def follow(self, jobs: JobsService) -> None:
        await jobs.add("t", "followed", if_exists="ignore")
        async for event in jobs.subscribe("t", "followed"):
            self.note(f"event {event}")

    async def work(self, jobs: JobsService) -> None:
        while True:
            job = await jobs.accept("t")
            async with noted(self.world, self.process, f"job {job}"):
                await asyncio.sleep(0.5)


def lines_after(world: World, what: str) -> list[str]:
    """Return what was noted of the victim after an event."""
    events = [event.split(maxsplit=1)[1] for event in world.events]
    return [event for event in events[events.index(what) + 1 :] if event.startswith("victim.1")]


@pytest.mark.unmeasured
@pytest.mark.parametrize("seed", range(0, 60, 2))
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


def test_killing_is_done_once_and_a_dead_process_neither_stands_still_nor_goes_on() -> None:
    async def main(world: World) -> None:
        process = world.start("victim", Victim(world))
        await asyncio.sleep(1)
        process.kill()
        for act in (process.kill, process.pause, process.go_on, process.request_stop):
            act()
        await asyncio.sleep(10)

    world = World()
    world.run(main)
    assert lines_after(world, "victim.1: killed") == []


def test_a_process_can_be_killed_while_it_is_paused() -> None:
    async def main(world: World) -> None:
        process = world.start("victim", Victim(world))
        await asyncio.sleep(1)
        process.pause()
        await asyncio.sleep(10)
        process.kill()
        process.go_on()
        await asyncio.sleep(10)

    world = World()
    world.run(main)
    assert lines_after(world, "victim.1: paused") == ["victim.1: killed"]


def test_the_job_of_a_killed_worker_is_done_by_another() -> None:
    async def main(world: World) -> list[str]:
        done: list[str] = []

        async def work(process: Process) -> None:
            async with process.service() as jobs:
                await jobs.set_type_timeout("t", 10)
                while True:
                    job = await jobs.accept("t")
                    assert job is not None
                    await asyncio.sleep(2)
                    await job.finish()
                    done.append(str(process))

        first = world.start("worker", work)
        await asyncio.sleep(1)
        async with connected(world) as store, JobsService(store, supervise=False) as jobs:
            await jobs.add("t", "job")
            await asyncio.sleep(1)
            assert (await jobs.get("t", "job")).state == "running"
            first.kill()
            assert world.start("worker", work).incarnation == 2
            await asyncio.sleep(20)
            assert (await jobs.get("t", "job")).state == "finished"
        return done

    assert simulate(main) == ["worker.2"]


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


def test_a_paused_process_takes_up_what_it_was_waiting_for() -> None:
    async def main(world: World) -> tuple[float, bytes | None]:
        async with connected(world) as store:
            found: list[tuple[float, bytes | None]] = []

            async def program(process: Process) -> None:
                await process.store.open()
                watched = await watch(process.store, b"a")
                await watched.wait()
                found.append((world.loop.time(), await read(process.store, b"a")))

            process = world.start("watcher", program)
            await asyncio.sleep(1)
            process.pause()
            await write(store, b"a", b"1")
            await asyncio.sleep(1)
            await write(store, b"a", b"2")
            process.go_on()
            await process.ended()
            return found[0]

    assert simulate(main) == (2, b"2")


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
