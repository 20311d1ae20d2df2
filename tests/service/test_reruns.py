"""Transaction functions that are run again after a commit that may or may not have happened, on every store.

The store here is a real one, behind a front that runs a function twice: its first run commits and is not answered, or
is lost. So FoundationDB's commit_unknown_result is met on every store.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs_service import (
    Job,
    JobsService,
    JobState,
    JobTransaction,
    NewJob,
    Outcome,
    Removal,
    RunningJob,
    WorkerConflict,
)
from jobs_service.store import Store, Transaction
from jobs_service.store.base import TransactionFunction
from jobs_service.store.buffer import BufferedTransaction
from tests.service.sequences import OPERATIONS, Operation, play
from tests.service.support import (
    FAR_AWAY,
    J1,
    J2,
    T1,
    accepted,
    drained,
    empty,
    finished,
    listed,
    new_jobs,
    own_keys,
    running,
)
from tests.stores import EVERY_STORE, StoreKind

T = TypeVar("T")

PENDING, RUNNING, FINISHED = JobState.PENDING, JobState.RUNNING, JobState.FINISHED

Fate = Literal["answered", "unanswered", "lost"]
"""What becomes of a function's first run: it is the only one; it commits but nobody learns of it; it never commits."""


class _Lost(Exception):
    pass


class UnsureStore(Store):
    """A front of a store that runs some transaction functions again.

    Attributes:
        fates: of the coming transactions' first runs; "answered" when there are no more.
        meanwhile: awaited between the two runs.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.address = store.address
        self.limits = store.limits
        self.fates: Iterator[Fate] = iter(())
        self.meanwhile: Callable[[], Awaitable[object]] | None = None

    @property
    def is_open(self) -> bool:
        return self._store.is_open

    async def open(self) -> None:
        await self._store.open()

    async def close(self) -> None:
        await self._store.close()

    async def prefix(self) -> bytes:
        return await self._store.prefix()

    async def read(self, function: TransactionFunction[T]) -> T:
        return await self._store.read(function)

    async def transact(self, function: TransactionFunction[T], *, abandoned: Callable[[T], None] | None = None) -> T:
        fate = next(self.fates, "answered")
        if fate == "unanswered":
            await self._store.transact(function)
        elif fate == "lost":
            with suppress(_Lost):
                await self._store.transact(_losing(function))
        if fate != "answered" and self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()
        return await self._store.transact(_again(function) if fate != "answered" else function, abandoned=abandoned)


def _again(function: TransactionFunction[T]) -> TransactionFunction[T]:
    async def again(tr: Transaction) -> T:
        assert isinstance(tr, BufferedTransaction)
        tr.unsure = True
        return await function(tr)

    return again


def _losing(function: TransactionFunction[T]) -> TransactionFunction[None]:
    async def lost(tr: Transaction) -> None:
        await function(tr)
        raise _Lost

    return lost


class Unsure:
    """A service whose next transaction is run twice."""

    def __init__(self, jobs: JobsService, store: UnsureStore, others: JobsService) -> None:
        self.jobs = jobs
        self.others = others
        self._store = store

    def next(self, fate: Fate, meanwhile: Callable[[], Awaitable[object]] | None = None) -> JobsService:
        """Return the service, whose next transaction meets this fate; `meanwhile` is done between its two runs."""
        self._store.fates = iter((fate,))
        self._store.meanwhile = meanwhile
        return self.jobs


@pytest.fixture
async def unsure(quiet: JobsService) -> AsyncIterator[Unsure]:
    """A service on an unsure store, and another one on the same store without the front."""
    store = UnsureStore(quiet.store)
    async with JobsService(store, supervise=False) as jobs:
        yield Unsure(jobs, store, quiet)


every_fate = pytest.mark.parametrize("fate", ["unanswered", "lost"])


# alone


@every_fate
@pytest.mark.parametrize("if_exists", ["error", "resubmit", "ignore"])
async def test_a_rerun_add_is_a_success_and_adds_one_job(unsure: Unsure, fate: Fate, if_exists: Any) -> None:
    job = await unsure.next(fate).add(T1, J1, "data", priority=2, if_exists=if_exists)
    assert (job.state, job.data, job.priority, job.resubmit) == (PENDING, "data", 2, False)
    assert await drained(unsure.jobs) == [J1]


@every_fate
async def test_a_rerun_add_many_is_a_success_and_adds_each_job_once(unsure: Unsure, fate: Fate) -> None:
    added = await unsure.next(fate).add_many(T1, [NewJob("a"), NewJob("b", run_at=FAR_AWAY), NewJob("c")])
    assert [job.id for job in added] == ["a", "b", "c"]
    assert await unsure.jobs.pending_count(T1) == 3
    assert await drained(unsure.jobs) == ["a", "c"]


@every_fate
async def test_a_rerun_accept_returns_the_job_that_it_had_locked(unsure: Unsure, fate: Fate) -> None:
    await unsure.jobs.add_many(T1, new_jobs("a", "b"))
    job = await unsure.next(fate).accept(T1, timeout=0)
    assert job is not None
    assert job.id == "a"
    assert await unsure.jobs.active_ids(T1) == ["a"]
    assert (await job.finish()).state is FINISHED
    assert await drained(unsure.jobs) == ["b"]


@every_fate
@pytest.mark.parametrize("spread", [1, 3])
async def test_a_rerun_accept_many_strands_no_job(unsure: Unsure, fate: Fate, spread: int) -> None:
    await unsure.jobs.add_many(T1, new_jobs("a", "b", "c", "d", "e"))
    taken = await unsure.next(fate).accept_many(T1, 3, timeout=0, spread=spread)
    assert len(taken) == 3
    assert sorted(await unsure.jobs.active_ids(T1)) == sorted(job.id for job in taken)
    for job in taken:
        await job.finish()
    assert await unsure.jobs.active_ids(T1) == []
    assert len(await drained(unsure.jobs)) == 2


@every_fate
async def test_a_rerun_update_is_a_success(unsure: Unsure, fate: Fate) -> None:
    worker = await running(unsure.jobs)
    unsure.next(fate)
    updated = await worker.update("new")
    assert updated.data == "new"
    assert (await updated.finish()).data == "new"


@every_fate
async def test_a_rerun_finish_is_a_success(unsure: Unsure, fate: Fate) -> None:
    worker = await running(unsure.jobs)
    unsure.next(fate)
    job = await worker.finish("result", outcome=Outcome.FAILED)
    assert (job.state, job.data, job.outcome) == (FINISHED, "result", Outcome.FAILED)
    with pytest.raises(WorkerConflict):
        await worker.finish("again")


@every_fate
async def test_a_rerun_finish_of_a_flagged_job_makes_it_pending_once(unsure: Unsure, fate: Fate) -> None:
    worker = await running(unsure.jobs)
    await worker.resubmit()
    unsure.next(fate)
    job = await worker.finish("result")
    assert (job.state, job.data, job.resubmit) == (PENDING, "result", False)
    assert await drained(unsure.jobs) == [J1]
    with pytest.raises(WorkerConflict):
        await worker.finish("again")


@every_fate
async def test_a_rerun_finish_of_a_canceled_job_is_a_success(unsure: Unsure, fate: Fate) -> None:
    worker = await running(unsure.jobs)
    await unsure.jobs.remove(T1, J1)
    unsure.next(fate)
    job = await worker.finish("last word")
    assert (job.state, job.outcome, job.data) == (FINISHED, Outcome.CANCELED, "last word")


@every_fate
async def test_a_rerun_resubmit_by_the_worker_is_a_success(unsure: Unsure, fate: Fate) -> None:
    worker = await running(unsure.jobs)
    unsure.next(fate)
    flagged = await worker.resubmit(priority=3)
    assert bool(flagged.resubmit) is True
    job = await flagged.finish()
    assert (job.state, job.priority) == (PENDING, 3)


@every_fate
async def test_a_rerun_release_is_a_success(unsure: Unsure, fate: Fate) -> None:
    worker = await running(unsure.jobs)
    unsure.next(fate)
    assert (await worker.release()).state is PENDING
    assert await drained(unsure.jobs) == [J1]


@every_fate
async def test_a_rerun_resubmit_by_a_creator_is_a_success(unsure: Unsure, fate: Fate) -> None:
    await finished(unsure.jobs)
    job = await unsure.next(fate).resubmit(T1, J1, data="new", priority=1)
    assert (job.state, job.data, job.priority, job.resubmit) == (PENDING, "new", 1, False)
    assert await drained(unsure.jobs) == [J1]


@every_fate
async def test_a_rerun_remove_is_a_success(unsure: Unsure, fate: Fate) -> None:
    await unsure.jobs.add(T1, J1)
    assert await unsure.next(fate).remove(T1, J1) is Removal.REMOVED
    assert await listed(unsure.jobs) == []


@every_fate
async def test_a_rerun_remove_of_a_running_job_cancels_it(unsure: Unsure, fate: Fate) -> None:
    await running(unsure.jobs)
    assert await unsure.next(fate).remove(T1, J1) is Removal.CANCELED
    assert await unsure.next(fate).remove(T1, J1, force=True) is Removal.REMOVED
    assert await listed(unsure.jobs) == []


# with others at work between the two runs


async def test_a_rerun_add_recognises_its_job_that_somebody_has_accepted(unsure: Unsure) -> None:
    workers: list[RunningJob] = []

    async def accept() -> None:
        workers.append(await accepted(unsure.others))

    job = await unsure.next("unanswered", accept).add(T1, J1, "data")
    assert (job.id, job.resubmit) == (J1, False)
    assert (await workers[0].finish()).state is FINISHED


async def test_a_rerun_add_recognises_its_job_that_somebody_has_finished(unsure: Unsure) -> None:
    async def run() -> None:
        await (await accepted(unsure.others)).finish()

    await unsure.next("unanswered", run).add(T1, J1, "data")
    assert await drained(unsure.jobs) == []


@pytest.mark.parametrize("ran", ["accepted", "finished"])
async def test_a_rerun_resubmit_does_not_make_a_job_run_twice(unsure: Unsure, ran: str) -> None:
    await finished(unsure.jobs)
    workers: list[RunningJob] = []

    async def run() -> None:
        workers.append(await accepted(unsure.others))
        if ran == "finished":
            await workers[0].finish()

    await unsure.next("unanswered", run).resubmit(T1, J1)
    if ran == "accepted":
        assert (await workers[0].finish()).state is FINISHED
    assert await drained(unsure.jobs) == []


@pytest.mark.parametrize("ran", ["accepted", "finished"])
async def test_a_rerun_add_with_resubmit_does_not_make_a_job_run_twice(unsure: Unsure, ran: str) -> None:
    await finished(unsure.jobs)
    workers: list[RunningJob] = []

    async def run() -> None:
        workers.append(await accepted(unsure.others))
        if ran == "finished":
            await workers[0].finish()

    await unsure.next("unanswered", run).add(T1, J1, "new", if_exists="resubmit")
    if ran == "accepted":
        assert (await workers[0].finish()).state is FINISHED
    assert await drained(unsure.jobs) == []


async def test_a_rerun_accept_does_not_take_a_job_that_was_lost_and_accepted_by_another(unsure: Unsure) -> None:
    await unsure.jobs.add(T1, J1)
    workers: list[RunningJob] = []

    async def lose_and_accept() -> None:
        # What the activity monitor and another worker do to a job that falls silent, in the words of its creator.
        await unsure.others.remove(T1, J1, force=True)
        await unsure.others.add(T1, J1)
        workers.append(await accepted(unsure.others))

    assert await unsure.next("unanswered", lose_and_accept).accept(T1, timeout=0) is None
    assert (await workers[0].finish()).state is FINISHED


async def test_a_rerun_accept_does_not_return_a_job_that_was_removed(unsure: Unsure) -> None:
    await unsure.jobs.add_many(T1, new_jobs("a", "b"))

    async def remove() -> None:
        await unsure.others.remove(T1, "a", force=True)

    job = await unsure.next("unanswered", remove).accept(T1, timeout=0)
    assert job is None or job.id == "b"
    assert await unsure.jobs.active_ids(T1) == ([] if job is None else ["b"])


@pytest.mark.parametrize("then", ["pending", "running"])
async def test_a_rerun_finish_is_a_success_when_the_job_was_resubmitted_meanwhile(unsure: Unsure, then: str) -> None:
    worker = await running(unsure.jobs)
    others: list[RunningJob] = []

    async def resubmit() -> None:
        await unsure.others.resubmit(T1, J1)
        if then == "running":
            others.append(await accepted(unsure.others))

    unsure.next("unanswered", resubmit)
    await worker.finish("result")
    if then == "running":
        assert (await others[0].finish()).data == "result"
    else:
        assert await drained(unsure.jobs) == [J1]


async def test_a_rerun_release_is_a_success_when_another_worker_has_accepted_the_job(unsure: Unsure) -> None:
    worker = await running(unsure.jobs)
    others: list[RunningJob] = []

    async def accept() -> None:
        others.append(await accepted(unsure.others))

    unsure.next("unanswered", accept)
    await worker.release()
    assert (await others[0].finish()).state is FINISHED


async def test_a_lost_finish_meets_a_conflict_when_the_job_was_taken_meanwhile(unsure: Unsure) -> None:
    worker = await running(unsure.jobs)
    others: list[RunningJob] = []

    async def take() -> None:
        await unsure.others.remove(T1, J1, force=True)
        await unsure.others.add(T1, J1)
        others.append(await accepted(unsure.others))

    unsure.next("lost", take)
    with pytest.raises(WorkerConflict):
        await worker.finish("result")
    assert (await others[0].finish("other")).data == "other"


async def test_a_rerun_remove_does_not_remove_a_job_added_meanwhile(unsure: Unsure) -> None:
    await unsure.jobs.add(T1, J1, "old")

    async def add() -> None:
        await unsure.others.add(T1, J1, "new")

    assert await unsure.next("unanswered", add).remove(T1, J1) is Removal.REMOVED
    assert (await unsure.jobs.get(T1, J1)).data == "new"


# with effects of the application's own


ONE = (1).to_bytes(8, "little")


@every_fate
@pytest.mark.parametrize("how", ["finish", "update", "release", "resubmit"])
async def test_effects_beside_a_workers_operation_happen_once(unsure: Unsure, fate: Fate, how: str) -> None:
    worker = await running(unsure.jobs)

    async def pay(tx: JobTransaction) -> str:
        tx.kv.add(b"own/paid", ONE)
        await getattr(tx, how)(worker)
        return "paid"

    assert await unsure.next(fate).transact(pay) == "paid"
    assert await own_keys(unsure.jobs) == {b"own/paid": ONE}


@every_fate
async def test_effects_beside_a_creators_operation_happen_once(unsure: Unsure, fate: Fate) -> None:
    async def order(tx: JobTransaction) -> str:
        tx.kv.add(b"own/orders", ONE)
        await tx.add(T1, J1)
        return "ordered"

    assert await unsure.next(fate).transact(order) == "ordered"
    assert await own_keys(unsure.jobs) == {b"own/orders": ONE}
    assert await drained(unsure.jobs) == [J1]


@every_fate
async def test_a_rerun_function_of_several_operations_has_each_effect_once(unsure: Unsure, fate: Fate) -> None:
    worker = await running(unsure.jobs)
    await unsure.jobs.add(T1, J2)

    async def function(tx: JobTransaction) -> tuple[Job, RunningJob]:
        tx.kv.add(b"own/count", ONE)
        await tx.add(T1, "next")
        done = await tx.finish(worker, "done")
        taken = await tx.accept(T1)
        assert taken is not None
        return done, await tx.update(taken, "begun")

    done, taken = await unsure.next(fate).transact(function)
    assert (done.state, done.data, taken.id, taken.data) == (FINISHED, "done", J2, "begun")
    assert await own_keys(unsure.jobs) == {b"own/count": ONE}
    assert await unsure.jobs.active_ids(T1) == [J2]
    assert await drained(unsure.jobs) == ["next"]
    assert (await taken.finish()).data == "begun"


# any sequence of operations

FATES: list[Fate] = ["answered", "unanswered", "lost"]


@asynccontextmanager
async def opened(kind: StoreKind) -> AsyncIterator[JobsService]:
    with tempfile.TemporaryDirectory() as directory:
        async with JobsService(kind.address_in(Path(directory)), supervise=False) as jobs:
            if kind.shared:
                await empty(jobs)
            yield jobs


async def play_surely_and_unsurely(kind: StoreKind, groups: list[list[Operation]], fates: list[Fate]) -> None:
    async with opened(kind) as jobs:
        expected = await play(jobs, groups)
    async with opened(kind) as jobs:
        store = UnsureStore(jobs.store)
        async with JobsService(store, supervise=False) as unsure:
            store.fates = iter(fates)  # the first is that of setting the type's timeout
            assert await play(unsure, groups) == expected


UNSURE = st.lists(st.sampled_from(FATES), min_size=1, max_size=15)


@pytest.mark.parametrize("kind", EVERY_STORE)
@settings(max_examples=60, deadline=None)
@given(operations=OPERATIONS, fates=UNSURE)
def test_any_operations_that_are_run_again_end_as_if_run_once(
    kind: StoreKind, operations: list[Operation], fates: list[Fate]
) -> None:
    asyncio.run(play_surely_and_unsurely(kind, [[one] for one in operations], fates))


@pytest.mark.parametrize("kind", EVERY_STORE)
@settings(max_examples=60, deadline=None)
@given(groups=st.lists(OPERATIONS, max_size=5), fates=UNSURE)
def test_any_transactions_that_are_run_again_end_as_if_run_once(
    kind: StoreKind, groups: list[list[Operation]], fates: list[Fate]
) -> None:
    asyncio.run(play_surely_and_unsurely(kind, groups, fates))
