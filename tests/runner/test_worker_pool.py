"""A worker pool in virtual time: its slots, how it accepts jobs, how it waits, and options that change."""

from __future__ import annotations

import asyncio

from jobs_service import JobsService, RunningJob
from jobs_service.model import JobState
from tests.runner.support import TYPE, Gate, add, all_ended, now, opened, running, stopped, store_of, story
from tests.virtual_time import in_virtual_time

HOUR = 3600.0


# Slots


@in_virtual_time
async def test_never_more_jobs_run_than_there_are_slots_and_none_stays_empty() -> None:
    running_now: set[str] = set()
    seen: list[int] = []
    async with opened() as jobs:

        @jobs.handler(TYPE, slots=3)
        async def work(job: RunningJob) -> None:
            running_now.add(str(job.id))
            seen.append(len(running_now))
            await asyncio.sleep(1 + int(str(job.id)) / 100)
            running_now.discard(str(job.id))

        ids = [str(number) for number in range(12)]
        async with running(jobs):
            await add(jobs, *ids)
            await all_ended(jobs, ids)
    assert max(seen) == 3
    assert seen[2:] == [3] * 10, "a slot stayed empty while jobs waited"


@in_virtual_time
async def test_who_runs_some_types_only_adds_no_ticks_of_others() -> None:
    async with opened() as jobs:

        @jobs.every(10, type="periodic")
        async def tick() -> None: ...

        @jobs.handler(TYPE)
        async def work(job: RunningJob) -> None: ...

        await jobs.set_type_timeout("periodic", 60)
        run = asyncio.create_task(jobs.run(types=[TYPE]))
        await asyncio.sleep(100)
        assert [job async for job in jobs.list("periodic")] == []
        await stopped(run)


@in_virtual_time
async def test_a_run_that_opens_the_service_itself_keeps_to_max_jobs() -> None:
    gate = Gate()
    async with opened() as founder:
        await add(founder, *map(str, range(5)))
        jobs = JobsService(founder.store, supervise=False)

        @jobs.handler(TYPE, slots=5)
        async def work(job: RunningJob) -> None:
            await gate.pass_through()

        run = asyncio.create_task(jobs.run(max_jobs=2))
        await asyncio.sleep(1)
        assert gate.inside == 2
        gate.open()
        await all_ended(founder, map(str, range(5)))
        assert gate.most == 2
        await stopped(run)


# Accepting


@in_virtual_time
async def test_jobs_are_accepted_and_ended_in_batches() -> None:
    gate = Gate()
    async with opened(supervise=False) as jobs:
        store = store_of(jobs)

        @jobs.handler(TYPE, slots=50)
        async def work(job: RunningJob) -> None:
            await gate.pass_through()

        async with running(jobs):
            await asyncio.sleep(1)
            before = store.transactions
            await add(jobs, *map(str, range(100)))
            await asyncio.sleep(1)
            assert gate.inside == 50
            # One adds them all, one accepts what there are slots for.
            assert store.transactions - before == 2
            before = store.transactions
            gate.open()
            await asyncio.sleep(0.5)
            assert await jobs.pending_count(TYPE) == 0
            assert [job.state async for job in jobs.list(TYPE)] == [JobState.FINISHED] * 100
            # The first half ends as the second is accepted, then the second half ends, then there is nothing more.
            assert store.transactions - before <= 4


@in_virtual_time
async def test_jobs_of_a_paused_type_wait_until_it_is_resumed() -> None:
    async with opened(supervise=False) as jobs:
        store = store_of(jobs)

        @jobs.handler(TYPE)
        async def work(job: RunningJob) -> float:
            return now()

        async with running(jobs):
            await jobs.pause(TYPE)
            await add(jobs, "a")
            await asyncio.sleep(1)
            before = store.transactions + store.reads
            await asyncio.sleep(HOUR)
            assert store.transactions + store.reads - before == 0
            assert story(await jobs.get(TYPE, "a")) == ["added"]
            resumed = now()
            await jobs.resume(TYPE)
            await asyncio.sleep(1)
            assert (await jobs.get(TYPE, "a")).result == resumed


# Waiting


@in_virtual_time
async def test_an_idle_runner_asks_the_store_for_nothing() -> None:
    async with opened(supervise=False) as jobs:
        store = store_of(jobs)
        for number in range(6):

            @jobs.handler(number, continuous=number % 2 == 0)
            async def work(job: RunningJob) -> None: ...

        async with running(jobs, max_jobs=50):
            await add(jobs, "far", type="other")
            await jobs.add(0, "far away", run_at=4_102_444_800)
            await asyncio.sleep(1)
            before = store.transactions, store.reads
            await asyncio.sleep(3 * HOUR)
            assert (store.transactions, store.reads) == before


@in_virtual_time
async def test_a_runner_that_is_listed_writes_its_row_and_hardly_reads() -> None:
    async with opened(supervise=False, process_heartbeat=15) as jobs:
        store = store_of(jobs)

        @jobs.handler(TYPE)
        async def work(job: RunningJob) -> None: ...

        async with running(jobs):
            await asyncio.sleep(1)
            before = store.transactions, store.reads
            await asyncio.sleep(3 * HOUR)
            writes, reads = store.transactions - before[0], store.reads - before[1]
            assert 0.8 * 720 <= writes <= 1.2 * 720
            assert reads <= 3  # each hour it looks for rows of processes that have ended


# The options that change


@in_virtual_time
async def test_more_slots_are_filled_at_once_and_of_fewer_the_excess_is_stopped_at_once() -> None:
    gate = Gate()
    async with opened() as jobs:

        @jobs.handler(TYPE, slots=2)
        async def work(job: RunningJob) -> None:
            await gate.pass_through()

        ids = [str(number) for number in range(8)]
        async with running(jobs):
            await add(jobs, *ids)
            await asyncio.sleep(1)
            assert gate.inside == 2
            jobs.configure(TYPE, slots=6)
            await asyncio.sleep(0.001)
            assert gate.inside == 6
            jobs.configure(TYPE, slots=1)
            await asyncio.sleep(0.001)
            assert gate.inside == 1
            assert await jobs.pending_count(TYPE) == 7
            stopped = [job for job in [await jobs.get(TYPE, id) for id in ids] if story(job)[-1] == "stopped"]
            assert len(stopped) == 5
            assert {job.attempts for job in stopped} == {0}
            jobs.configure(TYPE, slots=0)
            await asyncio.sleep(0.001)
            assert gate.inside == 0
            jobs.configure(TYPE, slots=8)
            gate.open()
            assert {job.attempts for job in await all_ended(jobs, ids)} == {1}


@in_virtual_time
async def test_slots_changed_in_the_turn_in_which_jobs_are_accepted_leave_none_behind() -> None:
    for turns in range(12):
        await change_slots_after(turns)


async def change_slots_after(turns: int) -> None:
    """Take slots away so many turns of the loop after jobs came for all of them."""
    gate = Gate()
    async with opened() as jobs:

        @jobs.handler(TYPE, slots=5)
        async def work(job: RunningJob) -> None:
            await gate.pass_through()

        ids = [str(number) for number in range(5)]
        async with running(jobs):
            await asyncio.sleep(1)
            await add(jobs, *ids)
            for _ in range(turns):
                await asyncio.sleep(0)
            jobs.configure(TYPE, slots=1)
            await asyncio.sleep(1)
            assert gate.inside == 1, f"after {turns} turns"
            jobs.configure(TYPE, slots=5)
            gate.open()
            await all_ended(jobs, ids)
