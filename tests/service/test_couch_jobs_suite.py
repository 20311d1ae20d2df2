"""The 17 cases of couch_jobs' eunit suite (couch_jobs_tests.erl), one to one with their names, on every store.

Timeouts are shorter than its 2 and 3 s, and what that suite calls `{ok, Data, State}` is a Job here; `not_found`,
`{error, ...}`, `worker_conflict` and `canceled` are exceptions. Further differences stand where they are.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from jobs_service import (
    InvalidJob,
    Job,
    JobCanceled,
    JobEvent,
    JobExists,
    JobNotFound,
    JobsService,
    JobState,
    NoTypeTimeout,
    Outcome,
    Removal,
    WorkerConflict,
)
from tests.service.support import (
    J1,
    J2,
    LOST,
    T1,
    T2,
    TIMEOUT,
    accepted,
    busy,
    child_of_type,
    eventually,
    kill,
    listed,
    monitors_and_notifiers,
    node,
)

DATA = {"j1_data": 42}
PENDING, RUNNING, FINISHED, REMOVED = JobState.PENDING, JobState.RUNNING, JobState.FINISHED, JobState.REMOVED


def summary(job: Job | JobEvent) -> tuple[object, object, object]:
    """Return what couch_jobs' results say of a job."""
    return job.id, job.state, job.data


async def test_add_remove_pending(jobs: JobsService) -> None:
    await jobs.add(T1, J1, DATA)
    assert summary(await jobs.get(T1, J1)) == (J1, PENDING, DATA)
    assert await jobs.remove(T1, J1) is Removal.REMOVED
    await jobs.add(T1, J1, DATA)
    assert summary(await jobs.get(T1, J1)) == (J1, PENDING, DATA)
    await jobs.stop_and_remove(T1, J1, timeout=0.1)
    with pytest.raises(JobNotFound):
        await jobs.get(T1, J1)


async def test_add_remove_errors(jobs: JobsService) -> None:
    with pytest.raises(JobNotFound):
        await jobs.remove("bad_type", "1")
    with pytest.raises(InvalidJob):
        await jobs.add(T1, J1, {1: 2})
    with pytest.raises(NoTypeTimeout):
        await jobs.add("x", J1)
    await jobs.add(T1, J1)
    with pytest.raises(JobExists):
        await jobs.add(T1, J1)
    assert await jobs.remove(T1, J1) is Removal.REMOVED
    with pytest.raises(JobNotFound):
        await jobs.remove(T1, J1)


async def test_get_jobs(jobs: JobsService) -> None:
    await jobs.add(T1, J1, DATA)
    await jobs.add(T2, J2)

    assert summary(await jobs.get(T1, J1)) == (J1, PENDING, DATA)
    assert summary(await jobs.get(T2, J2)) == (J2, PENDING, None)

    assert [summary(job) for job in await listed(jobs, T1)] == [(J1, PENDING, DATA)]
    assert [summary(job) for job in await listed(jobs, T2)] == [(J2, PENDING, None)]
    assert await listed(jobs, "othertype") == []

    assert [(job.type, *summary(job)) for job in await listed(jobs)] == [
        (T1, J1, PENDING, DATA),
        (T2, J2, PENDING, None),
    ]
    await jobs.remove(T1, J1)
    assert [(job.type, *summary(job)) for job in await listed(jobs)] == [(T2, J2, PENDING, None)]
    await jobs.remove(T2, J2)
    assert await listed(jobs) == []


async def test_resubmit_as_job_creator(jobs: JobsService) -> None:
    await jobs.add(T1, J1, DATA)

    # Differs: a pending job is not flagged by a resubmit, it is going to run anyway.
    for _ in range(2):
        await jobs.resubmit(T1, J1)
        job = await jobs.get(T1, J1)
        assert (*summary(job), job.resubmit, job.priority) == (J1, PENDING, DATA, False, 0)

    for priority in ("a", "b"):
        await jobs.resubmit(T1, J1, priority=priority)
        job = await jobs.get(T1, J1)
        assert (*summary(job), job.resubmit, job.priority) == (J1, PENDING, DATA, False, priority)


async def test_type_timeouts_and_server(jobs: JobsService) -> None:
    assert await jobs.get_type_timeout(T1) == TIMEOUT

    # Differs: a type has a monitor while it has jobs to be watched over, and a notifier while it is subscribed to.
    assert monitors_and_notifiers(jobs) == (0, 0)
    async with busy(jobs, T1, T2):
        assert child_of_type(jobs, "notifiers", T1)["state"] == "running"
        await jobs.set_type_timeout("t3", 8)
        assert monitors_and_notifiers(jobs) == (2, 2)

    await jobs.clear_type_timeout("t3")
    with pytest.raises(NoTypeTimeout):
        await jobs.get_type_timeout("t3")


async def test_dead_notifier_restarts_jobs_server(jobs: JobsService) -> None:
    async with busy(jobs, T1, T2):
        assert node(jobs, "type server")["restarts"] == 0

        kill(f"notifier {T1!r}")

        # Killing a notifier kills the type server as well
        async def server_was_restarted() -> bool:
            server = node(jobs, "type server")
            return (server["restarts"], server["state"]) == (1, "running")

        async def both_run() -> bool:
            return monitors_and_notifiers(jobs) == (2, 2)

        await eventually(server_was_restarted)
        await eventually(both_run)


async def test_worker_accept_and_finish(jobs: JobsService) -> None:
    await jobs.add(T1, J1)

    worker = await accepted(jobs)
    assert worker.id == J1
    assert isinstance(worker.lock, bytes)

    assert summary(await jobs.get(T1, J1)) == (J1, RUNNING, None)
    result = {"result": "done"}
    await jobs.transact(lambda tx: tx.finish(worker, result))
    job = await jobs.get(T1, J1)
    assert summary(job) == (J1, FINISHED, result)
    assert job.outcome is Outcome.SUCCEEDED

    assert await jobs.remove(T1, J1) is Removal.REMOVED


async def test_worker_update(jobs: JobsService) -> None:
    await jobs.add(T1, J1)

    worker = await accepted(jobs)
    assert worker.id == J1

    await jobs.transact(lambda tx: tx.update(worker, 1))
    assert summary(await jobs.get(T1, J1)) == (J1, RUNNING, 1)

    await jobs.transact(lambda tx: tx.update(worker, 2))
    assert summary(await jobs.get(T1, J1)) == (J1, RUNNING, 2)

    await jobs.transact(lambda tx: tx.finish(worker, 3))
    assert summary(await jobs.get(T1, J1)) == (J1, FINISHED, 3)

    with pytest.raises(WorkerConflict):
        await jobs.transact(lambda tx: tx.update(worker, 4))

    assert await jobs.accept(T1, timeout=0) is None

    assert await jobs.remove(T1, J1) is Removal.REMOVED


async def test_resubmit_enqueues_job(jobs: JobsService) -> None:
    await jobs.add(T1, J1)

    first = await accepted(jobs)
    assert first.id == J1

    await jobs.transact(lambda tx: tx.resubmit(first))
    await jobs.transact(lambda tx: tx.finish(first, 1))
    assert summary(await jobs.get(T1, J1)) == (J1, PENDING, 1)

    second = await accepted(jobs)
    await jobs.transact(lambda tx: tx.finish(second, 2))
    assert summary(await jobs.get(T1, J1)) == (J1, FINISHED, 2)

    assert await jobs.remove(T1, J1) is Removal.REMOVED


async def test_add_custom_priority(jobs: JobsService) -> None:
    await jobs.add(T1, J1, priority=5)
    await jobs.add(T1, J2, priority=3)

    assert (await accepted(jobs)).id == J2
    assert (await accepted(jobs)).id == J1
    assert await jobs.accept(T1, timeout=0) is None


async def test_resubmit_custom_priority(jobs: JobsService) -> None:
    await jobs.add(T1, J1, priority=7)
    worker = await accepted(jobs)
    await jobs.transact(lambda tx: tx.resubmit(worker, priority=9))
    await jobs.transact(lambda tx: tx.finish(worker, 1))
    job = await jobs.get(T1, J1)
    assert (*summary(job), job.priority) == (J1, PENDING, 1, 9)


async def test_accept_max_priority(jobs: JobsService) -> None:
    await jobs.add(T1, J1, priority="5")
    await jobs.add(T1, J2, priority="3")
    assert await jobs.accept(T1, max_priority="2", timeout=0) is None
    assert (await accepted(jobs, max_priority="3")).id == J2
    assert (await accepted(jobs, max_priority="9")).id == J1


async def test_subscribe(jobs: JobsService) -> None:
    await jobs.add(T1, J1)

    async with jobs.subscribe(T1, J1) as first:
        assert summary(await anext(first)) == (J1, PENDING, None)
    with pytest.raises(StopAsyncIteration):  # left means unsubscribed
        await anext(first)

    async with jobs.subscribe(T1, J1) as events:
        assert summary(await anext(events)) == (J1, PENDING, None)

        worker = await accepted(jobs)
        with pytest.raises(TimeoutError):
            await jobs.wait(T1, J1, FINISHED, timeout=0.2)
        assert summary(await anext(events)) == (J1, RUNNING, None)

        # Differs: an update with new data while running is an event.
        await jobs.transact(lambda tx: tx.update(worker, 1))
        assert summary(await anext(events)) == (J1, RUNNING, 1)

        await jobs.transact(lambda tx: tx.finish(worker))
        assert summary(await anext(events)) == (J1, FINISHED, 1)

        # Differs: after the last event the subscription ends instead of being silent.
        with pytest.raises(StopAsyncIteration):
            await anext(events)

    # Differs: subscribing to a finished job gives its state as the first and last event.
    assert [summary(event) async for event in jobs.subscribe(T1, J1)] == [(J1, FINISHED, 1)]

    await jobs.remove(T1, J1)
    with pytest.raises(JobNotFound):
        await anext(jobs.subscribe(T1, J1))


async def test_subscribe_callback(jobs: JobsService) -> None:
    # Differs: there are no callbacks; a task that iterates does what one did.
    await jobs.add(T1, J1)
    heard: asyncio.Queue[tuple[object, object, JobState]] = asyncio.Queue()

    async def listen() -> None:
        async for event in jobs.subscribe(T1, J1):
            heard.put_nowait((event.type, event.id, event.state))

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(listen())
        assert await heard.get() == (T1, J1, PENDING)

        worker = await accepted(jobs)
        assert await heard.get() == (T1, J1, RUNNING)

        await jobs.transact(lambda tx: tx.finish(worker))
        assert await heard.get() == (T1, J1, FINISHED)


async def test_enqueue_inactive(jobs: JobsService) -> None:
    await jobs.set_type_timeout(T1, LOST)
    await jobs.add(T1, J1)
    worker = await accepted(jobs)
    assert (await jobs.get(T1, J1)).state is RUNNING

    event = await jobs.wait(T1, J1, PENDING, timeout=30)
    assert summary(event) == (J1, PENDING, None)

    assert summary(await jobs.get(T1, J1)) == (J1, PENDING, None)

    with pytest.raises(WorkerConflict):
        await jobs.transact(lambda tx: tx.update(worker, 1))
    with pytest.raises(WorkerConflict):
        await jobs.transact(lambda tx: tx.finish(worker))
    with pytest.raises(WorkerConflict):
        await jobs.transact(lambda tx: tx.resubmit(worker))


async def test_cancel_running_job(jobs: JobsService) -> None:
    await jobs.add(T1, J1)
    worker = await accepted(jobs)
    assert await jobs.remove(T1, J1) is Removal.CANCELED

    with pytest.raises(JobCanceled):
        await jobs.transact(lambda tx: tx.update(worker, 1))

    await jobs.transact(lambda tx: tx.finish(worker, 2))
    job = await jobs.get(T1, J1)
    assert summary(job) == (J1, FINISHED, 2)
    assert job.outcome is Outcome.CANCELED

    assert await jobs.remove(T1, J1) is Removal.REMOVED


async def test_stop_and_remove_running_job(jobs: JobsService) -> None:
    await jobs.add(T1, J1)
    worker = await accepted(jobs)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(jobs.stop_and_remove(T1, J1, timeout=10))

        # Differs: updates of a canceled job are refused, so both come before its removal or say so.
        with suppress(JobCanceled):
            await jobs.transact(lambda tx: tx.update(worker, 1))
            await jobs.transact(lambda tx: tx.update(worker, 2))

        await jobs.transact(lambda tx: tx.finish(worker, 3))

    with pytest.raises(JobNotFound):
        await jobs.get(T1, J1)
