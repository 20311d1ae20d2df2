"""The clock is set back an hour, or forward: the order of what happens is that in which it happened."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from jobs_service import JobsService
from jobs_service.sources import Sources
from tests.checker import assert_sound
from tests.service.support import T1, accepted

HOUR = 3600.0


class Clock:
    """A wall clock that can be set."""

    def __init__(self, ahead: float) -> None:
        self._ahead = ahead

    def __call__(self) -> float:
        return time.time() + self._ahead

    def set(self, seconds: float) -> None:
        """Set it forward, or back, by so many seconds."""
        self._ahead += seconds


async def test_versionstamps_grow_whatever_the_clocks_of_those_who_write(tmp_path: Path) -> None:
    """The order of jobs, of their events and of signs of life hangs on them."""
    seqs: list[bytes | None] = []
    for ahead in (HOUR, 0.0, -HOUR, 0.0, HOUR):
        clock = Clock(ahead)
        sources = Sources(wall_time=clock)
        async with asyncio.timeout(60), JobsService(f"lmdb:{tmp_path / 'store'}", sources=sources) as jobs:
            await jobs.set_type_timeout(T1, HOUR)
            for number in range(3):
                seqs.append((await jobs.add(T1, f"{len(seqs)}")).seq)
                clock.set(-HOUR * number)
            job = await accepted(jobs)
            seqs.append(job.seq)
            clock.set(HOUR)
            seqs.append((await job.update("alive")).seq)
            async with jobs.subscribe(T1, job.id) as events:
                seqs.append((await anext(events)).seq)
                assert seqs.pop() == seqs[-1]
                clock.set(-2 * HOUR)
                seqs.append((await job.finish()).seq)
                assert [event.seq async for event in events] == seqs[-1:]
            await assert_sound(jobs.store, now=clock())
    found = [seq for seq in seqs if seq is not None]
    assert len(found) == len(seqs)
    assert found == sorted(set(found))
