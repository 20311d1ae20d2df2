"""Continuous jobs get equal shares of the slots, keep their checkpoints, and heed changed options."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from jobs_service import NewJob
from tests.runner.rotating import INTERVAL, SETTLED, Stage
from tests.runner.support import TYPE, opened, running, stopped
from tests.virtual_time import in_virtual_time


@asynccontextmanager
async def many(count: int, **options: Any) -> AsyncIterator[Stage]:
    """Have so many continuous jobs take turns."""
    async with opened() as jobs:
        stage = Stage(jobs, **{"slots": 10, "timeout": 3600, **options})
        async with running(jobs):
            await asyncio.sleep(SETTLED)
            await jobs.add_many(TYPE, [NewJob(str(number), "continuous") for number in range(count)])
            yield stage


def spread(stage: Stage, count: int) -> float:
    """Return the difference between the longest and the shortest total run time of that many jobs, in seconds."""
    totals = [stage.seconds(str(number)) for number in range(count)]
    assert min(totals) > 0
    return max(totals) - min(totals)


# Fairness


@pytest.mark.unmeasured
@in_virtual_time
async def test_in_ten_hours_two_hundred_jobs_have_equal_shares_of_ten_slots() -> None:
    async with many(200) as stage:
        for _ in range(10):
            await asyncio.sleep(3600)
            assert len(stage.running()) == 10
        assert spread(stage, 200) <= 2 * INTERVAL
        assert sum(stage.seconds(str(number)) for number in range(200)) >= 0.99 * 10 * 36_000


@pytest.mark.parametrize(("count", "slots", "max_churn"), [(11, 10, 20), (23, 10, 3), (7, 3, 1)])
@in_virtual_time
async def test_shares_are_equal_whatever_the_slots_and_the_churn(count: int, slots: int, max_churn: int) -> None:
    async with many(count, slots=slots, max_churn=max_churn) as stage:
        await asyncio.sleep(60 * count * INTERVAL / slots)
        # With less churn than slots a turn is longer than an interval, and jobs are in the middle of theirs.
        turn = INTERVAL * -(-slots // min(max_churn, slots))
        assert spread(stage, count) <= turn + INTERVAL


# Checkpoints


@in_virtual_time
async def test_a_job_that_is_stopped_before_its_handler_has_begun_is_given_back() -> None:
    async with opened() as jobs:

        @jobs.handler(TYPE, slots=3, continuous=True)
        async def work() -> None:
            await asyncio.Event().wait()

        ids = ["a", "b", "c"]
        for turns in range(25):  # of the loop until it is stopped: in one of them the jobs are to begin next
            task = asyncio.create_task(jobs.run())
            await asyncio.sleep(SETTLED)
            await jobs.add_many(TYPE, [NewJob(id) for id in ids], if_exists="ignore")
            for _ in range(turns):
                await asyncio.sleep(0)
            await stopped(task)
            assert await jobs.active_ids(TYPE) == []
            assert await jobs.pending_count(TYPE) == 3
            for id in ids:
                await jobs.remove(TYPE, id)


# Changes


@in_virtual_time
async def test_more_slots_than_jobs_end_the_turns_and_fewer_bring_them_back() -> None:
    async with many(6, slots=3) as stage:
        await stage.rotate()
        await stage.change(slots=6)
        before = stage.stops()
        for _ in range(3):
            await stage.rotate()
        assert stage.stops() == before
        await stage.change(slots=2)
        assert stage.stops() == before + 4
        ran = {*stage.running()}
        for _ in range(2):
            await stage.rotate()
            ran |= {*stage.running()}
        assert len(ran) == 6
