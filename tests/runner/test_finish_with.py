"""Handlers that finish their jobs in one transaction with their effects: both are there exactly once, or neither."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from jobs_service import JobsService, JobTransaction, RunningJob, WorkerConflict
from jobs_service.errors import CommitUnknown, InvalidJob, JobsError, JobTooLarge, TransactionConflict
from jobs_service.model import JobState
from jobs_service.store.memory import Faults, MemoryTransaction
from tests.runner.support import SOON, TYPE, add, ended, lose, opened, running, store_of, story
from tests.virtual_time import in_virtual_time

ONE = (1).to_bytes(8, "little")


async def count(jobs: JobsService, key: bytes = b"own/runs") -> int:
    """Return how often the effects took place."""

    async def look(tx: JobTransaction) -> int:
        return int.from_bytes(await tx.kv.get(key) or b"", "little")

    return await jobs.transact(look)


class Unsure(Faults):
    """Commits whose outcome nobody knows: each has happened, or has not, in turn."""

    def __init__(self) -> None:
        self.met = 0

    async def before_commit(self, transaction: MemoryTransaction) -> None:
        self.met += 1
        if self.met % 3 == 1:
            raise CommitUnknown("lost")
        if self.met % 3 == 2:
            raise TransactionConflict("another was first")

    async def after_commit(self, transaction: MemoryTransaction) -> None:
        raise CommitUnknown("done, and nobody knows")


@in_virtual_time
async def test_effects_take_place_once_although_commits_conflict_are_lost_or_unknown() -> None:
    async with opened() as jobs:

        @jobs.handler(TYPE)
        async def work(job: RunningJob) -> None:
            async def effects(tx: JobTransaction) -> None:
                tx.kv.add(b"own/runs", ONE)
                tx.kv.add(b"own/" + str(job.id).encode(), ONE)

            await job.finish_with(effects)

        async with running(jobs):
            ids = [str(number) for number in range(20)]
            await add(jobs)
            store_of(jobs).faults = unsure = Unsure()
            for id in ids:
                await jobs.add(TYPE, id)
            for id in ids:
                job = await ended(jobs, id)
                assert (story(job), job.attempts) == (["added", "started", "finished"], 1)
            store_of(jobs).faults = None
            assert [await count(jobs, b"own/" + id.encode()) for id in ids] == [1] * 20
            assert await count(jobs) == 20
        assert unsure.met > 40


class FirstConflicts(Faults):
    """The first commit conflicts."""

    def __init__(self) -> None:
        self.met = False

    async def before_commit(self, transaction: MemoryTransaction) -> None:
        if not self.met:
            self.met = True
            raise TransactionConflict("another was first")


@in_virtual_time
async def test_an_end_in_a_run_of_the_function_that_was_not_committed_is_none() -> None:
    async with opened() as jobs:
        runs: list[RunningJob] = []
        told = asyncio.Event()

        @jobs.handler(TYPE)
        async def work(job: RunningJob) -> None:
            async def effects(tx: JobTransaction) -> None:
                runs.append(job)
                if len(runs) == 1:
                    await tx.finish(job)
                tx.kv.add(b"own/runs", ONE)

            store_of(jobs).faults = FirstConflicts()
            await jobs.transact(effects)
            try:
                await jobs.remove(TYPE, job.id, force=True)
                await asyncio.sleep(SOON)
            except asyncio.CancelledError:
                told.set()
                raise

        async with running(jobs):
            await add(jobs, "a")
            async with asyncio.timeout(2 * SOON):
                await told.wait()
            assert len(runs) == 2


@pytest.mark.parametrize(
    "what",
    [ValueError("no"), WorkerConflict("of another job"), KeyboardInterrupt()],
    ids=["ValueError", "WorkerConflict", "KeyboardInterrupt"],
)
@in_virtual_time
async def test_what_the_function_raises_comes_to_the_handler_and_leaves_the_job_running(what: BaseException) -> None:
    async with opened() as jobs:

        @jobs.handler(TYPE)
        async def work(job: RunningJob) -> str:
            async def effects(tx: JobTransaction) -> None:
                tx.kv.add(b"own/runs", ONE)
                await tx.finish(job)
                raise what

            with pytest.raises(type(what)):
                await job.finish_with(effects)
            assert (await jobs.get(TYPE, job.id)).state is JobState.RUNNING
            await asyncio.sleep(200)
            await job.update("still its worker's")
            return "all the same"

        async with running(jobs):
            await add(jobs, "a")
            job = await ended(jobs, "a")
            assert (job.data, job.result) == ("still its worker's", "all the same")
            assert await count(jobs) == 0


@pytest.mark.parametrize(
    ("result", "expected"), [({1, 2}, InvalidJob), ("x" * 100_000, JobTooLarge)], ids=["a set", "too much"]
)
@in_virtual_time
async def test_a_result_that_cannot_be_stored_undoes_the_effects(result: object, expected: type[JobsError]) -> None:
    async with opened() as jobs:

        @jobs.handler(TYPE)
        async def work(job: RunningJob) -> str:
            async def effects(tx: JobTransaction) -> object:
                tx.kv.add(b"own/runs", ONE)
                return result

            with pytest.raises(expected):
                await job.finish_with(effects)
            return "without"

        async with running(jobs):
            await add(jobs, "a")
            assert (await ended(jobs, "a")).result == "without"
            assert await count(jobs) == 0


@in_virtual_time
async def test_a_loser_has_no_effects() -> None:
    async with opened() as jobs:

        @jobs.handler(TYPE)
        async def work(job: RunningJob) -> None:
            async def effects(tx: JobTransaction) -> int:
                tx.kv.add(b"own/runs", ONE)
                return job.attempts

            if job.attempts == 1:
                try:
                    await asyncio.sleep(1000)
                finally:
                    with pytest.raises(WorkerConflict):
                        await job.finish_with(effects)
            await job.finish_with(effects)

        async with running(jobs):
            await add(jobs, "a")
            await asyncio.sleep(5)
            await lose(jobs)
            assert (await ended(jobs, "a")).result == 2
            assert await count(jobs) == 1


async def finish_with_what_is_no_result(jobs: JobsService, job: RunningJob) -> None:
    await job.finish_with(lambda tx: {1, 2})


async def finish_and_roll_back(jobs: JobsService, job: RunningJob) -> None:
    async def work(tx: JobTransaction) -> None:
        await tx.finish(job)
        raise InvalidJob("not so")

    await jobs.transact(work)


@pytest.mark.parametrize("end", [finish_with_what_is_no_result, finish_and_roll_back])
@in_virtual_time
async def test_a_handler_whose_end_was_not_written_is_canceled_when_its_job_is_anothers(
    end: Callable[[JobsService, RunningJob], Awaitable[None]],
) -> None:
    canceled = asyncio.Event()
    async with opened() as jobs:

        @jobs.handler(TYPE)
        async def work(job: RunningJob) -> None:
            with pytest.raises(InvalidJob):
                await end(jobs, job)
            try:
                await asyncio.Event().wait()
            finally:
                canceled.set()

        async with running(jobs):
            await add(jobs, "a")
            await asyncio.sleep(5)
            await jobs.remove(TYPE, "a", force=True)
            await asyncio.sleep(SOON)
            assert canceled.is_set()
