"""What was asked for is done once, although its answer is lost: the request is sent again, or the caller is told."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from jobs_service import (
    JobExists,
    JobsClient,
    JobsService,
    JobState,
    NewJob,
    Removal,
    RunningJob,
    Settings,
    StoreUnavailable,
    WorkerConflict,
)
from jobs_service.arguments import IfExists
from tests.client.lossy import LossyTransport
from tests.client.served import listening
from tests.service.support import J1, LOST, PATIENCE, T1, TIMEOUT


async def accepted(jobs: JobsClient) -> RunningJob:
    """Accept a job that must be there."""
    job = await jobs.accept(T1, timeout=0)
    assert job is not None
    return job


@asynccontextmanager
async def lossy() -> AsyncIterator[tuple[JobsService, JobsClient, LossyTransport]]:
    """Yield a service, a client of it, and the network between them."""
    transport = LossyTransport()
    async with JobsService("memory:", settings=Settings(notify_holdoff=0.01)) as served, listening(served) as url:
        await served.set_type_timeout(T1, TIMEOUT)
        async with JobsClient(url, transport=transport) as client:
            yield served, client, transport


async def test_a_job_is_added_once() -> None:
    async with lossy() as (served, client, network):
        network.lose = 2
        job = await client.add(T1, J1, {"x": 1})
        assert network.sent == 3
        assert (job.id, job.state, job.data) == (J1, JobState.PENDING, {"x": 1})
        assert job == await served.get(T1, J1)
        with pytest.raises(JobExists):
            await client.add(T1, J1)


@pytest.mark.parametrize("rule", ["error", "ignore", "resubmit"])
async def test_many_jobs_are_added_once(rule: IfExists) -> None:
    async with lossy() as (served, client, network):
        network.lose = 2
        wanted = [NewJob(f"{number:04}", number) for number in range(700)]
        added = await client.add_many(T1, wanted, if_exists=rule)
        assert network.sent == 4  # in two parts
        assert [(job.id, job.data, job.state) for job in added] == [
            (job.id, job.data, JobState.PENDING) for job in wanted
        ]
        assert (await served.counts(T1))[T1].totals.added == 700
        if rule == "error":
            with pytest.raises(JobExists):
                await client.add_many(T1, wanted)


async def test_a_run_is_finished_once() -> None:
    async with lossy() as (served, client, network):
        await client.add(T1, J1)
        worker = await accepted(client)
        network.lose, network.path = 1, "/finish"
        job = await worker.finish(result="done")
        assert (job.state, job.result) == (JobState.FINISHED, "done")
        assert (await served.get(T1, J1)).attempts == 1
        with pytest.raises(WorkerConflict):
            await worker.finish(result="again")


async def test_a_run_that_was_lost_meanwhile_is_a_conflict_although_an_answer_was_lost() -> None:
    async with lossy() as (served, client, network):
        await client.set_type_timeout(T1, LOST)
        await client.add(T1, J1)
        worker = await accepted(client)
        await served.wait(T1, J1, JobState.PENDING, timeout=PATIENCE)
        network.lose, network.path = 1, "/finish"
        with pytest.raises(WorkerConflict):
            await worker.finish()
        await client.set_type_timeout(T1, TIMEOUT)
        other = await accepted(client)
        await other.finish(result="of the other")
        network.lose = 1
        with pytest.raises(WorkerConflict):
            await worker.finish(result="late")
        assert (await served.get(T1, J1)).result == "of the other"


Call = Callable[[JobsClient], Awaitable[object]]


@pytest.mark.parametrize(
    "call",
    [
        lambda jobs: jobs.remove(T1, J1),
        lambda jobs: jobs.resubmit(T1, J1),
    ],
    ids=["remove", "resubmit"],
)
async def test_what_would_not_be_the_same_twice_is_not_sent_again(call: Call) -> None:
    async with lossy() as (served, client, network):
        await served.add(T1, J1)
        network.lose = 1
        with pytest.raises(
            StoreUnavailable, match="does not answer: the connection was lost; it may have taken effect"
        ):
            await call(client)
        assert network.sent == 1


async def test_what_is_the_same_twice_is_sent_again() -> None:
    async with lossy() as (_, client, network):
        network.lose = 1
        await client.set_type_timeout("new", 5)
        network.lose = 1
        await client.pause("new")
        network.lose = 1
        assert await client.paused("new")
        network.lose = 1
        assert [job.id for job in await client.add_many(T1, [NewJob(J1)], if_exists="ignore")] == [J1]
        network.lose = 1
        await client.clear_type_timeout("new")
        assert await client.remove(T1, J1) is Removal.REMOVED
