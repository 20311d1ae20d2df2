"""Handlers that run longer than their time limit."""

from __future__ import annotations

import asyncio

import pytest

from jobs_service import Outcome, RunningJob, Snooze
from jobs_service.model import JobState
from tests.runner.deaf_handlers import DAY
from tests.runner.support import TYPE, add, ended, opened, running, story, virtual_loop
from tests.virtual_time import in_virtual_time


@pytest.mark.parametrize("ends", ["returns", "raises", "snoozes"])
@in_virtual_time
async def test_a_handler_that_blocks_the_loop_past_its_time_limit_has_crashed(ends: str) -> None:
    async with opened() as jobs:

        @jobs.handler(TYPE, time_limit=50, max_attempts=1)
        async def work(job: RunningJob) -> str:
            await asyncio.sleep(20)
            virtual_loop()._now += 31
            if ends == "raises":
                raise ValueError("no")
            if ends == "snoozes":
                raise Snooze(5)
            return "late"

        async with running(jobs):
            await add(jobs, "a")
            job = await ended(jobs, "a")
        assert (job.outcome, job.result, job.attempts) == (Outcome.FAILED, None, 1)


@in_virtual_time
async def test_a_handler_is_not_late_because_another_has_blocked_the_loop() -> None:
    async with opened() as jobs:
        go = asyncio.Event()

        @jobs.handler(TYPE, time_limit=50, max_attempts=1)
        async def work(job: RunningJob) -> str:
            if job.id == "blocks":
                await asyncio.sleep(20)
                go.set()
                virtual_loop()._now += 100
            await go.wait()
            return "done"

        async with running(jobs):
            await add(jobs, "waits", "blocks")
            assert (await ended(jobs, "blocks")).outcome is Outcome.FAILED
            assert (await ended(jobs, "waits")).result == "done"


@in_virtual_time
async def test_a_time_limit_does_not_turn_a_stop_or_a_cancellation_into_a_crash() -> None:
    async with opened() as jobs:

        @jobs.handler(TYPE, time_limit=50, grace=30, max_attempts=1)
        async def work(job: RunningJob) -> None:
            try:
                await asyncio.sleep(DAY)
            finally:
                await asyncio.sleep(20)  # a checkpoint, in the midst of which the time limit comes
                saved.append(job.id)

        saved: list[object] = []
        async with running(jobs):
            await add(jobs, "canceled", "stopped")
            await asyncio.sleep(40)
            await jobs.remove(TYPE, "canceled")
            jobs.configure(TYPE, slots=0)
            job = await ended(jobs, "canceled")
            assert (job.outcome, story(job)) == (Outcome.CANCELED, ["added", "started", "canceled"])
            await asyncio.sleep(1)
            job = await jobs.get(TYPE, "stopped")
            assert (job.state, story(job)) == (JobState.PENDING, ["added", "started", "stopped"])
            assert sorted(map(str, saved)) == ["canceled", "stopped"]
