"""Rows that do not belong together are found, on every store; the tests' own checker says where there are some."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from jobs_service import JobsService
from jobs_service.layer.batch_bounds import Batch
from jobs_service.layer.keyspace import EXPIRING, Keyspace
from jobs_service.store import Store, Transaction
from jobs_service.verifying import Verification
from tests import reader
from tests.checker import check_store
from tests.copying.support import SMALL, clear, everything, populate
from tests.stores import EVERY_KIND, StoreKind, one_of

kind = one_of(EVERY_KIND)


@pytest.fixture
async def store(kind: StoreKind, tmp_path: Path) -> AsyncIterator[Store]:
    """A store with jobs in every state."""
    store = kind.make(tmp_path)
    await store.open()
    try:
        await clear(store)
        await populate(store)
        async with JobsService(store, supervise=False) as jobs:
            assert await jobs.accept("email", timeout=0)
        yield store
    finally:
        await store.close()


async def faults(store: Store, batch: Batch | None = None) -> list[str]:
    """Return all that is found."""
    return [fault async for fault in Verification(store, await store.prefix(), batch).faults()]


async def put(store: Store, key: bytes, value: bytes | None) -> None:
    """Write a row, or remove it."""
    prefix = await store.prefix()

    async def work(tr: Transaction) -> None:
        if value is None:
            tr.clear(prefix + key)
        else:
            tr.set(prefix + key, value)

    await store.transact(work)


@pytest.mark.parametrize("batch", [None, SMALL])
async def test_a_sound_store_has_no_faults(store: Store, batch: Batch | None) -> None:
    assert await check_store(store) == []
    verification = Verification(store, await store.prefix(), batch)
    assert [fault async for fault in verification.faults()] == []
    async with JobsService(store, supervise=False) as jobs:
        counts = await jobs.counts()
    assert verification.jobs == sum(each.jobs for each in counts.values()) > 30
    assert (verification.types, verification.moving) == (sum(each.jobs > 0 for each in counts.values()), 0)


@pytest.mark.parametrize("kind", EVERY_KIND[:1], indirect=True)
async def test_each_row_that_somebody_removes_is_missed(store: Store) -> None:
    """Unless nothing else in the store tells of it, as of a setting."""
    missed = set()
    for key, value in (await everything(store)).items():
        await put(store, key, None)
        told, wanted = await faults(store), await check_store(store)
        family = reader.row(key, value).family
        assert bool(told) == bool(wanted), (family, reader.names(key), told, wanted)
        assert all("\n" not in line for line in told)
        missed |= {family} if told else set()
        await put(store, key, value)
    indexes = {"READY", "SCHEDULED", "ACTIVITY", "EXPIRING", "FAILED", "RETRYING"}
    assert missed == indexes | {"DATA", "WATCH_PENDING", "WATCH_ACTIVITY", "AWAKE", "COUNTS"}
    assert await faults(store) == []


async def test_a_row_of_a_job_that_is_not_there_is_found(store: Store) -> None:
    keys = Keyspace(b"").of("email")
    rows = [(key, value) for key, value in (await everything(store)).items() if key.startswith(keys.ready)]
    await put(store, rows[0][0][:-2] + b"?\x00", b"")
    await put(store, keys.expiring + b"\x21" + b"\x80" * 8 + b"\x02succeeded\x00", b"")
    await put(store, keys.data + b"\x02noise\x00", b"noise")
    await put(store, keys.ready + b"nothing", b"")
    sections = Keyspace(b"").sections
    await put(store, sections[EXPIRING] + b"\xfe", b"")
    told = [line.partition(": ") for line in await faults(store)]
    assert [head for head, _, _ in told[:1]] == ["job noise of type email is unreadable"]
    assert sorted("".join(line) for line in told[1:]) == [
        "EXPIRING has a row of job succeeded of type email, which is not in that place",
        f"EXPIRING has a row of no job: {(await store.prefix() + sections[EXPIRING]).hex()}fe",
        f"READY has a row of job {unnamed(rows[0][0])}? of type email, which does not exist",
        f"READY has a row of no job: {(await store.prefix() + keys.ready).hex()}{b'nothing'.hex()}",
    ]


def unnamed(key: bytes) -> str:
    """Return the id in a key of READY, but for its last letter."""
    return str(reader.names(key)[-1])[:-1]


async def test_counts_of_jobs_that_somebody_has_removed_are_wrong(store: Store) -> None:
    keys = Keyspace(b"").of("paused")
    for key in await everything(store):
        if key.startswith((keys.data, keys.ready, keys.scheduled)):
            await put(store, key, None)
    assert await faults(store) == ["type paused: COUNTS says 1 ready, not 0; 1 scheduled, not 0"]
    await put(store, keys.counts, b"noise")
    assert await faults(store) == [
        "type paused: the counts of a type have 5 bytes, not 664: a copy of the store counts anew"
    ]


async def test_a_store_in_use_has_no_faults(store: Store) -> None:
    async with JobsService(store, supervise=False) as jobs:

        async def work(name: str) -> None:
            for number in range(30):
                await jobs.add("email", f"{name}{number}", priority=-9)
                job = await jobs.accept("email", timeout=0)
                if job is not None:
                    await job.finish()

        working = [asyncio.create_task(work(name)) for name in "abc"]
        verification = Verification(store, await store.prefix(), SMALL)
        assert [fault async for fault in verification.faults()] == []
        for task in working:
            await task
    assert await faults(store) == []
