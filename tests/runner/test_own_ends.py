"""A handler that ends its job itself, by `job.finish()` or `job.release()`, while heartbeats look whose it is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from jobs_service import Job, RunningJob, WorkerConflict
from jobs_service.model import JobState
from jobs_service.service.local_access import RunningJobCalls
from tests.runner.support import TYPE, add, ended, lose, opened, running, warned
from tests.virtual_time import in_virtual_time

pytestmark = pytest.mark.parametrize("end", ["finish", "release"])
LONG = 300.0
"""Seconds with several heartbeats, which find that the job is not held any more."""


@in_virtual_time
async def test_a_job_whose_end_is_answered_late_is_not_taken_over(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    real = getattr(RunningJobCalls, f"_{end}")

    async def late(calls: RunningJobCalls, job: RunningJob, *arguments: Any) -> Job:
        done: Job = await real(calls, job, *arguments)
        await asyncio.sleep(LONG)
        return done

    monkeypatch.setattr(RunningJobCalls, f"_{end}", late)
    way: list[str] = []
    async with opened() as jobs:

        @jobs.handler(TYPE)
        async def work(job: RunningJob) -> None:
            if not way:
                way.append("begun")
                await getattr(job, end)()
                way.append("went on")

        async with running(jobs):
            with capture_logs() as events:
                await add(jobs, "a")
                await asyncio.sleep(2 * LONG)
            assert (await jobs.get(TYPE, "a")).state is JobState.FINISHED
            assert warned(events) == []
    assert way == ["begun", "went on"]


@in_virtual_time
async def test_a_handler_that_goes_on_with_a_job_of_another_is_canceled_though_it_has_tried_to_end_it(end: str) -> None:
    way: list[str] = []
    async with opened() as jobs:

        @jobs.handler(TYPE)
        async def work(job: RunningJob) -> None:
            if way:
                return
            way.append("begun")
            await lose(jobs)
            with pytest.raises(WorkerConflict):
                await getattr(job, end)()
            try:
                await asyncio.sleep(LONG)
            except asyncio.CancelledError:
                way.append("canceled")
                raise

        async with running(jobs):
            with capture_logs() as events:
                await add(jobs, "a")
                await ended(jobs, "a")
                await asyncio.sleep(2 * LONG)
            assert [event["event"] for event in warned(events)] == ["job_taken_over"]
    assert way == ["begun", "canceled"]
