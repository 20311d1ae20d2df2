"""What pages read once for all their visitors."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jobs_service import JobsService, Outcome
from jobs_service.dashboard import reads as shared_reads
from jobs_service.dashboard.reads import QUICK, Reads
from jobs_service.service.queries import together


async def test_that_nothing_is_usual_yet_is_read_once_as_well() -> None:
    """A store of a few days has no usual hour: each page would look at seven hours of all types."""
    async with JobsService("memory:") as jobs:
        reads = Reads(jobs)
        asked = 0
        read = reads._usual._read

        async def counted() -> shared_reads.Usual | None:
            nonlocal asked
            asked += 1
            return await read()

        reads._usual._read = counted
        assert [await reads.usual() for _ in range(3)] == [None] * 3
        assert asked == 1
        await reads.close()


async def test_a_page_shows_the_last_sums_while_newer_ones_take_long_and_is_told_of_these(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if they are the same: they may have been read before the change for which the page has asked."""
    told = asyncio.Event()
    monkeypatch.setattr(Reads, "_tell", lambda _: told.set())
    async with JobsService("memory:") as jobs:
        sums = Reads(jobs)._sums["hour"]
        assert await sums.soon(1.0) is not None
        sums._good_until = asyncio.get_running_loop().time() - 1.0  # as after a slow read, which has rested
        let_end = asyncio.Event()

        async def slowly(*args: Any) -> Any:
            await let_end.wait()
            return await together(*args)

        monkeypatch.setattr(shared_reads, "together", slowly)
        for _ in range(2):
            reading = asyncio.create_task(sums.soon(1.0))
            await asyncio.wait([reading], timeout=QUICK)
            assert reading.done()
        assert not told.is_set()
        let_end.set()
        async with asyncio.timeout(30):
            await told.wait()

        let_end.clear()
        sums._read_at = sums._good_until = asyncio.get_running_loop().time() - 90.0  # as after a pause
        assert await sums.soon(0.01) is None
        await sums.close()


async def test_open_pages_are_told_when_what_they_show_was_read_before_the_last_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = asyncio.Event()
    monkeypatch.setattr(shared_reads, "QUICK", 0.0)  # as with very many types: what was read is shown for a while
    monkeypatch.setattr(Reads, "_tell", lambda _: told.set())
    async with JobsService("memory:") as jobs:
        reads = Reads(jobs)

        async def shown() -> tuple[int, int]:
            sums = await reads.sums("hour")
            return sum(each.totals.failed for each in sums or ()), (await reads.last_hour()).totals.failed

        await jobs.set_type_timeout("email", 60)
        await shown()
        await jobs.add("email", "one")
        job = await jobs.accept("email")
        assert job is not None
        await job.finish(outcome=Outcome.FAILED)
        async with asyncio.timeout(30):
            while await shown() != (1, 1):
                await told.wait()
                told.clear()
        await reads.close()
