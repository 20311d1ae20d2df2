"""Stores in certain states, and an application, for the tests of several verbs."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs_service import JobsService, Outcome
from tests.cli.support import arrange

APPLICATION = """
import asyncio
from jobs_service import JobsService
jobs = JobsService("lmdb:store")
@jobs.handler("slow", slots=2, max_attempts=None)
async def slow(job):
    await job.progress(1, 3, "begun")
    await asyncio.Event().wait()
@jobs.every("1h30m")
async def refresh(): ...
@jobs.cron("0 3 * * *", timezone="Europe/Berlin", missed="skip")
async def nightly(): ...
"""


@pytest.fixture
def application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a service with handlers."""
    (tmp_path / "operated.py").write_text(APPLICATION)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "operated:jobs"


@pytest.fixture
def counted(store: str) -> str:
    """A store with jobs in several states, and a type without any."""

    async def fill(jobs: JobsService) -> None:
        await jobs.set_type_timeout("email", 60)
        await jobs.set_type_timeout("video", 60)
        for id in ("a", "b", "c"):
            await jobs.add("email", id)
        first, _ = await jobs.accept_many("email", 2, timeout=0)
        await first.finish()
        await jobs.add("email", "later", run_at=4e9)
        await jobs.pause("video")

    arrange(store, fill)
    return store


@pytest.fixture
def full(store: str) -> str:
    """A store with a job in every state, of two types."""

    async def fill(jobs: JobsService) -> None:
        await jobs.set_type_timeout("email", 60)
        await jobs.set_type_timeout("video", 60)
        for id in ("a", "b", "c", "d", "e"):
            await jobs.add("email", id, {"n": id})
        for outcome in Outcome:
            job = await jobs.accept("email", timeout=0)
            assert job is not None
            await job.finish(outcome=outcome)
        assert await jobs.accept("email", timeout=0)
        await jobs.add("video", "v", priority="x", run_at=4102444800)

    arrange(store, fill)
    return store


@pytest.fixture
def running(store: str) -> str:
    """A store with one job, which is running."""

    async def fill(jobs: JobsService) -> None:
        await jobs.set_type_timeout("email", 60)
        await jobs.add("email", "first", 1)
        assert await jobs.accept("email", timeout=0)

    arrange(store, fill)
    return store
