"""Rows of every kind that are damaged: what has nothing to do with them goes on."""

from __future__ import annotations

import asyncio
import contextlib
from urllib.parse import quote

import pytest
from httpx import AsyncClient

from jobs_service import JobsService, RunningJob, StoreDamaged
from jobs_service.copying import copy_jobs
from jobs_service.names import shown
from jobs_service.sources import Sources
from jobs_service.store import Transaction
from tests.copying.support import memory, opened
from tests.dashboard.support import fill
from tests.http.support import also_on_a_cluster, problem, served
from tests.service.support import J1, T1
from tests.service.unreadable import keyspace_of

GARBAGE = (b"", b"\x00", b"\xff" * 30, b"\x99garb\x00\x02\xff\xfe\x00", bytes(12))

_T1, _J1 = quote(shown(T1), safe=""), quote(shown(J1), safe="")
OF_ALL = (
    "/v1/types",
    "/v1/jobs",
    "/v1/counts",
    "/v1/failures",
    "/v1/stats",
    "/v1/ticks",
    "/v1/workers",
    "/readyz",
    "/metrics",
    "/",
    "/failures",
    "/processes",
    "/health",
    "/periodic",
    "/supervision",
    "/bulk",
)
OF_ONE = (
    f"/v1/types/{_T1}",
    f"/v1/types/{_T1}/jobs",
    *(f"/v1/types/{_T1}/jobs?state={state}" for state in ("ready", "scheduled", "running", "failed", "finished")),
    f"/v1/types/{_T1}/jobs/{_J1}",
    f"/v1/types/{_T1}/redaction",
    f"/v1/types/{_T1}/active",
    f"/v1/types/{_T1}/oldest",
    f"/v1/types/{_T1}/throughput?since=0",
    f"/type?type={_T1}",
    f"/type?type={_T1}&state=failed",
    f"/job?type={_T1}&id={_J1}",
    f"/bulk/new?type={_T1}&action=remove&data=n%3D1",
    f"/export?type={_T1}",
)


async def refused(client: AsyncClient, *paths: str) -> list[tuple[str, int, str]]:
    """Return which of these are answered with an error of the server."""
    answers = [(path, await client.get(path)) for path in paths]
    return [(path, answer.status_code, answer.text[:300]) for path, answer in answers if answer.status_code >= 500]


@also_on_a_cluster
async def test_rows_that_nobody_wrote_are_in_nobodys_way() -> None:
    async with served() as (jobs, client):
        await fill(jobs, T1)
        await jobs.add(T1, J1, {"n": 1})
        await write_garbage(jobs)
        assert await refused(client, *OF_ALL, *OF_ONE) == []
        added = await client.post(f"/v1/types/{_T1}/jobs", json={"id": "new"})
        assert added.status_code == 201, added.text
        accepted = await client.post(f"/v1/types/{_T1}/accept", json={"limit": 5, "timeout": 0})
        assert accepted.json()["jobs"], accepted.text


@pytest.mark.parametrize("garbage", GARBAGE)
@also_on_a_cluster
async def test_counts_that_cannot_be_read_hide_no_other_type(garbage: bytes) -> None:
    async with served() as (jobs, client):
        await fill(jobs, T1)
        await jobs.set_type_timeout("other", 30)
        await jobs.add("other", "a")
        await write_garbage(jobs)
        await damage_counts(jobs, garbage)
        assert await refused(client, *OF_ALL) == []
        assert set(await jobs.counts()) == {"other"}
        with pytest.raises(StoreDamaged, match="a copy of the store counts anew"):
            await jobs.counts(T1)
        problem(await client.get(f"/v1/types/{_T1}/pending"), 500, "store-damaged")
        assert T1 in await jobs.types()


async def test_a_copy_of_the_store_counts_anew() -> None:
    source, target = memory(), memory()
    async with opened(source, target):
        async with JobsService(source) as jobs:
            await jobs.set_type_timeout(T1, 30)
            for id in ("ended", "ready"):
                await jobs.add(T1, id)
            await jobs.add(T1, "scheduled", run_at=4_000_000_000)
            job = await jobs.accept(T1)
            assert job is not None
            await job.finish()
            before = (await jobs.counts(T1))[T1]
            await damage_counts(jobs, b"")
            await write_garbage(jobs)
        await copy_jobs(source, target, sources=Sources(1), force=True)
        async with JobsService(target) as jobs:
            after = (await jobs.counts(T1))[T1]
    assert after.jobs == before.jobs == 3
    for state in ("ready", "scheduled", "running", "succeeded", "failed", "canceled"):
        assert getattr(after, state) == getattr(before, state)


async def test_a_store_with_rows_that_nobody_wrote_is_opened_and_its_jobs_are_run(lasting: str) -> None:
    async with JobsService(lasting) as jobs:
        await jobs.set_type_timeout(T1, 30)
        await jobs.add(T1, J1)
        await write_garbage(jobs)
    async with JobsService(lasting) as jobs:
        ran = asyncio.Event()

        @jobs.handler(T1)
        async def run(_: RunningJob) -> None:
            ran.set()

        running = asyncio.create_task(jobs.run())
        await ran.wait()
        job = await jobs.wait(T1, J1)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
    assert job.outcome == "succeeded"


async def write_garbage(jobs: JobsService) -> None:
    """Write rows of all sections that nobody would have written, beside those that are there."""
    of = await keyspace_of(jobs)
    longest = jobs.store.limits.key

    async def write(tr: Transaction) -> None:
        for section in of.sections[1:]:
            for garbage in GARBAGE[1:]:
                for key in (section + garbage, section + of.of(T1).packed + garbage):
                    if len(key) <= longest and await tr.get(key) is None:
                        tr.set(key, garbage)

    await jobs.store.transact(write)


async def damage_counts(jobs: JobsService, garbage: bytes) -> None:
    key = (await keyspace_of(jobs)).of(T1).counts

    async def write(tr: Transaction) -> None:
        tr.set(key, garbage)

    await jobs.store.transact(write)
