"""Records that cannot be read, and index entries that point at nothing: set aside, and all else goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from jobs_service import (
    InvalidJob,
    JobNotFound,
    JobsService,
    JobState,
    JobTransaction,
    NewJob,
    RecordDamaged,
    Removal,
    StoreError,
)
from jobs_service.actors import notifier
from jobs_service.layer.keyspace import DATA, READY, SET_ASIDE
from tests.checker import assert_sound
from tests.service.support import (
    FAR_AWAY,
    J1,
    J2,
    LOST,
    PATIENCE,
    T1,
    accepted,
    contents,
    drained,
    finished,
    listed,
    running,
)
from tests.service.unreadable import (
    DAMAGE,
    PENDING,
    RUNNING,
    damage,
    in_several_states,
    keys_in,
    of_a_newer_version,
    put,
    with_broken_notes,
)

UNREADABLE = JobState.UNREADABLE


# who asks for it


@pytest.mark.parametrize("how", DAMAGE)
async def test_who_asks_for_an_unreadable_job_is_told_so_and_which_one_it_is(
    quiet: JobsService, how: Callable[[bytes], bytes]
) -> None:
    await quiet.add(T1, J1, {"a": 1})
    await damage(quiet, how=how)
    before = await contents(quiet)
    asked = [
        quiet.get(T1, J1),
        quiet.add(T1, J1),
        quiet.add(T1, J1, if_exists="ignore"),
        quiet.add(T1, J1, if_exists="resubmit"),
        quiet.add_many(T1, [NewJob(J2), NewJob(J1)], if_exists="ignore"),
        quiet.resubmit(T1, J1),
        quiet.remove(T1, J1),
        quiet.stop_and_remove(T1, J1, timeout=5),
        quiet.transact(lambda tx: tx.get(T1, J1)),
        quiet.transact(lambda tx: tx.resubmit(T1, J1, priority=5)),
    ]
    for call in asked:
        with pytest.raises(
            RecordDamaged, match=r"^job 't1'/'j1': a job's record .*; remove it with force=True"
        ) as caught:
            await call
        assert (caught.value.type, caught.value.id) == (T1, J1)
        assert "\n" not in str(caught.value)
        assert isinstance(caught.value, StoreError)
        assert not caught.value.retryable
    assert await contents(quiet) == before


@pytest.mark.parametrize("how", [*DAMAGE, with_broken_notes])
async def test_a_worker_whose_job_became_unreadable_is_told_so_and_writes_nothing(
    quiet: JobsService, how: Callable[[bytes], bytes]
) -> None:
    worker = await running(quiet)
    await damage(quiet, how=how)
    before = await contents(quiet)
    for call in (worker.finish(), worker.release(), quiet.transact(lambda tx: tx.finish(worker))):
        with pytest.raises(RecordDamaged, match=r"^job 't1'/'j1': a job's"):
            await call
    assert await contents(quiet) == before


async def test_data_that_is_no_json_is_told_to_who_looks_at_it(quiet: JobsService) -> None:
    await quiet.add(T1, J1, {"a": 1})
    await damage(quiet, how=lambda raw: raw[:-2] + b"??")
    job = await quiet.get(T1, J1)
    with pytest.raises(RecordDamaged, match=r"^job 't1'/'j1': a job's data is damaged"):
        job.data  # noqa: B018
    assert (await (await accepted(quiet)).finish({"new": 1})).data == {"new": 1}


async def test_operations_of_others_in_the_same_group_commit_are_unaffected(quiet: JobsService) -> None:
    await quiet.add_many(T1, [NewJob(f"{number}") for number in range(8)])
    await damage(quiet, "3")
    found = await asyncio.gather(
        *(quiet.resubmit(T1, f"{number}", priority=number) for number in range(8)),
        quiet.add(T1, "new"),
        return_exceptions=True,
    )
    assert [type(each).__name__ for each in found] == ["Job"] * 3 + ["RecordDamaged"] + ["Job"] * 5
    assert await drained(quiet) == ["0", "new", "1", "2", "4", "5", "6", "7"]


# removal


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("state", ["ready", "scheduled", "running", "finished"])
async def test_an_unreadable_job_is_removed_by_force_with_its_index_entries(
    quiet: JobsService, how: Callable[[bytes], bytes], state: str
) -> None:
    await quiet.set_retention(T1, keep=1000)
    if state == "finished":
        await finished(quiet)
    elif state == "running":
        await running(quiet)
    else:
        await quiet.add(T1, J1, run_at=FAR_AWAY if state == "scheduled" else None)
    await quiet.add(T1, J2, run_at=FAR_AWAY)
    await damage(quiet, how=how)
    assert await quiet.remove(T1, J1, force=True) is Removal.REMOVED
    with pytest.raises(JobNotFound):
        await quiet.get(T1, J1)
    with pytest.raises(JobNotFound):
        await quiet.remove(T1, J1, force=True)
    await assert_sound(quiet.store)
    await quiet.add(T1, J1)
    assert await drained(quiet) == [J1]


async def test_an_unreadable_job_is_removed_within_a_transaction_and_added_again(quiet: JobsService) -> None:
    await quiet.add(T1, J1, priority=3)
    await damage(quiet)

    async def again(tx: JobTransaction) -> None:
        await tx.remove(T1, J1, force=True)
        await tx.add(T1, J1, {"new": 1})

    await quiet.transact(again)
    await assert_sound(quiet.store)
    assert (await accepted(quiet)).data == {"new": 1}


async def test_what_is_found_of_a_job_among_many_is_removed_by_what_its_record_still_tells(quiet: JobsService) -> None:
    await quiet.add_many(T1, [NewJob(f"{number:04}") for number in range(1100)])
    await quiet.add(T1, J1)
    await damage(quiet, how=in_several_states)
    await quiet.remove(T1, J1, force=True)
    await assert_sound(quiet.store)


# telling of it


async def test_lists_and_counts_say_which_jobs_are_unreadable_and_go_on(quiet: JobsService) -> None:
    await quiet.add_many(T1, [NewJob(f"{number}", number) for number in range(4)])
    await damage(quiet, "1", of_a_newer_version)
    for found in (await listed(quiet), await listed(quiet, T1), await quiet.transact(lambda tx: tx.list(T1))):
        assert [job.id for job in found] == ["0", "1", "2", "3"]
        assert [job.state for job in found] == [PENDING, UNREADABLE, PENDING, PENDING]
        job = found[1]
        assert (job.data, job.priority, job.run_at, job.attempts, job.history, job.result) == (
            None,
            0,
            None,
            0,
            (),
            None,
        )
        assert (job.seq, job.outcome, job.resubmit, job.cancel, job.progress) == (None, None, False, False, None)
        assert job.error is not None
        assert job.error.type == "RecordDamaged"
        assert "version 04" in job.error.message
        assert repr(job) == "<Job 't1'/'1' unreadable>"
    assert [job.id for job in await listed(quiet, state="unreadable")] == ["1"]
    # What is counted knows of it once somebody comes across it.
    assert (await quiet.counts())[T1].pending == 4
    await drained(quiet)
    counts = (await quiet.counts())[T1]
    assert (counts.pending, counts.running, counts.unreadable) == (0, 3, 1)
    with pytest.raises(InvalidJob):
        await quiet.wait(T1, "0", "unreadable")


async def test_keys_of_jobs_that_do_not_parse_are_passed_over(quiet: JobsService) -> None:
    await quiet.add(T1, J1)
    await put(quiet, DATA, b"\x02never ends", type=None)
    await put(quiet, DATA, b"\x02\xff\x00")
    await put(quiet, DATA, b"")
    assert [job.id for job in await listed(quiet)] == [J1]
    assert [job.id for job in await listed(quiet, T1)] == [J1]


async def test_an_unreadable_record_is_logged_once(quiet: JobsService) -> None:
    await quiet.add_many(T1, [NewJob(J1), NewJob(J2)])
    await damage(quiet)
    with capture_logs() as events:
        for _ in range(3):
            with pytest.raises(RecordDamaged):
                await quiet.resubmit(T1, J1)
            await drained(quiet)
    told = [event for event in events if event["event"] == "record_unreadable"]
    assert [(event["type"], event["id"], event["log_level"]) for event in told] == [(T1, J1, "error")]


async def test_a_job_that_was_set_aside_is_put_back_when_its_record_can_be_read(jobs: JobsService) -> None:
    """As after an upgrade."""
    await jobs.add_many(T1, [NewJob(J1), NewJob(J2), NewJob("gone"), NewJob("still")])
    raw = await damage(jobs)
    await damage(jobs, "gone")
    await damage(jobs, "still")
    assert await drained(jobs) == [J2]
    assert len(await keys_in(jobs, SET_ASIDE)) == 3
    await damage(jobs, how=lambda _: raw)
    await jobs.remove(T1, "gone", force=True)
    async with JobsService(jobs.store, settings=jobs.settings):
        async with asyncio.timeout(PATIENCE):
            job = await jobs.accept(T1)
        assert job is not None
        assert job.id == J1
    assert len(await keys_in(jobs, SET_ASIDE)) == 1
    await assert_sound(jobs.store, damaged=[(T1, "still")])


# who is subscribed to it


async def test_who_waits_for_a_job_that_is_set_aside_hears_of_it(jobs: JobsService) -> None:
    for id in (J1, J2):
        await jobs.add(T1, id)
    async with asyncio.timeout(PATIENCE), jobs.subscribe(T1, J1) as events, jobs.subscribe(T1, J2) as others:
        for each in (events, others):
            assert (await anext(each)).state is PENDING
        await damage(jobs)
        worker = await accepted(jobs)
        assert worker.id == J2
        with pytest.raises(RecordDamaged, match=J1):
            await anext(events)
        assert (await anext(others)).state is RUNNING
        await worker.finish()
    await assert_sound(jobs.store, damaged=[(T1, J1)])


async def test_who_waits_for_a_running_job_that_is_set_aside_hears_of_it(quiet: JobsService) -> None:
    await quiet.set_type_timeout(T1, LOST)
    await quiet.add(T1, J1)
    await accepted(quiet)
    async with JobsService(quiet.store) as jobs, asyncio.timeout(PATIENCE), jobs.subscribe(T1, J1) as events:
        assert (await anext(events)).state is RUNNING
        await damage(jobs)
        with pytest.raises(RecordDamaged, match=J1):
            await anext(events)
    await assert_sound(quiet.store, damaged=[(T1, J1)])


async def test_the_removal_of_an_unreadable_job_is_an_event_like_any_other(
    jobs: JobsService, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whoever reads the record between the damage, which no transaction of the service has made, and the removal tells
    # its subscriber of the damage.
    monkeypatch.setattr(notifier, "_FEW", 0)
    await jobs.add(T1, J1)
    async with asyncio.timeout(PATIENCE), jobs.subscribe(T1, J1) as events:
        assert (await anext(events)).state is PENDING
        await damage(jobs)
        await jobs.remove(T1, J1, force=True)
        assert (await anext(events)).state is JobState.REMOVED


@pytest.mark.parametrize("value", [b"m", b"\x21" + b"\xff" * 8, b"\x21"])
async def test_a_ready_job_whose_time_cannot_be_read_is_due(quiet: JobsService, value: bytes) -> None:
    jobs = quiet
    await jobs.add(T1, J1)
    [entry] = await keys_in(jobs, READY)
    await put(jobs, READY, entry, value, type=None)
    assert await jobs.pending_count(T1, due_by=time.time()) == 1
    job = await jobs.accept(T1, timeout=PATIENCE)
    assert job is not None
    await job.finish()
    assert await jobs.accept(T1, timeout=0) is None
