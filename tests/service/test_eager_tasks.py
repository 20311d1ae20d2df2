"""A service on a loop whose tasks make their first step as they are made: `asyncio.eager_task_factory`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from jobs_service import BlockingJob, JobsService, RunningJob

pytestmark = pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.11 has no eager tasks")

PATIENCE = 30.0


@pytest.mark.parametrize("scheme", ["memory:", "lmdb:"])
async def test_jobs_are_run_and_events_are_told(scheme: str, tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined,unused-ignore]
    jobs = JobsService(scheme if scheme == "memory:" else f"{scheme}{tmp_path}")

    @jobs.handler("coroutine", slots=2, time_limit=PATIENCE)
    async def coroutine(job: RunningJob, pause: float | None) -> str:
        if pause is not None:
            await asyncio.sleep(pause)
        return "done"

    @jobs.handler("plain", slots=2)
    def plain(job: BlockingJob) -> str:
        job.progress(1)
        return "done"

    try:
        async with asyncio.timeout(PATIENCE), jobs:
            run = asyncio.create_task(jobs.run(max_jobs=3))
            added = [await jobs.enqueue(coroutine, pause) for pause in (None, 0.01, None)]
            waiting = [asyncio.create_task(jobs.result(coroutine, job.id)) for job in added]
            assert await asyncio.gather(*waiting) == ["done"] * 3
            assert await jobs.result(plain, (await jobs.enqueue(plain)).id) == "done"
            endless = await jobs.enqueue(coroutine, PATIENCE)
            await jobs.wait("coroutine", endless.id, "running")
            await jobs.remove("coroutine", endless.id)
            assert (await jobs.wait("coroutine", endless.id, "finished")).outcome == "canceled"
        await asyncio.wait([run])
        assert run.cancelled()
        assert asyncio.all_tasks() == {asyncio.current_task()}
    finally:
        loop.set_task_factory(None)
