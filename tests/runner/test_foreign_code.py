"""Code of the application's that runs beside its handlers: results, classes of arguments and predicates that raise.

Whatever they raise is an end of the run, or concerns one job alone: nothing is left that nobody ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from structlog.testing import capture_logs

from jobs_service import Outcome, Retry, RunningJob, Snooze
from jobs_service.model import HistoryKind
from tests.runner.support import TYPE, add, all_ended, ended, moments, opened, running, story
from tests.virtual_time import in_virtual_time

RAISED: list[Callable[[], BaseException]] = [
    lambda: LookupError("not loaded"),
    lambda: SystemExit(3),
    KeyboardInterrupt,
    asyncio.CancelledError,
    GeneratorExit,
]


class Unbound:
    """What stands for an object that is not there at present, as the proxies of web frameworks do."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError("there is no request")


def lazy(raised: Callable[[], BaseException]) -> Any:
    """Return a list that is loaded when it is read, and cannot be."""

    class Lazy(list[int]):
        def __iter__(self) -> Any:
            raise raised()

    return Lazy([1])


@pytest.mark.parametrize("make", [Unbound, *(lambda raised=raised: lazy(raised) for raised in RAISED)])
@in_virtual_time
async def test_a_result_that_raises_as_it_is_read_is_none_and_its_job_has_failed(make: Callable[[], Any]) -> None:
    async with opened() as jobs:

        @jobs.handler(TYPE, slots=1)
        async def work(job: RunningJob) -> Any:
            return "fine" if job.id == "other" else make()

        async with running(jobs):
            await add(jobs, "a", "other")
            job, other = await all_ended(jobs, ["a", "other"])
        assert (job.outcome, story(job)) == (Outcome.FAILED, ["added", "started", "crashed", "finished"])
        assert job.error is not None
        assert job.error.type == "InvalidJob"
        assert "which is no result" in job.error.message
        assert other.result == "fine"


@pytest.mark.parametrize("raised", RAISED[1:])
@in_virtual_time
async def test_arguments_that_end_the_program_as_they_are_decoded_are_a_crash(
    raised: Callable[[], BaseException],
) -> None:
    @dataclass
    class Args:
        name: str

        def __post_init__(self) -> None:
            if self.name == "a":
                raise raised()

    async with opened() as jobs:

        @jobs.handler(TYPE, slots=1, max_attempts=2)
        async def work(job: RunningJob, args: Args) -> str:
            return args.name

        async with running(jobs):
            await jobs.set_type_timeout(TYPE, 60)
            await jobs.add(TYPE, "a", {"name": "a"})
            await jobs.add(TYPE, "other", {"name": "other"})
            job, other = await all_ended(jobs, ["a", "other"])
        assert story(job) == ["added", "started", "crashed", "started", "crashed", "finished"]
        assert job.outcome is Outcome.FAILED
        assert other.result == "other"


@pytest.mark.parametrize("raised", RAISED)
@in_virtual_time
async def test_a_predicate_that_raises_keeps_no_job_from_being_run_and_no_slot(
    raised: Callable[[], BaseException],
) -> None:
    def is_continuous(job: RunningJob) -> bool:
        raise raised()

    async with opened() as jobs:

        @jobs.handler(TYPE, slots=1, continuous=is_continuous)
        async def work(job: RunningJob) -> str:
            return "fine"

        async with running(jobs, max_jobs=1):
            with capture_logs() as events:
                await add(jobs, "a", "b")
                assert [job.result for job in await all_ended(jobs, ["a", "b"])] == ["fine", "fine"]
        assert [event["event"] for event in events if event["log_level"] == "error"] == ["continuous_failed"] * 2
        assert story(await ended(jobs, "a")) == ["added", "started", "finished"]


class Limited(Snooze):
    """An application's own, which computes its seconds."""

    def __init__(self, seconds: Any) -> None:
        self.seconds = seconds


class Busy(Retry):
    """The same."""

    def __init__(self, after: Any) -> None:
        self.after = after


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), 1e12, 1e300, True, "soon"])
@pytest.mark.parametrize("ask", [Limited, Busy])
@in_virtual_time
async def test_who_asks_for_a_time_that_no_job_can_have_has_crashed(
    ask: Callable[[Any], Exception], seconds: Any
) -> None:
    """Milliseconds of an answer's header, for instance; the job is still readable, and runs again."""
    async with opened() as jobs:

        @jobs.handler(TYPE, max_attempts=2, backoff=5, jitter=0)
        async def work(job: RunningJob) -> str:
            if job.attempts == 1:
                raise ask(seconds)
            return "fine"

        async with running(jobs):
            await add(jobs, "a")
            job = await ended(jobs, "a")
        assert story(job) == ["added", "started", "crashed", "started", "finished"]
        assert moments(job, HistoryKind.STARTED) == [0, 5]
        assert job.result == "fine"
