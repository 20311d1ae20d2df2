"""What a worker's resubmit, progress and finish_with do to a missing, pending, running and finished job."""

from __future__ import annotations

from typing import Any

import pytest

from jobs_service import InvalidJob, JobsService, JobState, JobTransaction, Outcome, Progress, WorkerConflict
from tests.service.support import (
    J1,
    J2,
    T1,
    canceled,
    contents,
    finished,
    own_keys,
    released,
    running,
    succeeded_by_another,
)
from tests.stores import QUICKEST_AND_CLUSTER, one_of

# What they do is above the stores, which keep their contract: one, and the cluster, are enough.
store_kind = one_of(QUICKEST_AND_CLUSTER)


# progress


async def test_progress_is_kept_beside_the_data_and_gives_the_job_a_new_seq(quiet: JobsService) -> None:
    worker = await running(quiet, data="kept")
    before = await quiet.get(T1, J1)
    updated = await worker.progress(3, 10, "resizing")
    assert updated.progress == Progress(3, 10, "resizing")
    stored = await quiet.get(T1, J1)
    assert (stored.progress, stored.data, stored.state) == (Progress(3, 10, "resizing"), "kept", JobState.RUNNING)
    assert before.seq is not None
    assert stored.seq is not None
    assert stored.seq > before.seq
    await worker.progress(4)
    assert (await quiet.get(T1, J1)).progress == Progress(4)
    assert (await worker.finish()).progress == Progress(4)


# finish_with


@pytest.mark.parametrize("bring", [released, succeeded_by_another, finished])
async def test_finish_with_of_a_job_that_is_not_the_callers_is_a_conflict_and_writes_nothing(
    quiet: JobsService, bring: Any
) -> None:
    worker = await bring(quiet)
    before = await contents(quiet)
    with pytest.raises(WorkerConflict):
        await worker.finish_with(lambda tx: tx.kv.set(b"own/effect", b"1"))
    assert await contents(quiet) == before
    assert await own_keys(quiet) == {}


async def test_finish_with_ends_the_run_and_keeps_what_the_function_returns(quiet: JobsService) -> None:
    worker = await running(quiet, data="kept")

    def effects(tx: JobTransaction) -> list[int]:
        tx.kv[b"own/effect"] = b"1"
        return [1]

    job = await worker.finish_with(effects)
    assert (job.state, job.outcome, job.data, job.result) == (JobState.FINISHED, Outcome.SUCCEEDED, "kept", [1])
    assert await own_keys(quiet) == {b"own/effect": b"1"}


async def test_finish_with_of_a_flagged_job_makes_it_pending(quiet: JobsService) -> None:
    worker = await running(quiet)
    await quiet.resubmit(T1, J1)
    job = await worker.finish_with(lambda tx: 7)
    assert (job.state, job.result, job.attempts) == (JobState.PENDING, 7, 0)


async def test_finish_with_of_a_canceled_job_is_its_last_word(quiet: JobsService) -> None:
    worker = await canceled(quiet)
    job = await worker.finish_with(lambda tx: 7)
    assert (job.state, job.outcome, job.result) == (JobState.FINISHED, Outcome.CANCELED, 7)


async def test_what_the_function_of_finish_with_raises_comes_out_and_nothing_is_written(quiet: JobsService) -> None:
    worker = await running(quiet)
    before = await contents(quiet)

    async def fails(tx: JobTransaction) -> None:
        tx.kv[b"own/effect"] = b"1"
        await tx.add(T1, J2)
        raise LookupError

    with pytest.raises(LookupError):
        await worker.finish_with(fails)
    with pytest.raises(InvalidJob, match="data is not JSON"):
        await worker.finish_with(lambda tx: {1: 2})
    assert await contents(quiet) == before
    assert await own_keys(quiet) == {}
    assert (await worker.finish()).state is JobState.FINISHED
