"""Heartbeats in virtual time: one transaction per tick for all running jobs of a type, whatever their handlers do."""

from __future__ import annotations

import asyncio

from jobs_service import RunningJob
from tests.runner.support import TYPE, Gate, Weather, add, all_ended, ended, opened, running, store_of, story
from tests.virtual_time import in_virtual_time

HOUR = 3600.0


@in_virtual_time
async def test_one_transaction_per_third_of_the_timeout_renews_all_running_jobs_of_a_type() -> None:
    gate = Gate()
    async with opened(supervise=False) as jobs:
        store = store_of(jobs)

        @jobs.handler(TYPE, slots=40, timeout=60)
        async def work(job: RunningJob) -> None:
            await gate.pass_through()

        async with running(jobs):
            await add(jobs, *map(str, range(40)))
            await asyncio.sleep(1)
            before, seqs = store.transactions, {job.seq async for job in jobs.list(TYPE)}
            for beat in range(1, 31):
                await asyncio.sleep(20)
                assert store.transactions - before == beat
                renewed = {job.seq async for job in jobs.list(TYPE)}
                assert len(renewed) == 40
                assert not renewed & seqs
                seqs = renewed


@in_virtual_time
async def test_a_job_whose_handler_was_asked_to_end_is_kept_alive_as_long_as_its_grace_lasts() -> None:
    async with opened() as jobs:

        @jobs.handler(TYPE, timeout=6, time_limit=10, grace=60, max_attempts=1)
        async def work(job: RunningJob) -> None:
            try:
                await asyncio.sleep(600)
            finally:
                await asyncio.sleep(40)

        async with running(jobs):
            await add(jobs, "a", timeout=6)
            assert story(await ended(jobs, "a")) == ["added", "started", "crashed", "finished"]


@in_virtual_time
async def test_a_runner_with_one_long_job_does_nothing_but_heartbeats() -> None:
    async with opened(supervise=False) as jobs:
        store = store_of(jobs)

        @jobs.handler(TYPE, timeout=60)
        async def work(job: RunningJob) -> None:
            await asyncio.sleep(20 * HOUR)

        async with running(jobs):
            await add(jobs, "a")
            await asyncio.sleep(1)
            before = store.transactions, store.reads
            await asyncio.sleep(3 * HOUR)
            assert (store.transactions - before[0], store.reads - before[1]) == (540, 0)


@in_virtual_time
async def test_the_rhythm_follows_the_types_own_timeout_also_when_that_is_changed() -> None:
    async with opened(supervise=False) as jobs:
        store = store_of(jobs)

        @jobs.handler(TYPE, timeout=60)
        async def work(job: RunningJob) -> None:
            await asyncio.sleep(1000)

        async with running(jobs):
            await add(jobs, "a", timeout=6)
            await asyncio.sleep(1)
            before = store.transactions
            await asyncio.sleep(60)
            assert store.transactions - before == 30
            await jobs.set_type_timeout(TYPE, 600)
            await asyncio.sleep(10)
            before = store.transactions
            await asyncio.sleep(400)
            assert store.transactions - before == 2


@in_virtual_time
async def test_no_job_is_lost_while_the_store_is_away_for_less_than_its_timeout() -> None:
    weather = Weather()
    async with opened() as jobs:

        @jobs.handler(TYPE, timeout=60)
        async def work(job: RunningJob) -> str:
            await asyncio.sleep(600)
            return "done"

        async with running(jobs):
            await add(jobs, "a", "b")
            await asyncio.sleep(1)
            store_of(jobs).faults = weather
            for _ in range(8):
                weather.leave()
                await asyncio.sleep(25)
                weather.come_back()
                await asyncio.sleep(35)
            for job in await all_ended(jobs, ["a", "b"]):
                assert job.result == "done"
                assert story(job) == ["added", "started", "finished"]


@in_virtual_time
async def test_a_job_is_kept_alive_while_its_handler_has_its_grace_after_the_runner_was_stopped() -> None:
    async with opened(supervise=False) as jobs, opened(store_of(jobs)):

        @jobs.handler(TYPE, timeout=6, grace=60)
        async def work(job: RunningJob) -> None:
            await asyncio.sleep(45)

        async with running(jobs):
            await add(jobs, "a", timeout=6)
            await asyncio.sleep(5)
        assert story(await jobs.get(TYPE, "a")) == ["added", "started", "finished"]
