"""Commits that may or may not have happened, on stores that really meet them: no operation doubles, loses or refuses.

A commit is unanswered (it happens, and nobody knows) or lost (it does not, and nobody knows); others may act before
anybody looks which it was.
"""

from __future__ import annotations

from typing import Any

import pytest

from jobs_service import Job, JobState, JobTransaction, NewJob, Outcome, Removal, RunningJob, WorkerConflict
from tests.service.rerunning import FINISHED, ONE, PENDING, RUNNING, Unsure, every_fate
from tests.service.support import FAR_AWAY, J1, J2, T1, accepted, drained, finished, listed, new_jobs, own_keys, running
from tests.unsure import Fate

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


# with effects of the application's own


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
