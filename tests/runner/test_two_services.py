"""Runners on durable stores, in real time: two services on one store, which know of each other by it alone."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from jobs_service import JobsService, NewJob, RunningJob
from jobs_service.model import HistoryKind
from jobs_service.sources import Sources
from tests.checker import assert_sound
from tests.runner.support import PATIENCE_OF_THREADS, TYPE, add, all_ended, ended, stopped, story
from tests.stores import EVERY_LASTING_STORE, StoreKind, one_of

kind = one_of(EVERY_LASTING_STORE)


@pytest.fixture
async def pair(kind: StoreKind, tmp_path: Path) -> AsyncIterator[tuple[JobsService, JobsService]]:
    """Two services on one store."""
    address = kind.address_in(tmp_path)
    with capture_logs():
        async with (
            asyncio.timeout(PATIENCE_OF_THREADS),
            JobsService(address, sources=Sources(worker="left")) as left,
            JobsService(left.store, sources=Sources(worker="right")) as right,
        ):
            yield left, right
            await assert_sound(left.store)
    assert asyncio.all_tasks() <= {asyncio.current_task()}


async def test_two_runners_share_a_queue_and_every_job_runs_once(pair: tuple[JobsService, JobsService]) -> None:
    runs: Counter[object] = Counter()
    inside: Counter[str] = Counter()
    most: Counter[str] = Counter()
    ids = [str(number) for number in range(200)]
    both = asyncio.Event()
    for jobs in pair:

        @jobs.handler(TYPE, slots=5)
        async def work(job: RunningJob, args: int) -> int:
            where = job.history[0].detail
            inside[where] += 1
            most[where] = max(most[where], inside[where])
            runs[job.id] += 1
            if len(most) == 2:
                both.set()
            await both.wait()
            await asyncio.sleep(0.001)
            inside[where] -= 1
            return args * args

    running = [asyncio.create_task(jobs.run()) for jobs in pair]
    left, right = pair
    await add(left)
    await left.add_many(TYPE, [NewJob(id, int(id)) for id in ids])
    for job in await all_ended(right, ids):
        assert job.result == int(str(job.id)) ** 2
    assert runs == dict.fromkeys(ids, 1)
    assert most == {"left": 5, "right": 5}
    for task in running:
        await stopped(task)


async def test_what_one_runner_gives_back_at_its_end_the_other_takes_at_once(
    pair: tuple[JobsService, JobsService],
) -> None:
    left, right = pair
    begun = asyncio.Event()

    @left.handler(TYPE, timeout=3600, grace=0.01)
    async def forever(job: RunningJob) -> None:
        begun.set()
        await asyncio.Event().wait()

    @right.handler(TYPE)
    async def work(job: RunningJob) -> str:
        return "done"

    first = asyncio.create_task(left.run())
    await left.enqueue(forever, id="a")
    await begun.wait()
    second = asyncio.create_task(right.run())
    await stopped(first)
    job = await ended(right, "a")
    assert story(job) == ["added", "started", "stopped", "started", "finished"]
    assert [event.detail for event in job.history if event.kind is HistoryKind.STARTED] == ["right", "left"]
    await stopped(second)
