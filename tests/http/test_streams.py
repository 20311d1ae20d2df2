"""What waits for a client that is slow: the newest state of each job, and no more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from jobs_service import JobEvent, JobsService, StoreUnavailable
from jobs_service.actors.subscriptions import SubscribedJob
from jobs_service.http.state import ServerState
from jobs_service.http.streams import job_parts
from jobs_service.model import JobState, Outcome


def event(state: JobState, data: Any = None) -> JobEvent:
    outcome = Outcome.SUCCEEDED if state is JobState.FINISHED else None
    return JobEvent("email", "a", state, data, outcome, bytes(12))


@asynccontextmanager
async def followed() -> AsyncIterator[tuple[JobsService, AsyncGenerator[bytes, None], SubscribedJob]]:
    """Yield a service, the events of a job for a client that has had the first, and the job in the hub."""
    async with JobsService("memory:") as jobs:
        await jobs.set_type_timeout("email", 30)
        await jobs.add("email", "a")
        keys = jobs.remote.access.keys("email")
        async with aclosing(job_parts(ServerState(jobs), [(keys, "a")], "", alone=True)) as parts:
            assert b'"pending"' in await anext(parts)
            [[target]] = jobs.remote.hub.targets(keys).values()
            yield jobs, parts, target


async def test_a_slow_client_gets_the_newest_state_alone() -> None:
    async with followed() as (_, parts, job):
        for number in range(1000):
            job.report(event(JobState.RUNNING, number))
        part = await anext(parts)
        assert part.count(b"event: job") == 1
        assert b'"data":999' in part


async def test_who_waits_hears_that_the_bytes_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    async with followed() as (jobs, parts, job):

        async def away(*_: Any) -> Any:
            raise StoreUnavailable("away")

        monkeypatch.setattr(jobs, "get_redaction", away)
        waiting = asyncio.ensure_future(anext(parts))
        await asyncio.sleep(0)
        job.report(event(JobState.RUNNING))
        with pytest.raises(StoreUnavailable):
            await waiting
