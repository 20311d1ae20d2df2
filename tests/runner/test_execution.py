"""Runs that end in unusual ways, in virtual time: attempts, groups, ignored limits, ends of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from structlog.contextvars import get_contextvars
from structlog.testing import capture_logs

from jobs_service import JobsService, JobTransaction, Outcome, Retry, RunningJob, Snooze
from tests.runner.support import TYPE, add, ended, lose, opened, running, story, warned
from tests.virtual_time import in_virtual_time

DAY = 86_400.0


def logged(events: list[Any], *names: str) -> list[Any]:
    """Return the events that are called so."""
    return [event for event in events if event["event"] in names]


# Attempts that are used up by a worker's death


@in_virtual_time
async def test_a_job_whose_last_attempt_was_lost_keeps_its_error_and_has_no_more_attempts_than_it_may() -> None:
    async with opened() as jobs:

        @jobs.handler(TYPE, max_attempts=3, backoff=1)
        async def work(job: RunningJob) -> None:
            if job.attempts < 3:
                raise ValueError("the real error")
            await asyncio.sleep(DAY)

        async with running(jobs):
            await add(jobs, "a")
            await asyncio.sleep(10)
            await lose(jobs)
            job = await ended(jobs, "a")
    assert (job.outcome, job.attempts) == (Outcome.FAILED, 3)
    assert job.error is not None
    assert job.error.message == (
        "its 3 attempts are used up: 2 crashed, 1 lost with their worker; the last error was ValueError: the real error"
    )
    assert 'raise ValueError("the real error")' in job.error.traceback


@in_virtual_time
async def test_a_job_whose_only_attempt_was_lost_says_so() -> None:
    async with opened() as jobs:

        @jobs.handler(TYPE, max_attempts=1)
        async def work() -> None:
            await asyncio.sleep(DAY)

        async with running(jobs):
            await add(jobs, "a")
            await asyncio.sleep(10)
            await lose(jobs)
            with capture_logs() as logs:
                job = await ended(jobs, "a")
    assert job.error is not None
    assert job.error.message == "its worker was lost once"
    [failed] = [each for each in logs if each["event"] == "job_failed"]
    assert failed["attempt"] == job.attempts == 1


def ending_itself(jobs: JobsService, after: Callable[[], Any], *, seconds: float = 0, **options: Any) -> list[object]:
    """Register a handler that finishes its job in a transaction of its own; return where it notes its way."""
    way: list[object] = []

    @jobs.handler(TYPE, **options)
    async def work(job: RunningJob) -> Any:
        async def bill(tx: JobTransaction) -> None:
            tx.kv[b"bill"] = b"paid"
            await tx.finish(job, result="billed")

        await jobs.transact(bill)
        try:
            await asyncio.sleep(seconds)
            way.append("went on")
        except asyncio.CancelledError:
            way.append("canceled")
            raise
        return after()

    return way


# A job that its handler ends in its own transaction


@in_virtual_time
async def test_a_job_that_its_handler_finishes_in_its_own_transaction_is_not_taken_over() -> None:
    async with opened() as jobs:
        # Long enough for several heartbeats, which find that the job is not held any more.
        way = ending_itself(jobs, lambda: None, seconds=300)
        async with running(jobs):
            with capture_logs() as events:
                await add(jobs, "a")
                job = await ended(jobs, "a")
                await asyncio.sleep(400)
            assert (job.result, story(job)) == ("billed", ["added", "started", "finished"])
            assert warned(events) == []
    assert way == ["went on"]


# Time limits


@pytest.mark.parametrize("then", ["returns", "snoozes"])
@in_virtual_time
async def test_a_handler_that_swallows_the_cancellation_of_its_time_limit_has_crashed(then: str) -> None:
    async with opened() as jobs:

        @jobs.handler(TYPE, time_limit=5, max_attempts=2)
        async def work() -> str:
            try:
                await asyncio.sleep(DAY)
            except asyncio.CancelledError:
                if then == "snoozes":
                    raise Snooze(1) from None
            return "as if nothing had happened"

        async with running(jobs):
            await add(jobs, "a")
            job = await ended(jobs, "a")
    assert story(job) == ["added", "started", "crashed", "started", "crashed", "finished"]
    assert (job.outcome, job.result) == (Outcome.FAILED, None)
    if then == "returns":
        assert job.error is not None
        assert job.error.message == "it ran longer than its time limit of 5 s"


# What the log says


@in_virtual_time
async def test_starts_and_successes_are_details_and_crashes_say_when_the_job_runs_again() -> None:
    async with opened() as jobs:

        @jobs.handler(TYPE, jitter=0, backoff=8)
        async def work(job: RunningJob) -> str:
            await asyncio.sleep(2)
            if job.attempts == 1:
                raise OSError("disk")
            if job.attempts == 2:
                raise Retry(3, "not yet")
            return "done"

        async with running(jobs):
            with capture_logs() as events:
                await add(jobs, "a")
                await ended(jobs, "a")
                await asyncio.sleep(1)
    lines = logged(events, "job_started", "job_succeeded", "job_crashed", "job_retrying", "job_failed")
    names = ("event", "log_level", "id", "attempt", "retry_in", "seconds", "error")
    assert [tuple(line.get(name) for name in names) for line in lines] == [
        ("job_started", "debug", "a", 1, None, None, None),
        ("job_crashed", "warning", "a", 1, 8.0, None, "OSError: disk"),
        ("job_started", "debug", "a", 2, None, None, None),
        ("job_retrying", "info", "a", 2, 3.0, None, "Retry: not yet"),
        ("job_started", "debug", "a", 3, None, None, None),
        ("job_succeeded", "debug", "a", 3, None, 2.0, None),
    ]
    assert {line["type"] for line in lines} == {TYPE}


@in_virtual_time
async def test_a_handlers_own_lines_carry_its_jobs_type_and_id_and_nobody_elses_do() -> None:
    seen: dict[object, dict[str, Any]] = {}
    async with opened() as jobs:

        @jobs.handler(TYPE)
        async def work(job: RunningJob) -> None:
            seen[job.id] = get_contextvars()
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(1))
                group.create_task(note(seen, f"{job.id!s}'s task"))

        async with running(jobs):
            await add(jobs, "a", "b")
            for id in "ab":
                await ended(jobs, id)
    for id in "ab":
        expected = {"job_type": TYPE, "job_id": id}
        assert (seen[id], seen[f"{id}'s task"]) == (expected, expected)
    assert get_contextvars() == {}


async def note(seen: dict[object, dict[str, Any]], name: str) -> None:
    seen[name] = get_contextvars()
