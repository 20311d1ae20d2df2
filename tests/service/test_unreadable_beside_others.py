"""Unreadable jobs harm no other job: not in the queue, and not in the supervisor tree."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from jobs_service import JobsService, NewJob, NoTypeTimeout, RecordDamaged, RunningJob, WorkerConflict
from jobs_service.layer.key_parts import pack_id, pack_seconds
from jobs_service.layer.keyspace import ACTIVITY, ACTIVITY_TIMEOUT, EXPIRING, READY, RETENTION, SCHEDULED, SET_ASIDE
from tests.checker import assert_sound
from tests.service.support import (
    J1,
    J2,
    LONG_AGO,
    LOST,
    PATIENCE,
    T1,
    T2,
    accepted,
    drained,
    eventually,
    finished,
    listed,
    pass_moment,
    running,
)
from tests.service.unreadable import DAMAGE, FINISHED, PENDING, damage, keys_in, put, with_broken_notes
from tests.stores import settings_with

# the queue


@pytest.mark.parametrize("how", [*DAMAGE, with_broken_notes])
@pytest.mark.parametrize("spread", [1, 3, "adaptive"])
async def test_the_front_of_a_queue_is_not_blocked(
    quiet: JobsService, how: Callable[[bytes], bytes], spread: Any
) -> None:
    await quiet.add_many(T1, [NewJob(f"{number}") for number in range(6)])
    for id in "014":
        await damage(quiet, id, how)
    if how is not with_broken_notes:
        assert sorted(await drained(quiet, spread=spread)) == ["2", "3", "5"]
    else:
        found: list[Any] = []
        while (job := await quiet.accept(T1, timeout=0, spread=spread)) is not None:
            found.append(job.id)
        assert sorted(found) == ["2", "3", "5"]
    # They are out of the queue, and not read any more.
    assert await keys_in(quiet, READY) == []
    assert len(await keys_in(quiet, SET_ASIDE)) == 3
    await assert_sound(quiet.store, damaged=[(T1, id) for id in "014"])


async def test_a_transactions_accept_passes_over_unreadable_jobs(quiet: JobsService) -> None:
    await quiet.add_many(T1, [NewJob(f"{number}") for number in range(6)])
    for id in "0124":
        await damage(quiet, id)
    taken = await quiet.transact(lambda tx: tx.accept(T1))
    assert taken is not None
    assert taken.id == "3"
    assert [job.id for job in await quiet.transact(lambda tx: tx.accept_many(T1, 5))] == ["5"]
    await assert_sound(quiet.store, damaged=[(T1, id) for id in "0124"])


async def test_many_waiting_workers_get_what_is_behind_unreadable_jobs(quiet: JobsService) -> None:
    await quiet.add_many(T1, [NewJob(f"{number:02}") for number in range(30)])
    for number in range(20):
        await damage(quiet, f"{number:02}")
    async with asyncio.timeout(PATIENCE):
        jobs = await asyncio.gather(*(quiet.accept(T1) for _ in range(10)))
    assert sorted(job.id for job in jobs if job) == [f"{number}" for number in range(20, 30)]
    await assert_sound(quiet.store, damaged=[(T1, f"{number:02}") for number in range(20)])


@pytest.mark.parametrize(
    "rest",
    [b"", b"\x14", b"\x14\x33", b"\x02never ends", b"\x14\x33" + bytes(12), b"\x14\x33" + bytes(12) + b"\x02\xff\x00"],
)
async def test_entries_of_the_queue_that_do_not_parse_are_taken_out(quiet: JobsService, rest: bytes) -> None:
    await quiet.add_many(T1, [NewJob(J1), NewJob(J2)])
    await put(quiet, READY, rest)
    assert await drained(quiet) == [J1, J2]
    assert await keys_in(quiet, READY) == []


async def test_an_entry_that_points_at_another_place_does_not_give_the_job_a_second_one(quiet: JobsService) -> None:
    await quiet.add(T1, J1, priority=5)
    await put(quiet, READY, b"\x14\x33" + bytes(12) + pack_id(J1))
    await put(quiet, READY, b"\x14\x33" + bytes(12) + pack_id("nobody"))
    await quiet.add(T1, J2, priority=3)
    assert await drained(quiet) == [J2, J1]
    assert await keys_in(quiet, READY) == []


async def test_a_job_is_accepted_once_although_an_entry_says_that_it_is_scheduled_as_well(quiet: JobsService) -> None:
    await quiet.add(T1, J1)
    soon = time.time() + 50
    await put(quiet, SCHEDULED, pack_seconds(soon) + pack_id(J1))
    taken = await quiet.accept_many(T1, 5, due_by=soon + 50, timeout=0)
    assert [job.id for job in taken] == [J1]
    assert await keys_in(quiet, SCHEDULED) == []


# the supervisor tree


@pytest.mark.parametrize("how", [*DAMAGE, with_broken_notes])
async def test_scheduled_expiring_and_lost_jobs_beside_unreadable_ones_are_looked_after(
    jobs: JobsService, how: Callable[[bytes], bytes]
) -> None:
    soon = time.time() + 0.3
    await jobs.set_retention(T1, keep=0)
    await jobs.add_many(T1, [NewJob(f"scheduled-{number}", run_at=soon) for number in range(4)])
    workers: list[RunningJob] = []
    for number in range(4):
        workers.append(await running(jobs, f"lost-{number}", priority=-1))
    for number in (0, 2):
        await damage(jobs, f"scheduled-{number}", how)
        await damage(jobs, f"lost-{number}", how)
    await jobs.set_type_timeout(T1, LOST)
    await pass_moment(soon)

    async def all_are_pending() -> bool:
        states = {job.id: job.state for job in await listed(jobs)}
        return all(states[id] is PENDING for id in ("scheduled-1", "scheduled-3", "lost-1", "lost-3"))

    await eventually(all_are_pending)
    with pytest.raises(WorkerConflict):
        await workers[1].finish()

    async def all_are_set_aside() -> bool:
        left = await keys_in(jobs, ACTIVITY, SCHEDULED)
        return not [key for key in left if b"-0" in key or b"-2" in key]

    if how is not with_broken_notes:
        await eventually(all_are_set_aside)
    assert len(set(await drained(jobs)) & {"lost-1", "lost-3", "scheduled-1", "scheduled-3"}) == 4
    assert jobs.supervision()["restarts"] == 0
    unreadable = [(T1, f"{name}-{number}") for name in ("scheduled", "lost") for number in (0, 2)]
    await assert_sound(jobs.store, damaged=unreadable)


async def test_subscriptions_to_other_jobs_go_on(jobs: JobsService) -> None:
    await jobs.add(T1, J1)
    await jobs.add(T1, J2)
    async with jobs.subscribe(T1, J1) as hurt, jobs.subscribe(T1, J2) as other:
        assert (await anext(hurt)).state is PENDING
        assert (await anext(other)).state is PENDING
        await damage(jobs)
        with pytest.raises(RecordDamaged, match=r"^job 't1'/'j1': a job's record"):
            await jobs.wait(T1, J1, "finished", timeout=PATIENCE)
        with pytest.raises(RecordDamaged, match=r"^job 't1'/'j1': a job's record"):
            await anext(hurt)
        worker = await accepted(jobs)
        assert worker.id == J2
        await worker.finish()
        async with asyncio.timeout(PATIENCE):
            assert [event.state async for event in other][-1] is FINISHED


async def test_types_and_settings_that_do_not_parse_hurt_no_other_type(jobs: JobsService) -> None:
    await put(jobs, ACTIVITY_TIMEOUT, b"\x02never ends", b"\x14", type=None)
    await put(jobs, ACTIVITY_TIMEOUT, b"", b"\x21", type="damaged")
    await put(jobs, RETENTION, b"", b"\x99", type=T1)
    assert await jobs.types() == ["damaged", T1, T2]
    with pytest.raises(NoTypeTimeout):
        await jobs.get_type_timeout("damaged")
    await jobs.set_type_timeout("damaged", 5)
    await jobs.add("damaged", J1)
    await finished(jobs)
    assert (await jobs.get(T1, J1)).state is FINISHED


async def test_times_that_do_not_parse_are_taken_out_when_they_are_due(quiet: JobsService) -> None:
    jobs = quiet
    await put(jobs, SCHEDULED, b"\x21\x00")
    await put(jobs, EXPIRING, b"\x21\x00")
    await put(jobs, SCHEDULED, b"\xfe")
    await put(jobs, SCHEDULED, pack_seconds(LONG_AGO) + b"\x02\xff")
    await jobs.set_retention(T1, keep=0)
    await finished(jobs)
    await jobs.add(T1, J2, run_at=time.time() + 0.1)

    async def gone() -> bool:
        return len(await keys_in(jobs, SCHEDULED)) == 1 and not await keys_in(jobs, EXPIRING)

    async with JobsService(jobs.store, settings=settings_with(expiry_check_period=0.05)):
        await eventually(gone)
        assert await drained(jobs) == [J2]
