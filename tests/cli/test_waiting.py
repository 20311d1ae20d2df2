"""What `--wait` says of a job that it waits for no longer."""

from __future__ import annotations

import asyncio

import pytest

from jobs_service import JobsService
from jobs_service.cli.program import AnswerIsNo
from jobs_service.cli.verbs.submit import waiting_for
from tests.cli.support import HANG


@pytest.mark.parametrize(
    ("secret", "said"), [([], "the server is away"), (["error:message"], r"\[redacted\]")], ids=["told", "secret"]
)
async def test_whose_time_is_over_is_told_why_the_job_failed_last_but_nothing_secret(
    secret: list[str], said: str
) -> None:
    jobs = JobsService("memory:")

    @jobs.handler("email", backoff=1000, redact=secret)
    async def send() -> None:
        raise ValueError("the server is away")

    async with jobs, asyncio.timeout(HANG):
        job = await jobs.enqueue(send)
        runner = asyncio.create_task(jobs.run())
        async with jobs.subscribe(job.type, job.id) as events:
            async for event in events:
                if event.error is not None and event.state == "pending":
                    break
        with pytest.raises(AnswerIsNo, match=rf"it is tried again, and failed last by ValueError: {said}$"):
            async with waiting_for(jobs, job, 0, "serve"):
                await asyncio.get_running_loop().create_future()
        runner.cancel()
        await asyncio.wait([runner])


async def test_who_is_interrupted_is_told_that_the_job_is_still_there(capsys: pytest.CaptureFixture[str]) -> None:
    async with JobsService("memory:", supervise=False) as jobs:
        await jobs.set_type_timeout("email", 30)
        job = await jobs.add("email", "x")
        is_waiting = asyncio.Event()

        async def wait() -> None:
            async with waiting_for(jobs, job, None, "serve"):
                is_waiting.set()
                await asyncio.get_running_loop().create_future()

        task = asyncio.create_task(wait())
        await is_waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert capsys.readouterr().err == "jobs-service: interrupted; job x of type email is still there\n"
