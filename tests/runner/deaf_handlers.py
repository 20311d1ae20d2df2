"""Handlers that ignore cancellation, and what must go on beside them."""

from __future__ import annotations

import asyncio

from jobs_service import JobsService
from tests.runner.support import add, ended, now

DAY = 86_400.0


async def assert_others_go_on(jobs: JobsService) -> None:
    """Fail unless a job of the type is run."""
    await add(jobs, "other")
    assert (await ended(jobs, "other")).result == "fine"


async def ignoring_cancellation(seconds: float) -> None:
    """Sleep for so long whoever cancels it."""
    until = now() + seconds
    while now() < until:
        try:
            await asyncio.sleep(until - now())
        except asyncio.CancelledError:
            continue
