"""Several operations, and the application's own keys, in one transaction."""

from __future__ import annotations

import pytest

from jobs_service import (
    InvalidJob,
    JobExists,
    JobNotFound,
    JobsService,
    JobTransaction,
    NoTypeTimeout,
    Removal,
    WorkerConflict,
)
from tests.service.support import J1, J2, T1, contents, drained, finished, keys_left, listed


async def test_a_job_added_and_removed_leaves_nothing(quiet: JobsService) -> None:
    await quiet.add(T1, J2)
    await quiet.remove(T1, J2)
    before = await keys_left(quiet)

    async def function(tx: JobTransaction) -> Removal:
        await tx.add(T1, J1)
        removal = await tx.remove(T1, J1)
        with pytest.raises(JobNotFound):
            await tx.get(T1, J1)
        assert await tx.pending_count(T1) == 0
        assert await tx.accept(T1) is None
        return removal

    assert await quiet.transact(function) is Removal.REMOVED
    assert await keys_left(quiet) == before


async def test_a_type_set_in_a_transaction_takes_jobs_at_once(quiet: JobsService) -> None:
    async def function(tx: JobTransaction) -> None:
        with pytest.raises(NoTypeTimeout):
            await tx.add("new type", J1)
        await tx.set_type_timeout("new type", 5)
        assert await tx.get_type_timeout("new type") == 5
        assert "new type" in await tx.types()
        await tx.add("new type", J1)
        await tx.clear_type_timeout("new type")
        with pytest.raises(NoTypeTimeout):
            await tx.get_type_timeout("new type")
        with pytest.raises(NoTypeTimeout):
            await tx.add("new type", J2)

    await quiet.transact(function)
    assert [job.id for job in await listed(quiet, "new type")] == [J1]
    assert "new type" not in await quiet.types()


async def test_what_fails_and_is_caught_leaves_the_rest_of_the_transaction_whole(quiet: JobsService) -> None:
    stale = await finished(quiet, "stale")

    async def function(tx: JobTransaction) -> None:
        await tx.add(T1, J1, "kept")
        with pytest.raises(JobExists):
            await tx.add(T1, J1, "refused")
        with pytest.raises(InvalidJob):
            await tx.resubmit(T1, J1, data={1: 2})
        with pytest.raises(WorkerConflict):
            await tx.update(stale, "refused")
        with pytest.raises(JobNotFound):
            await tx.remove(T1, J2)
        await tx.add(T1, J2)

    await quiet.transact(function)
    assert (await quiet.get(T1, J1)).data == "kept"
    assert (await quiet.get(T1, "stale")).data is None
    assert await drained(quiet) == [J1, J2]


async def test_a_transaction_that_changes_nothing_writes_nothing(quiet: JobsService) -> None:
    await quiet.add(T1, J1, "same")
    await quiet.add(T1, "b")
    before = await contents(quiet)

    async def function(tx: JobTransaction) -> None:
        await tx.add(T1, J1, "same", if_exists="resubmit")
        await tx.add(T1, J1, "other", if_exists="ignore")
        await tx.resubmit(T1, J1)
        await tx.get(T1, J1)
        assert await tx.accept(T1, max_priority=-1) is None

    await quiet.transact(function)
    assert await contents(quiet) == before
