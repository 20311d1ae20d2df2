"""A directory of an earlier format is refused, until somebody upgrades it."""

from __future__ import annotations

import asyncio

import pytest

from jobs_service import JobsService, StoreError
from jobs_service.service.conversion import UPGRADES
from jobs_service.store.base import Transaction
from jobs_service.store.fdb.directory import CONVERTING_KEY, FORMAT_KEY
from tests.checker import assert_sound
from tests.service.older import uncount
from tests.service.support import T1, accepted, new_jobs
from tests.store.fdb.clusters import CLUSTER, cluster_test

ADDRESS = f"fdb:{CLUSTER}?directory=tests/older"


async def make_old(jobs: JobsService, value: bytes | None) -> None:
    """Make the directory as version 1 has left it: without whatever came later."""
    await jobs.set_type_timeout(T1, 60)
    await jobs.add_many(T1, new_jobs("a", "b", "c"))
    await (await accepted(jobs)).finish()
    await uncount(jobs)
    prefix = await jobs.store.prefix()

    async def change(transaction: Transaction) -> None:
        if value is None:
            transaction.clear(prefix + FORMAT_KEY)
        else:
            transaction.set(prefix + FORMAT_KEY, value)

    await jobs.store.transact(change)


@cluster_test
@pytest.mark.parametrize("value", [b"1", None], ids=["format 1", "before there were formats"])
async def test_a_directory_of_an_earlier_format_is_converted_when_somebody_asks(value: bytes | None) -> None:
    async with JobsService(ADDRESS, supervise=False) as jobs:
        assert jobs._lifecycle.converted is None
        await make_old(jobs, value)
    with pytest.raises(StoreError, match="has the format of an earlier version"):
        async with JobsService(ADDRESS, supervise=False):
            pass

    async def upgrade() -> int | None:
        UPGRADES.set(True)
        async with JobsService(ADDRESS, supervise=False) as jobs:
            return jobs._lifecycle.converted

    assert await asyncio.create_task(upgrade()) == 3
    async with JobsService(ADDRESS, supervise=False) as jobs:
        assert jobs._lifecycle.converted is None
        counts = (await jobs.counts(T1))[T1]
        assert (counts.ready, counts.succeeded) == (2, 1)
        await assert_sound(jobs.store)


@cluster_test
async def test_a_directory_that_is_being_converted_is_refused_and_the_next_upgrade_goes_on() -> None:
    async with JobsService(ADDRESS, supervise=False) as jobs:
        await make_old(jobs, b"2")
        prefix = await jobs.store.prefix()

        async def converting(transaction: Transaction) -> None:
            transaction.set(prefix + CONVERTING_KEY, b"")

        await jobs.store.transact(converting)
    with pytest.raises(StoreError, match="jobs-service upgrade"):
        async with JobsService(ADDRESS, supervise=False):
            pass

    async def upgrade() -> int | None:
        UPGRADES.set(True)
        async with JobsService(ADDRESS, supervise=False) as jobs:
            return jobs._lifecycle.converted

    assert await asyncio.create_task(upgrade()) == 3


@cluster_test
async def test_what_is_counted_makes_nobody_conflict() -> None:
    """Many processes' worth of jobs of one type, each added in a transaction of its own at the same time."""
    async with JobsService(ADDRESS, supervise=False) as jobs:
        await jobs.set_type_timeout(T1, 60)
        await jobs.transact(lambda tx: tx.add(T1, "first"))
        before = jobs.store.metrics()["conflicts"]

        async def add(number: int) -> None:
            await jobs.transact(lambda tx: tx.add(T1, f"{number}"))

        await asyncio.gather(*map(add, range(200)))
        assert jobs.store.metrics()["conflicts"] == before
        assert (await jobs.counts(T1))[T1].ready == 201
        await assert_sound(jobs.store)
