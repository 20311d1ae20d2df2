"""Jobs that can be run, but whose run data cannot be read: they run, fail and take turns as all others do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from jobs_service import JobsService, JobState, RecordDamaged, RunningJob
from jobs_service.layer.key_parts import pack_id
from tests.runner.support import TYPE, add, all_ended, now, opened, running
from tests.virtual_time import in_virtual_time

Damage = Callable[[bytes], bytes]


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


DAMAGE = [more_events_than_there_are, an_event_of_no_kind]


async def add_damaged(jobs: JobsService, id: str, how: Damage) -> None:
    """Add a job, and write something else into its record."""
    await add(jobs, id, timeout=20)
    key = jobs._context.keyspace.of(TYPE).data + pack_id(id)

    async def write(tr: Any) -> None:
        raw = await tr.get(key)
        tr.set(key, how(raw))

    await jobs.store.transact(write)


@pytest.mark.parametrize("how", DAMAGE)
@in_virtual_time
async def test_a_run_that_fails_is_tried_as_often_as_it_should_be(how: Damage) -> None:
    async with opened() as jobs:
        ran: list[object] = []

        @jobs.handler(TYPE, max_attempts=3, backoff=1, timeout=20)
        async def work(job: RunningJob) -> None:
            ran.append(job.id)
            raise ValueError("in vain")

        await add_damaged(jobs, "damaged", how)
        await add(jobs, "sound")
        with capture_logs():
            async with running(jobs):
                await all_ended(jobs, ["sound"])
                await asyncio.sleep(1000)
        assert (ran.count("sound"), ran.count("damaged")) == (3, 3)
        assert (await jobs.get(TYPE, "damaged")).state is JobState.FINISHED
        await jobs.remove(TYPE, "damaged", force=True)


@pytest.mark.parametrize("how", DAMAGE)
@in_virtual_time
async def test_a_job_that_was_lost_with_its_worker_too_often_ends(how: Damage) -> None:
    async with opened() as jobs:
        await add_damaged(jobs, "damaged", how)
        with capture_logs():
            lost = await jobs.accept(TYPE, timeout=0)
            assert lost is not None
            await asyncio.sleep(100)

            @jobs.handler(TYPE, max_attempts=1, timeout=20)
            async def work(job: RunningJob) -> None:
                pytest.fail("it had its only attempt")

            async with running(jobs):
                await asyncio.sleep(100)
        assert (await jobs.get(TYPE, "damaged")).state is JobState.FINISHED
        await jobs.remove(TYPE, "damaged", force=True)


@pytest.mark.parametrize("how", [a_longer_history_than_there_is, as_many_events_as_are_kept])
@in_virtual_time
async def test_a_job_whose_end_cannot_be_written_runs_once_and_is_set_aside(how: Damage) -> None:
    async with opened() as jobs:
        ran: list[object] = []

        @jobs.handler(TYPE, max_attempts=None, timeout=20)
        async def work(job: RunningJob) -> str:
            ran.append(job.id)
            return "done"

        await add_damaged(jobs, "damaged", how)
        await add(jobs, "sound")
        with capture_logs() as events:
            async with running(jobs):
                await all_ended(jobs, ["sound"])
                await asyncio.sleep(1)
                noted = jobs._context.keyspace.of(TYPE).set_aside + pack_id("damaged")
                assert await jobs.store.read(lambda tr: tr.get(noted)) is not None
                await asyncio.sleep(1000)
        assert sorted(map(str, ran)) == ["damaged", "sound"]
        assert [event["id"] for event in events if event["event"] == "record_unreadable"] == ["damaged"]
        await jobs.remove(TYPE, "damaged", force=True)


@in_virtual_time
async def test_a_job_whose_end_no_worker_can_write_is_lost_once() -> None:
    async with opened() as jobs:
        await add_damaged(jobs, "damaged", a_longer_history_than_there_is)
        with capture_logs():
            job = await jobs.accept(TYPE)
            assert job is not None
            with pytest.raises(RecordDamaged):
                await job.finish(result="done")
            await asyncio.sleep(100)
            assert await jobs.accept(TYPE, timeout=0) is None
        await jobs.remove(TYPE, "damaged", force=True)


@pytest.mark.parametrize("max_jobs", [None, 2])
@pytest.mark.parametrize("how", DAMAGE)
@in_virtual_time
async def test_others_that_wait_for_a_turn_get_it(how: Damage, max_jobs: int | None) -> None:
    async with opened() as jobs:
        turns: dict[object, float] = {}

        @jobs.handler(TYPE, slots=2 if max_jobs is None else 4, continuous=True, interval=10, max_churn=2, timeout=20)
        async def work(job: RunningJob) -> None:
            turns.setdefault(job.id, now())
            await asyncio.sleep(10_000)

        await add_damaged(jobs, "damaged", how)
        await add(jobs, "a", "b", "c")
        with capture_logs() as events:
            async with running(jobs, max_jobs=max_jobs):
                await asyncio.sleep(50)
        assert {"a", "b", "c"} <= turns.keys()
        assert not [event for event in events if event["event"] == "child_crashed"]
        await jobs.remove(TYPE, "damaged", force=True)


@pytest.mark.parametrize("max_jobs", [None, 2])
@pytest.mark.parametrize("how", DAMAGE)
@in_virtual_time
async def test_who_has_run_longest_gives_way_first_whatever_is_known_of_the_others(
    how: Damage, max_jobs: int | None
) -> None:
    async with opened() as jobs:
        gave_way: list[object] = []

        @jobs.handler(TYPE, slots=2 if max_jobs is None else 4, continuous=True, interval=10, max_churn=1, timeout=20)
        async def work(job: RunningJob) -> None:
            try:
                await asyncio.sleep(10_000)
            except asyncio.CancelledError:
                gave_way.append(job.id)
                raise

        with capture_logs():
            async with running(jobs, max_jobs=max_jobs):
                await add(jobs, "first", timeout=20)
                await asyncio.sleep(2)
                await add_damaged(jobs, "damaged", how)
                await asyncio.sleep(2)
                await add(jobs, "waits")
                await asyncio.sleep(10)
                assert gave_way == ["first"]
        await jobs.remove(TYPE, "damaged", force=True)
