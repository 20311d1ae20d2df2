"""Isolated handlers: plain functions in processes of a pool, whatever these do to themselves."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from jobs_service import InvalidSettings, Job, JobsService, JobState, Outcome, Progress
from jobs_service.runner import process_pool
from tests.checker import assert_sound
from tests.cli.support import environment, is_alive
from tests.runner.isolated import functions
from tests.service.support import eventually

TYPE = "work"


@pytest.fixture
async def jobs(tmp_path: Path) -> AsyncIterator[JobsService]:
    """A service that is open."""
    with capture_logs():
        async with JobsService(f"lmdb:{tmp_path / 'store'}") as service:
            yield service
            await assert_sound(service.store)


def register(jobs: JobsService, function: Callable[..., Any], type: str = TYPE, **options: Any) -> None:
    jobs.handler(type, isolated=True, **{"max_attempts": 1, **options})(function)


@asynccontextmanager
async def run_all(jobs: JobsService) -> AsyncIterator[None]:
    """Run all registered functions while the block runs: what starts their processes takes a second, once."""
    run = asyncio.create_task(jobs.run())
    for type in jobs.handlers:
        await jobs.set_type_timeout(type, 60)
    try:
        yield
    finally:
        run.cancel()
        await asyncio.wait([run])
        assert run.cancelled()


@asynccontextmanager
async def running(jobs: JobsService, function: Callable[..., Any], **options: Any) -> AsyncIterator[None]:
    """Run the jobs of an isolated function while the block runs."""
    register(jobs, function, **options)
    async with run_all(jobs):
        yield


async def ended(jobs: JobsService, id: str = "a", type: str = TYPE) -> Job:
    await jobs.wait(type, id, JobState.FINISHED)
    return await jobs.get(type, id)


async def gone(*pids: int) -> None:
    """Wait until processes have ended."""

    async def are_gone() -> bool:
        return not any(map(is_alive, pids))

    await eventually(are_gone)


async def test_jobs_run_in_processes_that_stay_warm(jobs: JobsService) -> None:
    async with running(jobs, functions.square, slots=1):
        pids = set()
        for number in range(5):
            await jobs.add(TYPE, str(number), number)
            result = (await ended(jobs, str(number))).result
            assert result["square"] == number * number
            pids.add(result["pid"])
        assert len(pids) == 1
        assert os.getpid() not in pids
    await gone(*pids)


async def test_a_job_has_its_operations_in_its_process(jobs: JobsService) -> None:
    async with running(jobs, functions.operate):
        await jobs.add(TYPE, "a", "first")
        job = await ended(jobs)
        assert (job.data, job.result) == ("updated", ["second", 1, 16])
        assert job.progress == Progress(1, 2, "half", 1)


DEATHS: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (functions.segmentation_fault, {}, "ProcessDied: its process was ended by SIGSEGV: a segmentation fault, of"),
    (functions.exit_at_once, {}, "ProcessDied: its process ended with exit code 3 before its function returned"),
    (functions.exit_politely, {}, "SystemExit: enough"),
    (functions.endless_loop_in_c, {"time_limit": 0.2}, "TimeoutError: it ran longer than its time limit of 0.2 s"),
    (functions.two_gigabytes, {"memory_limit": 10**8}, "MemoryError: it needed more than its memory_limit of 1"),
    (functions.unpicklable, {}, "InvalidJob: the handler returned <unlocked _thread.lock object at "),
    (functions.close_the_connection, {}, "ProcessDied: its process closed its connection to the runner, and was"),
    (functions.killed, {}, "ProcessDied: its process was ended by SIGKILL, not by the runner: the system does so"),
    (functions.update_unreadable, {}, "InvalidJob: a value that cannot be read in another process: TypeError: "),
    (functions.update_much, {}, "JobTooLarge: a value of 50000"),
    (functions.return_much, {}, "InvalidJob: the handler returned 'xxx"),
    (functions.transact, {}, "JobsError: finish_with runs its function in a transaction beside the store"),
]
TRACED = (functions.segmentation_fault, functions.exit_politely, functions.two_gigabytes, functions.transact)


async def test_what_a_process_does_to_itself_is_one_failed_run_with_a_reason(jobs: JobsService) -> None:
    """The processes begin at the same time, and each end is that of its own run."""
    for function, options, _ in DEATHS:
        register(jobs, function, function.__name__, **options)
    async with run_all(jobs):
        for function, _, _ in DEATHS:
            await jobs.add(function.__name__, "a", [])
        for function, _, expected in DEATHS:
            job = await ended(jobs, type=function.__name__)
            assert (job.outcome, job.attempts) == (Outcome.FAILED, 1)
            assert job.error is not None
            assert f"{job.error.type}: {job.error.message}".startswith(expected)
            assert (function.__name__ in job.error.traceback) == (function in TRACED)


async def test_children_of_a_process_that_is_killed_end_with_it(jobs: JobsService) -> None:
    async with running(jobs, functions.many_children, grace=0.1):
        await begun(jobs)
        pids = (await jobs.get(TYPE, "a")).data
        assert len(pids) == 51
        await jobs.remove(TYPE, "a")
        await gone(*pids)


async def test_children_that_a_function_leaves_behind_end_with_it(jobs: JobsService) -> None:
    async with running(jobs, functions.leave_a_child):
        await jobs.add(TYPE, "a")
        job = await ended(jobs)
        assert job.result == 7
        await gone(*job.data)


async def test_what_a_function_leaves_behind_uses_no_later_job(jobs: JobsService) -> None:
    async with running(jobs, functions.leave, slots=1):
        for what, result in [("fork", "own"), ("thread", "own"), ("look", ["WorkerConflict"])]:
            await jobs.add(TYPE, what, what)
            assert (await ended(jobs, what)).result == result


async def test_a_thread_that_waits_for_the_stop_of_a_run_learns_that_it_is_over(
    jobs: JobsService, tmp_path: Path
) -> None:
    note = tmp_path / "note"
    async with running(jobs, functions.leave, slots=1):
        await jobs.add(TYPE, "a", str(note))
        assert (await ended(jobs)).result == "own"

        async def is_told() -> bool:
            return note.exists() and note.read_text() == "True"

        await eventually(is_told)


async def test_what_a_function_raises_has_its_usual_meaning(jobs: JobsService) -> None:
    async with running(jobs, functions.raise_it, max_attempts=3):
        for raised, state, event in (
            ("Retry", "retrying", ("crashed", "Retry: busy")),
            ("Discard", "failed", ("finished", "")),
            ("Snooze", "scheduled", ("stopped", "snoozed for 3600 s")),
            ("OSError", "retrying", ("crashed", "OSError: disk")),
        ):
            await jobs.add(TYPE, raised, raised)

            async def has_state(raised: str = raised, state: str = state) -> bool:
                return raised in [job.id async for job in jobs.list(TYPE, state=state)]

            await eventually(has_state)
            newest = (await jobs.get(TYPE, raised)).history[0]
            assert (newest.kind, newest.detail) == event


async def begun(jobs: JobsService, type: str = TYPE, priority: int = 0) -> int:
    """Add a job, and return the process in which it runs."""
    await jobs.add(type, "a", priority=priority)

    async def has_begun() -> bool:
        return (await jobs.get(type, "a")).data is not None

    await eventually(has_begun)
    pid: int = (await jobs.get(type, "a")).data[0]
    return pid


STOPPED = {
    "returns a value": (functions.wait_for_stop, 0, JobState.FINISHED),
    "returns nothing": (functions.wait_for_stop, 1, JobState.PENDING),
    "uses its job": (functions.use_after_stop, 0, JobState.PENDING),
    "never looks": (functions.never_looks, 0, JobState.PENDING),
}
"""What functions do when they are to stop, with the priority that tells them, and what their jobs are then."""


@asynccontextmanager
async def all_begun(jobs: JobsService) -> AsyncIterator[int]:
    """Run a job of each of these functions, and yield the process of the one that never looks."""
    for type, (function, _, _) in STOPPED.items():
        register(jobs, function, type, grace=0.2 if function is functions.never_looks else 60)
    async with run_all(jobs):
        *_, pid = [await begun(jobs, type, priority) for type, (_, priority, _) in STOPPED.items()]
        yield pid


async def test_a_removed_job_ends_whether_its_function_listens_or_not(jobs: JobsService) -> None:
    async with all_begun(jobs) as pid:
        for type in STOPPED:
            await jobs.remove(type, "a")
        for type in STOPPED:
            assert (await ended(jobs, type=type)).outcome is Outcome.CANCELED, type
        await gone(pid)


async def test_the_end_of_the_runner_is_that_of_its_processes(jobs: JobsService) -> None:
    async with all_begun(jobs) as pid:
        """It ends."""
    for type, (_, _, state) in STOPPED.items():
        assert (await jobs.get(type, "a")).state is state, type
    await gone(pid)


async def test_a_dead_nursery_costs_the_runs_of_its_processes_and_is_replaced(jobs: JobsService) -> None:
    async with running(jobs, functions.wait_for_stop, max_attempts=2, backoff=0):
        pid = await begun(jobs)
        nursery = (await jobs.get(TYPE, "a")).data[1]
        os.kill(nursery, signal.SIGKILL)
        await gone(pid)

        async def has_begun_again() -> bool:
            return (await jobs.get(TYPE, "a")).attempts == 2

        await eventually(has_begun_again)
        await gone(nursery)


PROGRAM = """
import asyncio, os, subprocess, sys, threading
from jobs_service import BlockingJob, JobsService

jobs = JobsService(sys.argv[-1] if len(sys.argv) > 1 else "memory:")
threading.Thread(target=threading.Event().wait, daemon=True).start()  # no fork may copy it

@jobs.handler("work", isolated=True)
def work(job: BlockingJob) -> None:
    child = subprocess.Popen(["sleep", "1000"])
    print(os.getppid(), os.getpid(), child.pid, flush=True)
    pow(3, 10**10)  # and keeps Python's global lock

async def main():
    async with jobs:
        await jobs.enqueue(work)
        await jobs.run()

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_no_process_outlives_a_program_that_was_killed(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    with subprocess.Popen(
        [sys.executable, "program.py", f"lmdb:{tmp_path / 'store'}"],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        pids = [*map(int, program.stdout.readline().split())]
        assert len(pids) == 3
        program.kill()
    asyncio.run(gone(*pids))


async def test_what_cannot_be_isolated_is_refused_in_one_line() -> None:
    jobs = JobsService("memory:")

    async def coroutine() -> None:
        """Nothing."""

    def inner() -> None:
        """Nothing."""

    with pytest.raises(InvalidSettings, match="isolated=True is for plain functions, and it is a coroutine function"):
        jobs.handler(TYPE, isolated=True)(coroutine)
    with pytest.raises(InvalidSettings, match="memory_limit=1000000 is for isolated handlers: add isolated=True"):
        jobs.handler(TYPE, memory_limit=1_000_000)(inner)
    jobs.handler(TYPE, isolated=True)(inner)
    with pytest.raises(InvalidSettings, match=r"inner cannot be a handler: isolated=True: .* no function of a module"):
        await jobs.run()


def test_the_command_of_a_process_finds_this_package_without_any_installed_one() -> None:
    python, *options = process_pool.python("jobs_service.durations:typed", 1)
    subprocess.run([python, "-S", *options], check=True, cwd="/")
