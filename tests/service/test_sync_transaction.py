"""Operations on jobs over a transaction that the application drives itself, in plain code."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, assert_type, cast

import fdb
import pytest
from hypothesis import given, settings

from jobs_service import (
    InvalidJob,
    Job,
    JobCanceled,
    JobExists,
    JobNotFound,
    JobsError,
    JobsService,
    JobState,
    JobTransaction,
    NewJob,
    NoTypeTimeout,
    Outcome,
    Removal,
    RunningJob,
    ServiceClosed,
    StoreError,
    WorkerConflict,
)
from jobs_service.errors import TransactionConflict, TransactionTooLarge
from jobs_service.service.sync_transaction import WithinTransaction
from jobs_service.store import KeySelector
from jobs_service.store.memory import MemoryStore
from tests.checker import assert_sound
from tests.service.sequences import OPERATIONS, Operation, Player, play
from tests.service.support import (
    FAR_AWAY,
    J1,
    J2,
    LONG_AGO,
    PATIENCE,
    T1,
    T2,
    TIMEOUT,
    accepted,
    canceled,
    contents,
    drained,
    eventually,
    finished,
    listed,
    new_jobs,
    node,
    own_keys,
    running,
    state,
)
from tests.stores import ADDRESSED, EVERY_STORE, FDB_VARIABLE, KINDS, StoreKind

PENDING, RUNNING, FINISHED = JobState.PENDING, JobState.RUNNING, JobState.FINISHED


class Application(Protocol):
    """A transaction that the application drives.

    Attributes:
        tr: what within() takes.
        conflict: what `commit` raises when another transaction has changed what this one has read.
    """

    tr: Any
    conflict: type[Exception]

    def commit(self) -> None: ...


class MemoryApplication:
    """Has a transaction of the service's own memory store."""

    conflict: type[Exception] = TransactionConflict

    def __init__(self, jobs: JobsService) -> None:
        assert isinstance(jobs.store, MemoryStore)
        self.tr: Any = jobs.store.begin()

    def commit(self) -> None:
        """Commit it."""
        self.tr.commit()


class FoundationApplication:
    """Has a transaction of the cluster, over a connection of its own."""

    def __init__(self, jobs: JobsService) -> None:
        self.tr: Any = self.cluster().create_transaction()
        self.conflict: type[Exception] = fdb.FDBError

    @staticmethod
    def cluster() -> Any:
        """Return the connection, an fdb.Database."""
        fdb.api_version(730)
        return fdb.open(os.environ[FDB_VARIABLE])

    def commit(self) -> None:
        """Commit it."""
        self.tr.commit().wait()


APPLICATIONS: dict[str, Callable[[JobsService], Application]] = {
    "memory": MemoryApplication,
    "fdb": FoundationApplication,
}
"""How an application begins a transaction on the store of a service, by the kind of store."""


@pytest.fixture(params=[each for kind, each in zip(ADDRESSED, EVERY_STORE, strict=True) if kind.name in APPLICATIONS])
def store_kind(request: pytest.FixtureRequest) -> StoreKind:
    """Every kind of store that has such transactions."""
    kind = request.param
    assert isinstance(kind, StoreKind)
    return kind


def begun(jobs: JobsService) -> Application:
    """Begin a transaction of the application on the service's store."""
    return APPLICATIONS[jobs.store.address.partition(":")[0]](jobs)


@contextmanager
def committed(jobs: JobsService) -> Iterator[WithinTransaction]:
    """A block on a transaction of its own, which is committed if the block does not raise."""
    application = begun(jobs)
    with jobs.within(application.tr) as tx:
        yield tx
    application.commit()


@contextmanager
def failed(jobs: JobsService, application: Application) -> Iterator[WithinTransaction]:
    """A block that ends with an error, which the application catches."""
    with contextlib.suppress(LookupError), jobs.within(application.tr) as tx:
        yield tx
        raise LookupError


def taken(tx: WithinTransaction) -> RunningJob:
    """Accept a job of type T1 that must be there."""
    job = tx.accept(T1)
    assert job is not None
    return job


# the operations


def test_every_operation_is_there_with_the_arguments_of_its_coroutine() -> None:
    names = [name for name in vars(JobTransaction) if not name.startswith("_")]
    assert len(names) > 20
    for name in set(names) - {"kv"}:
        plain, coroutine = getattr(WithinTransaction, name), getattr(JobTransaction, name)
        assert inspect.signature(plain).parameters == inspect.signature(coroutine).parameters, name
        assert not inspect.iscoroutinefunction(plain), name
        assert plain.__doc__
        assert plain.__name__ == name


async def test_types_are_made_changed_paused_and_cleared(quiet: JobsService) -> None:
    await quiet.add(T2, J1)
    with committed(quiet) as tx:
        tx.kv[b"own/a"] = b"1"
        tx.set_type_timeout("new", 7)
        assert_type(tx.get_type_timeout("new"), float)
        assert tx.get_type_timeout("new") == 7
        assert tx.types() == ["new", T1, T2]
        tx.clear_type_timeout(T1)
        with pytest.raises(NoTypeTimeout):
            tx.get_type_timeout(T1)
        assert tx.types() == ["new", T2]
        tx.pause(T2)
        assert tx.paused(T2) is True
        assert tx.accept(T2) is None
        tx.pause("new")
        tx.resume("new")
        assert tx.paused("new") is False
        tx.set_retention("new", keep=0)
        tx.add("new", J1)
        worker = tx.accept("new")
        assert worker is not None
        tx.finish(worker)
    assert await quiet.types() == ["new", T2]
    assert await quiet.get_type_timeout("new") == 7
    assert (await quiet.paused(T2), await quiet.paused("new")) == (True, False)
    assert await own_keys(quiet) == {b"own/a": b"1"}


async def test_jobs_are_added_looked_at_resubmitted_and_removed(quiet: JobsService) -> None:
    with committed(quiet) as tx:
        job = tx.add(T1, J1, {"x": 1}, priority=2, run_at=LONG_AGO)
        assert_type(job, Job)
        assert (job.state, job.data, job.priority) == (PENDING, {"x": 1}, 2)
        assert tx.add(T1, J1, "other", if_exists="ignore").data == {"x": 1}
        tx.kv.set(b"own/a", b"1")
        assert [each.id for each in tx.add_many(T1, [NewJob("later", run_at=FAR_AWAY), NewJob("gone")])] == [
            "later",
            "gone",
        ]
        assert tx.remove(T1, "gone", force=True) is Removal.REMOVED
        with pytest.raises(JobNotFound):
            tx.get(T1, "gone")
        assert tx.get(T1, J1).data == {"x": 1}
        assert tx.resubmit(T1, J1, data="new", priority=3).priority == 3
        jobs = tx.list(T1, state="pending", page_size=1)
        assert_type(jobs, list[Job])
        assert [each.id for each in jobs] == [J1, "later"]
        assert tx.pending_count(T1) == 2
        assert tx.pending_count(T1, due_by=LONG_AGO, limit=5) == 1
        with pytest.raises(JobExists):
            tx.add(T1, J1)
    assert [(job.id, job.data, job.priority) for job in await listed(quiet)] == [(J1, "new", 3), ("later", None, 0)]
    assert await drained(quiet) == [J1]
    assert await own_keys(quiet) == {b"own/a": b"1"}


async def test_jobs_are_enqueued_for_handlers(quiet: JobsService) -> None:
    @quiet.handler("mail", timeout=11)
    async def mail(args: dict[str, int]) -> None: ...

    with committed(quiet) as tx:
        first = tx.enqueue(mail, {"x": 1}, unique=True)
        assert tx.enqueue(mail, {"x": 1}, unique=True).id == first.id
        other = tx.enqueue(mail, {"x": 2}, id="named", priority=-1)
        assert (first.type, other.id, other.data) == ("mail", "named", {"x": 2})
    assert await quiet.get_type_timeout("mail") == 11
    assert await drained(quiet, "mail") == ["named", first.id]


async def test_jobs_are_accepted_updated_resubmitted_finished_and_released(quiet: JobsService) -> None:
    await quiet.add_many(T1, new_jobs("a", "b", "c", "d"))
    with committed(quiet) as tx:
        worker = tx.accept(T1, max_priority=5, spread=1)
        assert_type(worker, RunningJob | None)
        assert worker is not None
        assert tx.active_ids(T1) == ["a"]
        tx.kv.add(b"own/effects", b"\1")
        worker = tx.update(worker, "halfway")
        assert_type(worker, RunningJob)
        again = tx.resubmit(worker, priority=9)
        assert bool(again.resubmit) is True
        job = tx.finish(again, "done", outcome=Outcome.FAILED)
        assert (job.state, job.data, job.priority) == (PENDING, "done", 9)
        second, third = tx.accept_many(T1, 2)
        assert tx.release(second).state is PENDING
        assert tx.finish(third, result={"y": 2}).result == {"y": 2}
        assert tx.remove(T1, taken(tx).id) is Removal.CANCELED
    assert [(job.id, job.state) for job in await listed(quiet)] == [
        ("a", PENDING),
        ("b", PENDING),
        ("c", FINISHED),
        ("d", RUNNING),
    ]
    assert (await quiet.get(T1, "c")).result == {"y": 2}
    assert await quiet.active_ids(T1) == ["d"]
    assert await drained(quiet) == ["b", "a"]
    assert await own_keys(quiet) == {b"own/effects": b"\1"}


async def test_own_keys_are_read_and_written_with_plain_methods(quiet: JobsService) -> None:
    before = begun(quiet)
    with quiet.within(before.tr) as tx:
        for key in (b"a", b"b", b"c", b"d", b"e"):
            tx.kv[b"own/" + key] = key
    before.commit()
    with committed(quiet) as tx:
        kv = tx.kv
        kv.clear(b"own/a")
        del kv[b"own/b"]
        kv.set(b"own/f", b"f")
        kv.add(b"own/g", b"\2\0")
        kv.set_versionstamped_key(b"own/h" + b"\0" * 10 + (5).to_bytes(4, "little"), b"h")
        kv.set_versionstamped_value(b"own/i", b"\0" * 10 + (0).to_bytes(4, "little"))
        assert_type(kv.get(b"own/f"), bytes | None)
        assert kv.get(b"own/a") is None
        assert kv.get_many([b"own/b", b"own/c"]) == [None, b"c"]
        assert kv.get_range(b"own/", b"own/g", limit=2) == [(b"own/c", b"c"), (b"own/d", b"d")]
        assert kv.snapshot.get_range(KeySelector.first_greater_than(b"own/c"), b"own/g", reverse=True)[-1][1] == b"d"
        assert kv.snapshot.get(b"own/g") == b"\2\0"
        assert kv.snapshot.get_many([b"own/e"]) == [b"e"]
        kv.clear_range(b"own/d", b"own/e")
        del kv[b"own/e":b"own/f"]
    keys = await own_keys(quiet)
    assert {key[:5] for key in keys} == {b"own/c", b"own/f", b"own/g", b"own/h", b"own/i"}
    assert keys[b"own/i"] + b"" == next(key for key in keys if key.startswith(b"own/h"))[5:]


@pytest.mark.parametrize("conflict", ["key", "range", "read", None])
async def test_what_was_read_of_own_keys_decides_over_conflicts(quiet: JobsService, conflict: str | None) -> None:
    application = begun(quiet)
    with quiet.within(application.tr) as tx:
        tx.kv.snapshot.get(b"own/a")
        if conflict == "key":
            tx.kv.add_read_conflict_key(b"own/a")
        elif conflict == "range":
            tx.kv.add_read_conflict_range(b"own/", b"own/b")
        elif conflict == "read":
            tx.kv.get(b"own/a")
        tx.add(T1, J1)
    with committed(quiet) as tx:
        tx.kv[b"own/a"] = b"changed"
    if conflict is None:
        application.commit()
    else:
        with pytest.raises(application.conflict):
            application.commit()
    assert len(await listed(quiet)) == (conflict is None)


async def test_a_job_that_another_has_taken_meanwhile_is_a_conflict(quiet: JobsService) -> None:
    await quiet.add(T1, J1)
    application = begun(quiet)
    with quiet.within(application.tr) as tx:
        worker = taken(tx)
    other = await accepted(quiet)
    with pytest.raises(application.conflict):
        application.commit()
    with pytest.raises(WorkerConflict), committed(quiet) as tx:
        tx.finish(worker)
    await other.finish()


async def test_a_better_job_that_is_scheduled_meanwhile_is_a_conflict(quiet: JobsService) -> None:
    await quiet.add(T1, J1, priority=1, run_at=FAR_AWAY)
    application = begun(quiet)
    with quiet.within(application.tr) as tx:
        assert tx.accept(T1, due_by=FAR_AWAY) is not None
    await quiet.add(T1, J2, priority=0, run_at=FAR_AWAY)
    with pytest.raises(application.conflict):
        application.commit()


async def test_a_stale_worker_and_one_whose_job_was_canceled_are_told(quiet: JobsService) -> None:
    stale = await finished(quiet, J1)
    told = await canceled(quiet, J2)
    with committed(quiet) as tx:
        for operation in (tx.update, tx.finish, tx.release, tx.resubmit):
            with pytest.raises(WorkerConflict):
                operation(stale)
        with pytest.raises(JobCanceled):
            tx.update(told)
        assert tx.finish(told).outcome is Outcome.CANCELED
    assert await state(quiet, J2) is FINISHED


# any sequence of operations


class Awaited:
    """The operations of a block as coroutines, for the player."""

    def __init__(self, tx: WithinTransaction) -> None:
        self._tx = tx

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def operation(*arguments: Any, **keywords: Any) -> Any:
            return getattr(self._tx, name)(*arguments, **keywords)

        return operation


class Plain:
    """A service whose `transact` takes effect in a block, after one that fails and is committed all the same."""

    def __init__(self, jobs: JobsService) -> None:
        self._jobs = jobs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._jobs, name)

    async def transact(self, function: Callable[[Awaited], Awaitable[Player]]) -> Player:
        before = await contents(self._jobs)
        failing = begun(self._jobs)
        with failed(self._jobs, failing) as tx:
            await function(Awaited(tx))
        failing.commit()
        assert await contents(self._jobs) == before
        with committed(self._jobs) as tx:
            return await function(Awaited(tx))


async def play_both(groups: list[list[Operation]]) -> None:
    seen = []
    for plain in (False, True):
        async with JobsService("memory:", supervise=False) as jobs:
            seen.append(await play(cast(JobsService, Plain(jobs)) if plain else jobs, groups))
    assert seen[1] == seen[0]


@pytest.mark.unmeasured
@settings(max_examples=60, deadline=None)
@given(first=OPERATIONS, second=OPERATIONS)
def test_any_operations_in_blocks_do_what_they_do_in_the_services_transactions_and_nothing_when_a_block_raises(
    first: list[Operation], second: list[Operation]
) -> None:
    asyncio.run(play_both([first, second]))


# the end of a block


async def test_nothing_is_there_before_the_application_commits(quiet: JobsService) -> None:
    before = await contents(quiet)
    application = begun(quiet)
    with quiet.within(application.tr) as tx:
        tx.add(T1, J1)
        tx.kv[b"own/a"] = b"1"
    assert await contents(quiet) == before
    assert await own_keys(quiet) == {}
    application.commit()
    assert await drained(quiet) == [J1]


async def test_a_block_that_raises_leaves_no_trace_of_jobs_even_if_the_application_commits(quiet: JobsService) -> None:
    """What was cleared or set in the middle of the block is back: index entries, types, pauses."""
    await quiet.add(T1, "ready")
    await quiet.add(T1, "scheduled", run_at=FAR_AWAY)
    worker = await running(quiet, "running", priority=-1)
    await finished(quiet, "finished", priority=-1)
    before = await contents(quiet)
    application = begun(quiet)
    with failed(quiet, application) as tx:
        tx.kv[b"own/a"] = b"1"
        tx.resubmit(T1, "ready", priority=5)
        tx.resubmit(T1, "scheduled", run_at=None)
        tx.remove(T1, "finished")
        tx.finish(worker)
        tx.set_type_timeout("new", 3)
        tx.clear_type_timeout(T2)
        tx.pause(T1)
        tx.set_retention(T1, keep=5)
    application.commit()
    assert await contents(quiet) == before
    assert await own_keys(quiet) == {b"own/a": b"1"}  # which is the application's own
    assert (await worker.finish()).state is FINISHED
    assert await drained(quiet) == ["ready"]


@pytest.mark.parametrize("own", [0, 101])
async def test_a_block_that_is_too_large_at_its_end_leaves_nothing_in_the_applications_transaction(
    quiet: JobsService, own: int
) -> None:
    """What the application has written itself counts: both together must fit into one transaction."""
    worker = await running(quiet, "running")
    await quiet.add(T1, "ready")
    before = await contents(quiet)
    application = begun(quiet)
    for number in range(own):
        application.tr[b"own/%03d" % number] = bytes(90_000)

    def place_too_many() -> None:
        with quiet.within(application.tr) as tx:
            tx.finish(worker)
            tx.resubmit(T1, "ready", priority=5)
            tx.set_type_timeout("new", 3)
            for number in range(12 if own else 120):
                tx.add(T1, f"large-{number}", "x" * 90_000)

    with pytest.raises(TransactionTooLarge):
        place_too_many()
    application.commit()
    assert await contents(quiet) == before
    assert len(await own_keys(quiet)) == own
    assert (await worker.finish()).state is FINISHED
    assert await drained(quiet) == ["ready"]


async def test_a_transaction_goes_on_after_a_block_that_is_too_large_at_its_end(quiet: JobsService) -> None:
    application = begun(quiet)
    with pytest.raises(TransactionTooLarge), quiet.within(application.tr) as tx:
        tx.add_many(T1, [NewJob(f"large-{number}", "x" * 90_000) for number in range(120)])
    with quiet.within(application.tr) as tx:
        tx.add(T1, J1)
    application.commit()
    assert await drained(quiet) == [J1]


async def test_a_block_that_fits_beside_what_the_application_has_written_is_written(quiet: JobsService) -> None:
    application = begun(quiet)
    for number in range(50):
        application.tr[b"own/%03d" % number] = bytes(90_000)
    with quiet.within(application.tr) as tx:
        for number in range(50):
            tx.add(T1, f"large-{number:02}", "x" * 90_000)
    application.commit()
    assert len(await drained(quiet)) == 50


async def test_an_error_that_is_caught_inside_leaves_the_rest_of_the_block(quiet: JobsService) -> None:
    await quiet.add(T1, J1)
    with committed(quiet) as tx:
        with pytest.raises(JobExists):
            tx.add(T1, J1)
        tx.add(T1, J2)
    assert await drained(quiet) == [J1, J2]


async def test_a_transaction_goes_on_after_a_block_that_has_raised(quiet: JobsService) -> None:
    await quiet.add(T1, J1)
    application = begun(quiet)
    with failed(quiet, application) as tx:
        tx.resubmit(T1, J1, priority=5)
    with quiet.within(application.tr) as tx:
        assert tx.get(T1, J1).priority == 0
        tx.resubmit(T1, J1, priority=7)
    application.commit()
    assert (await quiet.get(T1, J1)).priority == 7
    assert await drained(quiet) == [J1]


# several blocks


async def test_blocks_of_one_transaction_take_effect_together(quiet: JobsService) -> None:
    """Running jobs do not get one place, which one of them would lose."""
    await quiet.add_many(T1, new_jobs("a", "b", "c"))
    application = begun(quiet)
    with quiet.within(application.tr) as tx:
        tx.remove(T1, "c")
        first = taken(tx)
    with quiet.within(application.tr) as tx:
        second = taken(tx)
        with pytest.raises(JobNotFound):
            tx.get(T1, "c")
        tx.add(T2, J1)
    with quiet.within(application.tr) as tx:
        tx.add(T2, J2, priority=-1)
        tx.add(T2, "last")
    application.commit()
    assert (first.id, second.id) == ("a", "b")
    assert await quiet.active_ids(T1) == ["a", "b"]
    await second.finish()
    assert await quiet.active_ids(T1) == ["a"]
    await first.finish()
    assert await drained(quiet, T2) == [J2, J1, "last"]


async def test_a_job_that_an_earlier_block_has_moved_cannot_be_read_again(quiet: JobsService) -> None:
    application = begun(quiet)
    with quiet.within(application.tr) as tx:
        tx.add(T1, J1)
    with quiet.within(application.tr) as tx, pytest.raises(Exception, match="1036"):
        tx.get(T1, J1)


async def test_blocks_of_several_transactions_are_open_at_the_same_time(quiet: JobsService) -> None:
    first, second = begun(quiet), begun(quiet)
    with quiet.within(first.tr) as one, quiet.within(second.tr) as other:
        one.add(T1, J1)
        other.add(T1, J2)
    second.commit()
    first.commit()
    assert await drained(quiet) == [J2, J1]


# threads, the loop, other workers, retry loops


@pytest.mark.parametrize(
    "store_kind",
    [each for kind, each in zip(ADDRESSED, EVERY_STORE, strict=True) if kind.name == "fdb"],
    indirect=True,
)
async def test_a_transactional_function_runs_its_blocks_again_until_it_commits(quiet: JobsService) -> None:
    await quiet.add_many(T1, new_jobs("a", "b", "c"))
    runs: list[object] = []
    cluster = FoundationApplication.cluster()

    def work(tr: Any) -> None:
        tr[b"own/run"] = b"%d" % len(runs)
        with quiet.within(tr) as tx:
            job = taken(tx)
            runs.append(job.id)
        with quiet.within(tr) as tx:
            tx.finish(taken(tx))
            tx.add(T2, job.id)
        if len(runs) == 1:
            with committed(quiet) as other:
                taken(other)

    fdb.transactional(work)(cluster)
    assert runs == ["a", "b"]
    assert await own_keys(quiet) == {b"own/run": b"1"}
    assert await quiet.active_ids(T1) == ["a", "b"]
    assert [job.state for job in await listed(quiet, T1)] == [RUNNING, RUNNING, FINISHED]
    assert await drained(quiet, T2) == ["b"]


async def test_a_block_works_in_a_thread_while_the_loop_stands_still(quiet: JobsService) -> None:
    await quiet.add_many(T1, new_jobs("a", "b"))
    application = begun(quiet)
    found: list[Any] = []

    def plain_code() -> None:
        with quiet.within(application.tr) as tx:
            tx.kv[b"own/a"] = b"1"
            found.append(tx.finish(taken(tx), "by a thread").id)
            found.append([job.id for job in tx.list()])
            tx.add(T1, "c")
        try:
            tx.get(T1, "a")
        except JobsError as error:
            found.append(str(error))

    thread = threading.Thread(target=plain_code)
    thread.start()
    thread.join()
    application.commit()
    assert found == ["a", ["a", "b"], "this block has ended; call jobs.within(tr) for another one"]
    assert (await quiet.get(T1, "a")).data == "by a thread"
    assert await drained(quiet) == ["b", "c"]


async def test_a_job_accepted_in_a_block_is_finished_in_another_one_or_on_the_loop(quiet: JobsService) -> None:
    await quiet.add_many(T1, new_jobs("a", "b"))
    with committed(quiet) as tx:
        first, second = tx.accept_many(T1, 2)
    with committed(quiet) as tx:
        assert tx.finish(tx.update(first, "halfway")).data == "halfway"
    assert (await second.update("halfway")).data == "halfway"
    assert (await second.finish()).state is FINISHED


async def test_a_job_accepted_in_a_block_is_nobodys_unless_the_application_commits(quiet: JobsService) -> None:
    await quiet.add(T1, J1)
    with quiet.within(begun(quiet).tr) as tx:
        worker = taken(tx)
    with pytest.raises(WorkerConflict):
        await worker.finish()
    assert await drained(quiet) == [J1]


async def test_subscribers_are_told_what_an_application_has_committed(jobs: JobsService) -> None:
    await jobs.add(T1, J1)
    async with asyncio.timeout(PATIENCE), jobs.subscribe(T1, J1) as events:
        assert (await anext(events)).state is PENDING
        with committed(jobs) as tx:
            tx.kv[b"own/a"] = b"1"
            tx.finish(taken(tx), "done", result=5)
        event = await anext(events)
        assert (event.state, event.data, event.result) == (FINISHED, "done", 5)


async def test_subscribers_are_told_of_the_jobs_of_every_block_on_a_transaction(jobs: JobsService) -> None:
    await jobs.add_many(T1, new_jobs(J1, J2))
    both = [(T1, J1), (T1, J2)]
    async with asyncio.timeout(PATIENCE), jobs.subscribe_many(both) as events:
        assert {(await anext(events)).state, (await anext(events)).state} == {PENDING}
        application = begun(jobs)
        for id in (J1, J2):
            with jobs.within(application.tr) as tx:
                tx.remove(T1, id)
        application.commit()
        assert {(await anext(events)).id, (await anext(events)).id} == {J1, J2}


async def test_a_waiting_worker_gets_what_an_application_has_committed(quiet: JobsService) -> None:
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(quiet.accept(T1))
        await watching(quiet)
        with committed(quiet) as tx:
            tx.add(T1, J1, "for you")
        job = await waiting
    assert job is not None
    assert job.data == "for you"


async def watching(jobs: JobsService) -> None:
    """Return when a worker of the service has found no job, and waits on its watch."""

    async def found_nothing() -> bool:
        return any(line.watch is not None for line in jobs._waiting._lines.values())

    await eventually(found_nothing)


async def test_a_job_accepted_in_a_block_is_watched_over(jobs: JobsService) -> None:
    with committed(jobs) as tx:
        tx.set_type_timeout("new", TIMEOUT)
        tx.add("new", J1)
        tx.add("new", J2, run_at=FAR_AWAY)
        assert tx.accept("new") is not None

    async def is_monitored() -> bool:
        return any("'new'" in child["name"] for child in node(jobs, "monitors")["children"])

    await eventually(is_monitored)
    await assert_sound(jobs.store)


# refusals


def one_line(caught: pytest.ExceptionInfo[BaseException]) -> str:
    text = str(caught.value)
    assert "\n" not in text
    return text


async def test_a_block_is_of_no_use_before_and_after(quiet: JobsService) -> None:
    application = begun(quiet)
    within = quiet.within(application.tr)
    kv = within.kv
    uses: list[Callable[[], object]] = [
        lambda: within.add(T1, J1),
        lambda: within.list(T1),
        lambda: within.resubmit(T1, J1),
        lambda: kv.get(b"own/a"),
        lambda: kv.set(b"own/a", b"1"),
        lambda: kv.snapshot.get(b"own/a"),
        lambda: within.kv.clear(b"own/a"),
        lambda: within.__exit__(None, None, None),
    ]
    for use in uses:
        with pytest.raises(JobsError, match="not entered yet") as caught:
            use()
        one_line(caught)
    with within as tx:
        assert tx is within
    for use in uses:
        with pytest.raises(JobsError, match="has ended") as caught:
            use()
        one_line(caught)
    application.commit()
    assert await listed(quiet) == []
    assert await own_keys(quiet) == {}


async def test_a_block_is_entered_once(quiet: JobsService) -> None:
    within = quiet.within(begun(quiet).tr)
    with within, pytest.raises(JobsError, match="entered before"):
        within.__enter__()
    with pytest.raises(JobsError, match="entered before"):
        within.__enter__()


async def test_blocks_of_one_transaction_are_not_nested(quiet: JobsService) -> None:
    application = begun(quiet)
    with quiet.within(application.tr) as tx:
        with pytest.raises(JobsError, match="open already"), quiet.within(application.tr):
            pytest.fail("entered")
        tx.add(T1, J1)
    with quiet.within(application.tr):
        pass
    application.commit()
    assert await drained(quiet) == [J1]


async def test_a_service_that_is_not_open_has_no_blocks(store_kind: StoreKind, tmp_path: Path) -> None:
    service = JobsService(store_kind.address_in(tmp_path), supervise=False)
    with pytest.raises(JobsError, match="not open"):
        service.within(None)
    async with service:
        application = begun(service)
    with pytest.raises(JobsError, match="not open"):
        service.within(application.tr)


async def test_a_block_that_was_made_before_the_service_was_left_is_not_entered_after(
    store_kind: StoreKind, tmp_path: Path
) -> None:
    service = JobsService(store_kind.address_in(tmp_path), supervise=False)
    async with service:
        block = service.within(begun(service).tr)
    with pytest.raises(ServiceClosed, match="the service is not open") as caught:
        block.__enter__()
    one_line(caught)
    with pytest.raises(JobsError, match="not entered yet"):
        block.add(T1, J1)


async def test_the_services_own_transaction_functions_have_no_blocks(quiet: JobsService) -> None:
    application = begun(quiet)

    async def function(tx: JobTransaction) -> None:
        with quiet.within(application.tr) as inner:
            inner.add(T1, J1)

    with pytest.raises(StoreError, match="the service itself") as caught:
        await quiet.transact(function)
    one_line(caught)
    with quiet.within(application.tr) as tx:
        tx.add(T1, J1)
    application.commit()


@pytest.mark.parametrize("wrong", [None, "tr", object(), JobTransaction, b"\xff" * 10_000])
async def test_what_is_no_transaction_of_the_store_is_refused(quiet: JobsService, wrong: object) -> None:
    with pytest.raises(StoreError) as caught:
        quiet.within(wrong)
    assert len(one_line(caught)) < 250


async def test_a_transaction_of_another_memory_store_or_one_that_has_ended_is_refused() -> None:
    async with JobsService("memory:", supervise=False) as mine, JobsService("memory:", supervise=False) as other:
        with pytest.raises(StoreError, match="another memory: store"):
            mine.within(begun(other).tr)
        application = begun(mine)
        application.commit()
        with pytest.raises(StoreError, match="has ended"):
            mine.within(application.tr)


async def test_a_memory_transaction_that_was_committed_inside_its_block_is_an_error() -> None:
    async with JobsService("memory:", supervise=False) as jobs:
        application = begun(jobs)
        within = jobs.within(application.tr)
        within.__enter__().set_type_timeout(T1, TIMEOUT)
        application.commit()
        with pytest.raises(StoreError, match="has ended"):
            within.__exit__(None, None, None)
        assert await jobs.types() == []


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind.name not in (*APPLICATIONS, "simulated")], ids=lambda kind: str(kind.name)
)
async def test_stores_without_such_transactions_say_so(kind: StoreKind, tmp_path: Path) -> None:
    async with JobsService(kind.where(tmp_path), supervise=False) as jobs:
        with pytest.raises(StoreError, match=r"within\(\) needs an fdb: store") as caught:
            jobs.within(object())
        one_line(caught)


async def test_bad_arguments_are_refused_as_everywhere(quiet: JobsService) -> None:
    with committed(quiet) as tx:
        for wrong in (lambda: tx.add(T1, 5), lambda: tx.list(T1, state="lost"), lambda: tx.accept_many(T1, 0)):  # type: ignore[arg-type]
            with pytest.raises(InvalidJob) as caught:
                wrong()
            one_line(caught)
        with pytest.raises(StoreError):
            tx.kv.set("own/a", b"1")  # type: ignore[arg-type]
    assert await listed(quiet) == []
