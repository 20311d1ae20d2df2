"""Pausing a type: nobody accepts its jobs, in any process, until it is resumed; those that run go on."""

from __future__ import annotations

import asyncio

import pytest

from jobs_service import JobsService, JobState, JobTransaction, Removal
from tests.checker import assert_sound
from tests.service.support import FAR_AWAY, J1, J2, LONG_AGO, PATIENCE, T1, running
from tests.stores import StoreKind


async def test_a_paused_type_gives_no_jobs_however_one_asks(quiet: JobsService) -> None:
    await quiet.add(T1, J1)
    await quiet.add(T1, J2, run_at=LONG_AGO, priority=-3)
    await quiet.pause(T1)
    assert await quiet.accept(T1, timeout=0) is None
    assert await quiet.accept(T1, timeout=0.01, due_by=FAR_AWAY) is None
    assert await quiet.accept(T1, timeout=0, max_priority=-1) is None
    assert await quiet.accept(T1, timeout=0, spread=5) is None
    assert await quiet.accept_many(T1, 10, timeout=0) == []
    assert await quiet.transact(lambda tx: tx.accept(T1)) is None
    assert await quiet.transact(lambda tx: tx.accept_many(T1, 10)) == []
    assert await quiet.pending_count(T1) == 2


async def test_what_runs_goes_on_while_its_type_is_paused(quiet: JobsService) -> None:
    worker = await running(quiet)
    await quiet.pause(T1)
    await worker.update("more")
    await worker.progress(1, 2)
    assert (await worker.finish(result=7)).result == 7
    await quiet.resubmit(T1, J1)
    assert await quiet.accept(T1, timeout=0) is None
    assert await quiet.remove(T1, J1) is Removal.REMOVED


async def test_a_waiting_accept_wakes_when_its_type_is_resumed(quiet: JobsService) -> None:
    await quiet.add(T1, J1)
    await quiet.pause(T1)
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(quiet.accept(T1))
        await asyncio.sleep(0)
        await quiet.add(T1, J2, priority=9)  # wakes it: it looks, and waits on
        assert not waiting.done()
        await quiet.resume(T1)
        job = await waiting
    assert job is not None
    assert (job.id, job.state) == (J1, JobState.RUNNING)


async def test_all_services_on_a_store_see_the_pause_and_the_end_of_it(quiet: JobsService) -> None:
    async with JobsService(quiet.store, supervise=False) as other:
        await quiet.add(T1, J1)
        await other.pause(T1)
        assert await quiet.paused(T1) is True
        assert await quiet.accept(T1, timeout=0) is None
        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(quiet.accept(T1))
            await asyncio.sleep(0)
            await other.resume(T1)
        job = waiting.result()
    assert job is not None
    assert job.id == J1


# In one transaction


async def test_within_a_transaction_pausing_is_seen_at_once(quiet: JobsService) -> None:
    await quiet.add(T1, J1)

    async def work(tx: JobTransaction) -> list[object]:
        seen: list[object] = [await tx.paused(T1)]
        await tx.pause(T1)
        seen += [await tx.paused(T1), await tx.accept(T1)]
        await tx.resume(T1)
        job = await tx.accept(T1)
        assert job is not None
        return [*seen, await tx.paused(T1), job.id]

    assert await quiet.transact(work) == [False, True, None, False, J1]
    await assert_sound(quiet.store)


async def test_a_pause_conflicts_with_an_accept_that_is_under_way(store_kind: StoreKind, quiet: JobsService) -> None:
    if not store_kind.suspends:
        pytest.skip("its transactions come one after the other")
    await quiet.add(T1, J1)
    runs = 0

    async def work(tx: JobTransaction) -> str | None:
        nonlocal runs
        runs += 1
        job = await tx.accept(T1)
        if runs == 1:
            paused = asyncio.get_running_loop().create_task(quiet.pause(T1))
            while not paused.done():
                await tx.kv.snapshot.get(b"own/nothing")
        return None if job is None else str(job.id)

    assert await quiet.transact(work) is None
    assert runs == 2
    assert (await quiet.get(T1, J1)).state is JobState.PENDING
