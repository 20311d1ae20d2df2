"""A handler blocks the event loop for many timeouts: the other jobs of its process run once, and the log names it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from jobs_service import Job, JobsService, RunningJob
from jobs_service.layer import running_jobs
from tests.runner.support import TYPE, add, ended, opened, running, story
from tests.virtual_time import in_virtual_time

PROGRAM = """
import asyncio, sys, time
from jobs_service import JobsService
from jobs_service.runner import heartbeat

address, blocked, heartbeat.LONGEST_STANDSTILL, heartbeat.MOST_TIMEOUTS = sys.argv[1], *map(float, sys.argv[2:])
jobs = JobsService(address)
has_blocked = asyncio.Event()

@jobs.handler("sound", timeout=1)
async def sound() -> None:
    await has_blocked.wait()

@jobs.handler("plain", timeout=1)
def plain() -> None:
    if not has_blocked.is_set():
        time.sleep(blocked)

@jobs.handler("blocks", timeout=1)
async def blocks() -> None:
    if not has_blocked.is_set():  # once: a job that was taken for lost runs again
        await asyncio.sleep(0.5)
        compute()
        has_blocked.set()

def compute() -> None:
    time.sleep(blocked)
    print("has blocked", flush=True)

async def main():
    async with jobs, asyncio.timeout(60):
        started = asyncio.Event()
        running = asyncio.create_task(jobs.run(started=started.set))
        await started.wait()
        for type in ("sound", "plain", "blocks"):
            await jobs.add(type, "1")
        for type in ("sound", "plain", "blocks"):
            await jobs.wait(type, "1", "finished")
        running.cancel()

asyncio.run(main())
"""


async def end_of(path: Path, blocked: float, *bounds: float) -> tuple[list[Job], list[str]]:
    """Run a process with three jobs, one of which blocks its loop, beside a service that notices lost jobs.

    Returns:
        The jobs, and what the process has printed.
    """
    address = f"lmdb:{path}/store"
    command = [sys.executable, "-c", PROGRAM, address, *map(str, [blocked, *bounds])]
    async with JobsService(address) as others:
        done = await asyncio.to_thread(subprocess.run, command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        jobs = [await others.get(type, "1") for type in ("sound", "plain", "blocks")]
    return jobs, done.stdout.decode().splitlines()


async def test_jobs_beside_a_handler_that_blocks_the_loop_run_once_and_the_log_names_it_meanwhile(
    tmp_path: Path,
) -> None:
    jobs, printed = await end_of(tmp_path, 10.0, 3600.0, 20.0)
    for job in jobs:
        assert story(job) == ["added", "started", "finished"], printed
    [named] = [line for line in printed if "loop_blocked" in line]
    assert "type='blocks'" in named
    assert "id='1'" in named
    assert "compute (" in named
    assert printed.index(named) < printed.index("has blocked")


async def test_a_loop_that_stands_still_for_too_long_is_excused_no_more(tmp_path: Path) -> None:
    jobs, printed = await end_of(tmp_path, 5.0, 0.0, 2.0)
    assert {"lost"} < {event for job in jobs for event in story(job)}, printed
    assert any("loop_given_up" in line and "type='sound'" in line for line in printed)


@in_virtual_time
async def test_a_service_takes_no_job_from_itself_however_silent_it_was() -> None:
    async with opened() as jobs:

        @jobs.handler(TYPE)
        async def work(job: RunningJob) -> None:
            await asyncio.sleep(100)

        async with running(jobs):
            await add(jobs, "mine")
            await asyncio.sleep(1)
            context, keys = jobs._context, jobs._context.keyspace.of(TYPE)
            own = context.own_runs[keys.packed]
            every = b"\xff" * 10
            found = await context.transact(lambda unit: running_jobs.re_enqueue(unit, keys, every, 10, own))
            assert found == running_jobs.TaskPart([], False)
            assert story(await ended(jobs, "mine")) == ["added", "started", "finished"]
        assert context.own_runs == {}
