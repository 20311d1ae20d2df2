"""The limit over all handlers of a process: never exceeded, always used, and shared; and its line by itself."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from jobs_service import JobsService, RunningJob
from jobs_service.runner.active_runs import SlotLimit
from tests.runner.support import add, all_ended, opened, running
from tests.service.support import kill
from tests.virtual_time import in_virtual_time

TYPES = ("a", "b", "c")


class Crowd:
    """How many handlers of each type run.

    Attributes:
        inside: by type.
        most: of all types together, ever.
        order: the types in the order in which their jobs began.
    """

    def __init__(self) -> None:
        self.inside: Counter[object] = Counter()
        self.most = 0
        self.order: list[object] = []

    def register(self, jobs: JobsService, type: str, slots: int, seconds: float) -> None:
        """Register a handler whose jobs take so long."""

        @jobs.handler(type, slots=slots)
        async def work(job: RunningJob) -> None:
            self.order.append(type)
            self.inside[type] += 1
            self.most = max(self.most, self.inside.total())
            try:
                await asyncio.sleep(seconds)
            finally:
                self.inside[type] -= 1


@pytest.mark.parametrize("limit", [1, 4, 7])
@in_virtual_time
async def test_no_more_jobs_of_all_types_run_than_the_cap_allows_and_no_fewer(limit: int) -> None:
    crowd = Crowd()
    ids = [str(number) for number in range(14)]
    async with opened() as jobs:
        for type in TYPES:
            crowd.register(jobs, type, 3, 10)
        async with running(jobs, max_jobs=limit):
            for type in TYPES:
                await add(jobs, *ids, type=type)
            # As long as there is more than enough to do for each, all places are taken in all rounds of 10 s.
            for _ in range(3):
                await asyncio.sleep(5)
                assert crowd.inside.total() == limit
                await asyncio.sleep(5)
            for type in TYPES:
                await all_ended(jobs, ids, type)
    assert crowd.most == limit


@in_virtual_time
async def test_places_come_back_whatever_becomes_of_those_who_took_them() -> None:
    """Jobs are canceled, removed, stopped and crash, and a worker pool dies: the limit counts none of them any more."""
    crowd = Crowd()
    async with opened() as jobs:
        for type in TYPES:
            crowd.register(jobs, type, 3, 50)

        @jobs.handler("crashing", max_attempts=1)
        async def work(job: RunningJob) -> None:
            raise OSError

        async with running(jobs, max_jobs=4):
            await add(jobs, "x", "y", type="crashing")
            await add(jobs, "1", "2", type="a")
            await asyncio.sleep(1)
            await jobs.remove("a", "1")
            await jobs.remove("a", "2", force=True)
            await asyncio.sleep(1)
            await add(jobs, "1", "2", "3", type="b")
            await asyncio.sleep(1)
            jobs.configure("b", slots=0)
            await asyncio.sleep(1)
            jobs.configure("b", slots=3)
            await asyncio.sleep(1)
            kill("pool 'b'")
            await asyncio.sleep(1)
            await add(jobs, "3", "4", type="c")
            await asyncio.sleep(1)
            assert (crowd.inside["b"], crowd.inside["c"]) == (3, 1)
            await all_ended(jobs, "123", "b")
            await all_ended(jobs, "34", "c")
            await add(jobs, "5", "6", "7", "8", "9", type="a")
            await asyncio.sleep(1)
            assert crowd.inside["a"] == 3
    assert crowd.most == 4


# The line


@pytest.mark.parametrize("limit", [None, 5])
async def test_a_closed_cap_gives_nobody_a_place_until_it_is_opened(limit: int | None) -> None:
    cap = SlotLimit(limit)
    assert await cap.take("first", 3) == 3
    cap.set_closed(True)
    waiting = asyncio.create_task(cap.take("second", 2))
    await asyncio.sleep(0)
    cap.give_back(1)
    await asyncio.sleep(0)
    assert not waiting.done()
    assert cap.is_full
    cap.set_closed(False)
    async with asyncio.timeout(10):
        assert await waiting == 2
    assert cap.taken == 4


async def test_places_that_come_back_together_go_to_all_who_wait_one_each_and_nobody_takes_them_before() -> None:
    cap = SlotLimit(4)
    await cap.take("first", 4)
    waiting = [asyncio.create_task(cap.take(number, 3)) for number in range(3)]
    await asyncio.sleep(0)
    cap.give_back(3)
    late = asyncio.create_task(cap.take("late", 4))
    async with asyncio.timeout(10):
        assert await asyncio.gather(*waiting) == [1, 1, 1]
    assert cap.is_full
    assert not late.done()
    cap.give_back(4)
    async with asyncio.timeout(10):
        assert await late == 4


async def test_who_is_canceled_as_its_turn_comes_passes_it_on() -> None:
    cap = SlotLimit(1)
    await cap.take("first", 1)
    waiting = [asyncio.create_task(cap.take(number, 1)) for number in range(3)]
    await asyncio.sleep(0)
    waiting[1].cancel()
    cap.give_back(1)
    waiting[0].cancel()
    async with asyncio.timeout(10):
        assert await waiting[2] == 1
    assert waiting[0].cancelled()
    assert waiting[1].cancelled()
    assert cap.taken == 1
