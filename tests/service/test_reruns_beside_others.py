"""Transaction functions that run twice, with others at work between the two runs."""

from __future__ import annotations

from typing import Any

import pytest

from jobs_service import JobNotFound, JobState, JobTransaction, Removal, RunningJob, WorkerConflict
from tests.service.rerunning import FINISHED, PENDING, RUNNING, Unsure, every_fate
from tests.service.support import J1, T1, accepted, drained, finished, new_jobs, running
from tests.unsure import Fate


@pytest.mark.parametrize("ran", ["accepted", "finished"])
@pytest.mark.parametrize("how", ["resubmit", "add"])
async def test_a_finished_job_that_is_made_pending_without_an_answer_does_not_run_twice(
    unsure: Unsure, how: str, ran: str
) -> None:
    await finished(unsure.jobs)
    workers: list[RunningJob] = []

    async def run() -> None:
        workers.append(await accepted(unsure.others))
        if ran == "finished":
            await workers[0].finish()

    jobs = unsure.next("unanswered", run)
    await (jobs.resubmit(T1, J1) if how == "resubmit" else jobs.add(T1, J1, "new", if_exists="resubmit"))
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


async def test_a_lost_removal_of_two_jobs_of_which_others_remove_one_meanwhile_is_done_again(unsure: Unsure) -> None:
    await unsure.jobs.add_many(T1, new_jobs("a", "b"))

    async def both(tx: JobTransaction) -> None:
        for id in ("a", "b"):
            await tx.remove(T1, id, force=True)

    async def remove_and_accept() -> None:
        await unsure.others.remove(T1, "a")
        await accepted(unsure.others)

    with pytest.raises(JobNotFound):
        await unsure.next("lost", remove_and_accept).transact(both)
    assert [job.id async for job in unsure.jobs.list(T1)] == ["b"]


@pytest.mark.parametrize("then", [PENDING, RUNNING, FINISHED])
@pytest.mark.parametrize("force", [False, True])
async def test_an_unanswered_removal_does_not_touch_a_job_made_anew_meanwhile(
    unsure: Unsure, force: bool, then: JobState
) -> None:
    await unsure.jobs.add(T1, J1, "old")

    async def add() -> None:
        await unsure.others.add(T1, J1, "new")
        if then is not PENDING:
            worker = await accepted(unsure.others)
            if then is FINISHED:
                await worker.finish()

    assert await unsure.next("unanswered", add).remove(T1, J1, force=force) is Removal.REMOVED
    job = await unsure.jobs.get(T1, J1)
    assert (job.data, job.state, job.cancel) == ("new", then, False)


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
