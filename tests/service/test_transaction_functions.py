"""What a transaction function may do; its effects are there exactly once."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest
from hypothesis import given, settings

from jobs_service import Job, JobsError, JobsService, JobTransaction, RunningJob, StoreError, WorkerConflict
from tests.service.sequences import OPERATIONS, Operation, play
from tests.service.support import J1, T1, accepted, contents, empty, listed, own_keys, running
from tests.stores import EVERY_STORE, StoreKind

# exactly once


async def test_a_stale_workers_transaction_has_no_effect(quiet: JobsService) -> None:
    stale = await running(quiet)
    await stale.release()
    worker = await accepted(quiet)

    async def pay(tx: JobTransaction, job: RunningJob) -> Job:
        tx.kv.add(b"own/paid", (1).to_bytes(8, "little"))
        return await tx.finish(job)

    with pytest.raises(WorkerConflict):
        await quiet.transact(lambda tx: pay(tx, stale))
    assert await own_keys(quiet) == {}
    await quiet.transact(lambda tx: pay(tx, worker))
    with pytest.raises(WorkerConflict):
        await quiet.transact(lambda tx: pay(tx, worker))
    assert await own_keys(quiet) == {b"own/paid": (1).to_bytes(8, "little")}


async def test_two_workers_that_both_think_the_job_theirs_have_one_effect(quiet: JobsService) -> None:
    stale = await running(quiet)
    await stale.release()
    worker = await accepted(quiet)

    async def pay(tx: JobTransaction, job: RunningJob, payer: bytes) -> Job:
        tx.kv[b"own/paid by"] = payer
        return await tx.finish(job)

    results = await asyncio.gather(
        quiet.transact(lambda tx: pay(tx, stale, b"stale")),
        quiet.transact(lambda tx: pay(tx, worker, b"worker")),
        return_exceptions=True,
    )
    assert isinstance(results[0], WorkerConflict)
    assert isinstance(results[1], Job)
    assert await own_keys(quiet) == {b"own/paid by": b"worker"}


async def sleep_zero() -> None:
    await asyncio.sleep(0)


async def sleep() -> None:
    await asyncio.sleep(1)


async def anyio_sleep() -> None:
    await anyio.sleep(0.01)


async def asyncio_event() -> None:
    await asyncio.Event().wait()


async def anyio_event() -> None:
    await anyio.Event().wait()


async def to_thread() -> None:
    await asyncio.to_thread(int)


# what a transaction function may not do


@pytest.mark.parametrize(
    "foreign", [sleep_zero, sleep, anyio_sleep, asyncio_event, anyio_event, to_thread], ids=lambda f: f.__name__
)
async def test_awaiting_anything_but_the_transaction_is_an_error_that_says_so(
    store_kind: StoreKind, quiet: JobsService, foreign: Callable[[], Awaitable[None]]
) -> None:
    if store_kind.suspends:
        pytest.skip("its functions may suspend: what they await then is not seen")
    before = await contents(quiet)

    async def function(tx: JobTransaction) -> None:
        tx.kv[b"own/a"] = b"1"
        await tx.add(T1, J1)
        await foreign()

    with pytest.raises(StoreError, match="may await nothing but its transaction"):
        await quiet.transact(function)
    assert await own_keys(quiet) == {}
    assert await contents(quiet) == before
    await quiet.add(T1, J1)  # and the service goes on


async def test_awaiting_the_service_inside_its_transaction_is_an_error_that_says_so(quiet: JobsService) -> None:
    async def function(tx: JobTransaction) -> None:
        await quiet.add(T1, J1)

    with pytest.raises(StoreError, match="may await nothing but its transaction"):
        await quiet.transact(function)
    assert await listed(quiet) == []
    await quiet.add(T1, J1)


async def test_a_transaction_is_of_no_use_after_its_function_has_ended(quiet: JobsService) -> None:
    kept: list[JobTransaction] = []

    async def function(tx: JobTransaction) -> None:
        kept.append(tx)

    await quiet.transact(function)
    with pytest.raises(JobsError):
        await kept[0].add(T1, J1)
    assert await listed(quiet) == []


async def play_both(kind: StoreKind, operations: list[Operation]) -> None:
    seen = []
    for groups in ([[one] for one in operations], [operations]):
        with tempfile.TemporaryDirectory() as directory:
            async with JobsService(kind.address_in(Path(directory)), supervise=False) as jobs:
                if kind.shared:
                    await empty(jobs)
                seen.append(await play(jobs, groups))
    assert seen[1] == seen[0]


# any sequence of operations


@pytest.mark.unmeasured
@pytest.mark.parametrize("kind", EVERY_STORE)
@settings(max_examples=60, deadline=None)
@given(operations=OPERATIONS)
def test_any_operations_in_one_transaction_end_as_they_do_one_after_the_other(
    kind: StoreKind, operations: list[Operation]
) -> None:
    asyncio.run(play_both(kind, operations))
