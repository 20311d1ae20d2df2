"""Daemons that are killed at random moments while they replicate: it ends equal, and goes on from its checkpoints.

`JOBS_SERVICE_REPLICATION_KILLS=30` kills more often.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from jobs_service import JobsService
from jobs_service.replication import replicate
from tests.cli.support import environment
from tests.replication.server import Oddities, Server
from tests.replication.support import asked, contents, fill

KILLS = int(os.environ.get("JOBS_SERVICE_REPLICATION_KILLS", "2"))
DOCUMENTS = 150 * KILLS
HANG = 100.0


@asynccontextmanager
async def daemon(store: str, directory: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a daemon that replicates."""
    arguments = ["-m", "jobs_service", "--store", store, "serve", "--replications", "--log-level", "error"]
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, cwd=directory, env=environment())
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.timeout(HANG * 2)
async def test_it_ends_equal_and_goes_on_from_its_checkpoints(tmp_path: Path) -> None:
    choices = random.Random(KILLS)
    store = f"lmdb:{tmp_path / 'store'}"
    slow = Oddities(latency=0.02)
    async with asyncio.timeout(HANG), Server(slow) as source, Server(slow) as target:
        fill(source.database("db"), DOCUMENTS, attachments=DOCUMENTS // 20)
        target.database("db")
        async with JobsService(store) as jobs:
            options = {"checkpoint_interval": 0.1, "worker_batch_size": 5, "worker_processes": 2}
            job = await replicate(jobs, f"{source.url}/db", f"{target.url}/db", **options)
            for number in range(KILLS):
                async with daemon(store, tmp_path) as process:
                    some = (number + choices.random()) * DOCUMENTS / (KILLS + 1)
                    while len(target.databases["db"].documents) < some:
                        await target.databases["db"].changed.wait()
                    process.kill()
            async with daemon(store, tmp_path):
                result = await jobs.result(job.type, job.id)
                ended = await jobs.get(job.type, job.id)
    assert contents(target.databases["db"]) == contents(source.databases["db"])
    assert ended.attempts == KILLS + 1
    # Of the feeds, not of the questions how much is still to come.
    feeds = [line for line in asked(source, "_changes") if "limit=0" not in line]
    begun = [int(each) for line in feeds for each in re.findall(r"since=(?:%22)?(\d+)", line)]
    assert begun[0] == 0
    assert begun == sorted(begun)
    assert max(begun) > 0
    assert result["missing_found"] >= result["docs_read"] > 0
