"""The end of a runner in virtual time: graces, what becomes of the jobs, and that nothing is left behind."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from jobs_service import InvalidSettings, JobsError, RunningJob
from jobs_service.model import HistoryKind, JobState
from tests.runner.support import (
    TYPE,
    Weather,
    add,
    all_ended,
    ended,
    moments,
    now,
    opened,
    running,
    stopped,
    store_of,
    story,
    taking,
)
from tests.virtual_time import in_virtual_time

DAY = 86_400.0


@in_virtual_time
async def test_what_runs_may_end_within_the_grace_and_nothing_more_is_accepted() -> None:
    async with opened() as jobs:
        canceled = taking(jobs, 9, grace=10, slots=2)
        run = asyncio.create_task(jobs.run())
        await add(jobs, "a", "b", "c")
        await asyncio.sleep(5)
        await stopped(run)
        assert now() == 9
        assert [job.result for job in await all_ended(jobs, "ab")] == ["done", "done"]
        assert story(await jobs.get(TYPE, "c")) == ["added"]
    assert canceled == []


@in_virtual_time
async def test_what_does_not_end_within_the_grace_is_canceled_and_pending_at_once_for_others() -> None:
    async with opened(worker="old") as jobs, opened(store_of(jobs), worker="new") as successor:
        canceled = taking(jobs, DAY, grace=10)
        taking(successor, 1)
        async with running(successor):
            successor.configure(TYPE, slots=0)
            run = asyncio.create_task(jobs.run())
            await add(jobs, "a", "b")
            await asyncio.sleep(5)
            successor.configure(TYPE, slots=10)
            await stopped(run)
            assert now() == 15
            for job in await all_ended(successor, "ab"):
                assert story(job) == ["added", "started", "stopped", "started", "finished"]
                assert moments(job, HistoryKind.STARTED) == [0, 15]
                assert job.attempts == 1
                assert job.history[1].detail == "new"
    assert canceled == ["a", "b"]


@in_virtual_time
async def test_a_continuous_job_is_not_waited_for_but_canceled_at_once() -> None:
    async with opened() as jobs:
        canceled = taking(jobs, DAY, grace=10, continuous=True)
        async with running(jobs):
            await add(jobs, "a")
            await asyncio.sleep(5)
        assert now() == 5
        assert story(await jobs.get(TYPE, "a")) == ["added", "started", "stopped"]
    assert canceled == ["a"]


@in_virtual_time
async def test_a_handler_that_ignores_all_of_it_does_not_keep_the_runner_from_ending() -> None:
    async with opened() as jobs:
        release = asyncio.Event()

        @jobs.handler(TYPE, grace=10)
        async def work(job: RunningJob) -> str:
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    continue
            return "too late"

        with capture_logs() as events:
            async with running(jobs):
                await add(jobs, "a")
                await asyncio.sleep(5)
        # Its grace to end by itself, and that to end when it was canceled.
        assert now() == 25
        assert [event["id"] for event in events if event["event"] == "handler_ignores_cancellation"] == ["a"]
        job = await jobs.get(TYPE, "a")
        assert (job.state, job.attempts) == (JobState.PENDING, 0)
        assert moments(job, HistoryKind.STOPPED) == [25]
        release.set()
        await asyncio.sleep(1)
        assert (await jobs.get(TYPE, "a")).state is JobState.PENDING


@in_virtual_time
async def test_leaving_the_service_stops_the_runner_first() -> None:
    async with opened(worker="keeper", supervise=False) as keeper:
        async with opened(store_of(keeper)) as jobs:
            canceled = taking(jobs, DAY, grace=10)
            run = asyncio.create_task(jobs.run())
            await add(jobs, "a")
            await asyncio.sleep(5)
        assert run.cancelled()
        assert now() == 25 - 10
        assert story(await keeper.get(TYPE, "a")) == ["added", "started", "stopped"]
    assert canceled == ["a"]


@pytest.mark.parametrize(("seconds", "continuous"), [(0, False), (DAY, True)])
@in_virtual_time
async def test_a_runner_canceled_at_any_moment_leaves_its_jobs_pending_or_finished(
    seconds: float, continuous: bool
) -> None:
    for turns in range(5, 35):
        async with opened(supervise=False) as jobs:
            taking(jobs, seconds, grace=10, continuous=continuous)
            await add(jobs, "a", "b")
            run = asyncio.create_task(jobs.run())
            for _ in range(turns):
                await asyncio.sleep(0)
            began = now()
            await stopped(run)
            states = {job.state async for job in jobs.list(TYPE)}
            assert JobState.RUNNING not in states, f"after {turns} turns"
            assert now() == began, f"after {turns} turns it waited for nothing"


@in_virtual_time
async def test_a_service_runs_its_handlers_once_at_a_time_and_only_if_it_has_some() -> None:
    async with opened() as jobs:
        with pytest.raises(InvalidSettings, match="nothing to run"):
            await jobs.run()
        taking(jobs, 1)
        with pytest.raises(InvalidSettings, match="max_jobs=0"):
            await jobs.run(max_jobs=0)
        async with running(jobs):
            await asyncio.sleep(1)
            with pytest.raises(JobsError, match="run already"):
                await jobs.run()
            with pytest.raises(InvalidSettings, match="before they run"):
                jobs.handler("another")(lambda: None)


# The store's weather


@in_virtual_time
async def test_an_end_that_the_store_was_away_for_is_written_later_and_the_slot_is_free_at_once() -> None:
    weather = Weather()
    async with opened() as jobs:

        @jobs.handler(TYPE, slots=1, timeout=600)
        async def work(job: RunningJob) -> float:
            if job.id == "a":
                weather.leave()
            return now()

        async with running(jobs):
            await add(jobs, "a", "b")
            store_of(jobs).faults = weather
            await asyncio.sleep(35)
            with capture_logs() as events:
                weather.come_back()
                for id in ("a", "b"):
                    job = await ended(jobs, id)
                    assert story(job) == ["added", "started", "finished"]
                    assert job.attempts == 1
            assert not [event for event in events if event["event"] == "job_taken_over"]
            assert (await jobs.get(TYPE, "a")).result == 0


@in_virtual_time
async def test_an_end_that_the_store_is_away_for_at_the_end_as_well_does_not_keep_the_runner_for_ever() -> None:
    weather = Weather()
    async with opened() as jobs:
        store_of(jobs).faults = weather

        @jobs.handler(TYPE, grace=10)
        async def work(job: RunningJob) -> str:
            await asyncio.sleep(1)
            weather.leave()
            return "done"

        run = asyncio.create_task(jobs.run())
        await add(jobs, "a")
        await asyncio.sleep(30)
        began = now()
        await stopped(run)
        assert now() - began < 60
        weather.come_back()
        # It was silent for its timeout then, and is another's.
        await asyncio.sleep(100)
        assert (await jobs.get(TYPE, "a")).state is not JobState.RUNNING
