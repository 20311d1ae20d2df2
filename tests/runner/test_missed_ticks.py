"""Ticks at which no process ran, and clocks that are set."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime

import pytest

from jobs_service import JobsService, RunningJob, Snooze
from jobs_service.runner.schedule import MOST_MADE_UP, Missed
from jobs_service.runner.ticker import tick_id
from jobs_service.testing import World
from tests.runner.ticking import (
    FIRST,
    MINUTE,
    START,
    Noting,
    Observer,
    RunRecord,
    every_minute,
    in_a_world,
    serving,
    ticks,
)

# Missed ticks


@pytest.mark.parametrize(
    ("missed", "expected"),
    [
        # 20 minutes are missed, the newest tick by 15 s.
        ("once", [*ticks(2), *ticks(2, FIRST + 21 * MINUTE)]),
        ("skip", [*ticks(2), *ticks(2, FIRST + 21 * MINUTE)]),
        ("all", ticks(23)),
    ],
)
def test_ticks_that_were_missed_are_made_up_for_as_the_policy_says(missed: str, expected: list[str]) -> None:
    seen = RunRecord()

    async def main(world: World) -> None:
        program = serving(every_minute(seen, missed=missed))
        first = world.start("p", program)
        await asyncio.sleep(FIRST + MINUTE + 15)
        first.request_stop()
        await first.ended()
        await asyncio.sleep(20 * MINUTE)
        for number in range(3):
            world.start(f"again {number}", program)
        await asyncio.sleep(MINUTE)

    in_a_world(main)
    assert seen.ids == expected


def missed_seconds(missed: Missed, overlap: bool, seconds: float) -> Callable[[World], Awaitable[list[str]]]:
    """Return a world in which nobody was there for so many ticks; it returns the jobs that were made up."""

    async def main(world: World) -> list[str]:
        def register(jobs: JobsService) -> None:
            jobs.every(1, type="second", missed=missed, overlap=overlap, slots=0)(Noting(RunRecord()))

        first = world.start("p", serving(register))
        await asyncio.sleep(1.5)
        first.request_stop()
        await first.ended()
        async with Observer(world) as jobs:
            before = [str(job.id) async for job in jobs.list("second")]
            await asyncio.sleep(seconds)
            for id in before:
                await jobs.remove("second", id)
            world.start("p", serving(register))
            await asyncio.sleep(0.5)
            return [str(job.id) async for job in jobs.list("second")]

    return main


def test_of_many_missed_ticks_the_newest_hundred_are_made_up_for() -> None:
    ids = in_a_world(missed_seconds(Missed.ALL, True, 2500))
    assert len(ids) == MOST_MADE_UP
    newest = datetime.fromisoformat(ids[-1]).timestamp()
    assert ids == [tick_id(newest - back) for back in reversed(range(MOST_MADE_UP))]
    assert START + 2500 < newest < START + 2504


# Clocks


def test_a_clock_that_is_set_forward_is_noticed_within_half_a_minute() -> None:
    seen = RunRecord()

    def register(jobs: JobsService) -> None:
        jobs.every("1d", type="daily")(Noting(seen))

    async def main(world: World) -> None:
        process = world.start("p", serving(register))
        await asyncio.sleep(5)
        process.clock.ahead += 86_400
        await asyncio.sleep(31)

    in_a_world(main)
    assert len(seen.ids) == 1


@pytest.mark.parametrize("missed", ["once", "skip", "all"])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_clock_that_was_ahead_once_does_not_keep_ticks_from_coming(missed: str, restarted: bool) -> None:
    seen = RunRecord()

    async def main(world: World) -> list[str]:
        program = serving(every_minute(seen, missed=missed))
        process = world.start("p", program, ahead=30 * 86_400.0)
        await asyncio.sleep(FIRST + 5)
        assert len(seen.ran) == 1
        if restarted:
            process.request_stop()
            await process.ended()
            process = world.start("again", program)
        process.clock.ahead = 0.0
        seen.ran.clear()
        await asyncio.sleep(MINUTE - 5 + 3 * MINUTE + 5)
        return [str(event) for event in world.events]

    events = in_a_world(main)
    assert seen.ids == ticks(4, FIRST + MINUTE)
    assert sum("tick_ahead" in event for event in events) == 1


@pytest.mark.parametrize("how", ["waits for another attempt", "snoozes", "runs"])
def test_a_job_of_a_tick_that_was_ahead_is_in_the_way_only_as_long_as_it_runs(how: str) -> None:
    seen = RunRecord()

    def register(jobs: JobsService) -> None:
        @jobs.every("1m", type="minute", missed="all", backoff=3600, jitter=0)
        async def minute(job: RunningJob) -> None:
            seen.note(job)
            if len(seen.ran) == 1:
                if how == "runs":
                    await asyncio.sleep(3 * MINUTE)
                    return
                raise Snooze(3600) if how == "snoozes" else ConnectionError("away")

    async def main(world: World) -> None:
        process = world.start("p", serving(register), ahead=30 * 86_400.0)
        await asyncio.sleep(FIRST + 5)
        process.clock.ahead = 0.0
        await asyncio.sleep(5 * MINUTE)

    in_a_world(main)
    assert seen.ids[:3] == ticks(3, FIRST + MINUTE)
    assert (seen.ran[1][1] > FIRST + 3 * MINUTE) is (how == "runs")
