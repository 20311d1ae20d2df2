"""The pages of replications: how far they are, from what their jobs tell, without the extra that runs them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from jobs_service import Job, JobsService, RunningJob
from jobs_service.replication import replicate
from jobs_service.replication.contract import RequestFailed
from jobs_service.replication.stored import progress_message
from tests.dashboard.support import text
from tests.http.support import served

SOURCE, TARGET = "http://source.example/db", "http://target.example/db"
COUNTED = {"docs_read": 12_345, "docs_written": 12_340, "doc_write_failures": 5}
SECRET = "hunter2-and-more"
FAILURE = f"GET {SOURCE} was answered 503"
GONE = {
    "options.source": "***@source.example",
    "statistics": "12,345",
    "statistics.docs_read": "12,345",
    "progress:": "documents/s",
    "error:": "Last error RequestFailed",
}
"""What of a page has gone when a part of a job is secret."""


async def tell(job: RunningJob) -> None:
    """Write what a run writes that has come half-way."""
    await job.update({**job.data, "statistics": COUNTED, "skipped": []})
    await job.progress(400, 1000, progress_message(20.4, 1_234_567.0, 5))


@asynccontextmanager
async def at_work(jobs: JobsService, source: str = SOURCE) -> AsyncIterator[Job]:
    """Yield a replication whose first run has failed, and whose second one has come half-way."""
    told = asyncio.Event()

    @jobs.handler("continuous-replication", continuous=True, backoff=0.001, jitter=0)
    async def run(job: RunningJob) -> None:
        if job.error is None:
            raise RequestFailed(FAILURE)
        await tell(job)
        told.set()
        await asyncio.Event().wait()

    runner = asyncio.create_task(jobs.run())
    job = await replicate(jobs, source, TARGET, continuous=True)
    try:
        await told.wait()
        yield job
    finally:
        runner.cancel()
        await asyncio.wait([runner])


def address(job: Job | RunningJob) -> str:
    return f"/job?type={job.type!s}&id={job.id!s}"


async def test_a_jobs_page_says_how_far_it_is() -> None:
    async with served() as (jobs, client), at_work(jobs) as job:
        page = text((await client.get(address(job))).text)
    assert f"From {SOURCE} To {TARGET}" in page
    assert "12,345 read, 12,340 written, 5 refused, up to the last checkpoint" in page
    assert "Pending, lag 600 about 30 s" in page
    assert "Rate 20 documents/s, 1.2 MB/s" in page
    assert f"Last error RequestFailed: {FAILURE}" in page


async def test_the_types_page_has_a_table_of_them() -> None:
    async with served() as (jobs, client), at_work(jobs):
        await jobs.pause("continuous-replication")
        await replicate(jobs, "http://other.example/db", TARGET, continuous=True)
        page = text((await client.get("/type?type=continuous-replication")).text)
    assert "How far these replications are" in page
    assert (
        f"{SOURCE} {TARGET} running 12,345 12,340 5 600 about 30 s 20 documents/s, 1.2 MB/s RequestFailed: {FAILURE}"
        in page
    )
    assert f"http://other.example/db {TARGET} ready 0 0 0 unknown" in page


@pytest.mark.parametrize(
    "hidden", ["data:", "options", "options.source", "statistics", "statistics.docs_read", "progress:", "error:"]
)
async def test_whatever_is_secret_is_hidden(hidden: str) -> None:
    async with served() as (jobs, client), at_work(jobs, f"http://ada:{SECRET}@source.example/db") as job:
        await jobs.set_redaction(job.type, [hidden])
        for path in (address(job), f"/type?type={job.type!s}"):
            page = await client.get(path)
            assert page.status_code == 200
            assert SECRET not in page.text
            assert hidden not in GONE or GONE[hidden] not in text(page.text)
