"""The clock is set back an hour, or forward: no job is lost, or taken for lost too early, or runs before its time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from jobs_service import JobsService, JobState, RunningJob, Settings
from jobs_service.actors import activity_monitor
from jobs_service.layer import queue
from jobs_service.sources import Sources
from tests.checker import assert_sound
from tests.service.support import waits

T1 = "t1"
HOUR = 3600.0
PATIENCE = 60.0
"""Seconds after which what should have happened has not."""


class Clock:
    """A wall clock that can be set."""

    def __init__(self, ahead: float = 0.0) -> None:
        self._ahead = ahead
        self._history = [(time.monotonic(), ahead)]

    def __call__(self) -> float:
        return time.time() + self._ahead

    def set(self, seconds: float) -> None:
        """Set it forward, or back, by so many seconds."""
        self._ahead += seconds
        self._history.append((time.monotonic(), self._ahead))

    def latest_since(self, moment: float) -> float:
        """Return the latest time that it has shown since a moment of the monotonic clock, seconds since the epoch."""
        shown = [ahead for at, ahead in self._history if at > moment]
        shown.append([ahead for at, ahead in self._history if at <= moment][-1])
        return time.time() + max(shown)


@pytest.fixture
def clock() -> Clock:
    """A clock that is right until it is set."""
    return Clock()


@pytest.fixture
def address(tmp_path: Path) -> str:
    """The address of an embedded store of this test's own."""
    return f"lmdb:{tmp_path / 'store'}"


@asynccontextmanager
async def service(address: str, clock: Clock) -> AsyncIterator[JobsService]:
    """A service that goes by this clock, with a type; everything in it must be over in time."""
    settings = Settings()
    async with JobsService(address, settings=settings, sources=Sources(wall_time=clock)) as jobs:
        async with asyncio.timeout(PATIENCE):
            await jobs.set_type_timeout(T1, HOUR)
            yield jobs


# Scheduled jobs


@pytest.fixture
def watchful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers and activity monitors that wait for a job's time look at the clock again soon, not only after seconds."""
    for module in (queue, activity_monitor):
        monkeypatch.setattr(module, "_CLOCK_CHECK", 0.3)


@pytest.mark.usefixtures("watchful")
async def test_a_job_does_not_run_before_its_time_when_the_clock_is_set_back(address: str, clock: Clock) -> None:
    async with service(address, clock) as jobs:
        await jobs.add(T1, "scheduled", run_at=clock() + 0.2)
        waiting = asyncio.create_task(jobs.accept(T1))
        await waits(jobs)
        clock.set(-HOUR)
        await asyncio.sleep(0.5)  # its time has come, and gone again
        assert await jobs.accept(T1, timeout=0) is None
        assert not waiting.done()
        assert await jobs.pending_count(T1, due_by=clock()) == 0
        assert await jobs.pending_count(T1) == 1
        clock.set(HOUR)
        job = await waiting
        assert job is not None
        assert job.id == "scheduled"
        await assert_sound(jobs.store, now=clock())


async def test_a_worker_that_waits_gets_a_job_whose_time_has_come_because_the_clock_was_set_forward(
    address: str, clock: Clock
) -> None:
    async with service(address, clock) as jobs:
        await jobs.add(T1, "scheduled", run_at=clock() + HOUR / 2)
        waiting = asyncio.create_task(jobs.accept(T1))
        await waits(jobs)
        clock.set(HOUR)
        job = await waiting
        assert job is not None
        assert job.id == "scheduled"
        await assert_sound(jobs.store, now=clock())


async def accepted(jobs: JobsService) -> RunningJob:
    """Return the next job, as soon as there is one."""
    job = await jobs.accept(T1)
    assert job is not None
    return job


# Running jobs


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
async def test_a_job_that_shows_signs_of_life_is_not_lost_when_the_clock_is_set(
    address: str, clock: Clock, jump: float
) -> None:
    async with service(address, clock) as jobs:
        await jobs.set_type_timeout(T1, 8)
        await jobs.add(T1, "alive")
        job = await accepted(jobs)
        for number in range(40):
            if number % 10 == 5:
                clock.set(jump)
            await job.update(number)
            await asyncio.sleep(0.05)
        assert await jobs.active_ids(T1) == ["alive"]
        await job.finish("end")
        assert (await jobs.get(T1, "alive")).data == "end"
        await assert_sound(jobs.store, now=clock())


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
async def test_a_silent_job_is_lost_after_its_timeout_and_not_before_whatever_the_clock_says(
    address: str, clock: Clock, jump: float
) -> None:
    timeout = 1.0
    async with service(address, clock) as jobs:
        await jobs.set_type_timeout(T1, timeout)
        await jobs.add(T1, "silent")
        began = time.monotonic()
        await accepted(jobs)
        clock.set(jump)
        await asyncio.sleep(0.1)
        clock.set(jump)
        await jobs.wait(T1, "silent", JobState.PENDING)
        assert time.monotonic() - began >= timeout
        assert (await accepted(jobs)).id == "silent"
        await assert_sound(jobs.store, now=clock())


# Order


async def test_versionstamps_grow_whatever_the_clocks_of_those_who_write(address: str) -> None:
    """The order of jobs, of their events and of signs of life hangs on them."""
    seqs: list[bytes | None] = []
    for ahead in (HOUR, 0.0, -HOUR, 0.0, HOUR):
        clock = Clock(ahead)
        async with service(address, clock) as jobs:
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
