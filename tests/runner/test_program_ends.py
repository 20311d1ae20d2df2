"""A program ends in the middle of its runs, as programs do that know nothing of them: nothing is lost.

Whoever cancels all tasks of the loop, as `asyncio.run` does, cancels the handlers as well. Their jobs are given back,
and no attempt is used up.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from jobs_service import JobsService, JobState, RunningJob
from jobs_service.model import HistoryKind
from tests.actors.support import CountedStore
from tests.runner.support import TYPE, add, ended, now, opened, running, stopped, store_of, story, virtual_loop
from tests.shares import share
from tests.virtual_time import VirtualTimeLoop, in_virtual_time, run_virtual

GRACE = 10.0
ROUNDS = 400
"""More turns of the loop than a run takes, from its accept to its end."""


def cancel_all(loop: VirtualTimeLoop, *, but: asyncio.Task[Any] | None) -> None:
    """Cancel all tasks but one, as `asyncio.run` does when its main function has returned."""
    for task in asyncio.all_tasks(loop) - {but}:
        task.cancel()


def end(reached: asyncio.Event, cancel: Callable[[], None]) -> None:
    cancel()
    reached.set()


async def serve(store: CountedStore, register: Callable[[JobsService], object]) -> None:
    async with opened(store) as jobs:
        register(jobs)
        await jobs.run()


def with_awaits_of_all_kinds(jobs: JobsService) -> None:
    """Register a handler that waits for timers, for tasks of its own, and for its job's operations."""

    @jobs.handler(TYPE, max_attempts=1, grace=GRACE)
    async def work(job: RunningJob) -> str:
        await asyncio.sleep(1)
        await job.progress(1, 3)
        async with asyncio.timeout(5):
            await asyncio.sleep(1)
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(1))
        await asyncio.gather(asyncio.create_task(asyncio.sleep(1)), asyncio.sleep(0.5))
        await job.update({"half": True})
        return "done"


def ends_its_job_itself(jobs: JobsService) -> None:
    @jobs.handler(TYPE, max_attempts=1, grace=GRACE)
    async def work(job: RunningJob) -> None:
        await job.finish(result="done")
        await asyncio.sleep(1)


@pytest.mark.parametrize("register", [with_awaits_of_all_kinds, ends_its_job_itself])
@pytest.mark.parametrize("again", [None, 3])
def test_a_program_that_cancels_all_tasks_at_any_moment_loses_no_job(
    register: Callable[[JobsService], object], again: int | None
) -> None:
    states = set()

    async def canceled_at(step: int) -> bool:
        loop = virtual_loop()

        async with opened(worker="keeper", supervise=False) as keeper:
            store = store_of(keeper)
            serving = asyncio.create_task(serve(store, register))
            await add(keeper, "a")
            reached = asyncio.Event()
            cancel = partial(cancel_all, loop, but=asyncio.current_task())
            loop.call_at_step(loop.steps + step, partial(end, reached, cancel))
            if again is not None:
                loop.call_at_step(loop.steps + step + again, cancel)
            await reached.wait()
            began = loop.time(), loop.steps
            await asyncio.wait([serving])
            assert loop.time() - began[0] <= GRACE
            assert loop.steps - began[1] < 500
            job = await keeper.get(TYPE, "a")
            states.add(job.state)
            if job.state is JobState.FINISHED:
                assert (job.result, job.error, job.attempts) == ("done", None, 1)
                return True
            assert (job.state, job.attempts, job.error) == (JobState.PENDING, 0, None), story(job)
            return False

    for step in share(range(1, ROUNDS), 3):
        if run_virtual(canceled_at(step)) and step > 60:
            break
    assert states == {JobState.PENDING, JobState.FINISHED}


@in_virtual_time
async def test_a_handler_whose_task_was_canceled_may_clean_up_within_its_grace() -> None:
    async with opened() as jobs:

        @jobs.handler(TYPE, max_attempts=1, grace=GRACE, continuous=True)
        async def work(job: RunningJob) -> None:
            try:
                await asyncio.sleep(1000)
            finally:
                await asyncio.sleep(8)
                await job.update({"reached": 8})

        run = asyncio.create_task(jobs.run())
        await add(jobs, "a")
        await asyncio.sleep(5)
        cancel_all(virtual_loop(), but=asyncio.current_task())
        await stopped(run)
        job = await jobs.get(TYPE, "a")
        assert (job.state, job.attempts, job.data) == (JobState.PENDING, 0, {"reached": 8})
        assert now() == 13


@in_virtual_time
async def test_only_the_task_of_a_handler_is_canceled_and_the_job_runs_again() -> None:
    tasks: list[asyncio.Task[Any] | None] = []
    async with opened() as jobs:

        @jobs.handler(TYPE, max_attempts=1)
        async def work(job: RunningJob) -> str:
            tasks.append(asyncio.current_task())
            await asyncio.sleep(10)
            return "done"

        async with running(jobs):
            await add(jobs, "a")
            await asyncio.sleep(5)
            assert tasks[0] is not None
            tasks[0].cancel()
            job = await ended(jobs, "a")
        assert (job.result, job.attempts) == ("done", 1)
        assert [event.detail for event in job.history if event.kind is HistoryKind.STOPPED] == ["its task was canceled"]


@in_virtual_time
async def test_a_timeout_within_a_handler_is_no_cancellation_from_outside() -> None:
    async with opened() as jobs:

        @jobs.handler(TYPE, max_attempts=1)
        async def work(job: RunningJob) -> None:
            async with asyncio.timeout(1):
                await asyncio.sleep(10)

        async with running(jobs):
            await add(jobs, "a")
            job = await ended(jobs, "a")
        assert job.error is not None
        assert (job.error.type, job.attempts) == ("TimeoutError", 1)


@in_virtual_time
async def test_a_canceled_scope_around_a_runner_is_not_asked_again_in_each_turn_of_the_loop() -> None:
    async with opened() as jobs:

        @jobs.handler(TYPE, max_attempts=1, grace=GRACE)
        async def work(job: RunningJob) -> None:
            await asyncio.sleep(1000)

        await add(jobs, "a")
        loop = virtual_loop()
        with anyio.move_on_after(5) as scope:
            await jobs.run()
        assert scope.cancelled_caught
        assert loop.time() == 5 + GRACE
        assert loop.steps < 1000
        job = await jobs.get(TYPE, "a")
        assert (job.state, job.attempts) == (JobState.PENDING, 0)


PROGRAM = """
import asyncio, sys
from jobs_service import BlockingJob, JobsService

jobs = JobsService(sys.argv[1])
running = asyncio.Semaphore(0)
started = asyncio.Event()

@jobs.handler("async", max_attempts=1, grace=5)
async def waits() -> None:
    running.release()
    await asyncio.sleep(1000)

@jobs.handler("plain", max_attempts=1, grace=1)
def blocks(job: BlockingJob) -> None:
    loop.call_soon_threadsafe(running.release)
    job.wait_for_stop(1000)

async def serve():
    async with jobs:
        await jobs.run(started=started.set)

async def main():
    global loop
    loop = asyncio.get_running_loop()
    serving = asyncio.create_task(serve())
    await started.wait()
    await jobs.add("async", "1")
    await jobs.add("plain", "1")
    await running.acquire()
    await running.acquire()
    print("both run", flush=True)
    if sys.argv[2] == "interrupted":
        await asyncio.sleep(1000)

asyncio.run(main())
"""


def run_program(command: list[str], how: str) -> None:
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as program:
        assert program.stdout is not None
        assert b"both run\n" in program.stdout  # among what it logs
        if how == "interrupted":
            program.send_signal(signal.SIGINT)


@pytest.mark.parametrize("how", ["returns", "interrupted"])
async def test_a_program_that_forgets_its_service_in_the_background_loses_no_job(how: str, tmp_path: Path) -> None:
    address = f"lmdb:{tmp_path}/store"
    command = [sys.executable, "-c", PROGRAM, address, how]
    await asyncio.to_thread(run_program, command, how)
    async with JobsService(address, supervise=False) as jobs:
        for type in ("async", "plain"):
            job = await jobs.get(type, "1")
            assert (job.state, job.attempts, story(job)) == (JobState.PENDING, 0, ["added", "started", "stopped"])
