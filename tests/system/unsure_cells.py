"""Every cell of the operations table, played on a stage where operations meet their fates beside others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeAlias, TypeVar

import pytest

from jobs_service import (
    Job,
    JobCanceled,
    JobExists,
    JobNotFound,
    JobsService,
    JobState,
    JobTransaction,
    NewJob,
    Outcome,
    Removal,
    RunningJob,
    WorkerConflict,
)
from tests.unsure import Fate, Fates

T = TypeVar("T")
T1 = "t1"
ONE = (1).to_bytes(8, "little")
PENDING, RUNNING, FINISHED = JobState.PENDING, JobState.RUNNING, JobState.FINISHED


class Stage:
    """A service whose next operation meets its fates together with those of others.

    Attributes:
        jobs: the service.
        fates: of the store's commits.
    """

    def __init__(self, jobs: JobsService, fates: Fates, planned: list[Fate]) -> None:
        self.jobs = jobs
        self.fates = fates
        self._planned = planned
        self._count = 0

    async def act(self, operation: Awaitable[T]) -> T:
        """Do something in one group commit with others, which must find that their own operations went well."""
        self._count += 1
        name = f"neighbour {self._count}"
        jobs = self.jobs
        await jobs.set_type_timeout("others", 60)
        await jobs.add_many("others", [NewJob(f"{name} {role}") for role in ("worked", "finished", "removed")])
        worked, finished, _ = await jobs.accept_many("others", 3, timeout=0)
        await jobs.remove("others", f"{name} removed", force=True)
        await jobs.add("others", f"{name} removed", run_at=4e9)
        self.fates.plan(self._planned)
        added, result, updated, ended, removed = await asyncio.gather(
            jobs.add("others", f"{name} added", "new"),
            _caught(operation),
            worked.update("updated"),
            finished.finish("finished"),
            jobs.remove("others", f"{name} removed"),
        )
        assert not self.fates.coming, "the fates were not met"
        assert (added.state, updated.data, ended.state, removed) == (PENDING, "updated", FINISHED, Removal.REMOVED)
        assert (await jobs.get("others", f"{name} added")).data == "new"
        assert (await jobs.get("others", f"{name} worked")).data == "updated"
        assert (await jobs.get("others", f"{name} finished")).data == "finished"
        with pytest.raises(JobNotFound):
            await jobs.get("others", f"{name} removed")
        for job in await jobs.accept_many("others", 10, timeout=0):
            assert job.id == added.id
            await job.finish()
        if isinstance(result, BaseException):
            raise result
        return result

    async def accept(self) -> RunningJob:
        """Accept the job that must be there."""
        job = await self.jobs.accept(T1, timeout=0)
        assert job is not None
        return job

    async def running(self, data: Any = None) -> RunningJob:
        """Return a running job."""
        await self.jobs.add(T1, "a", data)
        return await self.accept()

    async def runs_left(self) -> int:
        """Run all that is pending, and return how many runs that took."""
        runs = 0
        while (job := await self.jobs.accept(T1, timeout=0)) is not None:
            await job.finish()
            runs += 1
        return runs


async def _caught(operation: Awaitable[T]) -> T | Exception:
    try:
        return await operation
    except Exception as error:
        return error


Cell: TypeAlias = Callable[[Stage], Coroutine[Any, Any, None]]
"""Plays one cell of the operations table."""


async def add_missing(stage: Stage) -> None:
    job = await stage.act(stage.jobs.add(T1, "a", "data", priority=2))
    assert (job.state, job.data, job.priority, job.resubmit) == (PENDING, "data", 2, False)
    assert await stage.runs_left() == 1


async def add_scheduled(stage: Stage) -> None:
    job = await stage.act(stage.jobs.add(T1, "a", run_at=4e9))
    assert (job.state, await stage.jobs.pending_count(T1)) == (PENDING, 1)
    assert await stage.runs_left() == 0


async def add_existing(stage: Stage) -> None:
    await stage.jobs.add(T1, "a", "old")
    with pytest.raises(JobExists):
        await stage.act(stage.jobs.add(T1, "a", "new"))
    assert (await stage.jobs.get(T1, "a")).data == "old"


async def add_or_ignore(stage: Stage) -> None:
    await stage.jobs.add(T1, "a", "old")
    assert (await stage.act(stage.jobs.add(T1, "a", "new", if_exists="ignore"))).data == "old"
    assert await stage.runs_left() == 1


async def add_or_resubmit_missing(stage: Stage) -> None:
    job = await stage.act(stage.jobs.add(T1, "a", "new", if_exists="resubmit"))
    assert (job.state, job.data, job.resubmit) == (PENDING, "new", False)
    assert await stage.runs_left() == 1


async def add_or_resubmit_pending(stage: Stage) -> None:
    await stage.jobs.add(T1, "a", "old", priority=1)
    job = await stage.act(stage.jobs.add(T1, "a", "new", priority=3, if_exists="resubmit"))
    assert (job.state, job.data, job.priority, job.resubmit) == (PENDING, "new", 3, False)
    assert await stage.runs_left() == 1


async def resubmit_running(stage: Stage) -> None:
    worker = await stage.running("kept")
    job = await stage.act(stage.jobs.resubmit(T1, "a", data="new", priority=3))
    assert (job.state, job.data, job.resubmit) == (RUNNING, "kept", True)
    await worker.finish()
    assert await stage.runs_left() == 1


async def resubmit_finished(stage: Stage) -> None:
    await (await stage.running()).finish()
    job = await stage.act(stage.jobs.resubmit(T1, "a", data="new"))
    assert (job.state, job.data, job.outcome, job.resubmit) == (PENDING, "new", None, False)
    assert await stage.runs_left() == 1


async def resubmit_missing(stage: Stage) -> None:
    with pytest.raises(JobNotFound):
        await stage.act(stage.jobs.resubmit(T1, "a"))


async def remove_pending(stage: Stage) -> None:
    await stage.jobs.add(T1, "a")
    assert await stage.act(stage.jobs.remove(T1, "a")) is Removal.REMOVED
    assert [job async for job in stage.jobs.list(T1)] == []


async def remove_running(stage: Stage) -> None:
    worker = await stage.running()
    assert await stage.act(stage.jobs.remove(T1, "a")) is Removal.CANCELED
    assert (await worker.finish()).outcome is Outcome.CANCELED


async def remove_running_by_force(stage: Stage) -> None:
    worker = await stage.running()
    assert await stage.act(stage.jobs.remove(T1, "a", force=True)) is Removal.REMOVED
    with pytest.raises(WorkerConflict):
        await worker.finish()


async def remove_finished(stage: Stage) -> None:
    await (await stage.running()).finish()
    assert await stage.act(stage.jobs.remove(T1, "a")) is Removal.REMOVED
    assert [job async for job in stage.jobs.list(T1)] == []


async def remove_missing(stage: Stage) -> None:
    with pytest.raises(JobNotFound):
        await stage.act(stage.jobs.remove(T1, "a"))


async def accept_one(stage: Stage) -> None:
    await stage.jobs.add_many(T1, [NewJob("a"), NewJob("b")])
    job = await stage.act(stage.jobs.accept(T1, timeout=0))
    assert job is not None
    assert (job.id, await stage.jobs.active_ids(T1)) == ("a", ["a"])
    assert (await job.finish()).state is FINISHED
    assert await stage.runs_left() == 1


async def accept_by_several_workers(stage: Stage) -> None:
    await stage.jobs.add_many(T1, [NewJob("a"), NewJob("b"), NewJob("c")])
    accepting = asyncio.gather(*(stage.jobs.accept(T1, timeout=0, spread=spread) for spread in (1, 1, 5)))
    workers = await stage.act(accepting)
    assert sorted(str(worker.id) for worker in workers if worker is not None) == ["a", "b", "c"]
    for worker in workers:
        assert worker is not None
        await worker.finish()
    assert await stage.jobs.active_ids(T1) == []


async def accept_while_waiting(stage: Stage) -> None:
    waiting = asyncio.create_task(stage.jobs.accept(T1))
    await asyncio.sleep(1)
    await stage.act(stage.jobs.add(T1, "a"))
    worker = await waiting
    assert worker is not None
    assert await stage.jobs.active_ids(T1) == ["a"]
    await worker.finish()


async def accept_many(stage: Stage) -> None:
    await stage.jobs.add_many(T1, [NewJob(f"{number}") for number in range(5)])
    taken = await stage.act(stage.jobs.accept_many(T1, 3, timeout=0, spread=4))
    assert len(taken) == 3
    assert sorted(await stage.jobs.active_ids(T1)) == sorted(job.id for job in taken)
    for job in taken:
        await job.finish()
    assert await stage.runs_left() == 2


async def accept_a_scheduled_job(stage: Stage) -> None:
    await stage.jobs.add_many(T1, [NewJob("a", run_at=1e9), NewJob("b", run_at=1e9 + 1)])
    worker = await stage.act(stage.jobs.accept(T1, timeout=0))
    assert worker is not None
    assert (worker.id, await stage.jobs.pending_count(T1)) == ("a", 1)
    await worker.finish()
    assert await stage.runs_left() == 1


async def update(stage: Stage) -> None:
    worker = await stage.running("old")
    assert (await stage.act(worker.update("new"))).data == "new"
    assert (await worker.finish()).data == "new"


async def update_canceled(stage: Stage) -> None:
    worker = await stage.running("old")
    await stage.jobs.remove(T1, "a")
    with pytest.raises(JobCanceled):
        await stage.act(worker.update("new"))
    assert (await worker.finish()).data == "old"


async def update_by_a_stale_worker(stage: Stage) -> None:
    stale = await stage.running()
    await stale.release()
    worker = await stage.accept()
    with pytest.raises(WorkerConflict):
        await stage.act(stale.update("stale"))
    assert (await worker.finish()).data is None


async def finish(stage: Stage) -> None:
    worker = await stage.running()
    job = await stage.act(worker.finish("result", outcome=Outcome.FAILED))
    assert (job.state, job.data, job.outcome) == (FINISHED, "result", Outcome.FAILED)
    with pytest.raises(WorkerConflict):
        await worker.finish("again")
    assert await stage.runs_left() == 0


async def finish_flagged(stage: Stage) -> None:
    worker = await stage.running()
    await stage.jobs.resubmit(T1, "a")
    job = await stage.act(worker.finish("result"))
    assert (job.state, job.resubmit) == (PENDING, False)
    assert await stage.runs_left() == 1


async def finish_canceled(stage: Stage) -> None:
    worker = await stage.running()
    await stage.jobs.remove(T1, "a")
    assert (await stage.act(worker.finish("last"))).outcome is Outcome.CANCELED


async def finish_twice(stage: Stage) -> None:
    worker = await stage.running()
    await worker.finish("result")
    with pytest.raises(WorkerConflict):
        await stage.act(worker.finish("again"))
    assert (await stage.jobs.get(T1, "a")).data == "result"


async def finish_twice_at_the_same_time(stage: Stage) -> None:
    worker = await stage.running()
    both = asyncio.gather(_caught(worker.finish("one")), _caught(worker.finish("other")))
    first, second = await stage.act(both)
    assert isinstance(first, Job)
    assert isinstance(second, WorkerConflict)
    assert (await stage.jobs.get(T1, "a")).data == "one"


async def resubmit_by_the_worker(stage: Stage) -> None:
    worker = await stage.running()
    assert bool((await stage.act(worker.resubmit(priority=3))).resubmit)
    assert (await worker.finish()).priority == 3
    assert await stage.runs_left() == 1


async def release(stage: Stage) -> None:
    worker = await stage.running()
    assert (await stage.act(worker.release())).state is PENDING
    assert await stage.runs_left() == 1


async def release_canceled(stage: Stage) -> None:
    worker = await stage.running()
    await stage.jobs.remove(T1, "a")
    assert (await stage.act(worker.release())).outcome is Outcome.CANCELED


async def effects_without_a_job(stage: Stage) -> None:
    async def count(tx: JobTransaction) -> bytes | None:
        before = await tx.kv.get(b"effects/count")
        tx.kv.add(b"effects/count", ONE)
        return before

    assert await stage.act(stage.jobs.transact(count)) is None
    assert await stage.jobs.transact(count) == ONE


async def effects_beside_several_operations(stage: Stage) -> None:
    worker = await stage.running()

    async def function(tx: JobTransaction) -> tuple[Job, RunningJob | None]:
        tx.kv.add(b"effects/count", ONE)
        await tx.add(T1, "b")
        await tx.update(worker, "mine")
        return await tx.finish(worker), await tx.accept(T1)

    ended, taken = await stage.act(stage.jobs.transact(function))
    assert taken is not None
    assert (ended.state, ended.data, taken.id) == (FINISHED, "mine", "b")
    assert await stage.jobs.store.read(lambda tr: tr.get(b"effects/count")) == ONE
    await taken.finish()
    assert await stage.runs_left() == 0


CELLS: tuple[Cell, ...] = (
    add_missing,
    add_scheduled,
    add_existing,
    add_or_ignore,
    add_or_resubmit_missing,
    add_or_resubmit_pending,
    resubmit_running,
    resubmit_finished,
    resubmit_missing,
    remove_pending,
    remove_running,
    remove_running_by_force,
    remove_finished,
    remove_missing,
    accept_one,
    accept_by_several_workers,
    accept_while_waiting,
    accept_many,
    accept_a_scheduled_job,
    update,
    update_canceled,
    update_by_a_stale_worker,
    finish,
    finish_flagged,
    finish_canceled,
    finish_twice,
    finish_twice_at_the_same_time,
    resubmit_by_the_worker,
    release,
    release_canceled,
    effects_without_a_job,
    effects_beside_several_operations,
)
