"""Transactions over jobs and keys of the application."""

from __future__ import annotations

import asyncio

import pytest

from jobs_service import JobExists, JobsService, JobTransaction
from tests.service.support import J1, J2, T1, contents, listed, own_keys


async def test_nothing_is_written_when_an_operation_raises(quiet: JobsService) -> None:
    await quiet.add(T1, J1)
    before = await contents(quiet)

    async def function(tx: JobTransaction) -> None:
        tx.kv[b"own/a"] = b"1"
        await tx.add(T1, J2)
        await tx.add(T1, J1)

    with pytest.raises(JobExists):
        await quiet.transact(function)
    assert await own_keys(quiet) == {}
    assert await contents(quiet) == before


async def test_own_keys_are_read_and_written_in_the_stores_vocabulary(quiet: JobsService) -> None:
    async def write(tx: JobTransaction) -> None:
        tx.kv.set(b"own/a", b"1")
        tx.kv[b"own/b"] = b"2"
        tx.kv.set(b"own/c", b"3")
        tx.kv.set(b"own/d/1", b"4")
        tx.kv.set(b"own/d/2", b"5")
        tx.kv.clear(b"own/a")
        del tx.kv[b"own/b"]
        tx.kv.clear_range(b"own/d/", b"own/d0")
        tx.kv.add(b"own/count", (5).to_bytes(8, "little"))
        assert await tx.kv.get(b"own/c") == b"3"
        assert await tx.kv.get(b"own/a") is None

    async def read(tx: JobTransaction) -> None:
        tx.kv.add(b"own/count", (2).to_bytes(8, "little"))
        tx.kv.add_read_conflict_key(b"own/c")
        tx.kv.add_read_conflict_range(b"own/", b"own0")
        assert await tx.kv.get_many([b"own/c", b"own/a"]) == [b"3", None]
        assert await tx.kv.snapshot.get(b"own/c") == b"3"
        seven = (7).to_bytes(8, "little")
        assert await tx.kv.get_range(b"own/", b"own0") == [(b"own/c", b"3"), (b"own/count", seven)]
        assert await tx.kv.get_range(b"own/", b"own0", limit=1, reverse=True) == [(b"own/count", seven)]
        assert await tx.kv.snapshot.get_range(b"own/", b"own0", limit=1) == [(b"own/c", b"3")]

    await quiet.transact(write)
    await quiet.transact(read)


async def test_a_versionstamped_value_is_the_stamp_of_the_job_written_beside_it(quiet: JobsService) -> None:
    async def function(tx: JobTransaction) -> None:
        tx.kv.set_versionstamped_value(b"own/stamp", bytes(10) + (0).to_bytes(4, "little"))
        await tx.add(T1, J1)

    await quiet.transact(function)
    stamp = (await own_keys(quiet))[b"own/stamp"]
    seq = (await quiet.get(T1, J1)).seq
    assert seq is not None
    assert len(seq) == 12
    assert seq[:10] == stamp


async def test_concurrent_transactions_on_own_keys_lose_no_update(quiet: JobsService) -> None:
    async def increment(tx: JobTransaction) -> None:
        value = int(await tx.kv.get(b"own/count") or b"0")
        tx.kv[b"own/count"] = b"%d" % (value + 1)
        await tx.add(T1, f"job {value}")

    await asyncio.gather(*(quiet.transact(increment) for _ in range(30)))
    assert await own_keys(quiet) == {b"own/count": b"30"}
    assert len(await listed(quiet, T1)) == 30
