"""A store of format 2, whose jobs are not counted, becomes one of format 3 when it is opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lmdb
import pytest

from jobs_service import JobsService, JobTransaction, NewJob, NoTypeTimeout, Outcome, TypeCounts
from jobs_service.layer import conversion
from tests.checker import assert_sound
from tests.service.older import uncount
from tests.service.support import FAR_AWAY, T1, accepted, keys_left, new_jobs

FORMAT_KEY = b"\xff/jobs_service/format"
CONVERTING_KEY = b"\xff/jobs_service/converting"


async def jobs_of_all_kinds(jobs: JobsService) -> None:
    await jobs.set_type_timeout(T1, 60)
    await jobs.add_many(T1, new_jobs(*(f"q{number}" for number in range(40)), "s1", "f1"))
    await jobs.add(T1, "later", run_at=FAR_AWAY)
    for outcome in (Outcome.SUCCEEDED, Outcome.FAILED):
        await (await accepted(jobs)).finish(outcome=outcome)
    await accepted(jobs)
    await jobs.add(("other", 1), "alone") if ("other", 1) in await jobs.types() else None


async def make_old(path: Path) -> TypeCounts:
    """Make a store as version 2 has left it: without whatever came later; return the counts that it had."""
    async with JobsService(f"lmdb:{path}", supervise=False) as jobs:
        await jobs_of_all_kinds(jobs)
        counts = (await jobs.counts())[T1]
        await uncount(jobs)
    with lmdb.open(str(path)) as environment, environment.begin(write=True) as transaction:
        transaction.put(FORMAT_KEY, b"2")
    return counts


def states(counts: TypeCounts) -> tuple[int, ...]:
    return counts.ready, counts.scheduled, counts.running, counts.succeeded, counts.failed, counts.canceled


def keys_of(path: Path) -> dict[bytes, bytes]:
    with lmdb.open(str(path)) as environment, environment.begin() as transaction:
        return dict(transaction.cursor())


async def test_an_older_store_is_converted_when_it_is_opened(tmp_path: Path) -> None:
    before = await make_old(tmp_path)
    async with JobsService(f"lmdb:{tmp_path}", supervise=False) as jobs:
        assert jobs._lifecycle.converted == before.jobs
        assert states((await jobs.counts())[T1]) == states(before)
        assert [job.id for job in (await jobs.page(T1, state="failed")).jobs] == ["q1"]
        await assert_sound(jobs.store)
    found = keys_of(tmp_path)
    assert found[FORMAT_KEY] == b"3"
    assert CONVERTING_KEY not in found
    async with JobsService(f"lmdb:{tmp_path}", supervise=False) as jobs:
        assert jobs._lifecycle.converted is None


async def test_a_conversion_that_was_interrupted_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = await make_old(tmp_path)
    monkeypatch.setattr(conversion, "_JOBS", 10)
    seen: list[tuple[int, bool]] = []

    class Stopped(Exception):
        pass

    def stop(counted: int, is_last: bool) -> None:
        seen.append((counted, is_last))
        if len(seen) == 2:
            raise Stopped

    token = conversion.PROGRESS.set(stop)
    try:
        with pytest.raises(Stopped):
            async with JobsService(f"lmdb:{tmp_path}", supervise=False):
                pass
    finally:
        conversion.PROGRESS.reset(token)
    assert 0 < seen[-1][0] < before.jobs
    found = keys_of(tmp_path)
    assert (found[FORMAT_KEY], found[CONVERTING_KEY]) == (b"3", b"")
    async with JobsService(f"lmdb:{tmp_path}", supervise=False) as jobs:
        assert jobs._lifecycle.converted == before.jobs - seen[-1][0]
        assert states((await jobs.counts())[T1]) == states(before)
        await assert_sound(jobs.store)


async def test_a_job_that_changes_before_the_conversion_comes_to_it_counts_once(tmp_path: Path) -> None:
    before = await make_old(tmp_path)
    async with JobsService(f"lmdb:{tmp_path}", supervise=False) as jobs:
        context = jobs._context

        async def old(transaction: Any) -> None:
            """Have one job be uncounted again, as an earlier version that is still running leaves it."""
            keys = context.keyspace.of(T1)
            raw = await transaction.get(keys.data + b"\x02q7\x00")
            transaction.set(keys.data + b"\x02q7\x00", b"\x02" + raw[1:])
            transaction.add(keys.counts, (-1).to_bytes(664, "little", signed=True))

        await jobs.store.transact(old)
        assert (await jobs.counts())[T1].ready == before.ready - 1
        await jobs.resubmit(T1, "q7", priority=7)
        assert states((await jobs.counts())[T1]) == states(before)
        assert await conversion.convert(jobs.store, context.keyspace, context.sources) == 0
        await assert_sound(jobs.store)


async def test_a_refusal_leaves_a_failed_job_that_is_not_converted_yet_as_it_was() -> None:
    """Seed 6490444: what was undone got a row in the index of failed jobs, which its version does not have."""

    async def refused(tx: JobTransaction) -> None:
        with pytest.raises(NoTypeTimeout):
            await tx.add_many(T1, [NewJob("a"), NewJob("b")], if_exists="resubmit")
        await tx.set_type_timeout(T1, 60)

    async with JobsService("memory:", supervise=False) as jobs:
        await jobs.set_type_timeout(T1, 60)
        await jobs.add(T1, "a")
        await (await accepted(jobs)).finish(outcome=Outcome.FAILED)
        await uncount(jobs)
        await jobs.clear_type_timeout(T1)
        before = await keys_left(jobs)
        await jobs.transact(refused)
        await jobs.clear_type_timeout(T1)
        assert await keys_left(jobs) == before
        await assert_sound(jobs.store)
