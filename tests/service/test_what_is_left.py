"""Leaving a service: what was begun has ended, and no thread and no file is left."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from jobs_service import JobsError, JobsService, NewJob, ServiceClosed, Settings, SupervisorFailed
from tests.service.support import T1, T2, eventually, kill, listed, node, waits


@pytest.fixture(autouse=True)
def no_store_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the environment of whoever runs the tests out of them."""
    monkeypatch.delenv("JOBS_SERVICE_STORE", raising=False)


# leaving


@pytest.mark.usefixtures("nothing_left_behind")
async def test_leaving_by_cancellation_stops_everything(address: str) -> None:
    tasks = asyncio.all_tasks()
    jobs = JobsService(address)
    entered = asyncio.Event()

    async def use() -> None:
        async with jobs:
            await jobs.set_type_timeout(T1, 10)
            entered.set()
            await jobs.accept(T1)

    task = asyncio.create_task(use())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not jobs.store.is_open
    assert asyncio.all_tasks() == tasks


@pytest.mark.usefixtures("nothing_left_behind")
async def test_cancellation_at_any_moment_of_entering_and_leaving_leaves_nothing_behind(address: str) -> None:
    tasks = asyncio.all_tasks()

    async def use(jobs: JobsService) -> None:
        async with jobs:
            pass

    for steps in range(12):
        jobs = JobsService(address)
        task = asyncio.create_task(use(jobs))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert not is_open(jobs)
        assert asyncio.all_tasks() == tasks


@pytest.mark.usefixtures("nothing_left_behind")
@pytest.mark.parametrize("own_store", [True, False])
async def test_leaving_refuses_what_other_tasks_begin_meanwhile_and_ends_what_they_have_begun(
    address: str, own_store: bool
) -> None:
    answered: list[str] = []
    refusals: list[JobsError] = []

    async def add_on_and_on(jobs: JobsService, name: str) -> None:
        for number in count():
            await jobs.add(T1, f"{name} {number}")
            answered.append(f"{name} {number}")

    async def add_all(jobs: JobsService) -> None:
        await jobs.add_many(T1, (NewJob(f"many {number}") for number in count()))

    async def wait_for_a_job(jobs: JobsService) -> None:
        await jobs.accept(T2)

    async def refused(work: Coroutine[Any, Any, None]) -> None:
        with pytest.raises(JobsError) as caught:
            await work
        refusals.append(caught.value)

    async with asyncio.timeout(30), AsyncExitStack() as stack, asyncio.TaskGroup() as others:
        keeper = JobsService(address, supervise=False)
        if not own_store:
            await stack.enter_async_context(keeper)
        async with JobsService(address if own_store else keeper.store) as jobs:
            await jobs.set_type_timeout(T1, 10)
            await jobs.set_type_timeout(T2, 10)
            for name in ("a", "b", "c"):
                others.create_task(refused(add_on_and_on(jobs, name)))
            others.create_task(refused(add_all(jobs)))
            for _ in range(3):
                others.create_task(refused(wait_for_a_job(jobs)))
            await waits(jobs, 3)

            async def all_have_begun(jobs: JobsService = jobs) -> bool:
                begun = {str(job.id).split()[0] for job in await listed(jobs, T1)}
                return begun == {"a", "b", "c", "many"} and bool(answered)

            await eventually(all_have_begun)
    assert len(refusals) == 7
    assert {*map(type, refusals)} == {ServiceClosed}
    if address != "memory:":
        async with JobsService(address, supervise=False) as jobs:
            for id in answered:
                assert (await jobs.get(T1, id)).id == id


def is_open(jobs: JobsService) -> bool:
    """Whether the service's store is open; it may have none when it was never entered."""
    try:
        return jobs.store.is_open
    except JobsError:
        return False


@pytest.mark.usefixtures("nothing_left_behind")
async def test_leaving_in_a_canceled_scope_of_anyio_stops_everything(address: str) -> None:
    jobs = JobsService(address)
    with anyio.CancelScope() as scope:
        async with jobs:
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert not jobs.store.is_open


async def test_a_type_server_that_keeps_dying_fails_the_service_and_says_why(address: str) -> None:
    settings = Settings(max_restarts=1, restart_period=60)

    async def use() -> None:
        async with JobsService(address, settings=settings) as jobs:
            for restarts in range(2):

                async def server_runs(restarts: int = restarts) -> bool:
                    server = node(jobs, "type server")
                    return (server["restarts"], server["state"]) == (restarts, "running")

                await eventually(server_runs)
                kill("type server")
            await asyncio.Event().wait()

    with pytest.raises(SupervisorFailed) as caught:
        await use()
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is not None


# fixtures


async def test_logs_name_the_embedded_store_by_its_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with capture_logs() as logged:
        async with JobsService("lmdb:data", supervise=False) as jobs:
            assert jobs.store.address == "lmdb:data"
    named = {entry["event"]: entry["store"] for entry in logged if "store" in entry}
    assert named == dict.fromkeys(["service_opened", "service_closed"], f"lmdb:{tmp_path / 'data'}")


async def test_a_type_server_does_not_outlive_the_supervisor_of_its_monitors(jobs: JobsService) -> None:
    async def has_begun_anew() -> bool:
        restarts: int = node(jobs, "type server")["restarts"]
        return restarts == 1

    kill("monitors")
    await eventually(has_begun_anew)
    assert node(jobs, "keyspace")["restarts"] == 0
