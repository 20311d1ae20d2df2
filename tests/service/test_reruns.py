"""Commits that may or may not have happened, on stores that really meet them: no operation doubles, loses or refuses.

A commit is unanswered (it happens, and nobody knows) or lost (it does not, and nobody knows); others may act before
anybody looks which it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs_service import (
    Job,
    JobsError,
    JobsService,
    JobState,
    JobTransaction,
    NewJob,
    Outcome,
    Removal,
    RunningJob,
    WorkerConflict,
)
from jobs_service.store import Store
from tests.checker import assert_sound
from tests.service.sequences import OPERATIONS, Operation, observable, play
from tests.service.support import (
    FAR_AWAY,
    J1,
    J2,
    T1,
    T2,
    TIMEOUT,
    accepted,
    drained,
    finished,
    listed,
    new_jobs,
    own_keys,
    running,
)
from tests.stores import plain_settings
from tests.unsure import UNSURE_KINDS, Fate, Fates, unsure_store

PENDING, RUNNING, FINISHED = JobState.PENDING, JobState.RUNNING, JobState.FINISHED


class Unsure:
    """A service whose next commit is of unknown outcome.

    Attributes:
        jobs: the service.
        others: another one on the same store.
        fates: of the store's commits.
    """

    def __init__(self, jobs: JobsService, others: JobsService, fates: Fates) -> None:
        self.jobs = jobs
        self.others = others
        self.fates = fates

    def next(self, fate: Fate, meanwhile: Callable[[], Awaitable[object]] | None = None) -> JobsService:
        """Return the service, whose next commit meets this fate; then `meanwhile` is done before anybody looks."""
        self.fates.plan([fate], meanwhile)
        return self.jobs


def quiet_service(store: Store) -> JobsService:
    """Return a service without a supervisor tree."""
    return JobsService(store, settings=plain_settings(), supervise=False)


@asynccontextmanager
async def opened(kind: str) -> AsyncIterator[Unsure]:
    """Open two services without supervisor trees on a store of their own, with two types."""
    fates = Fates()
    store = unsure_store(kind, fates)
    await store.open()
    try:
        async with quiet_service(store) as jobs, quiet_service(store) as others:
            await jobs.set_type_timeout(T1, TIMEOUT)
            await jobs.set_type_timeout(T2, TIMEOUT)
            yield Unsure(jobs, others, fates)
    finally:
        await store.close()


@pytest.fixture(params=UNSURE_KINDS)
async def unsure(request: pytest.FixtureRequest) -> AsyncIterator[Unsure]:
    """Two services on a store of every kind that can meet such commits."""
    async with opened(request.param) as found:
        yield found
        assert not found.fates.coming, "a fate was not met"
        assert found.fates.meanwhile is None, "the others did not act"
        await assert_sound(found.jobs.store)


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


async def test_an_unanswered_accept_whose_job_was_taken_from_it_meanwhile_gives_a_worker_that_is_told_so(
    unsure: Unsure,
) -> None:
    await unsure.jobs.add(T1, J1)
    workers: list[RunningJob] = []

    async def lose_and_accept() -> None:
        # What the activity monitor and another worker do to a job that falls silent, in the words of its creator.
        await unsure.others.remove(T1, J1, force=True)
        await unsure.others.add(T1, J1)
        workers.append(await accepted(unsure.others))

    stale = await unsure.next("unanswered", lose_and_accept).accept(T1, timeout=0)
    assert stale is not None
    for attempt in (stale.update, stale.finish, stale.release, stale.resubmit):
        with pytest.raises(WorkerConflict):
            await attempt()
    assert (await workers[0].finish()).state is FINISHED


async def test_a_lost_accept_does_not_take_a_job_that_another_has_accepted_meanwhile(unsure: Unsure) -> None:
    await unsure.jobs.add(T1, J1)
    workers: list[RunningJob] = []

    async def accept() -> None:
        workers.append(await accepted(unsure.others))

    assert await unsure.next("lost", accept).accept(T1, timeout=0) is None
    assert (await workers[0].finish()).state is FINISHED


@every_fate
async def test_an_accept_whose_job_is_removed_meanwhile_takes_no_other_job_unless_it_was_lost(
    unsure: Unsure, fate: Fate
) -> None:
    await unsure.jobs.add_many(T1, new_jobs("a", "b"))

    async def remove() -> None:
        await unsure.others.remove(T1, "a", force=True)

    job = await unsure.next(fate, remove).accept(T1, timeout=0)
    assert job is not None
    if fate == "lost":
        assert job.id == "b"
        assert await unsure.jobs.active_ids(T1) == ["b"]
    else:
        with pytest.raises(WorkerConflict):
            await job.finish()
        assert await unsure.jobs.active_ids(T1) == []
        assert await drained(unsure.jobs) == ["b"]


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


@pytest.mark.parametrize("if_exists", ["error", "resubmit", "ignore"])
async def test_an_unanswered_add_whose_job_was_run_and_removed_meanwhile_is_not_done_again(
    unsure: Unsure, if_exists: Any
) -> None:
    async def run_and_remove() -> None:
        await (await accepted(unsure.others)).finish()
        await unsure.others.remove(T1, J1)

    job = await unsure.next("unanswered", run_and_remove).add(T1, J1, "data", if_exists=if_exists)
    assert (job.state, job.data) == (PENDING, "data")
    assert await listed(unsure.jobs) == []


@pytest.mark.parametrize("if_exists", ["error", "resubmit", "ignore"])
async def test_an_unanswered_add_whose_job_was_run_and_resubmitted_meanwhile_is_a_success_and_changes_nothing(
    unsure: Unsure, if_exists: Any
) -> None:
    async def run_and_resubmit() -> None:
        await (await accepted(unsure.others)).finish()
        await unsure.others.resubmit(T1, J1, data="theirs", priority=5)

    job = await unsure.next("unanswered", run_and_resubmit).add(T1, J1, "mine", if_exists=if_exists)
    assert (job.state, job.data, job.priority) == (PENDING, "mine", 0)
    now = await unsure.jobs.get(T1, J1)
    assert (now.data, now.priority) == ("theirs", 5)
    assert await drained(unsure.jobs) == [J1]


@pytest.mark.parametrize("how", ["update", "finish", "resubmit", "release"])
async def test_what_a_worker_did_without_an_answer_is_a_success_though_the_job_was_removed_and_made_anew_meanwhile(
    unsure: Unsure, how: str
) -> None:
    worker = await running(unsure.jobs)

    async def remove_and_add() -> None:
        await unsure.others.remove(T1, J1, force=True)
        await unsure.others.add(T1, J1, "new")

    unsure.next("unanswered", remove_and_add)
    assert (await getattr(worker, how)()).id == J1
    job = await unsure.jobs.get(T1, J1)
    assert (job.state, job.data, job.resubmit) == (PENDING, "new", False)
    assert await drained(unsure.jobs) == [J1]


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


@every_fate
async def test_effects_of_a_function_that_touches_no_job_happen_once(unsure: Unsure, fate: Fate) -> None:
    runs: list[int] = []

    async def count(tx: JobTransaction) -> int:
        runs.append(1)
        tx.kv.add(b"own/count", ONE)
        return len(runs)

    assert await unsure.next(fate).transact(count) == (2 if fate == "lost" else 1)
    assert await own_keys(unsure.jobs) == {b"own/count": ONE}


@every_fate
async def test_effects_of_a_function_that_only_looks_at_jobs_happen_once_though_others_write_the_same_keys(
    unsure: Unsure, fate: Fate
) -> None:
    await unsure.jobs.add(T1, J1)

    async def append(tx: JobTransaction) -> JobState:
        job = await tx.get(T1, J1)
        tx.kv.set(b"own/list", (await tx.kv.get(b"own/list") or b"") + job.state[:1].encode())
        return job.state

    async def others() -> None:
        await unsure.others.transact(append)
        await accepted(unsure.others)

    assert await unsure.next(fate, others).transact(append) is (RUNNING if fate == "lost" else PENDING)
    assert await own_keys(unsure.jobs) == {b"own/list": b"pr" if fate == "lost" else b"pp"}


# every operation, on a job in every state, with others doing anything meanwhile

Act = Callable[[JobsService, RunningJob | None], Awaitable[Any]]
"""Does something on a service; the second argument is the worker of J1, if one had it when the scene began."""

STATES = ("missing", "pending", "running", "flagged", "canceled", "finished")


async def set_scene(jobs: JobsService, state: str) -> RunningJob | None:
    """Bring J1 into a state, and J2 into the queue behind it; return who is or was J1's worker."""
    worker = None
    if state != "missing":
        await jobs.add(T1, J1, "first", priority=-1)
    if state not in ("missing", "pending"):
        worker = await accepted(jobs)
    if state == "flagged":
        await jobs.resubmit(T1, J1, priority=2)
    if state == "canceled":
        await jobs.remove(T1, J1)
    if state == "finished" and worker is not None:
        await worker.finish("done")
    await jobs.add(T1, J2, "behind")
    return worker


async def _nothing(jobs: JobsService, worker: RunningJob | None) -> Any:
    return None


def by_worker(how: str, *arguments: Any, **keywords: Any) -> Act:
    """Return what J1's worker does, with its own handle."""

    async def act(jobs: JobsService, worker: RunningJob | None) -> Any:
        return None if worker is None else await getattr(worker, how)(*arguments, **keywords)

    return act


def in_turn(*acts: Act) -> Act:
    """Return several acts, each done as far as it can be."""

    async def act(jobs: JobsService, worker: RunningJob | None) -> Any:
        return [await result_of(each, jobs, worker) for each in acts]

    return act


async def accept_one(jobs: JobsService, worker: RunningJob | None) -> Any:
    return await jobs.accept(T1, timeout=0)


async def run_one(jobs: JobsService, worker: RunningJob | None) -> Any:
    job = await jobs.accept(T1, timeout=0)
    return None if job is None else await job.finish("run by others")


async def several_at_once(jobs: JobsService, worker: RunningJob | None) -> Any:
    async def function(tx: JobTransaction) -> list[Any]:
        tx.kv.add(b"own/count", ONE)
        added = await tx.add(T1, "beside")
        if worker is not None:
            await tx.update(worker, "mine")
        taken = await tx.accept(T1)
        return [added, taken, await tx.add(T1, J1, "mine too", if_exists="resubmit")]

    return await jobs.transact(function)


async def count_alone(jobs: JobsService, worker: RunningJob | None) -> Any:
    async def function(tx: JobTransaction) -> bytes | None:
        before = await tx.kv.get(b"own/count")
        tx.kv.add(b"own/count", ONE)
        return before

    return await jobs.transact(function)


DEEDS: dict[str, Act] = {
    "add": lambda jobs, worker: jobs.add(T1, J1, "mine", priority=1),
    "add_or_resubmit": lambda jobs, worker: jobs.add(T1, J1, "mine", priority=1, if_exists="resubmit"),
    "add_or_ignore": lambda jobs, worker: jobs.add(T1, J1, "mine", if_exists="ignore"),
    "add_many": lambda jobs, worker: jobs.add_many(T1, new_jobs(J1, "beside"), if_exists="resubmit"),
    "resubmit": lambda jobs, worker: jobs.resubmit(T1, J1, data="mine", priority=3),
    "remove": lambda jobs, worker: jobs.remove(T1, J1),
    "remove_by_force": lambda jobs, worker: jobs.remove(T1, J1, force=True),
    "accept": accept_one,
    "accept_many": lambda jobs, worker: jobs.accept_many(T1, 2, timeout=0),
    "update": by_worker("update", "mine"),
    "finish": by_worker("finish", "mine", outcome=Outcome.FAILED),
    "release": by_worker("release"),
    "resubmit_by_the_worker": by_worker("resubmit", priority=3),
    "several_at_once": several_at_once,
    "count_alone": count_alone,
    "clear_the_type": lambda jobs, worker: jobs.clear_type_timeout(T1),
}
OTHERS: dict[str, Act] = {
    "do_nothing": _nothing,
    "accept": accept_one,
    "run": run_one,
    "remove": lambda jobs, worker: jobs.remove(T1, J1, force=True),
    "remove_and_add": in_turn(
        lambda jobs, worker: jobs.remove(T1, J1, force=True), lambda jobs, worker: jobs.add(T1, J1, "theirs")
    ),
    "resubmit": lambda jobs, worker: jobs.resubmit(T1, J1, data="theirs", priority=-2),
    "run_and_resubmit": in_turn(run_one, lambda jobs, worker: jobs.resubmit(T1, J1, data="theirs")),
    "run_and_remove": in_turn(run_one, lambda jobs, worker: jobs.remove(T1, J1)),
    "count": count_alone,
}


async def result_of(act: Act, jobs: JobsService, worker: RunningJob | None) -> Any:
    """Do something and return what an application sees of the result, or of the error."""
    try:
        return _seen(await act(jobs, worker))
    except JobsError as error:
        return (type(error).__name__, error.type, error.id)


def _seen(result: Any) -> Any:
    if isinstance(result, list):
        return [_seen(each) for each in result]
    return observable(result) if isinstance(result, Job) else result


async def left_behind(jobs: JobsService) -> Any:
    """Return all that can be seen of a store, and the order of its queue."""
    await assert_sound(jobs.store)
    found = sorted(map(observable, await listed(jobs)), key=repr)
    return found, await own_keys(jobs), await drained(jobs, due_by=FAR_AWAY)


async def play_scene(kind: str, state: str, deed: Act, others: Act, fate: Fate) -> tuple[bool, Any]:
    """Do the deed, whose commit meets the fate, and what others do meanwhile, or afterwards if it writes nothing.

    Return whether it met its fate, and all that was seen.
    """
    async with opened(kind) as unsure:
        worker = await set_scene(unsure.jobs, state)
        theirs: list[Any] = []

        async def meanwhile() -> None:
            theirs.append(await result_of(others, unsure.others, worker))

        mine = await result_of(deed, unsure.next(fate, meanwhile), worker)
        met = bool(unsure.fates.met)
        unsure.fates.plan([])
        if not met:
            await meanwhile()
        return met, [mine, theirs, await left_behind(unsure.jobs)]


async def play_in_order(state: str, deed: Act, others: Act, *, others_first: bool) -> Any:
    """Do the same in a certain order, every commit answered; return all that was seen."""
    async with opened("memory") as sure:
        worker = await set_scene(sure.jobs, state)
        if others_first:
            theirs = await result_of(others, sure.others, worker)
            mine = await result_of(deed, sure.jobs, worker)
        else:
            mine = await result_of(deed, sure.jobs, worker)
            theirs = await result_of(others, sure.others, worker)
        return [mine, [theirs], await left_behind(sure.jobs)]


@every_fate
@pytest.mark.parametrize("others", OTHERS)
@pytest.mark.parametrize("deed", DEEDS)
async def test_an_unanswered_deed_is_done_before_what_others_do_and_a_lost_one_after_it(
    deed: str, others: str, fate: Fate
) -> None:
    ever_met = False
    # The stores share all but the commit: each deed, and whatever others do, meets every state on each of them.
    everywhere = (list(DEEDS).index(deed) + list(OTHERS).index(others)) % len(STATES)
    for number, state in enumerate(STATES):
        kinds = UNSURE_KINDS if number == everywhere else UNSURE_KINDS[:1]
        found = [await play_scene(kind, state, DEEDS[deed], OTHERS[others], fate) for kind in kinds]
        met = found[0][0]
        expected = await play_in_order(state, DEEDS[deed], OTHERS[others], others_first=met and fate == "lost")
        assert found == [(met, expected)] * len(kinds), state
        ever_met |= met
    assert ever_met, "no commit was of unknown outcome"


# any sequence of operations

FATES: list[Fate] = ["answered", "unanswered", "lost", "conflict"]


async def play_surely_and_unsurely(kind: str, groups: list[list[Operation]], fates: list[Fate]) -> None:
    async with opened(kind) as sure:
        expected = await play(sure.jobs, groups)
    async with opened(kind) as unsure:
        unsure.fates.plan(fates)  # the first is that of setting the type's timeout
        assert await play(unsure.jobs, groups) == expected
        unsure.fates.plan([])


UNSURE = st.lists(st.sampled_from(FATES), min_size=1, max_size=15)


@pytest.mark.parametrize("kind", UNSURE_KINDS)
@settings(max_examples=40, deadline=None)
@given(operations=OPERATIONS, fates=UNSURE)
def test_any_operations_whose_commits_are_unknown_end_as_if_answered(
    kind: str, operations: list[Operation], fates: list[Fate]
) -> None:
    asyncio.run(play_surely_and_unsurely(kind, [[one] for one in operations], fates))


@pytest.mark.parametrize("kind", UNSURE_KINDS)
@settings(max_examples=40, deadline=None)
@given(groups=st.lists(OPERATIONS, max_size=5), fates=UNSURE)
def test_any_transactions_whose_commits_are_unknown_end_as_if_answered(
    kind: str, groups: list[list[Operation]], fates: list[Fate]
) -> None:
    asyncio.run(play_surely_and_unsurely(kind, groups, fates))
