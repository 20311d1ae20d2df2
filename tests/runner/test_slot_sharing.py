"""Continuous jobs of several handlers take turns when all handlers together may run no more jobs: in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from jobs_service import JobsService, RunningJob
from jobs_service.runner.options import HandlerKeywords
from tests.runner.support import add, opened, running
from tests.virtual_time import in_virtual_time

INTERVAL = 60.0
SETTLED = 1.0
"""Seconds after which a change has had its effects, apart from those of the next rotation."""


class Shared:
    """Handlers of two types whose continuous jobs share slots.

    Attributes:
        jobs: the service.
        inside: jobs whose handlers run, as type and id.
        ran: how often each has.
    """

    def __init__(self, jobs: JobsService, first: HandlerKeywords, second: HandlerKeywords) -> None:
        self.jobs = jobs
        self.inside: set[tuple[str, str]] = set()
        self.ran: Counter[tuple[str, str]] = Counter()
        self._register("first", first)
        self._register("second", second)

    def _register(self, type: str, options: HandlerKeywords) -> None:
        @self.jobs.handler(type, **options)
        async def work(job: RunningJob) -> None:
            name = (type, str(job.id))
            self.ran[name] += 1
            self.inside.add(name)
            try:
                await asyncio.Event().wait()
            finally:
                self.inside.remove(name)

    def of(self, type: str) -> int:
        """Return how many jobs of a type run."""
        return sum(name[0] == type for name in self.inside)


CONTINUOUS = HandlerKeywords(slots=10, continuous=True, interval=INTERVAL)


@asynccontextmanager
async def sharing(
    max_jobs: int, first: int, second: int, options: HandlerKeywords = CONTINUOUS, other: HandlerKeywords = CONTINUOUS
) -> AsyncIterator[Shared]:
    """Have so many jobs of either type run under one limit; those of the first type come first."""
    async with opened() as jobs:
        stage = Shared(jobs, options, other)
        async with running(jobs, max_jobs=max_jobs):
            await add(jobs, *map(str, range(first)), type="first")
            await asyncio.sleep(SETTLED)
            await add(jobs, *map(str, range(second)), type="second")
            await asyncio.sleep(SETTLED)
            yield stage


@in_virtual_time
async def test_jobs_of_all_types_take_turns_in_the_slots_of_the_common_limit() -> None:
    async with sharing(4, 6, 3) as stage:
        assert (stage.of("first"), stage.of("second")) == (4, 0)
        for _ in range(30):
            await asyncio.sleep(INTERVAL)
            assert len(stage.inside) == 4
        # 30 rotations of 4 slots among 9 jobs: 13 turns each if types did not matter.
        assert len(stage.ran) == 9
        assert min(stage.ran.values()) >= 6


@in_virtual_time
async def test_below_the_common_limit_a_job_does_not_give_way_to_less_urgent_ones_of_its_own_type() -> None:
    async with sharing(2, 2, 0) as stage:
        await stage.jobs.add("first", "later", priority=5)
        await asyncio.sleep(5 * INTERVAL)
        assert stage.of("first") == 2
        assert stage.ran.total() == 2
        # Jobs of the other type get the slot, and one less of the first type runs.
        await stage.jobs.add("second", "0", priority=5)
        await asyncio.sleep(INTERVAL)
        assert (stage.of("first"), stage.of("second")) == (1, 1)
        assert stage.ran["first", "later"] == 0


@in_virtual_time
async def test_below_the_common_limit_no_job_stops_for_one_that_comes_after_another_that_stops() -> None:
    async with sharing(2, 1, 1) as stage:
        await stage.jobs.add("first", "later", priority=5)
        await stage.jobs.add("second", "next")
        await asyncio.sleep(INTERVAL)
        # What stopped for `next` comes before `later`: a second slot would have it run again at once.
        assert stage.inside == {("second", "0"), ("second", "next")}
        assert stage.ran.total() == 3


@in_virtual_time
async def test_one_rotation_of_the_common_limit_stops_no_more_jobs_than_have_slots_of_their_own() -> None:
    async with sharing(3, 3, 3, other=HandlerKeywords(slots=1, continuous=True, interval=INTERVAL)) as stage:
        await asyncio.sleep(INTERVAL)
        assert (stage.of("first"), stage.of("second")) == (2, 1)
        assert stage.ran.total() == 4
