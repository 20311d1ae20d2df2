"""What becomes of running jobs, for the tests of workers' operations."""

from __future__ import annotations

from typing import Any

from jobs_service.layer import queue, running_jobs
from jobs_service.layer.queue import AcceptTerms
from tests.layer.support import Layer


async def accept(found: Layer, limit: int = 1, **terms: Any) -> bytes:
    """Accept the job at the front, and return its lock."""
    wanted = AcceptTerms(limit, None, None, 1, 100, "me", **terms)
    [entry], _ = await found.transact(lambda unit: queue.accept(unit, found.keys, wanted))
    assert entry.record is not None
    assert entry.record.lock is not None
    return entry.record.lock


async def running(found: Layer) -> bytes:
    """Add the job "a" and accept it."""
    await found.add("a")
    return await accept(found)


async def lose_all(found: Layer) -> list[Any]:
    """Take whatever runs for lost."""
    lost = await found.transact(lambda unit: running_jobs.re_enqueue(unit, found.keys, b"\xff" * 10, 10))
    return lost.ids
