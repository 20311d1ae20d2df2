"""Runs that end well, in virtual time, results that cannot be kept, and handlers that end their jobs themselves."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jobs_service import Outcome, RunningJob, Snooze, StoreUnavailable
from jobs_service.model import HistoryKind, Job, JobState
from jobs_service.sources import Sources
from tests.actors.support import CountedStore
from tests.runner.support import TYPE, add, ended, opened, running, virtual_loop
from tests.stores import settings_with
from tests.virtual_time import in_virtual_time


@in_virtual_time
async def test_progress_reaches_subscribers_and_stays_in_the_job() -> None:
    async with opened() as jobs:

        @jobs.handler(TYPE)
        async def work(job: RunningJob) -> str:
            for done in (1, 2, 3):
                await job.progress(done, 3, f"step {done}")
                await asyncio.sleep(10)
            return "done"

        async with running(jobs):
            await add(jobs, "a")
            seen = [event async for event in jobs.subscribe(TYPE, "a")]
            reported = [(event.progress.done, event.progress.message) for event in seen if event.progress]
            assert list(dict.fromkeys(reported)) == [(1, "step 1"), (2, "step 2"), (3, "step 3")]
            assert (seen[-1].state, seen[-1].result) == (JobState.FINISHED, "done")
            progress = (await jobs.get(TYPE, "a")).progress
            assert progress is not None
            assert (progress.done, progress.total) == (3, 3)


# A handler that ends its job itself


def assert_failed(job: Job, type: str, *parts: str) -> None:
    """Fail unless a job failed for good with an error whose message has these parts."""
    assert (job.outcome, job.result) == (Outcome.FAILED, None)
    assert job.error is not None
    assert job.error.type == type
    for part in parts:
        assert part in job.error.message


@pytest.mark.parametrize(
    "result", [{1, 2}, object(), b"bytes", {"deep": [1, {2: ValueError}]}], ids=["set", "object", "bytes", "deep"]
)
@in_virtual_time
async def test_a_result_that_json_cannot_carry_fails_the_job_for_good(result: object) -> None:
    async with opened() as jobs:

        @jobs.handler(TYPE)
        async def work() -> object:
            return result

        async with running(jobs):
            await add(jobs, "a")
            job = await ended(jobs, "a")
            assert job.attempts == 1
            assert_failed(job, "InvalidJob", "the handler returned")


@in_virtual_time
async def test_a_handler_that_forgets_to_await_what_it_returns_is_told_so() -> None:
    forgotten: list[Any] = []
    async with opened() as jobs:

        @jobs.handler(TYPE)
        async def work(job: RunningJob) -> Any:
            forgotten.append(job.finish())
            return forgotten[0]

        async with running(jobs):
            await add(jobs, "a")
            assert_failed(
                await ended(jobs, "a"), "InvalidJob", "returned the coroutine RunningJob.finish instead of awaiting it"
            )
    forgotten[0].close()


@pytest.mark.parametrize("size", [99_990, 150_000, 11_000_000])
@in_virtual_time
async def test_a_result_larger_than_the_store_takes_fails_the_job_for_good(size: int) -> None:
    async with opened() as jobs:

        @jobs.handler(TYPE)
        async def work(job: RunningJob) -> str:
            return "x" * (size if job.id == "large" else 10)

        async with running(jobs):
            await add(jobs, "large", "small")
            assert_failed(await ended(jobs, "large"), "JobTooLarge", "bytes")
            assert (await ended(jobs, "small")).result == "x" * 10


class BrieflyDownStore(CountedStore):
    """A store that refuses its next so many transactions as unavailable."""

    down_for = 0

    async def transact(self, *arguments: Any, **keywords: Any) -> Any:
        if self.down_for:
            self.down_for -= 1
            raise StoreUnavailable("down")
        return await super().transact(*arguments, **keywords)


@in_virtual_time
async def test_a_result_that_is_too_large_fails_the_job_also_when_the_store_could_not_be_reached_at_first() -> None:
    loop = virtual_loop()
    store = BrieflyDownStore(settings=settings_with(), sources=Sources("w1", wall_time=loop.wall_time, worker="w1"))
    async with opened(store) as jobs:

        @jobs.handler(TYPE)
        async def work(job: RunningJob) -> str:
            store.down_for = 3
            return "x" * 150_000

        async with running(jobs):
            await add(jobs, "large")
            job = await ended(jobs, "large")
            assert job.attempts == 1
            assert_failed(job, "JobTooLarge", "bytes")


@in_virtual_time
async def test_the_history_tells_why_a_job_was_given_back() -> None:
    async with opened() as jobs:

        @jobs.handler(TYPE, slots=1, continuous=True, interval=10, grace=1)
        async def work(job: RunningJob) -> None:
            match job.id, job.history[1].kind:
                case "snoozes", HistoryKind.ADDED:
                    raise Snooze(90)
                case "releases", HistoryKind.ADDED:
                    await job.release()
                case _:
                    await asyncio.Event().wait()

        async with running(jobs):
            await add(jobs, "snoozes", "releases")
            await asyncio.sleep(1)
            await add(jobs, "waits")
            await asyncio.sleep(15)
        why = {
            id: [event.detail for event in (await jobs.get(TYPE, id)).history if event.kind is HistoryKind.STOPPED]
            for id in ("snoozes", "releases", "waits")
        }
    assert why == {
        "snoozes": ["snoozed for 90 s"],
        "releases": ["its slot was wanted", "released"],
        "waits": ["its runner ended"],
    }
