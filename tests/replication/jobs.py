"""What the tests of replications as jobs share: a service that runs them, and waiting for what they do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from jobs_service import Job, JobsService
from jobs_service.replication import register_replication
from tests.replication.server import Server
from tests.replication.support import LIMIT, contents


@asynccontextmanager
async def running(
    address: str = "memory:", secrets: Any = None, *, limit: float = LIMIT, **options: Any
) -> AsyncIterator[JobsService]:
    """Open a service, and run its replications, for at most so many seconds."""
    jobs = JobsService(address)
    register_replication(jobs, secrets=secrets, **options)
    async with asyncio.timeout(limit), jobs:
        started = asyncio.Event()
        runner = asyncio.create_task(jobs.run(started=started.set))
        await started.wait()
        try:
            yield jobs
        finally:
            runner.cancel()
            await asyncio.wait([runner])


async def until(jobs: JobsService, job: Job, holds: Callable[[Job], bool]) -> Job:
    """Wait until something holds of a job."""
    async with jobs.subscribe(job.type, job.id) as events:
        async for _ in events:
            found = await jobs.get(job.type, job.id)
            if holds(found):
                return found
    raise AssertionError(f"it has ended before: {await jobs.get(job.type, job.id)}")


async def equal(source: Server, target: Server, name: str = "db") -> None:
    """Wait until a target has what its source has."""
    while contents(target.database(name)) != contents(source.databases[name]):
        await target.databases[name].changed.wait()


def ends(source: Server, target: Server, name: str = "db") -> tuple[str, str]:
    """Return the addresses of a source and its target."""
    return f"{source.url}/{name}", f"{target.url}/{name}"
