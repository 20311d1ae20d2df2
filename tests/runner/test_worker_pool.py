"""A worker pool in virtual time: its slots, how it accepts jobs, how it waits, and options that change."""

from __future__ import annotations

import asyncio

import pytest

from jobs_service import JobsService, RunningJob
from jobs_service.model import HistoryKind, JobState, JobType
from tests.runner.support import (
    TYPE,
    Gate,
    add,
    all_ended,
    ended,
    moments,
    now,
    opened,
    running,
    stopped,
    store_of,
    story,
)
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
async def test_who_runs_several_handlers_is_told_once_when_all_have_started() -> None:
    started_at: list[float] = []
    async with opened() as jobs:
        for type in ("a", "b", "c"):

            @jobs.handler(type)
            async def work(job: RunningJob) -> None: ...

        run = asyncio.create_task(jobs.run(started=lambda: started_at.append(now())))
        await asyncio.sleep(1)
        assert len(started_at) == 1
        await stopped(run)


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


@in_virtual_time
async def test_handlers_of_several_types_share_a_process_and_each_has_its_own_slots() -> None:
    slots: dict[JobType, int] = {"a": 1, "b": 3, ("c", 1): 10}
    gates = {type: Gate() for type in slots}
    async with opened() as jobs:
        for type, count in slots.items():

            @jobs.handler(type, slots=count)
            async def work(job: RunningJob) -> None:
                await gates[job.type].pass_through()

        async with running(jobs):
            for type in slots:
                await add(jobs, *map(str, range(20)), type=type)
            await asyncio.sleep(1)
            assert {type: gate.inside for type, gate in gates.items()} == slots
            for gate in gates.values():
                gate.open()
            for type in slots:
                await all_ended(jobs, map(str, range(20)), type)
    assert {type: gate.most for type, gate in gates.items()} == slots


@in_virtual_time
async def test_a_handler_with_no_slots_takes_no_jobs() -> None:
    async with opened() as jobs:

        @jobs.handler(TYPE, slots=0)
        async def work(job: RunningJob) -> None: ...

        async with running(jobs):
            await add(jobs, "a")
            await asyncio.sleep(HOUR)
            assert story(await jobs.get(TYPE, "a")) == ["added"]


@in_virtual_time
async def test_a_job_that_waits_out_its_backoff_takes_no_slot() -> None:
    async with opened() as jobs:

        @jobs.handler(TYPE, jitter=0, slots=1)
        async def work(job: RunningJob) -> None:
            if job.id == "bad" and job.attempts == 1:
                raise ValueError

        async with running(jobs):
            await add(jobs, "bad", "good")
            good = await ended(jobs, "good")
            assert moments(good, HistoryKind.FINISHED) == [0.0]
            assert moments(await ended(jobs, "bad"), HistoryKind.STARTED) == [0.0, 30.0]


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
async def test_jobs_run_in_the_order_of_their_priorities() -> None:
    order: list[object] = []
    async with opened() as jobs:

        @jobs.handler(TYPE, slots=1)
        async def work(job: RunningJob) -> None:
            order.append(job.id)

        await add(jobs)
        for id, priority in [("late", 5), ("next", 0), ("after", 0), ("first", -1)]:
            await jobs.add(TYPE, id, priority=priority)
        async with running(jobs):
            await ended(jobs, "late")
    assert order == ["first", "next", "after", "late"]


@in_virtual_time
async def test_the_type_is_made_with_the_handlers_timeout_only_where_it_is_missing() -> None:
    async with opened() as jobs:
        await jobs.set_type_timeout("there", 7)

        @jobs.handler("missing", timeout=33)
        async def first(job: RunningJob) -> None: ...

        @jobs.handler("there", timeout=33)
        async def second(job: RunningJob) -> None: ...

        async with running(jobs):
            await asyncio.sleep(1)
            assert await jobs.get_type_timeout("missing") == 33
            assert await jobs.get_type_timeout("there") == 7


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


@in_virtual_time
async def test_a_job_that_comes_to_an_idle_runner_or_comes_due_is_run_at_once() -> None:
    async with opened(supervise=False) as jobs:

        @jobs.handler(TYPE)
        async def work(job: RunningJob) -> float:
            return now()

        async with running(jobs):
            await asyncio.sleep(10 * HOUR)
            await add(jobs, "now")
            await jobs.add(TYPE, "later", run_at=jobs._context.sources.wall_time() + 5000)
            await asyncio.sleep(6000)
            assert (await jobs.get(TYPE, "now")).result == 10 * HOUR
            assert (await jobs.get(TYPE, "later")).result == pytest.approx(10 * HOUR + 5000, abs=0.001)


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


@in_virtual_time
async def test_a_shorter_history_is_kept_from_the_next_event_on() -> None:
    async with opened() as jobs:

        @jobs.handler(TYPE, max_history=20, max_attempts=None, backoff=1)
        async def work(job: RunningJob) -> None:
            raise ValueError

        async with running(jobs):
            await add(jobs, "a")
            await asyncio.sleep(40)
            assert len((await jobs.get(TYPE, "a")).history) > 6
            jobs.configure(TYPE, max_history=4)
            await asyncio.sleep(40)
            assert story(await jobs.get(TYPE, "a")) == ["started", "crashed"] * 2
