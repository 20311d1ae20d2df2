"""How blocks begin and end, one after the other, in threads and beside a loop."""

from __future__ import annotations

import asyncio
from typing import Any

import fdb
import pytest

from jobs_service import JobNotFound, JobsService, NewJob
from jobs_service.errors import TransactionTooLarge
from tests import reader
from tests.service.support import (
    FAR_AWAY,
    J1,
    J2,
    PATIENCE,
    T1,
    T2,
    contents,
    drained,
    eventually,
    finished,
    listed,
    new_jobs,
    own_keys,
    running,
)
from tests.service.sync_transaction.support import (
    FINISHED,
    RUNNING,
    FoundationApplication,
    begun,
    committed,
    failed,
    taken,
)
from tests.stores import ADDRESSED, EVERY_STORE

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


async def test_a_job_accepted_in_a_block_is_finished_in_another_one_or_on_the_loop(quiet: JobsService) -> None:
    await quiet.add_many(T1, new_jobs("a", "b"))
    with committed(quiet) as tx:
        first, second = tx.accept_many(T1, 2)
    with committed(quiet) as tx:
        assert tx.finish(tx.update(first, "halfway")).data == "halfway"
    assert (await second.update("halfway")).data == "halfway"
    assert (await second.finish()).state is FINISHED


async def watching(jobs: JobsService) -> None:
    """Return when a worker of the service has found no job, and waits on its watch."""

    async def found_nothing() -> bool:
        return any(line.watch is not None for line in jobs._waiting._lines.values())

    await eventually(found_nothing)


async def test_a_waiting_worker_gets_what_an_application_has_committed(quiet: JobsService) -> None:
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(quiet.accept(T1))
        await watching(quiet)
        with committed(quiet) as tx:
            tx.add(T1, J1, "for you")
        job = await waiting
    assert job is not None
    assert job.data == "for you"


async def test_of_a_job_that_leaves_twice_in_one_transaction_the_last_end_is_told(quiet: JobsService) -> None:
    await quiet.set_retention(T1, keep=0)
    worker = await running(quiet)
    application = begun(quiet)
    with quiet.within(application.tr) as tx:
        tx.finish(worker, result=1)
    with quiet.within(application.tr) as tx:
        tx.add(T1, J1)
        again = tx.accept(T1)
        assert again is not None
        tx.finish(again, result=2)
    application.commit()
    rows = [reader.row(key[len(await quiet.store.prefix()) :], raw) for key, raw in (await contents(quiet)).items()]
    assert [row.value.notes.result for row in rows if row.family == "LAST"] == [b"2"]
