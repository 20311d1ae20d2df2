"""An accept whose caller is canceled, or whose answer is lost, strands no job."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from jobs_service import JobsClient, JobsService, JobState
from jobs_service.sources import Sources
from tests.client.lossy import LossyTransport
from tests.client.served import listening
from tests.service.support import PATIENCE, T1, TIMEOUT, eventually, listed


class LateTransport(httpx.AsyncHTTPTransport):
    """Keeps the answers to accepts from those who wait for them.

    Attributes:
        arrived: counts those answers.
    """

    def __init__(self) -> None:
        super().__init__()
        self.arrived = asyncio.Semaphore(0)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        if request.url.path.endswith("/accept"):
            await response.aread()
            self.arrived.release()
            await asyncio.Event().wait()
        return response


async def all_pending(jobs: JobsService) -> bool:
    return {job.state for job in await listed(jobs, T1)} == {JobState.PENDING}


async def test_a_job_that_comes_when_its_caller_was_canceled_is_given_back_at_once() -> None:
    network = LateTransport()
    async with asyncio.timeout(PATIENCE), JobsService("memory:") as served, listening(served) as url:
        await served.set_type_timeout(T1, TIMEOUT)
        for number in range(3):
            await served.add(T1, f"{number}")
        async with JobsClient(url, transport=network) as client:
            task = asyncio.create_task(client.accept_many(T1, 3))
            await network.arrived.acquire()
            assert not await all_pending(served)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await eventually(lambda: all_pending(served))
            assert {job.attempts for job in await listed(served, T1)} == {0}


@pytest.mark.parametrize("seed", range(3))
async def test_accepts_that_are_canceled_at_any_moment_strand_no_job(seed: int) -> None:
    random = Sources(seed)
    async with asyncio.timeout(PATIENCE), JobsService("memory:") as served, listening(served) as url:
        await served.set_type_timeout(T1, TIMEOUT)
        for number in range(40):
            await served.add(T1, f"{number}")
        async with JobsClient(url) as client:
            tasks = [asyncio.create_task(client.accept(T1)) for _ in range(40)]
            for task in tasks:
                for _ in range(random.below(12)):
                    await asyncio.sleep(0)
                task.cancel()
            got = [job for job in await asyncio.gather(*tasks, return_exceptions=True) if job is not None]
            for job in got:
                if not isinstance(job, BaseException):
                    await job.release()
        assert await all_pending(served)


async def test_an_accept_whose_answer_is_lost_gets_the_same_jobs_when_it_is_sent_again() -> None:
    network = LossyTransport()
    async with asyncio.timeout(PATIENCE), JobsService("memory:") as served, listening(served) as url:
        await served.set_type_timeout(T1, TIMEOUT)
        for number in range(5):
            await served.add(T1, f"{number}")
        async with JobsClient(url, transport=network) as client:
            network.path, network.lose = "/accept", 2
            first = await client.accept_many(T1, 3)
            assert [(job.id, job.attempts) for job in first] == [("0", 1), ("1", 1), ("2", 1)]
            assert network.sent == 3
            assert [job.id for job in await client.accept_many(T1, 5)] == ["3", "4"]
            for job in first:
                assert (await job.finish()).state is JobState.FINISHED
