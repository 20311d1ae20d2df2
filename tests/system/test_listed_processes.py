"""Daemons that share an embedded store, as real processes: who is there, who is quiet, who stops, who died."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from subprocess import Popen

import pytest

from jobs_service import JobError, JobsService, JobState, Outcome, ProcessGone, ProcessInfo, ProcessState
from jobs_service.service import bulk_actions
from jobs_service.service.bulk_actions import BulkActions
from jobs_service.service.selection import Filter
from tests.checker import assert_sound
from tests.cli.support import HANG, environment, event_named, started, write_lock_held

APPLICATION = """
import asyncio
import pathlib
from jobs_service import JobsService

jobs = JobsService({address!r})


@jobs.handler("email", slots=1, max_attempts=9)
async def email(job):
    while not pathlib.Path({go_on!r}).exists():
        await asyncio.sleep(0.02)
"""

OWNER = """
import asyncio
from jobs_service import JobsService


async def main():
    async with JobsService({address!r}) as jobs:
        assert await jobs.accept({type!r}) is not None
        await asyncio.sleep(3600)

asyncio.run(main())
"""

pytestmark = pytest.mark.timeout(180)


class Place:
    """A store, the daemons on it, and a service that looks on.

    Args:
        directory: for all of it.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.address = f"lmdb:{directory / 'store'}"
        self.go_on = directory / "go on"
        self.stack = ExitStack()
        (directory / "app.py").write_text(APPLICATION.format(address=self.address, go_on=str(self.go_on)))
        self.jobs = JobsService(self.address, supervise=False)

    def daemon(self, *arguments: str) -> Popen[str]:
        """Start a daemon."""
        daemon = self.stack.enter_context(started("serve", *(arguments or ("app:jobs",)), cwd=self.directory))
        self.stack.callback(daemon.kill)
        return daemon

    async def serving(self) -> Popen[str]:
        """Start a daemon; its handlers run."""
        daemon = self.daemon()
        await asyncio.to_thread(event_named, daemon, "serving")
        return daemon

    def program(self, path: Path) -> Popen[bytes]:
        """Start a program of ours."""
        program = self.stack.enter_context(Popen([sys.executable, str(path)], env=environment()))
        self.stack.callback(program.kill)
        return program

    async def process(self, pid: int, state: ProcessState, taken: int | None = None) -> ProcessInfo:
        """Return a process once it is in a state."""
        async with asyncio.timeout(HANG):
            while True:
                for each in await self.jobs.processes():
                    if (each.pid, each.state) == (pid, state) and taken in (None, each.taken):
                        return each
                await asyncio.sleep(0.02)

    async def worker(self, id: str) -> str:
        """Return who runs a job, once somebody does."""
        async with asyncio.timeout(HANG):
            while True:
                job = await self.jobs.get("email", id)
                if job.state is JobState.RUNNING:
                    return next(event.detail for event in job.history if event.kind == "started")
                await asyncio.sleep(0.02)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    """A store of its own."""
    made = Place(tmp_path)
    with made.stack:
        async with made.jobs:
            yield made
            await assert_sound(made.jobs.store)


async def test_one_of_two_daemons_is_quiet_and_resumed_one_is_stopped_and_one_is_killed(place: Place) -> None:
    jobs = place.jobs
    one, other = await place.serving(), await place.serving()
    first = await place.process(one.pid, ProcessState.RUNNING)
    second = await place.process(other.pid, ProcessState.RUNNING)
    assert {(each.role, each.slots) for each in (first, second)} == {("daemon", 1)}
    # Both have a job each, and one waits.
    for id in ("a", "b"):
        await jobs.enqueue("email", id=id)
    workers = {await place.worker(id): id for id in ("a", "b")}
    assert set(workers) == {first.worker, second.worker}
    await jobs.enqueue("email", id="waits")

    # Quiet: what runs goes on, and ends; nothing else is begun.
    await jobs.quiet_process(first.id)
    await jobs.quiet_process(second.id)
    await place.process(one.pid, ProcessState.QUIET, taken=1)
    await place.process(other.pid, ProcessState.QUIET, taken=1)
    place.go_on.touch()
    await place.process(one.pid, ProcessState.QUIET, taken=0)
    await place.process(other.pid, ProcessState.QUIET, taken=0)
    assert [(await jobs.get("email", id)).state for id in ("a", "b", "waits")] == ["finished", "finished", "pending"]

    # Resumed: only that one takes jobs.
    place.go_on.unlink()
    await jobs.resume_process(first.id)
    assert await place.worker("waits") == first.worker

    # Stopped: it has its grace, as on SIGTERM; then it is not there any more.
    await jobs.stop_process(first.id)
    await place.process(one.pid, ProcessState.STOPPING)
    place.go_on.touch()
    assert await asyncio.to_thread(one.wait, HANG) == 0
    assert (await jobs.get("email", "waits")).outcome is Outcome.SUCCEEDED
    assert [each.pid for each in await jobs.processes()] == [other.pid]
    with pytest.raises(ProcessGone, match=f"there is no process {first.id}"):
        await jobs.stop_process(first.id)

    # Killed: that is known at once, and it is asked nothing.
    other.kill()
    await asyncio.to_thread(other.wait, HANG)
    assert (await place.process(other.pid, ProcessState.DEAD)).id == second.id
    with pytest.raises(ProcessGone, match=f"process {second.id} has died; it was heard of last at "):
        await jobs.resume_process(second.id)

    # Who comes after it has another id, and takes jobs.
    place.go_on.unlink()
    heir = place.daemon()
    await place.process(heir.pid, ProcessState.RUNNING)
    await jobs.enqueue("email", id="later")
    assert (await place.worker("later")).endswith(f":{heir.pid}")
    await place.process(other.pid, ProcessState.DEAD)  # still shown


async def test_what_is_asked_of_a_process_that_is_stopped_is_done_when_it_goes_on(place: Place) -> None:
    daemon = place.daemon()
    process = await place.process(daemon.pid, ProcessState.RUNNING)
    with write_lock_held(place.address):  # it must not be stopped with the store's lock
        os.kill(daemon.pid, signal.SIGSTOP)
    await place.jobs.quiet_process(process.id)
    await place.jobs.stop_process(process.id)
    assert (await place.process(daemon.pid, ProcessState.RUNNING)).request is not None
    os.kill(daemon.pid, signal.SIGCONT)
    assert await asyncio.to_thread(daemon.wait, HANG) == 0
    assert await place.jobs.processes() == []


# Bulk actions


async def failed(jobs: JobsService, count: int) -> None:
    """Add jobs that have failed."""
    await jobs.set_type_timeout("old", 60)
    for number in range(count):
        await jobs.add("old", f"{number:04}")
        job = await jobs.accept("old")
        assert job is not None
        await job.finish(outcome=Outcome.FAILED, error=JobError("KeyError", "no"))


async def asked_for(jobs: JobsService) -> str:
    """Ask for the removal of failed jobs, and let nobody here do it."""
    actions = BulkActions(jobs)
    actions.start = lambda: None  # type: ignore[method-assign]
    return str(await actions.add("remove", "old", Filter(state="failed"), "ada"))


async def done(jobs: JobsService, id: str) -> None:
    """Return when a bulk action has removed all of the failed jobs."""
    async with asyncio.timeout(HANG):
        while (await jobs.get(bulk_actions.TYPE, id)).state is not JobState.FINISHED:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert (await jobs.counts("old"))["old"].failed == 0


async def test_a_bulk_action_goes_on_in_a_living_daemon_when_its_own_is_killed(place: Place) -> None:
    jobs = place.jobs
    await failed(jobs, 3)
    await jobs.set_type_timeout(bulk_actions.TYPE, 3600)  # nobody finds it by its silence
    owner = place.directory / "owner.py"
    owner.write_text(OWNER.format(address=place.address, type=bulk_actions.TYPE))
    holder = place.program(owner)
    id = await asked_for(jobs)
    async with asyncio.timeout(HANG):
        while (await jobs.get(bulk_actions.TYPE, id)).state is not JobState.RUNNING:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    daemon = place.daemon("app:jobs", "--http", "127.0.0.1:0")
    await place.process(daemon.pid, ProcessState.RUNNING)
    holder.kill()
    await done(jobs, id)
