"""Processes that accept jobs and then do nothing until they are killed: what a fork of `ForkServer` runs."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable

from jobs_service import JobsService, Settings
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


def hold_and_multiprocess(address: str, journal: str) -> None:
    """Hold a job and have a child of multiprocessing, forked, that outlives this process."""

    async def then(_: JobsService, written: Journal) -> None:
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
        child.start()
        written.write("child", child.pid)

    _hold(address, journal, 1, then)


def hold_and_execute(address: str, journal: str) -> None:
    """Hold a job and run a program, that outlives this process, with all descriptors that it inherits."""

    async def then(_: JobsService, written: Journal) -> None:
        program = [sys.executable, "-c", "import time; time.sleep(600)"]
        child = subprocess.Popen(program, close_fds=False, start_new_session=True)  # noqa: ASYNC220 - asyncio's would
        written.write("child", child.pid)  # end with this process

    _hold(address, journal, 1, then)


def hold_in_two_services(address: str, journal: str) -> None:
    """Hold a job in each of two services that share a store, of which the second is closed."""

    async def then(jobs: JobsService, _: Journal) -> None:
        async with JobsService(jobs.store) as second:
            assert await second.accept(TYPE, timeout=0) is not None

    _hold(address, journal, 1, then)


def hold_in_two_stores(address: str, other: str, journal: str) -> None:
    """Hold a job in each of two stores."""

    async def hold() -> None:
        written = Journal(journal)
        async with JobsService(address) as jobs, JobsService(other) as others:
            assert await jobs.accept(TYPE, timeout=0) is not None
            assert await others.accept(TYPE, timeout=0) is not None
            written.write("held")
            await asyncio.Event().wait()

    asyncio.run(hold())


def close_without_giving_back(address: str, journal: str) -> None:
    """Leave the service with a job accepted, and stay."""

    async def hold() -> None:
        written = Journal(journal)
        async with JobsService(address) as jobs:
            assert await jobs.accept(TYPE, timeout=0) is not None
        written.write("held")
        await asyncio.Event().wait()

    asyncio.run(hold())


def hold_without_id(address: str, journal: str) -> None:
    """Hold a job in a process that does not want its death to be noticed."""

    async def hold() -> None:
        async with JobsService(address, settings=Settings(process_check_period=0)) as jobs:
            assert await jobs.accept(TYPE, timeout=0) is not None
            Journal(journal).write("held")
            await asyncio.Event().wait()

    asyncio.run(hold())


def look_for_the_dead(address: str, journal: str) -> None:
    """Run a supervised service, which re-enqueues what dead processes held."""

    async def look() -> None:
        async with JobsService(address):
            Journal(journal).write("looks")
            await asyncio.Event().wait()

    asyncio.run(look())
