"""add_many of more jobs than one transaction takes: in order, one transaction begun while the one before it commits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from jobs_service import JobsService, NewJob, Settings
from jobs_service.errors import InvalidJob, JobExists, TransactionTooLarge
from jobs_service.store.memory import Faults, MemoryStore, MemoryTransaction
from jobs_service.store.overlay import CLEAR
from tests.service.support import FAR_AWAY, T1, drained
from tests.stores import settings_with

BATCH = 10
MANY = 95


@pytest.fixture
def settings() -> Settings:
    """Settings under which few jobs fill a transaction."""
    return settings_with(notify_holdoff=0.01, add_batch=BATCH)


def name(number: int) -> str:
    """Return the id of one of many jobs."""
    return f"{number:04}"


def names(begin: int, end: int) -> list[str]:
    """Return the ids of some of many jobs."""
    return [name(number) for number in range(begin, end)]


async def test_jobs_of_many_batches_run_in_the_order_in_which_they_were_given(quiet: JobsService) -> None:
    added = await quiet.add_many(T1, (NewJob(name(number), number) for number in range(MANY)))
    assert [(job.id, job.data) for job in added] == [(name(number), number) for number in range(MANY)]
    assert sorted(added, key=lambda job: job.seq or b"") == added
    assert await drained(quiet) == names(0, MANY)


async def test_when_a_batch_fails_those_before_it_have_taken_effect_and_none_after_it(quiet: JobsService) -> None:
    await quiet.add(T1, name(45), priority=-1)
    with pytest.raises(JobExists) as caught:
        await quiet.add_many(T1, [NewJob(id) for id in names(0, MANY)])
    assert caught.value.id == name(45)
    assert await drained(quiet) == [name(45), *names(0, 40)]


class CountsRanges(Faults):
    """Counts a transaction as FoundationDB does: with the keys of the ranges that were read and written."""

    async def before_commit(self, transaction: MemoryTransaction) -> None:
        """Refuse what is too large."""
        size = sum(len(begin) + len(end) for begin, end in transaction.conflicts.ranges)
        for operation, key, value, _ in transaction.log:
            size += (4 if operation == CLEAR else 3) * len(key) + len(value or b"")
        if size > transaction.limits.transaction:
            raise TransactionTooLarge("transaction exceeds byte limit (2101)")


@pytest.mark.parametrize("settings", [Settings(notify_holdoff=0.01)])
async def test_many_jobs_with_long_ids_fit_into_the_transactions_of_a_store_that_counts_ranges(
    quiet: JobsService,
) -> None:
    if isinstance(quiet.store, MemoryStore):
        quiet.store.faults = CountsRanges()
    ids = [name(number) + "x" * (quiet.store.limits.key // 4) for number in range(900)]
    assert len(await quiet.add_many(T1, [NewJob(id) for id in ids])) == len(ids)
    for how in ({"priority": 5, "run_at": FAR_AWAY}, {}):
        jobs = [NewJob(id, 1, **how) for id in ids]  # type: ignore[arg-type]
        assert [job.id for job in await quiet.add_many(T1, jobs, if_exists="resubmit")] == ids


async def test_an_id_of_the_batch_before_is_found_there(quiet: JobsService) -> None:
    ids = [*names(0, BATCH), *names(BATCH, 2 * BATCH - 1), name(3), *names(30, 50)]
    with pytest.raises(JobExists) as caught:
        await quiet.add_many(T1, [NewJob(id) for id in ids])
    assert caught.value.id == name(3)
    assert await drained(quiet) == names(0, BATCH)
    added = await quiet.add_many(T1, [NewJob(id) for id in names(60, 80) * 2], if_exists="ignore")
    assert [job.id for job in added] == names(60, 80) * 2
    assert await drained(quiet) == names(60, 80)


async def test_what_an_iterable_gave_before_it_failed_counts_by_whole_batches(quiet: JobsService) -> None:
    def broken() -> Iterator[NewJob]:
        yield from (NewJob(id) for id in names(0, 35))
        raise LookupError("no more")

    with pytest.raises(LookupError, match="no more"):
        await quiet.add_many(T1, broken())
    assert await drained(quiet) == names(0, 30)
    with pytest.raises(InvalidJob, match="id 7"):
        await quiet.add_many(T1, [*(NewJob(id) for id in names(50, 72)), NewJob(7)])  # type: ignore[arg-type]
    assert await drained(quiet) == names(50, 70)


async def test_a_caller_that_is_canceled_leaves_whole_batches_and_nothing_under_way(
    quiet: JobsService,
) -> None:
    given = asyncio.Event()

    def slowly() -> Iterator[NewJob]:
        for number in range(10_000):
            if number == 5 * BATCH:
                given.set()
            yield NewJob(name(number))

    before = asyncio.all_tasks()
    adding = asyncio.create_task(quiet.add_many(T1, slowly()))
    await given.wait()
    adding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await adding
    # A store may have to find out what became of a commit.
    assert {task for task in asyncio.all_tasks() - before if "/jobs_service/store/" not in str(task)} == set()
    # What was on its way to the store when the caller went may still get there, whole or not at all.
    found = await drained(quiet)
    assert found == names(0, len(found))
    assert len(found) % BATCH == 0
    assert len(found) >= 3 * BATCH
