"""Very many calls at the same time take few requests, and few connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from jobs_service import JobExists, JobsClient, JobsService, JobState, JobTooLarge, NoTypeTimeout, Settings
from tests.client.served import listening
from tests.service.support import PATIENCE, T1, T2, TIMEOUT, eventually


class CountingTransport(httpx.AsyncHTTPTransport):
    """Counts requests.

    Attributes:
        sent: how many there were.
        open: how many have no whole answer.
        most: the most of these at the same time.
    """

    def __init__(self) -> None:
        super().__init__(limits=httpx.Limits(max_connections=None))
        self.sent = self.open = self.most = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.sent += 1
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            response = await super().handle_async_request(request)
        except BaseException:  # a connection that was closed as it was taken
            self.open -= 1
            raise
        stream = response.stream
        assert isinstance(stream, httpx.AsyncByteStream)
        response.stream = _Counted(self, stream)
        return response


class _Counted(httpx.AsyncByteStream):
    def __init__(self, transport: CountingTransport, stream: httpx.AsyncByteStream) -> None:
        self._transport = transport
        self._stream = stream

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._stream.__aiter__()

    async def aclose(self) -> None:
        self._transport.open -= 1
        await self._stream.aclose()


@pytest.mark.unmeasured
async def test_jobs_that_are_added_in_one_turn_share_requests() -> None:
    network = CountingTransport()
    async with asyncio.timeout(2 * PATIENCE), JobsService("memory:") as served, listening(served) as url:
        await served.set_type_timeout(T1, TIMEOUT)
        await served.set_type_timeout(T2, TIMEOUT)
        async with JobsClient(url, transport=network) as client:
            adds = [client.add((T1, T2)[n % 2], f"{n}", {"n": n}, priority=n % 3) for n in range(3000)]
            added = await asyncio.gather(*adds)
            assert [(job.id, job.data, job.priority) for job in added] == [
                (f"{n}", {"n": n}, n % 3) for n in range(3000)
            ]
            assert network.sent < 20  # six, unless a connection was closed as it was taken
            enqueued = await asyncio.gather(*(client.enqueue(T1, n, unique=f"{n // 2}") for n in range(1000)))
            assert network.sent < 30
            assert sum(job.created is True for job in enqueued) == 500
            assert await served.pending_count(T1) == 2000
            found = await asyncio.gather(*(client.get((T1, T2)[n % 2], f"{n}") for n in range(60)))
            assert [job.data["n"] for job in found] == [*range(60)]
            assert network.most <= 20


async def test_each_is_answered_as_if_alone() -> None:
    async with asyncio.timeout(PATIENCE), JobsService("memory:") as served, listening(served) as url:
        await served.set_type_timeout(T1, TIMEOUT)
        await served.add(T1, "there", 1)
        async with JobsClient(url) as client:
            good, there, kept, missing, canceled, big = (
                asyncio.ensure_future(each)
                for each in (
                    client.add(T1, "good", 1),
                    client.add(T1, "there", 2),
                    client.add(T1, "there", 2, if_exists="ignore"),
                    client.add("no type", "a"),
                    client.add(T1, "canceled"),
                    client.add(T1, "x" * 20_000),
                )
            )
            await asyncio.sleep(0)
            canceled.cancel()
            await asyncio.wait([good, there, kept, missing, canceled, big])
            assert ((await good).data, (await kept).data) == (1, 1)
            for each, error in ((there, JobExists), (missing, NoTypeTimeout), (big, JobTooLarge)):
                with pytest.raises(error):
                    await each
            assert [job.id async for job in served.list(T1)] == ["good", "there"]


@pytest.mark.unmeasured
async def test_very_many_subscriptions_share_streams_however_they_begin() -> None:
    network = CountingTransport()
    settings = Settings(notify_holdoff=0.01)
    async with (
        asyncio.timeout(2 * PATIENCE),
        JobsService("memory:", settings=settings) as served,
        listening(served) as url,
        JobsClient(url, transport=network) as client,
        asyncio.TaskGroup() as tasks,
    ):
        await served.set_type_timeout(T1, TIMEOUT)
        heard: dict[str, list[JobState]] = {f"{n}": [] for n in range(300)}

        async def listen(id: str) -> None:
            async for event in client.subscribe(T1, id):
                heard[id].append(event.state)

        async def all_heard() -> bool:
            return all(heard.values())

        for id in heard:
            await served.add(T1, id)
            tasks.create_task(listen(id))
            await asyncio.sleep(0)
        await eventually(all_heard)
        assert len({*client._hub._streams.values()}) <= 40
        for job in await served.accept_many(T1, 300):
            await job.finish()
    assert {tuple(states) for states in heard.values()} <= {
        (JobState.PENDING, JobState.FINISHED),
        (JobState.PENDING, JobState.RUNNING, JobState.FINISHED),
    }
