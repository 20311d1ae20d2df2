"""What looking at jobs and types shows, and what an application holds of a job."""

from __future__ import annotations

from typing import Any

import pytest

from jobs_service import JobsError, JobsService, JobState, NewJob, NoTypeTimeout
from tests.service.support import (
    FAR_AWAY,
    FAR_DATE,
    J1,
    J2,
    LONG_AGO,
    OVER,
    T1,
    T2,
    accepted,
    finished,
    listed,
    new_jobs,
)
from tests.stores import QUICKEST_AND_CLUSTER, one_of

# What they do is above the stores, which keep their contract: one, and the cluster, are enough.
store_kind = one_of(QUICKEST_AND_CLUSTER)


# looking


async def some_of_each(jobs: JobsService) -> None:
    await jobs.add_many(T1, new_jobs("r1", "r2", "f1"))
    for worker in await jobs.accept_many(T1, 3, timeout=0):
        if worker.id == "f1":
            await worker.finish()
    await jobs.add_many(T1, [NewJob("p1"), NewJob("p2", run_at=LONG_AGO), NewJob("p3", run_at=FAR_AWAY)])
    await jobs.add(T2, "other")


@pytest.mark.parametrize("page_size", [1, 2, 1000])
async def test_list_yields_the_jobs_of_a_type_in_a_state(quiet: JobsService, page_size: int) -> None:
    await some_of_each(quiet)

    async def ids(*arguments: Any, **keywords: Any) -> list[tuple[Any, Any]]:
        found = await listed(quiet, *arguments, page_size=page_size, **keywords)
        return sorted((job.type, job.id) for job in found)

    everything = [(T1, id) for id in ("f1", "p1", "p2", "p3", "r1", "r2")]
    assert await ids() == [*everything, (T2, "other")]
    assert await ids(T1) == everything
    assert await ids(T2) == [(T2, "other")]
    assert await ids("nosuch") == []
    assert await ids(T1, state=JobState.PENDING) == [(T1, id) for id in ("p1", "p2", "p3")]
    assert await ids(T1, state=JobState.RUNNING) == [(T1, id) for id in ("r1", "r2")]
    assert await ids(T1, state=JobState.FINISHED) == [(T1, "f1")]
    assert await ids(state=JobState.PENDING) == [(T1, id) for id in ("p1", "p2", "p3")] + [(T2, "other")]


async def test_active_ids_are_those_of_the_running_jobs(quiet: JobsService) -> None:
    await some_of_each(quiet)
    assert sorted(await quiet.active_ids(T1)) == ["r1", "r2"]
    assert await quiet.active_ids(T2) == []
    assert await quiet.active_ids("nosuch") == []


async def test_a_job_that_becomes_ready_while_jobs_are_counted_is_counted(
    quiet: JobsService, monkeypatch: pytest.MonkeyPatch
) -> None:
    await quiet.add(T1, J1, run_at=FAR_AWAY)
    read = quiet.store.read

    async def read_and_make_ready(function: Any) -> Any:
        result = await read(function)
        await quiet.resubmit(T1, J1, run_at=None)
        return result

    monkeypatch.setattr(quiet.store, "read", read_and_make_ready)
    assert await quiet.pending_count(T1) == 1


async def test_pending_count_counts_up_to_a_limit(quiet: JobsService) -> None:
    await some_of_each(quiet)
    assert [await quiet.pending_count(T1, limit=limit) for limit in (1, 2, 3, 4)] == [1, 2, 3, 3]


async def test_pending_count_counts_up_to_a_limit_beyond_those_that_do_not_count(quiet: JobsService) -> None:
    await quiet.add(T1, "not due", run_at=LONG_AGO)
    await quiet.add_many(T1, new_jobs("a", "b", "c"))
    counts = [await quiet.pending_count(T1, due_by=LONG_AGO - 1, limit=limit) for limit in (1, 2, 3, 4)]
    assert counts == [1, 2, 3, 3]


async def test_pending_count_counts_those_due_by_a_moment(quiet: JobsService) -> None:
    await some_of_each(quiet)
    assert await quiet.pending_count(T1, due_by=LONG_AGO - 1) == 1
    assert await quiet.pending_count(T1, due_by=LONG_AGO) == 2
    assert await quiet.pending_count(T1, due_by=FAR_AWAY - 1) == 2
    assert await quiet.pending_count(T1, due_by=FAR_DATE) == 3


# types


async def test_jobs_of_a_cleared_type_stay_and_nothing_new_can_be_added(quiet: JobsService) -> None:
    await quiet.add(T1, J1, "kept")
    await quiet.clear_type_timeout(T1)
    with pytest.raises(NoTypeTimeout):
        await quiet.add(T1, J2)
    assert (await quiet.get(T1, J1)).data == "kept"
    worker = await accepted(quiet)
    assert (await worker.finish()).state is JobState.FINISHED


# what an application holds


async def test_an_error_says_in_one_line_what_was_wrong(quiet: JobsService) -> None:
    worker = await finished(quiet)
    failing = [
        quiet.get(T1, "gone"),
        quiet.add(T1, J1),
        quiet.add("nosuch", J1),
        quiet.add(T1, J2, {1: 2}),
        quiet.add(T1, J2, OVER),
        worker.finish(),
    ]
    for call in failing:
        with pytest.raises(JobsError) as caught:
            await call
        assert str(caught.value)
        assert "\n" not in str(caught.value)
