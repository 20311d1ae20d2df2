"""Ends of runs and cancellations where a page of the store's file is damaged: in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from structlog.testing import capture_logs

from jobs_service import JobsService, Outcome, RunningJob, StoreDamaged
from jobs_service.layer.key_parts import pack_id
from jobs_service.store import memory
from jobs_service.store.mvcc import View
from tests.runner.support import SOON, TYPE, Gate, add, ended, now, opened, running, story
from tests.virtual_time import in_virtual_time


class Damage:
    """Keys whose values cannot be read, as on a damaged page of an embedded store."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.keys: set[bytes] = set()
        damaged = self.keys

        class DamagedView(View):
            def get(self, key: bytes) -> bytes | None:
                if key in damaged:
                    raise StoreDamaged("a page is damaged")
                return super().get(key)

        monkeypatch.setattr(memory, "View", DamagedView)

    def of_retention(self, jobs: JobsService) -> None:
        """Damage what says how long finished jobs are kept, which each finish reads."""
        self.keys.add(jobs._context.keyspace.of(TYPE).retention)

    def of_job(self, jobs: JobsService, id: str) -> None:
        """Damage the record of a job."""
        self.keys.add(jobs._context.keyspace.of(TYPE).data + pack_id(id))


@pytest.fixture
def damage(monkeypatch: pytest.MonkeyPatch) -> Damage:
    return Damage(monkeypatch)


@in_virtual_time
async def test_an_end_that_meets_damage_is_written_when_that_is_mended_and_the_job_runs_once(damage: Damage) -> None:
    ran: Counter[str] = Counter()
    async with opened() as jobs:

        @jobs.handler(TYPE, slots=4, timeout=6)
        async def work(job: RunningJob) -> str:
            await asyncio.sleep(1)
            ran[str(job.id)] += 1
            return "done"

        async with running(jobs):
            with capture_logs() as events:
                await add(jobs, "a", "b", timeout=6)
                damage.of_retention(jobs)
                await asyncio.sleep(60)
                damage.keys.clear()
                for id in ("a", "b"):
                    job = await ended(jobs, id)
                    assert (job.outcome, job.result, job.error) == (Outcome.SUCCEEDED, "done", None)
                    assert story(job) == ["added", "started", "finished"]
            assert ran == {"a": 1, "b": 1}
            assert not [event for event in events if event["log_level"] == "error"]


@in_virtual_time
async def test_damage_that_only_the_first_attempt_meets_does_not_turn_a_success_into_a_failure(damage: Damage) -> None:
    async with opened() as jobs:

        @jobs.handler(TYPE)
        async def work() -> str:
            damage.of_retention(jobs)
            asyncio.get_running_loop().call_later(0.01, damage.keys.clear)
            return "done"

        async with running(jobs):
            await add(jobs, "a")
            job = await ended(jobs, "a")
            assert (job.outcome, job.result, job.error) == (Outcome.SUCCEEDED, "done", None)


@in_virtual_time
async def test_an_end_that_still_meets_damage_when_the_runner_ends_keeps_it_no_longer_than_its_graces(
    damage: Damage,
) -> None:
    async with opened() as jobs:

        @jobs.handler(TYPE, grace=10, timeout=6)
        async def work() -> None:
            damage.of_retention(jobs)

        with capture_logs() as events:
            async with running(jobs):
                await add(jobs, "a", timeout=6)
                await asyncio.sleep(30)
                assert (await jobs.get(TYPE, "a")).attempts == 1
                began = now()
            assert now() - began == pytest.approx(3 * 10, abs=0.1)
        (lost,) = [event for event in events if event["event"] == "end_not_written"]
        assert (lost["id"], lost["reason"]) == ("a", "the runner has ended")
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("end of")]
        damage.keys.clear()


@in_virtual_time
async def test_no_more_jobs_are_accepted_while_damage_is_in_the_way_of_very_many_ends(damage: Damage) -> None:
    ran: set[str] = set()
    ids = [str(number) for number in range(300)]
    async with opened() as jobs:

        @jobs.handler(TYPE, slots=20)
        async def work(job: RunningJob) -> None:
            await asyncio.sleep(1)
            ran.add(str(job.id))

        async with running(jobs):
            await add(jobs, *ids)
            damage.of_retention(jobs)
            await asyncio.sleep(600)
            assert 100 <= len(ran) <= 140
            damage.keys.clear()
            for id in ids:
                assert (await ended(jobs, id)).attempts == 1


@in_virtual_time
async def test_the_cancellation_of_a_job_is_heeded_beside_one_on_a_damaged_page(damage: Damage) -> None:
    gate = Gate()
    left: dict[str, float] = {}
    async with opened() as jobs:

        @jobs.handler(TYPE, slots=2)
        async def work(job: RunningJob) -> None:
            try:
                await gate.pass_through()
            finally:
                left[str(job.id)] = now()

        async with running(jobs):
            await add(jobs, "damaged", "sound", timeout=600)
            await asyncio.sleep(1)
            damage.of_job(jobs, "damaged")
            await jobs.remove(TYPE, "sound")
            canceled = now()
            await asyncio.sleep(10)
            damage.keys.clear()
            assert left.keys() == {"sound"}
            assert left["sound"] - canceled <= SOON
            gate.open()
            assert story(await ended(jobs, "damaged")) == ["added", "started", "finished"]
