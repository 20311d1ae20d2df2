"""The notifier: a change costs what changed, and nothing is missed, whoever else follows the type or has died."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest

from jobs_service import JobEvent, JobsService, JobState, NewJob, Outcome, RunningJob, Settings
from jobs_service.actors import notifier
from jobs_service.errors import TransactionTooOld
from jobs_service.sources import Sources
from jobs_service.store import Transaction
from jobs_service.store.base import TransactionFunction
from jobs_service.store.memory import MemoryStore
from tests.actors import support
from tests.checker import assert_sound
from tests.layer.test_reads import Counted, CountedTransaction
from tests.virtual_time import VirtualTimeLoop, in_virtual_time

T = TypeVar("T")

T1 = "t1"
MANY = 3000


class CountedStore(MemoryStore):
    """A memory store that counts what is read.

    Attributes:
        counted: by all reads.
        largest: bytes that one of them has read.
    """

    def __init__(self, settings: Settings, sources: Sources) -> None:
        super().__init__(settings=settings, sources=sources)
        self.counted = Counted()
        self.largest = 0

    async def read(self, function: TransactionFunction[T]) -> T:
        async def counted(transaction: Transaction) -> T:
            before = self.counted.bytes
            try:
                return await function(CountedTransaction(transaction, self.counted))
            finally:
                self.largest = max(self.largest, self.counted.bytes - before)

        return await super().read(counted)


@asynccontextmanager
async def opened(store: MemoryStore | None = None, **changed: Any) -> AsyncIterator[JobsService]:
    """Open a service in virtual time."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    settings, sources = Settings(**changed), Sources(1, wall_time=loop.wall_time)
    async with JobsService(store or CountedStore(settings, sources), settings=settings, sources=sources) as jobs:
        yield jobs


def counted(jobs: JobsService) -> Counted:
    assert isinstance(jobs.store, CountedStore)
    return jobs.store.counted


class Follower:
    """Takes the events of many jobs as they come.

    Attributes:
        events: by job.
    """

    def __init__(self, jobs: JobsService, count: int) -> None:
        self.events: dict[Any, list[JobEvent]] = {f"{number:05}": [] for number in range(count)}
        self._task = asyncio.create_task(self._take(jobs))

    async def _take(self, jobs: JobsService) -> None:
        async with jobs.subscribe_many([(T1, id) for id in self.events]) as events:
            async for event in events:
                self.events[event.id].append(event)

    def states(self, id: Any) -> list[JobState]:
        return [event.state for event in self.events[id]]

    def stop(self) -> None:
        self._task.cancel()


async def running(jobs: JobsService, count: int) -> list[RunningJob]:
    """Add jobs and accept them all."""
    await jobs.set_type_timeout(T1, 3600)
    await jobs.add_many(T1, [NewJob(f"{number:05}") for number in range(count)])
    taken: list[RunningJob] = []
    while came := await jobs.accept_many(T1, 1000, timeout=0):
        taken += came
    return taken


async def rows(jobs: JobsService) -> tuple[bytes | None, int]:
    """Return the type's FOLLOWED row, and how many rows of changes it has."""
    keys = jobs._context.keyspace.of(T1)

    async def read(transaction: Transaction) -> tuple[bytes | None, int]:
        found = await transaction.get_range(keys.changes + b"\x00", keys.changes + b"\xff")
        return await transaction.get(keys.followed), len(found)

    return await jobs.store.read(read)


CHANGES: dict[str, Callable[[JobsService, RunningJob], Any]] = {
    "heartbeat": lambda jobs, job: job.update(),
    "data": lambda jobs, job: job.update("new"),
    "finish": lambda jobs, job: job.finish(),
    "release": lambda jobs, job: job.release(),
    "removal by force": lambda jobs, job: jobs.remove(T1, job.id, force=True),
    "cancellation": lambda jobs, job: jobs.remove(T1, job.id),
    "another job": lambda jobs, job: jobs.add(T1, "other"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_change_costs_what_changed_however_many_subscriptions_there_are(
    change: Callable[[JobsService, RunningJob], Any],
) -> None:
    @in_virtual_time
    async def scenario() -> None:
        async with opened() as jobs:
            first, *_ = await running(jobs, MANY)
            follower = Follower(jobs, MANY)
            await asyncio.sleep(100)
            assert all(states for states in follower.events.values())
            before = counted(jobs).keys
            await change(jobs, first)
            await asyncio.sleep(1)
            assert counted(jobs).keys - before < 40
            follower.stop()

    scenario()


@pytest.mark.parametrize("few", [0, 100], ids=["what has changed", "all"])
@in_virtual_time
async def test_every_way_a_job_can_change_reaches_a_subscriber_of_another_service(
    few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifier, "_FEW", few)
    async with opened() as jobs, opened(jobs.store) as other:  # type: ignore[arg-type]
        taken = await running(other, 8)
        await other.add(T1, "00008", "old", run_at=5e9)
        follower = Follower(jobs, 9)
        await asyncio.sleep(1)
        await taken[0].finish()
        await taken[1].release()
        await other.remove(T1, taken[2].id, force=True)
        await other.remove(T1, taken[3].id)
        await taken[3].finish()
        await taken[4].update("new")
        await other.resubmit(T1, taken[5].id)
        await taken[5].finish()
        async with asyncio.TaskGroup() as group:
            for job in taken[6:8]:
                group.create_task(job.finish(outcome=Outcome.FAILED))
        await other.resubmit(T1, "00008", data="new")
        await asyncio.sleep(1)
        last = [events[-1] for events in follower.events.values()]
        finished, pending, removed, runs = JobState.FINISHED, JobState.PENDING, JobState.REMOVED, JobState.RUNNING
        expected = [finished, pending, removed, finished, runs, pending, finished, finished, pending]
        assert [event.state for event in last] == expected
        assert (last[4].data, last[8].data) == ("new", "new")
        await other.remove(T1, "00008")
        await asyncio.sleep(1)
        assert follower.states("00008")[-1] is removed
        follower.stop()


@in_virtual_time
async def test_rows_of_changes_are_written_while_somebody_follows_and_removed_soon() -> None:
    async with opened() as jobs:
        taken = await running(jobs, 200)
        await taken[0].finish()
        assert await rows(jobs) == (None, 0)
        follower = Follower(jobs, 150)
        await asyncio.sleep(1)
        for job in taken[1:100]:
            await job.finish()
        generation, count = await rows(jobs)
        assert (generation is not None, count) == (True, 99)
        await assert_sound(jobs.store, now=jobs._context.sources.wall_time())
        await asyncio.sleep(30)
        assert await rows(jobs) == (generation, 0)
        follower.stop()
        # Nobody says goodbye: the type's monitor notices that its rows are left.
        await asyncio.sleep(100)
        for job in taken[100:]:
            await job.finish()
        await asyncio.sleep(250)
        assert await rows(jobs) == (None, 0)
        await assert_sound(jobs.store, now=jobs._context.sources.wall_time())


@in_virtual_time
@pytest.mark.parametrize("what", ["rows are removed", "nobody follows", "somebody else follows anew"])
async def test_a_follower_who_cannot_tell_what_has_changed_looks_at_all_its_jobs(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifier, "_FEW", 0)
    async with opened() as jobs:
        taken = await running(jobs, 5)
        follower = Follower(jobs, 5)
        await asyncio.sleep(1)
        keys = jobs._context.keyspace.of(T1)

        async def interfere(transaction: Transaction) -> None:
            if what == "rows are removed":
                transaction.stamp_value(keys.changes, b"", b"")
            elif what == "nobody follows":
                transaction.clear(keys.followed)
            else:
                transaction.stamp_value(keys.followed, b"", b"")

        async def finish_and_interfere() -> None:
            for job in taken[:3]:
                await jobs.transact(lambda tx, job=job: tx.finish(job))  # type: ignore[misc]
            end = keys.changes + b"\xff"

            async def forget(transaction: Transaction) -> None:
                transaction.clear_range(keys.changes + b"\x00", end)
                await interfere(transaction)

            await jobs.store.transact(forget)

        # In one turn of the loop's time: the notifier is held off meanwhile.
        await taken[4].update("first")
        await finish_and_interfere()
        await asyncio.sleep(1)
        await taken[4].update("second")
        await asyncio.sleep(1)
        assert [follower.states(f"{number:05}")[-1] for number in range(5)] == [JobState.FINISHED] * 3 + [
            JobState.RUNNING
        ] * 2
        await taken[3].finish()
        await asyncio.sleep(1)
        assert follower.states("00003")[-1] is JobState.FINISHED
        follower.stop()


@in_virtual_time
async def test_whoever_subscribes_while_a_look_goes_on_is_not_told_of_what_was_before_it() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    store = support.CountedStore(settings=Settings(), sources=Sources(1, wall_time=loop.wall_time))
    async with opened(store) as jobs:
        [job] = await running(jobs, 1)
        async with jobs.subscribe(T1, job.id) as first:
            assert (await anext(first)).data is None
            await asyncio.sleep(1)
            store.answer_after = 1.0
            await job.update("old")
            await asyncio.sleep(1.5)  # it is known after a second that there is news: now the notifier looks for it
            await job.update("new")
            async with jobs.subscribe(T1, job.id) as second:
                assert (await anext(first)).data == "old"
                assert (await anext(second)).data == "new"


class TiredStore(CountedStore):
    """A store to which a read of more than 30 rows takes too long."""

    async def read(self, function: TransactionFunction[T]) -> T:
        async def limited(transaction: Transaction) -> T:
            before = self.counted.keys
            result = await function(transaction)
            if self.counted.keys - before > 30:
                raise TransactionTooOld("transaction_too_old (1007): this one reads too much")
            return result

        return await super().read(limited)


@in_virtual_time
async def test_subscribers_are_told_by_a_store_to_which_many_records_take_too_long() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    store = TiredStore(Settings(), Sources(1, wall_time=loop.wall_time))
    async with opened(store) as jobs:
        workers = await running(jobs, 200)
        follower = Follower(jobs, 200)
        await asyncio.sleep(10)
        assert {tuple(follower.states(id)) for id in follower.events} == {(JobState.RUNNING,)}
        await asyncio.gather(*(worker.finish() for worker in workers[:20]))
        await asyncio.sleep(10)
        ended = [id for id in follower.events if follower.states(id)[-1] is JobState.FINISHED]
        assert len(ended) == 20
        follower.stop()
        assert all(child["restarts"] == 0 for child in jobs.supervision()["children"])
