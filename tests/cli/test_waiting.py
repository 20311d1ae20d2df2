"""What `--wait` says of a job that it waits for no longer."""

from __future__ import annotations

import asyncio

import pytest

from jobs_service import JobsService
from jobs_service.cli.waiting import waiting_for


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
