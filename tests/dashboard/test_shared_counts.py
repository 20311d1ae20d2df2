"""Counts that take long are read once for all who look at the same time."""

import asyncio
from typing import Any

import pytest

from jobs_service import JobsService
from jobs_service.dashboard import figures
from jobs_service.dashboard.figures import SharedCounts


async def looks(jobs: JobsService, monkeypatch: pytest.MonkeyPatch, number: int) -> int:
    """Return how often the store is read when so many look, together and one after the other."""
    reads = 0
    counts = jobs.counts

    async def counted() -> Any:
        nonlocal reads
        reads += 1
        return await counts()

    monkeypatch.setattr(jobs, "counts", counted)
    shared = SharedCounts(jobs)
    await asyncio.gather(*(shared.get() for _ in range(number)))
    for _ in range(number):
        await shared.get()
    return reads


async def test_what_is_read_quickly_is_read_anew_for_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "QUICK", 1e9)
    async with JobsService("memory:") as jobs:
        assert await looks(jobs, monkeypatch, 5) == 10


async def test_what_takes_long_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "QUICK", 0)
    monkeypatch.setattr(figures, "rest_after", lambda took: 1e9)
    async with JobsService("memory:") as jobs:
        assert await looks(jobs, monkeypatch, 5) == 1
