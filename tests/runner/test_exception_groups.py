"""Groups of exceptions that a handler raises."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from jobs_service import Discard, JobError, Retry, RunningJob, Snooze
from tests.runner.support import TYPE, add, ended, opened, running, story
from tests.virtual_time import in_virtual_time

DAY = 86_400.0


async def raise_in_group(*errors: BaseException) -> None:
    """Raise all of these in a task group, in this order."""

    async def fail(error: BaseException, after: float) -> None:
        try:
            await asyncio.sleep(after)
        except asyncio.CancelledError:
            raise error from None
        raise error

    async with asyncio.TaskGroup() as group:
        for place, error in enumerate(errors, 1):
            group.create_task(fail(error, 0.1 * place))


@pytest.mark.parametrize(
    ("errors", "expected", "error"),
    [
        ([Discard("wrong address")], ["crashed", "finished"], ("Discard", "wrong address")),
        ([Retry(7, "busy")], ["crashed", "started"], ("Retry", "busy")),
        ([Snooze(7)], ["stopped", "started"], None),
        ([ValueError("one")], ["crashed"], ("ValueError", "one")),
        (
            [ValueError("one"), KeyError("two")],
            ["crashed"],
            ("ExceptionGroup", "2 errors: ValueError: one; KeyError: 'two'"),
        ),
        ([ValueError("one"), Discard("wrong address")], ["crashed", "finished"], ("Discard", "wrong address")),
        ([ValueError("one"), Retry(7)], ["crashed"], ("ValueError", "one")),
        ([Retry(7, "busy"), Snooze(3)], ["crashed", "started"], ("Retry", "busy")),
        ([ExceptionGroup("inner", [Discard("deep")])], ["crashed", "finished"], ("Discard", "deep")),
    ],
    ids=[
        "a discard",
        "a retry",
        "a snooze",
        "one error",
        "two errors",
        "an error and a discard",
        "an error and a retry",
        "a retry and a snooze",
        "a group in a group",
    ],
)
@in_virtual_time
async def test_what_is_raised_inside_a_task_group_counts_as_if_it_were_raised_by_the_handler(
    errors: list[BaseException], expected: list[str], error: tuple[str, str] | None
) -> None:
    runs = 0
    async with opened() as jobs:

        @jobs.handler(TYPE)
        async def work() -> None:
            nonlocal runs
            runs += 1
            if runs == 1:
                await raise_in_group(*errors)
            await asyncio.sleep(DAY)

        async with running(jobs):
            await add(jobs, "a")
            await asyncio.sleep(10)
            job = await jobs.get(TYPE, "a")
            assert story(job) == ["added", "started", *expected]
            assert error == (None if job.error is None else (job.error.type, job.error.message))


class Refused(Exception): ...


@pytest.mark.parametrize("how", ["from", "while"])
@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (lambda: Retry(1), "Refused: by host 'a'"),
        (lambda: Retry(1, "busy"), "busy: Refused: by host 'a'"),
        (lambda: Discard("hopeless"), "hopeless: Refused: by host 'a'"),
    ],
    ids=["a retry", "a retry with a message", "a discard"],
)
@in_virtual_time
async def test_what_a_retry_or_discard_was_raised_for_is_told_everywhere(
    request_: Callable[[], Retry | Discard], text: str, how: str
) -> None:
    async with opened() as jobs:

        @jobs.handler(TYPE, max_attempts=1)
        async def work(job: RunningJob) -> None:
            try:
                raise Refused("by host 'a'")
            except Refused as error:
                if how == "from":
                    raise request_() from error
                raise request_()  # noqa: B904

        with capture_logs() as events:
            async with running(jobs):
                await add(jobs, "a")
                job = await ended(jobs, "a")
    assert job.error is not None
    assert job.error.message == text
    assert "raise Refused(" in job.error.traceback
    assert [event.detail for event in job.history if event.kind == "crashed"] == [f"{job.error.type}: {text}"]
    [failed] = [event for event in events if event["event"] == "job_failed"]
    assert failed["error"] == f"{job.error.type}: {text}"


@in_virtual_time
async def test_a_request_that_hides_its_cause_tells_nothing_of_it() -> None:
    async with opened() as jobs:

        @jobs.handler(TYPE)
        async def work(job: RunningJob) -> None:
            try:
                raise Refused("secret")
            except Refused:
                raise Discard("hopeless") from None

        async with running(jobs):
            await add(jobs, "a")
            job = await ended(jobs, "a")
    assert job.error == JobError("Discard", "hopeless", "")
