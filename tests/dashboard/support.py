"""What tests of pages need: jobs in every state, and what a page says as text."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

from jobs_service import JobError, JobsService, Outcome


async def fill(jobs: JobsService, type: Any = "email", *, data: Any = None) -> None:
    """Add a job of each state: ready, scheduled, running, succeeded, failed."""
    await jobs.set_type_timeout(type, 60)
    for id in ("succeeded", "failed", "running"):
        await jobs.add(type, id, data)
        job = await jobs.accept(type)
        assert job is not None
        if id == "succeeded":
            await job.finish(result={"n": 2**70})
        elif id == "failed":
            error = JobError("TimeoutError", "smtp 10.0.0.7 did not answer within 30 s", "Traceback ...\n  in send")
            await job.finish(outcome=Outcome.FAILED, error=error)
        else:
            await job.progress(3, 4, "resizing")
    await jobs.add(type, "ready", data)
    await jobs.add(type, "scheduled", data, run_at=4_000_000_000)


def text(html: str) -> str:
    """Return what a page says, on one line, without its markup."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).split())


async def eventually(check: Any, *, rounds: int = 1000) -> Any:
    """Return the first true answer of a coroutine function; asks each time the loop has come around."""
    import asyncio

    for _ in range(rounds):
        found = await check()
        if found:
            return found
        await asyncio.sleep(0.005)
    raise AssertionError("it never came")
