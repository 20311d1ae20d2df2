"""An attachment that is larger than the memory of the job which copies it.

`JOBS_SERVICE_REPLICATION_LARGE=200` makes it so many MB large.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from jobs_service import JobsService
from jobs_service.replication import replicate
from tests.cli.support import ROOT, environment

MEGABYTES = int(os.environ.get("JOBS_SERVICE_REPLICATION_LARGE", "8"))
MOST_MEMORY = 150_000
"""Kilobytes of the daemon."""
PIECE = random.Random(1).randbytes(1_000_000)
HANG = 300.0


@asynccontextmanager
async def process(*arguments: str, directory: Path = ROOT) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a module of Python for the block's time."""
    command = [sys.executable, "-m", *arguments]
    pipe = asyncio.subprocess.PIPE
    running = await asyncio.create_subprocess_exec(*command, cwd=directory, env=environment(), stdout=pipe)
    try:
        yield running
    finally:
        running.kill()
        await running.wait()


async def address(server: asyncio.subprocess.Process) -> str:
    """Return what a server prints when it has started."""
    assert server.stdout is not None
    return (await server.stdout.readline()).decode().strip()


@pytest.mark.timeout(2 * HANG)
@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
async def test_it_is_copied_in_little_memory(tmp_path: Path) -> None:
    server, store = ("tests.replication.server",), f"lmdb:{tmp_path / 'store'}"
    async with asyncio.timeout(HANG), process(*server) as first, process(*server) as second, JobsService(store) as jobs:
        source, target = f"{await address(first)}/db", f"{await address(second)}/db"

        async def content() -> AsyncIterator[bytes]:
            for _ in range(MEGABYTES):
                yield PIECE

        async with aiohttp.ClientSession() as session:
            for each in (source, target):
                (await session.put(each)).raise_for_status()
            (await session.put(f"{source}/doc/large", data=content())).raise_for_status()
            job = await replicate(jobs, source, target)
            serve = ("jobs_service", "--store", store, "serve", "--replications", "--log-level", "error")
            async with process(*serve, directory=tmp_path) as daemon:
                assert (await jobs.result(job.type, job.id))["docs_written"] == 1
                status = await asyncio.to_thread(Path(f"/proc/{daemon.pid}/status").read_text)
            found, expected = hashlib.sha256(), hashlib.sha256(PIECE * MEGABYTES)
            async with session.get(f"{target}/doc/large") as answer:
                async for chunk in answer.content.iter_any():
                    found.update(chunk)
    assert found.digest() == expected.digest()
    [most] = [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")]
    assert most < MOST_MEMORY, f"{most} kB"
