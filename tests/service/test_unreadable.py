"""Records that cannot be read, and index entries that point at nothing: set aside, and all else goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from httpx import AsyncClient
from structlog.testing import capture_logs

from jobs_service import (
    InvalidJob,
    JobNotFound,
    JobsService,
    JobState,
    JobTransaction,
    NewJob,
    NoTypeTimeout,
    RecordDamaged,
    Removal,
    RunningJob,
    StoreError,
    WorkerConflict,
)
from jobs_service.actors import notifier
from jobs_service.layer.keyspace import (
    ACTIVITY,
    ACTIVITY_TIMEOUT,
    COUNTS,
    EXPIRING,
    READY,
    RETENTION,
    SCHEDULED,
    SET_ASIDE,
    pack_id,
    pack_seconds,
)
from jobs_service.names import shown
from jobs_service.store import Transaction
from tests.checker import assert_sound
from tests.dashboard.support import fill
from tests.http.support import also_on_a_cluster, served
from tests.runner.support import TYPE, add, all_ended, opened
from tests.runner.support import running as run_by
from tests.service.support import (
    FAR_AWAY,
    J1,
    J2,
    LONG_AGO,
    LOST,
    PATIENCE,
    T1,
    T2,
    accepted,
    contents,
    drained,
    eventually,
    finished,
    listed,
    pass_moment,
    running,
)
from tests.service.unreadable import (
    DAMAGE,
    FINISHED,
    PENDING,
    RUNNING,
    damage,
    garbage,
    in_several_states,
    keys_in,
    keyspace_of,
    of_a_newer_version,
    put,
    with_broken_notes,
)
from tests.stores import QUICKEST_AND_CLUSTER, one_of, settings_with
from tests.virtual_time import in_virtual_time

# What they do is above the stores, which keep their contract: one, and the cluster, are enough.
store_kind = one_of(QUICKEST_AND_CLUSTER)


UNREADABLE = JobState.UNREADABLE
Change = Callable[[bytes], bytes]

GARBAGE = (b"", b"\x00", b"\xff" * 30, b"\x99garb\x00\x02\xff\xfe\x00", bytes(12))

_T1, _J1 = quote(shown(T1), safe=""), quote(shown(J1), safe="")
OF_ALL = (
    "/v1/types",
    "/v1/jobs",
    "/v1/counts",
    "/v1/failures",
    "/v1/stats",
    "/v1/ticks",
    "/v1/workers",
    "/readyz",
    "/metrics",
    "/",
    "/failures",
    "/periodic",
    "/system",
)
OF_ONE = (
    f"/v1/types/{_T1}",
    f"/v1/types/{_T1}/jobs",
    *(f"/v1/types/{_T1}/jobs?state={state}" for state in ("ready", "scheduled", "running", "failed", "finished")),
    f"/v1/types/{_T1}/jobs/{_J1}",
    f"/v1/types/{_T1}/redaction",
    f"/v1/types/{_T1}/active",
    f"/v1/types/{_T1}/oldest",
    f"/v1/types/{_T1}/throughput?since=0",
    f"/type?type={_T1}",
    f"/type?type={_T1}&state=failed",
    f"/job?type={_T1}&id={_J1}",
    f"/bulk/new?type={_T1}&action=remove&data=n%3D1",
    f"/search?q={_J1}",
    f"/export?type={_T1}",
)


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


@pytest.mark.parametrize("how", [garbage, with_broken_notes])
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


# removal


@pytest.mark.parametrize("how", [garbage, in_several_states])
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


async def test_a_job_that_was_set_aside_stays_so_until_it_is_removed(jobs: JobsService) -> None:
    await jobs.add_many(T1, [NewJob(J1), NewJob(J2)])
    await damage(jobs)
    assert await drained(jobs) == [J2]
    assert len(await keys_in(jobs, SET_ASIDE)) == 1
    counts = (await jobs.counts(T1))[T1]
    assert (counts.unreadable, counts.ready, counts.running) == (1, 0, 1)
    async with JobsService(jobs.store, settings=jobs.settings):
        assert await jobs.accept(T1, timeout=0.1) is None
    assert await jobs.remove(T1, J1, force=True) is Removal.REMOVED
    assert (await jobs.counts(T1))[T1].unreadable == 0
    await assert_sound(jobs.store)


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


# the queue


@pytest.mark.parametrize("how", [garbage, with_broken_notes])
@pytest.mark.parametrize("spread", [1, "adaptive"])
async def test_the_front_of_a_queue_is_not_blocked(
    quiet: JobsService, how: Callable[[bytes], bytes], spread: Any
) -> None:
    await quiet.add_many(T1, [NewJob(f"{number}") for number in range(6)])
    for id in "014":
        await damage(quiet, id, how)
    assert sorted(await drained(quiet, spread=spread)) == ["2", "3", "5"]
    # They are out of the queue, and not read any more.
    assert await keys_in(quiet, READY) == []
    assert len(await keys_in(quiet, SET_ASIDE)) == 3
    await assert_sound(quiet.store, damaged=[(T1, id) for id in "014"])


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


# the supervisor tree


@pytest.mark.parametrize("how", [garbage, with_broken_notes])
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


# jobs whose run data cannot be read


def run_data_at(raw: bytes) -> int:
    """Return where in a pending job's record the run data begin."""
    return 24 + int.from_bytes(raw[22:24], "big") + 4


def more_events_than_there_are(raw: bytes) -> bytes:
    at = run_data_at(raw) + 3
    return raw[:at] + bytes([raw[at] + 5]) + raw[at + 1 :]


def an_event_of_no_kind(raw: bytes) -> bytes:
    at = run_data_at(raw) + 14
    return raw[:at] + b"\xee" + raw[at + 1 :]


def a_longer_history_than_there_is(raw: bytes) -> bytes:
    at = run_data_at(raw) + 4
    return raw[:at] + (int.from_bytes(raw[at : at + 2], "big") + 9).to_bytes(2, "big") + raw[at + 2 :]


def as_many_events_as_are_kept(raw: bytes) -> bytes:
    at = run_data_at(raw) + 3
    return raw[:at] + bytes([19]) + raw[at + 1 :]


async def add_damaged(jobs: JobsService, id: str, how: Change) -> None:
    """Add a job, and write something else into its record."""
    await add(jobs, id, timeout=20)
    key = jobs._context.keyspace.of(TYPE).data + pack_id(id)

    async def write(tr: Any) -> None:
        raw = await tr.get(key)
        tr.set(key, how(raw))

    await jobs.store.transact(write)


@pytest.mark.parametrize("how", [more_events_than_there_are, an_event_of_no_kind])
@in_virtual_time
async def test_a_run_that_fails_is_tried_as_often_as_it_should_be(how: Change) -> None:
    async with opened() as jobs:
        ran: list[object] = []

        @jobs.handler(TYPE, max_attempts=3, backoff=1, timeout=20)
        async def work(job: RunningJob) -> None:
            ran.append(job.id)
            raise ValueError("in vain")

        await add_damaged(jobs, "damaged", how)
        await add(jobs, "sound")
        with capture_logs():
            async with run_by(jobs):
                await all_ended(jobs, ["sound"])
                await asyncio.sleep(1000)
        assert (ran.count("sound"), ran.count("damaged")) == (3, 3)
        assert (await jobs.get(TYPE, "damaged")).state is JobState.FINISHED
        await jobs.remove(TYPE, "damaged", force=True)


@pytest.mark.parametrize("how", [a_longer_history_than_there_is, as_many_events_as_are_kept])
@in_virtual_time
async def test_a_job_whose_end_cannot_be_written_runs_once_and_is_set_aside(how: Change) -> None:
    async with opened() as jobs:
        ran: list[object] = []

        @jobs.handler(TYPE, max_attempts=None, timeout=20)
        async def work(job: RunningJob) -> str:
            ran.append(job.id)
            return "done"

        await add_damaged(jobs, "damaged", how)
        await add(jobs, "sound")
        with capture_logs() as events:
            async with run_by(jobs):
                await all_ended(jobs, ["sound"])
                await asyncio.sleep(100)
                noted = jobs._context.keyspace.of(TYPE).set_aside + pack_id("damaged")
                assert await jobs.store.read(lambda tr: tr.get(noted)) is not None
                await asyncio.sleep(1000)
        assert sorted(map(str, ran)) == ["damaged", "sound"]
        assert [event["id"] for event in events if event["event"] == "record_unreadable"] == ["damaged"]
        await jobs.remove(TYPE, "damaged", force=True)


# rows that nobody wrote


async def refused(client: AsyncClient, *paths: str) -> list[tuple[str, int, str]]:
    """Return which of these are answered with an error of the server."""
    answers = [(path, await client.get(path)) for path in paths]
    return [(path, answer.status_code, answer.text[:300]) for path, answer in answers if answer.status_code >= 500]


@also_on_a_cluster
async def test_rows_that_nobody_wrote_are_in_nobodys_way() -> None:
    async with served() as (jobs, client):
        await fill(jobs, T1)
        await jobs.add(T1, J1, {"n": 1})
        await write_garbage(jobs)
        assert await refused(client, *OF_ALL, *OF_ONE) == []
        added = await client.post(f"/v1/types/{_T1}/jobs", json={"id": "new"})
        assert added.status_code == 201, added.text
        accepted = await client.post(f"/v1/types/{_T1}/accept", json={"limit": 5, "timeout": 0})
        assert accepted.json()["jobs"], accepted.text


async def write_garbage(jobs: JobsService) -> None:
    """Write rows of all sections that nobody would have written, beside those that are there."""
    of = await keyspace_of(jobs)
    longest = jobs.store.limits.key

    async def write(tr: Transaction) -> None:
        for section in {*of.sections[1:]} - {of.sections[COUNTS]}:
            for row in GARBAGE[1:]:
                for key in (section + row, section + of.of(T1).packed + row):
                    if len(key) <= longest and await tr.get(key) is None:
                        tr.set(key, row)

    await jobs.store.transact(write)
