"""The daemon is killed under load and comes back: who uses a client notices a pause, and nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from jobs_service import JobsClient, JobsService, JobState
from tests.cli.support import HANG, free_port
from tests.http.test_kills import daemon
from tests.service.support import FAR_AWAY
from tests.stores import EVERY_LASTING_STORE, StoreKind

TYPE = "email"
BEFORE, AFTER = 30, 30
"""Jobs that are to be ended before the kill, and after it."""


@pytest.mark.parametrize("kind", EVERY_LASTING_STORE)
async def test_clients_go_on_after_a_kill_and_nothing_that_was_answered_is_lost(
    kind: StoreKind, tmp_path: Path
) -> None:
    store, port = kind.address_in(tmp_path), free_port()
    added: dict[str, int] = {}
    ended: set[str] = set()
    stop = asyncio.Event()
    changed = asyncio.Condition()

    async def add(client: JobsClient, number: int) -> None:
        count = 0
        while not stop.is_set():
            job = await client.add(TYPE, f"{number}-{count}", {"n": count})
            assert job.state is not JobState.REMOVED
            added[f"{number}-{count}"] = count
            count += 1
            if len(added) > 50 + 2 * len(ended):  # no more than there is to do
                await asyncio.sleep(0.01)

    async def work(client: JobsClient) -> None:
        while not stop.is_set():
            for job in await client.accept_many(TYPE, 5, timeout=0.5):
                await job.progress(1, 2)
                await job.finish(result=job.id)
                async with changed:
                    ended.add(str(job.id))
                    changed.notify_all()

    async def watch(client: JobsClient) -> list[JobState]:
        return [event.state async for event in client.subscribe(TYPE, "watched")]

    async def has_ended(count: int) -> None:
        async with changed:
            await changed.wait_for(lambda: len(ended) >= count)

    async with (
        asyncio.timeout(2 * HANG),
        JobsClient(f"http://127.0.0.1:{port}", timeout=HANG) as client,
        asyncio.TaskGroup() as tasks,
    ):
        with daemon(store, port, tmp_path) as process:
            await client.set_type_timeout(TYPE, 300)
            await client.add(TYPE, "watched", run_at=FAR_AWAY)
            watching = tasks.create_task(watch(client))
            assert (await client.wait(TYPE, "watched", JobState.PENDING)).run_at is not None
            waiting = tasks.create_task(client.result(TYPE, "watched"))
            load = [tasks.create_task(each) for each in (add(client, 0), add(client, 1), work(client), work(client))]
            await has_ended(BEFORE)
            process.kill()
            process.wait()
        before = len(ended)
        with daemon(store, port, tmp_path):
            await has_ended(before + AFTER)
            await client.resubmit(TYPE, "watched", run_at=None, priority=-1)
            assert await waiting == "watched"
            states = await watching
            assert (states[0], states[-1]) == (JobState.PENDING, JobState.FINISHED)
            stop.set()
            await asyncio.gather(*load)
    async with JobsService(store) as jobs:
        found = {job.id: job async for job in jobs.list(TYPE)}
    assert {id: found[id].data for id in added} == {id: {"n": count} for id, count in added.items()}
    assert {id for id in ended if found[id].result != id or found[id].attempts != 1} == set()
