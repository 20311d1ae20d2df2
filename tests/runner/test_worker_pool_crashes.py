"""A part of the runner dies, in virtual time: jobs are not affected, and it is started again after a pause."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from jobs_service import Outcome, RunningJob, StoreError
from jobs_service.model import JobState
from jobs_service.runner.heartbeat import Heartbeat
from jobs_service.runner.run import Run
from jobs_service.runner.runner import Runner
from jobs_service.runner.worker_pool import WorkerPool
from tests.runner.support import TYPE, add, all_ended, ended, now, opened, running, stopped, story, taking
from tests.service.support import kill
from tests.virtual_time import in_virtual_time

DAY = 86_400.0
PARTS = [
    f"pool {TYPE!r}",
    f"pool {TYPE!r}/fill",
    f"pool {TYPE!r}/canceled",
    f"pool {TYPE!r}/rotation",
    f"heartbeat {TYPE!r}",
    f"heartbeat {TYPE!r}/timeout",
]


class BrokenPool(WorkerPool):
    """A worker pool that fails whenever it has taken a job."""

    async def _accept(self, limit: int) -> Any:
        found = await super()._accept(limit)
        if isinstance(found, list):
            raise RuntimeError("a bug")
        return found


def kill_if_alive(part: str) -> None:
    """Kill a part of the runner, unless it waits to be started again."""
    if any(task.get_name() == part for task in asyncio.all_tasks()):
        kill(part)


@asynccontextmanager
async def with_broken_pool(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Have the worker pools of TYPE fail again and again."""
    make = Runner._worker_pool

    def broken(self: Runner, runs: Any) -> WorkerPool:
        pool = make(self, runs)
        if runs.handler.type == TYPE:
            pool.__class__ = BrokenPool
        return pool

    with monkeypatch.context() as patch:
        patch.setattr(Runner, "_worker_pool", broken)
        yield


@pytest.mark.parametrize("part", PARTS)
@in_virtual_time
async def test_a_job_does_not_notice_that_a_part_of_its_runner_has_died(part: str) -> None:
    async with opened() as jobs:
        canceled = taking(jobs, 100, slots=2, timeout=6)
        taking(jobs, 300, "other")
        async with running(jobs) as run:
            await add(jobs, "a", "b", "c", timeout=6)
            await add(jobs, "x", type="other")
            for _ in range(20):
                await asyncio.sleep(2)
                kill_if_alive(part)
            # Two run at a time all the while, and the third when there is room.
            for job in await all_ended(jobs, "abc"):
                assert (job.result, job.attempts) == ("done", 1)
                assert story(job) == ["added", "started", "finished"]
            assert now() < 220
            assert story(await ended(jobs, "x", "other")) == ["added", "started", "finished"]
            assert not run.done()
    assert canceled == []


@in_virtual_time
async def test_a_worker_pool_that_fails_again_and_again_concerns_no_other_and_pauses_longer_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with opened() as jobs:
        taking(jobs, 1, timeout=3600)
        taking(jobs, 1, "other")
        async with with_broken_pool(monkeypatch):
            with capture_logs() as events:
                async with running(jobs) as run:
                    await add(jobs, *map(str, range(600)), timeout=3600)
                    for number in range(100):
                        await add(jobs, str(number), type="other")
                        await asyncio.sleep(1)
                    assert not run.done()
                    await all_ended(jobs, map(str, range(100)), "other")
            pauses = [event["pause"] for event in events if event["event"] == "child_restarting"]
            assert pauses[:9] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0]
            assert {*pauses[9:]} == {10.0}


@in_virtual_time
async def test_a_worker_pool_that_fails_as_it_accepts_gives_back_its_places(monkeypatch: pytest.MonkeyPatch) -> None:
    make, pools = Runner._worker_pool, list[WorkerPool]()

    def make_first_broken(self: Runner, runs: Any) -> WorkerPool:
        pool = make(self, runs)
        if not pools:
            pool.__class__ = BrokenPool
        pools.append(pool)
        return pool

    monkeypatch.setattr(Runner, "_worker_pool", make_first_broken)
    async with opened() as jobs:
        taking(jobs, 1, timeout=6)
        async with running(jobs, max_jobs=1), asyncio.timeout(100):
            await add(jobs, "a", timeout=6)
            assert story(await ended(jobs, "a")) == ["added", "started", "lost", "started", "finished"]
    assert len(pools) == 2


@in_virtual_time
async def test_what_a_failing_worker_pool_has_begun_is_given_back_when_the_runner_stops() -> None:
    async with opened() as jobs:
        canceled = taking(jobs, DAY, grace=10, timeout=6)
        run = asyncio.create_task(jobs.run())
        await add(jobs, "a", "b", timeout=6)
        await asyncio.sleep(1)
        for _ in range(8):
            await asyncio.sleep(0.3)
            kill_if_alive(f"pool {TYPE!r}")
        began = now()
        run.cancel()
        await asyncio.sleep(5)
        # Its heart beats on in the grace, in which the worker pool is waiting out its pause.
        assert {job.state async for job in jobs.list(TYPE)} == {JobState.RUNNING}
        await asyncio.wait([run])
        assert run.cancelled()
        assert now() - began == 10
        for id in "ab":
            assert story(await jobs.get(TYPE, id)) == ["added", "started", "stopped"]
    assert sorted(canceled, key=str) == ["a", "b"]


@in_virtual_time
async def test_an_abandoned_handler_keeps_its_slot_when_the_worker_pool_is_started_again() -> None:
    release = asyncio.Event()
    most = inside = 0
    async with opened() as jobs:

        @jobs.handler(TYPE, slots=2, grace=1, time_limit=5, max_attempts=1)
        async def work(job: RunningJob) -> None:
            nonlocal most, inside
            inside += 1
            most = max(most, inside)
            try:
                while job.id != "short" and not release.is_set():
                    try:
                        await release.wait()
                    except asyncio.CancelledError:
                        continue
            finally:
                inside -= 1

        async with running(jobs):
            await add(jobs, "deaf", "deaf too", "short")
            await asyncio.sleep(10)
            kill(f"pool {TYPE!r}")
            await asyncio.sleep(100)
            assert (await jobs.get(TYPE, "short")).state is JobState.PENDING
            release.set()
            assert (await ended(jobs, "short")).outcome is Outcome.SUCCEEDED
    assert most == 2


@in_virtual_time
async def test_one_job_that_cannot_be_renewed_costs_no_other_its_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened() as jobs:
        taking(jobs, 100, slots=20, timeout=6)
        ids = [str(number) for number in range(20)]
        real = Heartbeat._transact

        async def refusing(self: Heartbeat, batch: Sequence[Run]) -> Any:
            if any(run.job.id == "7" for run in batch) and now() < 31:
                raise StoreError("something about job 7")
            return await real(self, batch)

        monkeypatch.setattr(Heartbeat, "_transact", refusing)
        async with running(jobs):
            with capture_logs() as events:
                await add(jobs, *ids, timeout=6)
                await asyncio.sleep(31)
            failed = [event for event in events if event["event"] == "heartbeat_failed"]
            assert len(failed) > 5
            assert {(*event["ids"], event["count"]) for event in failed} == {("7", 1)}
            for job in await all_ended(jobs, [id for id in ids if id != "7"]):
                assert story(job) == ["added", "started", "finished"]


@in_virtual_time
async def test_a_heartbeat_whose_bug_hits_every_beat_goes_on_trying(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened() as jobs:
        taking(jobs, 100, timeout=60)
        beats = 0
        real = Heartbeat._transact

        async def flaky(self: Heartbeat, batch: Any) -> Any:
            nonlocal beats
            beats += 1
            if beats % 2:
                raise RuntimeError("a bug")
            return await real(self, batch)

        monkeypatch.setattr(Heartbeat, "_transact", flaky)
        async with running(jobs):
            await add(jobs, "a")
            assert story(await ended(jobs, "a")) == ["added", "started", "finished"]
        assert beats > 3


@in_virtual_time
async def test_a_runner_is_stopped_at_once_while_its_parts_wait_out_their_pauses() -> None:
    async with opened() as jobs:
        taking(jobs, 1)
        run = asyncio.create_task(jobs.run())
        await asyncio.sleep(1)
        for part in (f"pool {TYPE!r}", f"heartbeat {TYPE!r}"):
            kill(part)
        await asyncio.sleep(0.01)
        began = now()
        await stopped(run)
        assert now() == began
