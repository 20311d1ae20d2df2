"""Plain functions that are asked to stop, and the end of the process."""

from __future__ import annotations

import asyncio
import sys

import pytest

from jobs_service import BlockingJob, JobCanceled, JobsService, Outcome
from jobs_service.model import JobState
from tests.runner.support import PATIENCE_OF_THREADS, TYPE, Signals, add, ended, stopped, story


@pytest.mark.parametrize(
    ("looks", "returned", "state", "result"),
    [
        (True, "far enough", JobState.FINISHED, "far enough"),
        (True, None, JobState.PENDING, None),
        (False, None, JobState.FINISHED, None),
    ],
)
async def test_what_a_function_returns_after_it_was_stopped_is_its_end_as_a_coroutines_is(
    jobs: JobsService, looks: bool, returned: str | None, state: JobState, result: str | None
) -> None:
    signals = Signals()

    @jobs.handler(TYPE)
    def work(job: BlockingJob) -> str | None:
        signals.begin()
        signals.go.wait()
        assert not looks or job.stopping
        return returned

    run = asyncio.create_task(jobs.run())
    await add(jobs, "a")
    await signals.begun.wait()
    jobs.configure(TYPE, slots=0)
    for _ in range(10):  # turns of the loop, in which it learns of it
        await asyncio.sleep(0)
    signals.go.set()
    await jobs.wait(TYPE, "a", state)
    assert (await jobs.get(TYPE, "a")).result == result
    await stopped(run)


async def test_a_function_over_its_time_limit_has_crashed_whether_it_listens_or_its_job_tells_it(
    jobs: JobsService,
) -> None:
    @jobs.handler(TYPE, time_limit=0.05, max_attempts=1)
    def work(job: BlockingJob) -> None:
        job.wait_for_stop(PATIENCE_OF_THREADS)
        job.update()

    run = asyncio.create_task(jobs.run())
    await add(jobs, "a")
    job = await ended(jobs, "a")
    assert job.outcome is Outcome.FAILED
    assert job.error is not None
    assert (job.error.type, story(job)[-2:]) == ("TimeoutError", ["crashed", "finished"])
    await stopped(run)


# The end of the process


async def test_a_plain_function_learns_at_once_that_it_is_to_stop_and_its_job_is_given_back(jobs: JobsService) -> None:
    signals = Signals()

    # It would wait for its grace longer than the test does.
    @jobs.handler(TYPE, grace=1000)
    def work(job: BlockingJob) -> None:
        signals.begin()
        while not job.wait_for_stop(10):
            pass

    run = asyncio.create_task(jobs.run())
    await add(jobs, "a")
    await signals.begun.wait()
    await stopped(run)
    job = await jobs.get(TYPE, "a")
    assert (job.state, job.result, job.attempts) == (JobState.PENDING, None, 0)
    assert story(job) == ["added", "started", "stopped"]


@pytest.mark.parametrize("looks", [False, True])
async def test_a_plain_function_that_returns_a_value_within_its_grace_has_ended_its_job(
    jobs: JobsService, looks: bool
) -> None:
    signals = Signals()

    @jobs.handler(TYPE, grace=1000)
    def work(job: BlockingJob) -> str:
        signals.begin()
        signals.go.wait()
        if looks:
            assert job.stopping
        job.update({"step": 2})
        return "done"

    run = asyncio.create_task(jobs.run())
    await add(jobs, "a")
    await signals.begun.wait()
    run.cancel()
    for _ in range(10):  # turns of the loop, in which it learns of it
        await asyncio.sleep(0)
    signals.go.set()
    await asyncio.wait([run])
    job = await jobs.get(TYPE, "a")
    assert (job.outcome, job.result, job.data) == (Outcome.SUCCEEDED, "done", {"step": 2})


async def test_a_plain_function_whose_grace_is_over_can_do_nothing_more(jobs: JobsService) -> None:
    signals = Signals()
    refused: list[str] = []

    @jobs.handler(TYPE, grace=0.05)
    def work(job: BlockingJob) -> str:
        signals.begin()
        signals.go.wait()
        try:
            job.update({"step": 2})
        except JobCanceled as error:
            refused.append(str(error))
        return "too late"

    run = asyncio.create_task(jobs.run())
    await add(jobs, "a")
    await signals.begun.wait()
    await stopped(run)
    signals.go.set()
    job = await jobs.get(TYPE, "a")
    assert (job.state, job.result) == (JobState.PENDING, None)
    while not refused:  # noqa: ASYNC110 - the thread has no way to tell a loop that its runner has left
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("program", ["import time; time.sleep(3600)"])
async def test_a_command_is_sent_sigterm_at_once(jobs: JobsService, program: str) -> None:
    started = asyncio.Event()
    jobs.commands(grace=1000)
    run = asyncio.create_task(jobs.run(started=started.set))
    await started.wait()
    await jobs.add("command", "a", {"argv": [sys.executable, "-c", program]})
    await jobs.wait("command", "a", JobState.RUNNING)
    await stopped(run)
    assert story(await jobs.get("command", "a")) == ["added", "started", "stopped"]
