"""Subscriptions go on when the connection is lost: nothing is told twice, the last event always."""

from __future__ import annotations

import asyncio

import pytest

from jobs_service import JobNotFound, JobsClient, JobsService, JobState, Settings
from tests.cli.support import free_port
from tests.client.served import listening
from tests.service.support import PATIENCE, T1, TIMEOUT

PENDING, RUNNING, FINISHED, REMOVED = JobState.PENDING, JobState.RUNNING, JobState.FINISHED, JobState.REMOVED


@pytest.mark.parametrize("keep", [None, 0])
async def test_what_happened_meanwhile_is_told_and_nothing_twice(keep: float | None) -> None:
    ids = ("finished", "removed", "running", "same")
    heard: dict[str, list[JobState]] = {id: [] for id in ids}
    told = asyncio.Condition()
    port = free_port()

    async def listen(client: JobsClient) -> None:
        async for event in client.subscribe_many([(T1, id) for id in ids]):
            async with told:
                heard[str(event.id)].append(event.state)
                told.notify_all()

    async def all_told(count: int) -> None:
        async with told:
            await told.wait_for(lambda: sum(map(len, heard.values())) == count)

    async with (
        asyncio.timeout(PATIENCE),
        JobsService("memory:", settings=Settings(notify_holdoff=0.01)) as served,
        JobsClient(f"http://127.0.0.1:{port}") as client,
        asyncio.TaskGroup() as tasks,
    ):
        await served.set_type_timeout(T1, TIMEOUT)
        await served.set_retention(T1, keep=keep)
        for id in ids:
            await served.add(T1, id)
        async with listening(served, port=port):
            listener = tasks.create_task(listen(client))
            await all_told(4)
        workers = {job.id: job for job in await served.accept_many(T1, 3)}
        assert sorted(map(str, workers)) == ["finished", "removed", "running"]
        await workers["finished"].finish(result=7)
        await served.remove(T1, "removed", force=True)
        async with listening(served, port=port):
            await all_told(7)
        async with listening(served, port=port):
            await workers["running"].finish()
            await served.remove(T1, "same")
            await listener
    assert heard == {
        "finished": [PENDING, FINISHED],
        "removed": [PENDING, REMOVED],
        "running": [PENDING, RUNNING, FINISHED],
        "same": [PENDING, REMOVED],
    }


async def test_a_result_is_waited_for_across_a_restart_of_the_server() -> None:
    port = free_port()
    async with (
        asyncio.timeout(PATIENCE),
        JobsService("memory:", settings=Settings(notify_holdoff=0.01)) as served,
        JobsClient(f"http://127.0.0.1:{port}") as client,
    ):
        await served.set_type_timeout(T1, TIMEOUT)
        await served.add(T1, "job")
        async with listening(served, port=port):
            async with client.subscribe(T1, "job") as events:
                await anext(events)
            waiting = asyncio.create_task(client.result(T1, "job"))
            await client.wait(T1, "job", PENDING)
        worker = await served.accept(T1)
        assert worker is not None
        await worker.finish(result="done")
        async with listening(served, port=port):
            assert await waiting == "done"
            with pytest.raises(JobNotFound):
                await client.result(T1, "no job")
            await served.add(T1, "other")
            with pytest.raises(TimeoutError, match="did not change within"):
                await client.wait(T1, "other", timeout=0.05)
