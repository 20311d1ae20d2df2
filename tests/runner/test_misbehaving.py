"""Handlers that hang, swallow cancellation, leak tasks or raise what nobody expects: each has its end, others go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from jobs_service import JobsError, JobsService, Outcome, Retry, RunningJob, Snooze, WorkerConflict
from jobs_service.model import HistoryKind
from tests.runner.deaf_handlers import DAY, assert_others_go_on, ignoring_cancellation
from tests.runner.support import TYPE, add, all_ended, ended, moments, opened, running, store_of, story
from tests.virtual_time import in_virtual_time


class OwnError(BaseException):
    """What no handler for Exception catches."""


class Unspeakable(Exception):
    """An error that fails when it is asked what it says."""

    def __str__(self) -> str:
        raise RuntimeError("not even this")


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (SystemExit, "SystemExit"),
        (KeyboardInterrupt, "KeyboardInterrupt"),
        (OwnError, "OwnError"),
        (GeneratorExit, "RuntimeError"),
        (asyncio.CancelledError, "JobsError"),
        (Unspeakable, "Unspeakable"),
        (StopIteration, "RuntimeError"),
        (lambda: BaseExceptionGroup("several", [KeyboardInterrupt()]), "KeyboardInterrupt"),
    ],
    ids=[
        "SystemExit",
        "KeyboardInterrupt",
        "a BaseException",
        "GeneratorExit",
        "CancelledError",
        "an error without words",
        "StopIteration",
        "a group",
    ],
)
@in_virtual_time
async def test_whatever_a_handler_raises_is_a_crash_of_its_job_alone(
    make: Callable[[], BaseException], expected: str
) -> None:
    async with opened() as jobs:

        @jobs.handler(TYPE, jitter=0, max_attempts=2, timeout=3600)
        async def work(job: RunningJob) -> str:
            if job.id == "other":
                return "fine"
            raise make()

        async with running(jobs):
            await add(jobs, "a", "b")
            await assert_others_go_on(jobs)
            for job in await all_ended(jobs, ["a", "b"]):
                assert story(job) == ["added", "started", "crashed", "started", "crashed", "finished"]
                assert moments(job, HistoryKind.STARTED) == [0, 30]
                assert job.outcome is Outcome.FAILED
                assert job.error is not None
                assert job.error.type == expected


@in_virtual_time
async def test_a_handler_that_ends_within_its_grace_may_do_so_as_it_likes() -> None:
    async with opened() as jobs:

        @jobs.handler(TYPE, grace=10)
        async def work(job: RunningJob) -> str:
            try:
                await asyncio.sleep(DAY)
            except asyncio.CancelledError:
                await asyncio.sleep(9.9)
            return "checkpoint"

        async with running(jobs):
            await add(jobs, "a")
            await asyncio.sleep(5)
            jobs.configure(TYPE, slots=0)
            with capture_logs() as events:
                job = await ended(jobs, "a")
            assert (job.outcome, job.result) == (Outcome.SUCCEEDED, "checkpoint")
            assert moments(job, HistoryKind.FINISHED) == [14.9]
            assert [event["event"] for event in events if event["log_level"] != "debug"] == []


@in_virtual_time
async def test_of_a_job_that_is_anothers_it_is_told_once_however_long_its_handler_goes_on() -> None:
    async with opened() as jobs:
        over = asyncio.Event()

        @jobs.handler(TYPE, grace=10)
        async def work(job: RunningJob) -> None:
            await ignoring_cancellation(100)
            over.set()

        async with running(jobs):
            await add(jobs, "a")
            await asyncio.sleep(5)
            with capture_logs() as events:
                await jobs.remove(TYPE, "a", force=True)
                await over.wait()
                await asyncio.sleep(1)
            logged = [event["event"] for event in events if event["log_level"] != "debug"]
            assert logged == ["handler_ignores_cancellation", "job_taken_over"]


@in_virtual_time
async def test_nothing_is_polled_for_while_a_deaf_handler_goes_on() -> None:
    async with opened(supervise=False) as jobs:
        store = store_of(jobs)

        @jobs.handler(TYPE, grace=10)
        async def work(job: RunningJob) -> None:
            await ignoring_cancellation(1000)

        @jobs.handler("itself", slots=1)
        async def finishing(job: RunningJob) -> None:
            await job.finish()
            await asyncio.sleep(1000)

        async with running(jobs):
            await add(jobs, "a")
            await add(jobs, "b", type="itself")
            await asyncio.sleep(5)
            await jobs.remove(TYPE, "a")
            await asyncio.sleep(20)
            assert (await jobs.get(TYPE, "a")).outcome is Outcome.CANCELED
            assert (await jobs.get("itself", "b")).outcome is Outcome.SUCCEEDED
            before = store.reads, store.transactions
            steps = asyncio.get_running_loop().steps  # type: ignore[attr-defined]
            await asyncio.sleep(600)
            assert (store.reads, store.transactions) == before
            # Timers of heartbeats and rotation go on; nothing comes every few milliseconds.
            assert asyncio.get_running_loop().steps - steps < 600  # type: ignore[attr-defined]
            await asyncio.sleep(1000)


@in_virtual_time
async def test_a_task_that_a_handler_leaves_behind_goes_on_and_the_job_is_not_its_any_more() -> None:
    left: list[asyncio.Task[object]] = []
    async with opened() as jobs:

        @jobs.handler(TYPE)
        async def work(job: RunningJob) -> str:
            async def later() -> object:
                await asyncio.sleep(5)
                return await job.update("too late")

            left.append(asyncio.create_task(later()))
            return "fine"

        async with running(jobs):
            await add(jobs, "a")
            assert (await ended(jobs, "a")).result == "fine"
            with pytest.raises(WorkerConflict):
                await left[0]
            job = await jobs.get(TYPE, "a")
            assert (job.data, job.result, story(job)) == (None, "fine", ["added", "started", "finished"])


class Busy(JobsError):
    """An error of an application's, with an __init__ of its own."""

    def __init__(self, number: int) -> None:
        self.number = number


class NotYet(Snooze):
    """One that asks for something, and does not say for how long."""

    def __init__(self, number: int) -> None:
        self.number = number


class Again(Retry):
    def __init__(self, number: int) -> None:
        self.number = number


class Shy(Exception):
    @property
    def __traceback__(self) -> None:  # type: ignore[override]
        raise LookupError("not to be seen")


def nested() -> Exception:
    """Return more groups in each other than anything can go into."""
    group: Exception = ValueError()
    for _ in range(3000):
        group = ExceptionGroup("groups", [group])
    return group


@pytest.mark.parametrize(
    ("make", "type"),
    [
        (lambda: Busy(1), "Busy"),
        (lambda: Again(1), "Again"),
        (lambda: NotYet(1), "AttributeError"),
        (lambda: ExceptionGroup("two", [Busy(1), Again(2)]), "Busy"),
        (Shy, "LookupError"),
        (nested, "RecursionError"),
    ],
)
@in_virtual_time
async def test_whatever_a_handler_raises_its_run_has_failed(make: Callable[[], Exception], type: str) -> None:
    async with opened() as jobs:

        @jobs.handler(TYPE, max_attempts=2, backoff=1)
        async def work(job: RunningJob) -> None:
            raise make()

        async with running(jobs):
            await add(jobs, "a")
            job = await ended(jobs, "a")
        assert story(job) == ["added", "started", "crashed", "started", "crashed", "finished"]
        assert (job.error and job.error.type) == type


async def test_a_handler_that_blocks_the_loop_is_logged_with_its_name() -> None:
    """In real time: nothing else tells that the loop stood still."""
    import time

    jobs = JobsService("memory:")

    @jobs.handler(TYPE)
    async def stubborn(job: RunningJob) -> str:
        await asyncio.sleep(0)
        if job.id == "blocks":
            time.sleep(1.05)  # noqa: ASYNC251 - what it must not do
        return "fine"

    with capture_logs() as events:
        async with jobs, running(jobs):
            await add(jobs, "blocks", "other")
            assert [job.result for job in await all_ended(jobs, ["blocks", "other"])] == ["fine", "fine"]
    (event,) = [event for event in events if event["event"] == "handler_blocked_loop"]
    assert (event["id"], event["type"]) == ("blocks", TYPE)
    assert event["handler"].endswith("stubborn")
    assert event["seconds"] >= 1.05
