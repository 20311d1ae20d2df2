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


@asynccontextmanager
async def running(jobs: JobsService, function: Callable[..., Any], **options: Any) -> AsyncIterator[None]:
    """Run the jobs of an isolated function while the block runs."""
    jobs.handler(TYPE, isolated=True, **{"max_attempts": 1, **options})(function)
    run = asyncio.create_task(jobs.run())
    await jobs.set_type_timeout(TYPE, 60)
    try:
        yield
    finally:
        run.cancel()
        await asyncio.wait([run])
        assert run.cancelled()


async def ended(jobs: JobsService, id: str = "a") -> Job:
    await jobs.wait(TYPE, id, JobState.FINISHED)
    return await jobs.get(TYPE, id)


async def failure(jobs: JobsService, data: Any = None) -> tuple[str, str]:
    """Add a job, and return how its only run has failed."""
    await jobs.add(TYPE, "a", data)
    job = await ended(jobs)
    assert job.outcome is Outcome.FAILED
    assert job.attempts == 1
    assert job.error is not None
    return job.error.type, job.error.message


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


@pytest.mark.parametrize(
    ("function", "options", "error"),
    [
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
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
async def test_what_a_process_does_to_itself_is_one_failed_run_with_a_reason(
    jobs: JobsService, function: Callable[..., Any], options: dict[str, Any], error: str
) -> None:
    async with running(jobs, function, **options):
        kind, message = await failure(jobs, [])
        assert f"{kind}: {message}".startswith(error)
        jobs_error = (await jobs.get(TYPE, "a")).error
        assert jobs_error is not None
        assert (function.__name__ in jobs_error.traceback) == (function in TRACED)


TRACED = (
    functions.segmentation_fault,
    functions.exit_politely,
    functions.two_gigabytes,
    functions.transact,
)


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


@pytest.mark.parametrize(
    ("raised", "state", "event"),
    [
        ("Retry", "retrying", ("crashed", "Retry: busy")),
        ("Discard", "failed", ("finished", "")),
        ("Snooze", "scheduled", ("stopped", "snoozed for 3600 s")),
        ("OSError", "retrying", ("crashed", "OSError: disk")),
    ],
)
async def test_what_a_function_raises_has_its_usual_meaning(
    jobs: JobsService, raised: str, state: str, event: tuple[str, str]
) -> None:
    async with running(jobs, functions.raise_it, max_attempts=3):
        await jobs.add(TYPE, "a", raised)

        async def has_state() -> bool:
            return [job.id async for job in jobs.list(TYPE, state=state)] == ["a"]

        await eventually(has_state)
        newest = (await jobs.get(TYPE, "a")).history[0]
        assert (newest.kind, newest.detail) == event


async def begun(jobs: JobsService, priority: int = 0) -> int:
    """Add a job, and return the process in which it runs."""
    await jobs.add(TYPE, "a", priority=priority)

    async def has_begun() -> bool:
        return (await jobs.get(TYPE, "a")).data is not None

    await eventually(has_begun)
    pid: int = (await jobs.get(TYPE, "a")).data[0]
    return pid


@pytest.mark.parametrize(("priority", "outcome"), [(0, Outcome.CANCELED), (1, Outcome.CANCELED)])
@pytest.mark.parametrize("function", [functions.wait_for_stop, functions.use_after_stop, functions.never_looks])
async def test_a_removed_job_ends_whether_its_function_listens_or_not(
    jobs: JobsService, function: Callable[..., Any], priority: int, outcome: Outcome
) -> None:
    async with running(jobs, function, grace=0.2 if function is functions.never_looks else 60):
        pid = await begun(jobs, priority)
        await jobs.remove(TYPE, "a")
        assert (await ended(jobs)).outcome is outcome
        if function is functions.never_looks:
            await gone(pid)


@pytest.mark.parametrize(
    ("function", "priority", "state"),
    [
        (functions.wait_for_stop, 0, JobState.FINISHED),
        (functions.wait_for_stop, 1, JobState.PENDING),
        (functions.never_looks, 0, JobState.PENDING),
    ],
)
async def test_the_end_of_the_runner_is_that_of_its_processes(
    jobs: JobsService, function: Callable[..., Any], priority: int, state: JobState
) -> None:
    async with running(jobs, function, grace=0.2):
        pid = await begun(jobs, priority)
    assert (await jobs.get(TYPE, "a")).state is state
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
