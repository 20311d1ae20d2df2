"""Runs that fail, in virtual time: crashes and their pauses, attempts, and what a handler may raise."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any, TypedDict

import pytest
from structlog.testing import capture_logs

from jobs_service import JobsService, JobTooLarge, Outcome, Progress, RunningJob
from jobs_service.model import HistoryKind, JobState
from tests.runner.support import TYPE, add, ended, moments, now, opened, running, store_of, story
from tests.virtual_time import in_virtual_time


class Size(TypedDict):
    width: int
    height: int


def crashing(
    jobs: JobsService, error: Callable[[RunningJob], BaseException] = lambda _: OSError(), **options: Any
) -> None:
    """Register a handler that raises whenever it is called."""

    # A long activity timeout, so that the monitor of hours that pass looks seldom.
    @jobs.handler(TYPE, timeout=3600, **{"jitter": 0, **options})
    async def work(job: RunningJob) -> None:
        raise error(job)


async def pauses(jobs: JobsService, id: str = "a") -> list[float]:
    """Return the seconds between the crashes of a job and the runs that followed them."""
    job = await jobs.get(TYPE, id)
    starts, crashes = moments(job, HistoryKind.STARTED), moments(job, HistoryKind.CRASHED)
    return [round(start - crash, 3) for crash, start in zip(crashes, starts[1:], strict=False)]


# Crashes and backoff


@in_virtual_time
async def test_the_row_of_crashes_begins_anew_with_one_after_a_healthy_run() -> None:
    async with opened() as jobs:

        @jobs.handler(TYPE, timeout=3600, jitter=0, backoff=8, health_threshold=100)
        async def work(job: RunningJob) -> None:
            await asyncio.sleep(200 if job.attempts == 3 else 1)
            raise OSError

        async with running(jobs):
            await add(jobs, "a", timeout=3600)
            await asyncio.sleep(300)
            assert (await pauses(jobs))[:4] == [8, 16, 8, 16]


@pytest.mark.parametrize("kept", [1, 2, 20])
@in_virtual_time
async def test_how_much_of_the_history_is_kept_does_not_bound_the_pause(kept: int) -> None:
    starts: list[float] = []
    async with opened() as jobs:

        @jobs.handler(TYPE, jitter=0, max_attempts=14, backoff=1, max_history=kept, timeout=3600)
        async def work() -> None:
            starts.append(now())
            raise OSError

        async with running(jobs):
            await add(jobs, "a")
            await ended(jobs, "a")
    found = [round(later - earlier, 3) for earlier, later in pairwise(starts)]
    assert found == [*(2**n for n in range(11)), 1024, 1024]


@in_virtual_time
async def test_what_a_crash_was_is_kept_with_the_job_and_logged() -> None:
    async with opened() as jobs:
        crashing(jobs, lambda _: KeyError("width"))
        async with running(jobs):
            with capture_logs() as events:
                await add(jobs, "a")
                await asyncio.sleep(1)
            job = await jobs.get(TYPE, "a")
            assert job.state is JobState.PENDING
            assert job.error is not None
            assert (job.error.type, job.error.message) == ("KeyError", "'width'")
            # It begins with the handler: what has called that is nobody's bug.
            title, first, line, *_ = job.error.traceback.splitlines()
            assert title.startswith("Traceback")
            assert __file__ in first
            assert line.strip() == "raise error(job)"
            assert [event.detail for event in job.history] == ["KeyError: 'width'", "w1", ""]
            (event,) = [event for event in events if event["event"] == "job_crashed"]
            assert (event["id"], event["attempt"], event["error"]) == ("a", 1, "KeyError: 'width'")
            assert "crashing" in event["handler"]


async def largest_of(jobs: JobsService) -> int:
    """Return how many letters the data of a job may have, by trying."""
    least, most = 0, 100_001
    while most - least > 1:
        size = (least + most) // 2
        try:
            await jobs.add(TYPE, "largest", "x" * size)
            await jobs.remove(TYPE, "largest")
            least = size
        except JobTooLarge:
            most = size
    return least


class TooLong(ValueError): ...


@pytest.mark.parametrize("door", ["add", "update", "resubmit", "result", "progress"])
@in_virtual_time
async def test_a_job_of_any_size_that_is_accepted_keeps_the_class_and_message_of_its_error(door: str) -> None:
    message = "".join(chr(ord("a") + number % 26) for number in range(1000))
    async with opened() as jobs:

        @jobs.handler(TYPE, max_attempts=2, backoff=1, timeout=3600)
        async def work(job: RunningJob, data: Any) -> Any:
            if door == "update" and isinstance(data, int):
                await job.update("x" * data)
            if door == "result" and isinstance(data, int) and job.result is None:
                await job.resubmit()
                return "x" * data
            await job.progress(10**15, 10**16, "🐌" * 200)
            raise TooLong(message)

        await add(jobs)
        largest = await largest_of(jobs) - (10 if door == "result" else 0)
        sizes = [*range(0, largest, 20_000), *range(largest - 4_500, largest, 300), largest - 1, largest]
        for size in sizes:
            await jobs.add(TYPE, str(size), size if door in ("update", "result") else "x" * size)
            if door == "resubmit":
                await jobs.resubmit(TYPE, str(size), data="y" * size)
        async with running(jobs):
            for size in sizes:
                job = await ended(jobs, str(size))
                assert door != "result" or job.result == "x" * size
                assert (job.outcome, job.attempts) == (Outcome.FAILED, 2)
                assert job.error is not None
                assert (job.error.type, job.error.message) == ("TooLong", message), size
                assert story(job)[-3:] == ["started", "crashed", "finished"]
                assert job.progress == Progress(10**15, 10**16, job.progress.message if job.progress else "")


@in_virtual_time
async def test_of_a_long_message_as_much_is_kept_as_there_is_room_for() -> None:
    async with opened() as jobs:
        crashing(jobs, lambda _: OSError("é€🐌" * 2000), max_attempts=2)
        await add(jobs)
        await jobs.add(TYPE, "a", "x" * await largest_of(jobs))
        async with running(jobs):
            job = await ended(jobs, "a")
            assert job.error is not None
            assert job.error.type == "OSError"
            assert job.error.message.startswith("é€🐌" * 150)
            assert job.error.message.endswith("…")


@pytest.mark.parametrize("how", ["message", "notes", "many notes", "notes of the cause"])
@in_virtual_time
async def test_a_long_message_or_note_leaves_the_frames_of_a_traceback(how: str) -> None:
    def fail(_: RunningJob) -> BaseException:
        error = ValueError("m" * 9000 if how == "message" else "short")
        noted = error if how != "notes of the cause" else OSError("first")
        for _note in range({"message": 0, "many notes": 200}.get(how, 1)):
            noted.add_note("n\n" * 9000)
        error.__cause__ = noted if noted is not error else None
        return error

    async with opened() as jobs:
        crashing(jobs, fail, max_attempts=1)
        async with running(jobs):
            await add(jobs, "a")
            job = await ended(jobs, "a")
            assert job.error is not None
            assert "raise error(job)" in job.error.traceback
            assert "ValueError: " in job.error.traceback
            assert ("n\n" in job.error.traceback) == (how != "message")


@in_virtual_time
async def test_a_handler_in_which_something_was_canceled_tells_where() -> None:
    async with opened() as jobs:

        @jobs.handler(TYPE, max_attempts=1)
        async def work(job: RunningJob) -> None:
            inner = asyncio.ensure_future(asyncio.sleep(100))
            inner.cancel()
            await inner

        async with running(jobs):
            await add(jobs, "a")
            job = await ended(jobs, "a")
            assert job.error is not None
            assert "await inner" in job.error.traceback


# Discard, Snooze, and payloads


@pytest.mark.parametrize("max_history", [2, 20])
@in_virtual_time
async def test_arguments_that_only_a_newer_process_knows_wait_for_it(max_history: int) -> None:
    async with opened(worker="old") as old, opened(store_of(old), worker="new") as new:

        @old.handler(TYPE, max_attempts=1, max_history=max_history)
        async def known(job: RunningJob, args: Size) -> None:
            """Do nothing."""

        @new.handler(TYPE, max_attempts=1)
        async def work(job: RunningJob, args: dict[str, str]) -> str:
            return args["colour"]

        with capture_logs() as events:
            async with running(old):
                await add(old)
                await old.add(TYPE, "a", {"colour": "red"})
                await asyncio.sleep(20)
        refused = [event for event in events if event["event"] == "arguments_refused"]
        assert [event["retry_in"] for event in refused] == [1, 2, 4, 8, 16]
        job = await old.get(TYPE, "a")
        assert (job.state, job.attempts, job.history[0].detail[:12]) == (JobState.PENDING, 0, "refused: 5: ")
        async with running(new):
            job = await ended(new, "a")
        assert (job.result, job.attempts) == ("red", 1)


@in_virtual_time
async def test_refused_arguments_use_up_attempts_where_no_history_can_count_them() -> None:
    async with opened() as jobs:

        @jobs.handler(TYPE, max_attempts=3, max_history=1)
        async def work(args: Size) -> None:
            """Do nothing."""

        async with running(jobs):
            await add(jobs)
            await jobs.add(TYPE, "a", {"colour": "red"})
            job = await ended(jobs, "a")
        assert (job.outcome, job.attempts) == (Outcome.FAILED, 3)
