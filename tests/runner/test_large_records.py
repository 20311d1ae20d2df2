"""Many large jobs that run at the same time, in virtual time: what rewrites them all is bounded by their records."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from jobs_service import JobsService, NewJob, Outcome, RunningJob
from jobs_service.store.base import Limits
from jobs_service.store.memory import Faults, MemoryTransaction
from tests.runner.support import TYPE, Gate, all_ended, opened, running, store_of, story, warned
from tests.virtual_time import in_virtual_time

COUNT = 400
LARGE = "x" * 40_000
"""So many of these are more than one transaction may write."""


class Sizes(Faults):
    """Notes the bytes that each transaction writes."""

    def __init__(self) -> None:
        self.bytes: list[int] = []

    async def before_commit(self, transaction: MemoryTransaction) -> None:
        self.bytes.append(transaction.size)


async def add_large(jobs: JobsService, *, timeout: float = 60, data: str = LARGE, count: int = COUNT) -> list[str]:
    """Add so many large jobs; return their ids."""
    ids = [str(number) for number in range(count)]
    await jobs.set_type_timeout(TYPE, timeout)
    await jobs.add_many(TYPE, [NewJob(id, data) for id in ids])
    return ids


@in_virtual_time
async def test_large_jobs_are_kept_alive_and_end_together() -> None:
    gate = Gate()
    async with opened() as jobs:

        @jobs.handler(TYPE, slots=COUNT, max_attempts=2)
        async def work(job: RunningJob) -> str:
            await gate.pass_through()
            return "done"

        with capture_logs() as events:
            async with running(jobs):
                ids = await add_large(jobs)
                sizes = store_of(jobs).faults = Sizes()
                await asyncio.sleep(600)
                assert gate.inside == COUNT
                gate.open()
                for job in await all_ended(jobs, ids):
                    assert (job.result, job.attempts) == ("done", 1)
                    assert story(job) == ["added", "started", "finished"]
        assert warned(events) == []
        assert max(sizes.bytes) < store_of(jobs).limits.transaction // 3


@pytest.mark.parametrize("transaction", [8_000, 20_000])
@in_virtual_time
async def test_a_store_with_small_limits_is_as_good(transaction: int, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    async with opened() as jobs:
        monkeypatch.setattr(store_of(jobs), "limits", Limits(value=2_000, transaction=transaction))

        @jobs.handler(TYPE, slots=60)
        async def work(job: RunningJob) -> str:
            await gate.pass_through()
            return "y" * (10 * int(str(job.id)))

        with capture_logs() as events:
            async with running(jobs):
                ids = await add_large(jobs, data="x" * 700, count=60)
                await asyncio.sleep(300)
                assert gate.inside == 60
                gate.open()
                for job in await all_ended(jobs, ids):
                    assert story(job) == ["added", "started", "finished"]
                    assert job.outcome is Outcome.SUCCEEDED
        assert warned(events) == []
