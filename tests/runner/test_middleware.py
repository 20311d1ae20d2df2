"""Middleware around each run: what it sees, in which order, and what it may change."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from jobs_service import (
    BlockingJob,
    Discard,
    Handlers,
    HistoryKind,
    InvalidSettings,
    JobsService,
    JobState,
    Outcome,
    RunningJob,
)
from tests.runner.support import PATIENCE_OF_THREADS, TYPE, Signals, add, ended, opened, running, stopped, story
from tests.virtual_time import in_virtual_time

CallNext = Callable[[], Awaitable[Any]]


def noting(notes: list[str], name: str) -> Callable[[RunningJob, CallNext], Awaitable[Any]]:
    """Return middleware that notes what comes and goes."""

    async def around(job: RunningJob, call_next: CallNext) -> Any:
        notes.append(f"{name}: {job.id!r} {job.attempts}")
        try:
            result = await call_next()
        except Exception as error:
            notes.append(f"{name}: {error!r}")
            raise
        notes.append(f"{name}: {result}")
        return result

    return around


@in_virtual_time
async def test_the_first_is_outermost_and_those_of_a_part_are_inside() -> None:
    notes: list[str] = []
    part = Handlers()
    part.middleware(noting(notes, "part"))

    @part.handler(TYPE)
    async def work(job: RunningJob) -> int:
        notes.append("handler")
        return 7

    async with opened() as jobs:
        jobs.middleware(noting(notes, "first"))
        jobs.include(part)
        jobs.middleware(noting(notes, "second"))

        @jobs.handler("other")
        async def other() -> None:
            notes.append("other")

        async with running(jobs):
            await jobs.enqueue(work, id="a")
            assert (await ended(jobs, "a")).result == 7
            around = ["first: 'a' 1", "second: 'a' 1", "part: 'a' 1", "handler", "part: 7", "second: 7", "first: 7"]
            assert notes == around
            notes.clear()
            await jobs.enqueue(other, id="b")
            await ended(jobs, "b", "other")
    assert notes == ["first: 'b' 1", "second: 'b' 1", "other", "second: None", "first: None"]


@in_virtual_time
async def test_it_sees_each_attempt_and_each_exception() -> None:
    notes: list[str] = []
    async with opened() as jobs:
        jobs.middleware(noting(notes, "seen"))

        @jobs.handler(TYPE, backoff=1, jitter=0, max_attempts=3)
        async def work(job: RunningJob) -> str:
            if job.attempts < 3:
                raise ValueError(job.attempts)
            return "done"

        async with running(jobs):
            await add(jobs, "a")
            assert (await ended(jobs, "a")).result == "done"
    assert notes == [
        *("seen: 'a' 1", "seen: ValueError(1)", "seen: 'a' 2", "seen: ValueError(2)", "seen: 'a' 3", "seen: done"),
    ]


@in_virtual_time
async def test_what_it_returns_or_raises_counts_as_the_handlers() -> None:
    async with opened() as jobs:

        @jobs.middleware
        async def around(job: RunningJob, call_next: CallNext) -> Any:
            match job.id:
                case "skipped":
                    return "nothing was run"
                case "twice":
                    return [await call_next(), await call_next()]
                case "refused":
                    raise Discard("not today")
            return await call_next()

        runs: list[str] = []

        @jobs.handler(TYPE)
        async def work(job: RunningJob) -> int:
            runs.append(str(job.id))
            return len(runs)

        async with running(jobs):
            await add(jobs, "skipped", "twice", "refused")
            skipped, twice, refused = [await ended(jobs, id) for id in ("skipped", "twice", "refused")]
    assert (skipped.result, twice.result, runs) == ("nothing was run", [1, 2], ["twice", "twice"])
    assert refused.outcome is Outcome.FAILED
    assert refused.error is not None
    assert refused.error.message == "not today"


@in_virtual_time
async def test_the_end_of_a_run_by_time_limit_and_by_the_runner_passes_through_it() -> None:
    notes: list[str] = []
    async with opened() as jobs:

        @jobs.middleware
        async def around(job: RunningJob, call_next: CallNext) -> Any:
            try:
                return await call_next()
            except asyncio.CancelledError:
                notes.append(f"{job.id!r} was canceled")
                raise

        @jobs.handler(TYPE, max_attempts=1, grace=1)
        async def work(job: RunningJob) -> None:
            await asyncio.Event().wait()

        async with running(jobs) as task:
            await jobs.enqueue(work, id="late", time_limit=2)
            late = await ended(jobs, "late")
            await add(jobs, "stopped")
            await jobs.wait(TYPE, "stopped", JobState.RUNNING)
            await stopped(task)
        left = await jobs.get(TYPE, "stopped")
    assert late.error is not None
    assert late.error.type == "TimeoutError"
    assert notes == ["'late' was canceled", "'stopped' was canceled"]
    assert story(left) == ["added", "started", "stopped"]


async def test_plain_functions_have_it_too_and_are_given_back_when_they_heed_the_stop() -> None:
    notes: list[str] = []
    async with asyncio.timeout(PATIENCE_OF_THREADS), JobsService("memory:") as jobs:
        jobs.middleware(noting(notes, "seen"))
        signals = Signals()

        @jobs.handler("sum")
        def total(job: BlockingJob, numbers: list[int]) -> int:
            return sum(numbers)

        @jobs.handler("long")
        def long(job: BlockingJob) -> None:
            signals.begin()
            while not job.wait_for_stop(60):
                """Not asked to end yet."""

        async with running(jobs) as task:
            await jobs.enqueue(total, [1, 2], id="a")
            assert (await ended(jobs, "a", "sum")).result == 3
            await jobs.enqueue(long, id="b")
            await signals.begun.wait()
            await stopped(task)
        assert notes == ["seen: 'a' 1", "seen: 3", "seen: 'b' 1", "seen: None"]
        left = await jobs.get("long", "b")
    assert (left.state, left.history[0].kind) == (JobState.PENDING, HistoryKind.STOPPED)


def _plain(job: RunningJob, call_next: CallNext) -> None: ...


async def _narrow(job: RunningJob) -> None: ...


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (7, "middleware 7: an int cannot be called"),
        (_plain, "_plain cannot be middleware: make it `async def`"),
        (_narrow, "_narrow cannot be middleware: it is called with the job and call_next, and must take these two"),
    ],
)
def test_what_cannot_be_middleware_is_refused(function: Any, why: str) -> None:
    with pytest.raises(InvalidSettings) as refusal:
        JobsService("memory:").middleware(function)
    assert str(refusal.value).endswith(why)


@in_virtual_time
async def test_what_is_around_handlers_is_registered_before_they_run() -> None:
    async with opened() as jobs:

        @jobs.handler(TYPE)
        async def work() -> None: ...

        async with running(jobs):
            await jobs.enqueue(work, id="a")
            await ended(jobs, "a")
            for late in (
                lambda: jobs.middleware(noting([], "late")),
                lambda: jobs.provide(Signals, Signals),
                lambda: jobs.include(Handlers()),
            ):
                with pytest.raises(InvalidSettings, match="are registered before they run"):
                    late()
