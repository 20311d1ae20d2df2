"""Processes that accept jobs and then do nothing until they are killed: what a fork of `ForkServer` runs."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable

from jobs_service import JobsService
from tests.system.workloads import Journal

TYPE = "held"
SLOW = 3600.0
"""The type's timeout: who is noticed sooner was not noticed by it."""

Then = Callable[[JobsService, Journal], Awaitable[None]]


def _hold(address: str, journal: str, count: int, then: Then | None = None, *, supervise: bool = False) -> None:
    """Accept so many jobs, do something more, write that into the journal, and stay."""

    async def hold() -> None:
        written = Journal(journal)
        async with JobsService(address, supervise=supervise) as jobs:
            taken = await jobs.accept_many(TYPE, count)
            assert len(taken) == count
            if then is not None:
                await then(jobs, written)
            written.write("held")
            await asyncio.Event().wait()

    asyncio.run(hold())


def hold(address: str, journal: str, count: int = 1, supervise: bool = False) -> None:
    """Hold jobs."""
    _hold(address, journal, count, supervise=supervise)


def hold_and_fork(address: str, journal: str) -> None:
    """Hold a job and have a forked child that outlives this process."""

    async def then(_: JobsService, written: Journal) -> None:
        pid = os.fork()
        if pid == 0:
            time.sleep(600)  # noqa: ASYNC251 - no loop runs in the child
            os._exit(0)
        written.write("child", pid)

    _hold(address, journal, 1, then)


def hold_and_execute(address: str, journal: str) -> None:
    """Hold a job and run a program, that outlives this process, with all descriptors that it inherits."""

    async def then(_: JobsService, written: Journal) -> None:
        program = [sys.executable, "-c", "import time; time.sleep(600)"]
        child = subprocess.Popen(program, close_fds=False, start_new_session=True)  # noqa: ASYNC220 - asyncio's would
        written.write("child", child.pid)  # end with this process

    _hold(address, journal, 1, then)


def close_without_giving_back(address: str, journal: str) -> None:
    """Leave the service with a job accepted, and stay."""

    async def hold() -> None:
        written = Journal(journal)
        async with JobsService(address) as jobs:
            assert await jobs.accept(TYPE, timeout=0) is not None
        written.write("held")
        await asyncio.Event().wait()

    asyncio.run(hold())


def look_for_the_dead(address: str, journal: str) -> None:
    """Run a supervised service, which re-enqueues what dead processes held."""

    async def look() -> None:
        async with JobsService(address):
            Journal(journal).write("looks")
            await asyncio.Event().wait()

    asyncio.run(look())
