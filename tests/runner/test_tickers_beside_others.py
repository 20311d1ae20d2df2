"""Tickers beside pauses, jobs that go on, removed types and other processes."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from jobs_service import Job, JobsService, JobState, Outcome
from jobs_service.testing import World
from tests.runner.ticking import FIRST, MINUTE, Observer, RunRecord, every_minute, in_a_world, serving, ticks


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize(("missed", "made_up"), [("once", 1), ("all", 3), ("skip", 1)])
def test_ticks_of_a_paused_type_are_missed_until_it_is_resumed(missed: str, made_up: int, overlap: bool) -> None:
    seen = RunRecord()

    async def main(world: World) -> int:
        async with Observer(world) as jobs:
            await jobs.pause("minute")
            world.start("p", serving(every_minute(seen, missed=missed, overlap=overlap)))
            await asyncio.sleep(FIRST + 3 * MINUTE - 1)
            assert seen.ran == []
            waiting = await jobs.pending_count("minute")
            await jobs.resume("minute")
            await asyncio.sleep(0.4)
        return waiting

    assert in_a_world(main) == 0
    # Of a schedule that is not older than a minute, "skip" takes the newest tick for punctual.
    assert seen.ids == ticks(3)[-made_up:]


def slow_ticks(overlap: bool, missed: str = "once") -> list[tuple[str, float]]:
    """Return when the jobs of a handler began that takes longer than from one tick to the next."""
    started: list[tuple[str, float]] = []

    def register(jobs: JobsService) -> None:
        @jobs.every("1m", type="slow", overlap=overlap, missed=missed)
        async def slow(job: Any) -> None:
            started.append((str(job.id), asyncio.get_running_loop().time()))
            await asyncio.sleep(90)

    async def main(world: World) -> None:
        world.start("p", serving(register))
        await asyncio.sleep(FIRST + 3 * MINUTE + 5)

    in_a_world(main)
    return started


def test_jobs_that_may_overlap_come_whatever_runs() -> None:
    assert [id for id, _ in slow_ticks(overlap=True)] == ticks(4)


def test_a_tick_whose_predecessor_still_runs_waits_for_its_end() -> None:
    began = slow_ticks(overlap=False)
    # The tick after the first is due after 60 s, and waits until 90; of those at 120 and 180 the newer one comes then.
    assert [id for id, _ in began] == [ticks(4)[0], ticks(4)[1], ticks(4)[3]]
    assert [round(at - began[0][1]) for _, at in began] == [0, 90, 180]


def test_a_tick_whose_predecessor_still_runs_is_dropped_where_missed_ticks_are() -> None:
    began = slow_ticks(overlap=False, missed="skip")
    assert [id for id, _ in began][:2] == [ticks(4)[0], ticks(4)[1]]
    assert all(later - before >= 90 for (_, before), (_, later) in itertools.pairwise(began))


def flaky_ticks(missed: str, seconds: float, **options: Any) -> tuple[list[tuple[str, float]], list[Job]]:
    """Return the runs of a handler of every minute, whose dependency is away for four minutes, and its jobs."""
    began: list[tuple[str, float]] = []
    jobs_then: list[Job] = []

    def register(jobs: JobsService) -> None:
        @jobs.every("1m", type="flaky", jitter=0, missed=missed, **options)
        async def flaky(job: Any) -> None:
            at = asyncio.get_running_loop().time()
            began.append((str(job.id), at))
            await asyncio.sleep(seconds)
            if at < FIRST + 4 * MINUTE - 1:
                raise ConnectionError("away")

    async def main(world: World) -> None:
        world.start("p", serving(register))
        await asyncio.sleep(FIRST + 6 * MINUTE + 5)
        async with Observer(world) as jobs:
            jobs_then.extend([job async for job in jobs.list("flaky")])

    in_a_world(main)
    return began, jobs_then


@pytest.mark.parametrize("missed", ["once", "skip"])
def test_the_next_tick_takes_the_place_of_a_job_that_waits_for_another_attempt(missed: str) -> None:
    began, jobs = flaky_ticks(missed, 0, backoff=3600)
    assert [id for id, _ in began] == ticks(7)
    assert all(abs(at - FIRST - number * MINUTE) < 1 for number, (_, at) in enumerate(began))
    outcomes = {str(job.id): job.outcome for job in jobs}
    assert [outcomes[id] for id in ticks(7)] == [Outcome.FAILED] * 4 + [Outcome.SUCCEEDED] * 3
    first = next(job for job in jobs if job.id == ticks(1)[0])
    assert first.error is not None
    assert first.error.message == "away"
    assert first.history[0].detail == f"the tick of {ticks(2)[1]} has taken its place"


def test_only_a_tick_after_the_failed_run_takes_its_place() -> None:
    # It fails 20 s after a tick that it has missed, and its other attempt comes before the next one.
    began, _ = flaky_ticks("once", 80, backoff=15, max_attempts=2)
    assert [id for id, _ in began][:3] == [ticks(1)[0], ticks(1)[0], ticks(3)[2]]


def test_where_each_tick_is_to_have_its_job_it_has_all_its_attempts() -> None:
    began, jobs = flaky_ticks("all", 0, backoff=100)
    assert [id for id, _ in began][:3] == [ticks(1)[0]] * 3
    assert all(job.outcome is Outcome.SUCCEEDED for job in jobs)


def test_ticks_expire_as_their_handler_says() -> None:
    async def main(world: World) -> list[tuple[str, JobState]]:
        world.start("p", serving(every_minute(RunRecord(), keep=90)))
        await asyncio.sleep(FIRST + 10 * MINUTE + 5)
        async with Observer(world) as jobs:
            return [(str(job.id), job.state) async for job in jobs.list("minute")]

    left = in_a_world(main)
    assert 2 <= len(left) <= 4
    assert [id for id, _ in left] == ticks(11)[-len(left) :]
    assert {state for _, state in left} == {JobState.FINISHED}
