"""The table of what a handler does and what becomes of the job: each row is a test, and there is no other."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from jobs_service import BlockingJob, Discard, Job, JobsService, JobTransaction, Outcome, Retry, RunningJob, Snooze
from jobs_service.model import HistoryKind, JobState
from tests.docs.pages import read, rows
from tests.runner.support import (
    TYPE,
    add,
    all_ended,
    ended,
    lose,
    moments,
    now,
    opened,
    running,
    story,
    virtual_loop,
    warned,
)
from tests.virtual_time import in_virtual_time

DONE = [row[0] for row in rows(read("docs/handlers.md"), "it | the job")]
DAY = 86_400.0

Row = Callable[[], Any]
ROWS: dict[str, Row] = {}


def row(what: str) -> Callable[[Row], Row]:
    """Return a decorator that makes a function the test of a row, given the row's first cell."""

    def keep(function: Row) -> Row:
        ROWS[what] = in_virtual_time(function) if asyncio.iscoroutinefunction(function) else function
        return function

    return keep


def test_each_row_of_the_table_has_its_test() -> None:
    assert [*ROWS] == DONE


@pytest.mark.parametrize("what", DONE)
def test_what_becomes_of_the_job(what: str) -> None:
    ROWS[what]()


def handle(jobs: JobsService, function: Callable[[RunningJob], Any], **options: Any) -> None:
    """Register a handler that does what the function does, and awaits what that returns."""

    @jobs.handler(TYPE, **options)
    async def work(job: RunningJob) -> Any:
        result = function(job)
        return await result if asyncio.iscoroutine(result) else result


def failing(*errors: BaseException) -> Callable[[RunningJob], str]:
    """Return what raises one error per attempt, and returns then."""

    def work(job: RunningJob) -> str:
        if job.attempts <= len(errors):
            raise errors[job.attempts - 1]
        return "done"

    return work


def error_of(job: Job) -> str:
    assert job.error is not None
    return f"{job.error.type}: {job.error.message}"


@row("returns")
async def _() -> None:
    async with opened() as jobs:
        handle(jobs, lambda job: {"file": "cat.png"})
        async with running(jobs):
            await add(jobs, "a")
            job = await ended(jobs, "a")
            assert (job.outcome, job.result) == (Outcome.SUCCEEDED, {"file": "cat.png"})


@row("raises an exception, or `Retry(after=...)`")
async def _() -> None:
    async with opened(patience=200_000) as jobs:
        starts: list[float] = []

        def work(job: RunningJob) -> None:
            starts.append(now())
            raise Retry(after=5) if job.attempts == 4 else OSError

        handle(jobs, work, max_attempts=15, timeout=36_000, jitter=0)
        async with running(jobs):
            await add(jobs, "a")
            job = await ended(jobs, "a")
            assert (job.outcome, job.attempts, error_of(job)) == (Outcome.FAILED, 15, "OSError: ")
            assert story(job)[-4:] == ["crashed", "started", "crashed", "finished"]
        pauses = [round(later - earlier, 3) for earlier, later in pairwise(starts)]
        doubled = [30 * 2 ** min(crash, 10) for crash in range(14)]
        assert pauses == [*doubled[:3], 5, *doubled[4:]]


@row("raises `Discard(reason)`; or returns a value that cannot be encoded")
async def _() -> None:
    called: list[object] = []
    async with opened() as jobs:

        @jobs.handler(TYPE)
        async def work(job: RunningJob, args: dict[str, int]) -> object:
            called.append(job.id)
            if "discard" in args:
                raise Discard("no such customer")
            return object()

        async with running(jobs):
            await add(jobs)
            await jobs.add(TYPE, "discards", {"discard": 1})
            await jobs.add(TYPE, "no json", {})
            found = await all_ended(jobs, ["discards", "no json"])
            assert [(job.outcome, job.attempts) for job in found] == [(Outcome.FAILED, 1)] * 2
            assert error_of(found[0]) == "Discard: no such customer"
    assert called == ["discards", "no json"]


@row("is not called at all, because the data does not fit its arguments")
async def _() -> None:
    async with opened() as jobs:

        @jobs.handler(TYPE)
        async def work(job: RunningJob, args: dict[str, int]) -> None:
            """Do nothing."""

        async with running(jobs):
            await add(jobs)
            await jobs.add(TYPE, "wrong", {"width": "wide"})
            job = await ended(jobs, "wrong")
            assert (job.outcome, job.attempts) == (Outcome.FAILED, 1)
            assert 2 * 3600 < now() < 3 * 3600


@row("raises an exception group, as task groups do")
async def _() -> None:
    async with opened() as jobs:
        handle(jobs, failing(ExceptionGroup("several", [Discard("for good"), OSError()])))
        async with running(jobs):
            await add(jobs, "a")
            job = await ended(jobs, "a")
            assert (job.outcome, job.attempts, error_of(job)) == (Outcome.FAILED, 1, "Discard: for good")
    async with opened() as jobs:
        handle(jobs, failing(ExceptionGroup("several", [OSError("disk"), Retry()])))
        async with running(jobs):
            await add(jobs, "a")
            await asyncio.sleep(1)
            assert error_of(await jobs.get(TYPE, "a")) == "OSError: disk"


@row('raises `Snooze(3600)`, or `Snooze("1h")`')
async def _() -> None:
    runs: list[float] = []

    def work(job: RunningJob) -> int:
        runs.append(now())
        if len(runs) == 1:
            raise Snooze(100)
        return job.attempts

    async with opened() as jobs:
        handle(jobs, work, max_attempts=1)
        async with running(jobs):
            await add(jobs, "a")
            assert (await ended(jobs, "a")).result == 1
    assert [round(at) for at in runs] == [0, 100]


@row("runs longer than `time_limit`")
async def _() -> None:
    async def swallow() -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(DAY)
        return "as if nothing had happened"

    async with opened() as jobs:
        handle(jobs, lambda job: swallow() if job.id == "b" else asyncio.sleep(DAY), time_limit=5, max_attempts=1)
        async with running(jobs):
            await add(jobs, "a", "b")
            for job in await all_ended(jobs, "ab"):
                assert (job.outcome, moments(job, HistoryKind.CRASHED)) == (Outcome.FAILED, [5])
                assert error_of(job) == "TimeoutError: it ran longer than its time limit of 5 s"


@row("awaits `job.finish_with(function)`")
async def _() -> None:
    async def pay(tx: JobTransaction) -> str:
        tx.kv[b"bill"] = b"paid"
        return "billed"

    async def work(job: RunningJob) -> None:
        await job.finish_with(pay)

    async with opened() as jobs:
        handle(jobs, work)
        async with running(jobs):
            await add(jobs, "a")
            assert (await ended(jobs, "a")).result == "billed"
            assert await jobs.transact(lambda tx: tx.kv.get(b"bill")) == b"paid"


@row("has ended its job itself, and then raises or returns something")
async def _() -> None:
    async def work(job: RunningJob) -> str:
        await job.finish(result="first")
        if job.id == "raises":
            raise OSError("afterwards")
        return "second"

    async with opened() as jobs:
        handle(jobs, work)
        async with running(jobs):
            with capture_logs() as events:
                await add(jobs, "raises", "returns")
                for job in await all_ended(jobs, ["raises", "returns"]):
                    assert (job.outcome, job.result) == (Outcome.SUCCEEDED, "first")
                await asyncio.sleep(1)
            told = {(event["event"], event["id"]) for event in warned(events)}
            assert told == {("handler_failed_after_end", "raises"), ("result_not_stored", "returns")}


@row("is a plain function that has seen `job.stopping`, and returns")
async def _() -> None:
    async with opened() as jobs:

        @jobs.handler(TYPE, slots=2)
        def work(job: BlockingJob) -> str | None:
            while not job.wait_for_stop(DAY):
                pass
            return "all done" if job.id == "a" else None

        with virtual_loop().outside():
            async with running(jobs):
                await add(jobs, "a", "b")
                await jobs.wait(TYPE, "a", "running")
                await jobs.wait(TYPE, "b", "running")
            for id, state, result in (("a", JobState.FINISHED, "all done"), ("b", JobState.PENDING, None)):
                job = await jobs.get(TYPE, id)
                assert (job.state, job.result) == (state, result)


@row("is canceled because somebody removed the job")
async def _() -> None:
    heard: list[float] = []

    async def work() -> None:
        try:
            await asyncio.sleep(DAY)
        finally:
            heard.append(now())

    async with opened() as jobs:
        handle(jobs, lambda job: work())
        async with running(jobs):
            await add(jobs, "a")
            await asyncio.sleep(10)
            await jobs.remove(TYPE, "a")
            assert (await ended(jobs, "a")).outcome is Outcome.CANCELED
    assert 10 <= heard[0] <= 10.2


@row("was silent for too long, so that another worker has the job")
async def _() -> None:
    way: list[str] = []

    async def work(job: RunningJob) -> str:
        if job.attempts > 1:
            return "the other's"
        try:
            await asyncio.sleep(DAY)
        except asyncio.CancelledError:
            way.append("canceled")
        return "mine"

    async with opened() as jobs:
        handle(jobs, work)
        async with running(jobs):
            await add(jobs, "a")
            await asyncio.sleep(10)
            await lose(jobs)
            assert (await ended(jobs, "a")).result == "the other's"
    assert way == ["canceled"]


@row("is canceled because the program cancels all its tasks, as `asyncio.run` does at its end")
async def _() -> None:
    async with opened() as jobs:
        handle(jobs, lambda job: asyncio.sleep(DAY))
        run = asyncio.create_task(jobs.run())
        await add(jobs, "a")
        await asyncio.sleep(10)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.wait([run])
        job = await jobs.get(TYPE, "a")
        assert (now(), job.state, job.attempts) == (10, JobState.PENDING, 0)


@row("dies with its process")
def _() -> None:
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "app.py").write_text(
            "import asyncio\n"
            "from jobs_service import JobsService\n"
            "jobs = JobsService('lmdb:store')\n"
            "@jobs.handler('work', timeout=600)\n"
            "async def work():\n"
            "    print('running', flush=True)\n"
            "    await asyncio.sleep(3600)\n"
        )
        asyncio.run(_kill_a_daemon(directory))


async def _kill_a_daemon(directory: str) -> None:
    async with asyncio.timeout(60), JobsService(f"lmdb:{directory}/store") as jobs:
        await jobs.set_type_timeout(TYPE, 600)
        await jobs.add(TYPE, "a")
        command = [sys.executable, "-m", "jobs_service", "serve", "app:jobs"]
        nothing, out = asyncio.subprocess.DEVNULL, asyncio.subprocess.PIPE
        daemon = await asyncio.create_subprocess_exec(*command, cwd=directory, stdout=out, stderr=nothing)
        try:
            assert daemon.stdout is not None
            assert await daemon.stdout.readline() == b"running\n"
        finally:
            daemon.kill()
            await daemon.communicate()
        # Long before the type's timeout.
        await jobs.wait(TYPE, "a", JobState.PENDING)
        assert (await jobs.get(TYPE, "a")).attempts == 1


@row("raises another exception while it handles a cancellation from outside, as some drivers and clean-ups do")
async def _() -> None:
    started = asyncio.Semaphore(0)

    async with opened() as jobs:

        @jobs.handler(TYPE, slots=4, grace=0)
        async def work(job: RunningJob) -> None:
            started.release()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError as error:
                match job.id:
                    case "driver":
                        raise ConnectionError("the connection is closed") from error
                    case "clean-up":
                        raise ValueError("cannot tidy up")  # noqa: B904  # the cancellation is its context
                    case "snoozes":
                        raise Snooze(90) from None
                    case _:
                        raise Discard("of no use any more") from None

        async with running(jobs):
            await add(jobs, "driver", "clean-up", "snoozes", "discards")
            for _ in range(4):
                await started.acquire()
            await jobs.remove(TYPE, "driver")
            assert (await ended(jobs, "driver")).outcome is Outcome.CANCELED
        assert [(await jobs.get(TYPE, id)).attempts for id in ("clean-up", "snoozes")] == [0, 0]
        assert (await jobs.get(TYPE, "clean-up")).history[0].detail == "its runner ended"
        assert (await jobs.get(TYPE, "snoozes")).history[0].detail == "snoozed for 90 s"
        assert (await jobs.get(TYPE, "discards")).outcome is Outcome.FAILED


@row("ignores its cancellation for longer than `grace`")
async def _() -> None:
    release = asyncio.Event()

    async def deaf(job: RunningJob) -> None:
        while job.id == "a" and not release.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await release.wait()

    async with opened() as jobs:
        handle(jobs, deaf, slots=1, grace=10, time_limit=5, backoff=1000)
        async with running(jobs):
            with capture_logs() as events:
                await add(jobs, "a", "b")
                await asyncio.sleep(20)
            assert [event["id"] for event in events if event["event"] == "handler_ignores_cancellation"] == ["a"]
            assert (await jobs.get(TYPE, "a")).state is JobState.PENDING
            assert (await jobs.get(TYPE, "b")).state is JobState.PENDING
            release.set()
            assert (await ended(jobs, "b")).outcome is Outcome.SUCCEEDED


@row("blocks the event loop for 1 s or more")
async def _() -> None:
    def block(job: RunningJob) -> str:
        virtual_loop()._now += 1.5
        return "done"

    async with opened() as jobs:
        handle(jobs, block)
        async with running(jobs):
            with capture_logs() as events:
                await add(jobs, "a")
                assert (await ended(jobs, "a")).result == "done"
            [event] = [event for event in events if event["event"] == "handler_blocked_loop"]
            assert (event["id"], event["seconds"]) == ("a", 1.5)
