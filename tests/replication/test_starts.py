"""Runs that begin together begin apart."""

from __future__ import annotations

import asyncio

from jobs_service.replication.stored import FOR_EACH, LONGEST, Starts
from tests.virtual_time import run_virtual


def test_one_alone_begins_at_once_and_many_within_a_few_seconds() -> None:
    async def begin() -> list[float]:
        starts, loop = Starts(), asyncio.get_running_loop()
        assert starts.longest_wait() == 0

        async def one() -> float:
            await starts.wait()
            return loop.time()

        first = loop.time()
        times = await asyncio.gather(*(one() for _ in range(500)))
        assert starts.longest_wait() == 0
        return [each - first for each in times]

    times = run_virtual(begin())
    assert times[0] == 0
    assert all(each <= min(LONGEST, FOR_EACH * number) for number, each in enumerate(times))
    assert max(times) > LONGEST / 2
