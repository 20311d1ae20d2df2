"""Daemons, sources and targets that are killed at random moments: it ends equal, and goes on from its checkpoints.

`JOBS_SERVICE_REPLICATION_KILLS=30` kills more often.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import IO, Any

import aiohttp
import pytest

from jobs_service import JobsService
from jobs_service.replication import replicate
from tests.cli.support import environment
from tests.replication.partners import OtherServer, couch_server, pouch_server
from tests.replication.server import Oddities, Server
from tests.replication.support import asked, attachment, contents, fill, place

KILLS = int(os.environ.get("JOBS_SERVICE_REPLICATION_KILLS", "2"))
DOCUMENTS = 150 * KILLS
HANG = 60.0 + 20 * KILLS
"""Seconds: a server takes some to start, more where other programs keep the machine busy."""


PROGRAM = """
from jobs_service import JobsService
from jobs_service.replication import register_replication

jobs = JobsService()
register_replication(jobs, backoff=0.1, jitter=0, health_threshold=1)
"""
"""A program of replications that are tried again soon."""


@asynccontextmanager
async def daemon(
    store: str, directory: Path, *words: str, log: IO[bytes] | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a daemon that replicates."""
    words = words or ("--replications", "--log-level", "error")
    arguments, env = ["-m", "jobs_service", "serve", *words], environment({"JOBS_SERVICE_STORE": store})
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, cwd=directory, env=env, stderr=log)
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


async def ask(session: aiohttp.ClientSession, method: str, url: str, body: Any = None) -> Any:
    """Return what a server answers, which may be starting."""
    while True:
        try:
            async with session.request(method, url, json=body) as answer:
                return json.loads(await answer.read())
        except aiohttp.ClientError:
            await asyncio.sleep(0.01)


async def everything(session: aiohttp.ClientSession, url: str) -> dict[tuple[str, str], Any]:
    """Return all leaf revisions of a database with their histories and attachments."""
    changes = await ask(session, "GET", f"{url}/_changes?style=all_docs")
    wanted = [{"id": row["id"], "rev": each["rev"]} for row in changes["results"] for each in row["changes"]]
    answer = await ask(session, "POST", f"{url}/_bulk_get?revs=true&attachments=true", {"docs": wanted})
    documents = [each["ok"] for result in answer["results"] for each in result["docs"]]
    return {(each["_id"], each["_rev"]): each for each in documents}


def revisions_of(number: int) -> list[dict[str, Any]]:
    """Return a document, some with a conflict, a deletion, an attachment."""
    found: list[dict[str, Any]] = []
    for branch in "ab" if number % 7 == 0 else "a":
        names = [branch * 32, *(f"{each:032x}" for each in range(number % 3))]
        form = {"_id": f"doc {number}", "_rev": f"{len(names)}-{names[0]}", "number": number}
        form |= {"_revisions": {"start": len(names), "ids": names}}
        form |= {"_attachments": {"a": attachment(b"x" * number, "text/plain")}} if number % 5 == 0 else {}
        found.append(form | ({"_deleted": True} if number % 11 == 0 else {}))
    return found


@pytest.mark.timeout(HANG * 3)
@pytest.mark.parametrize("server", [pouch_server, couch_server])
async def test_source_target_and_job_may_die_at_any_moment(
    server: Callable[[Path], AbstractAsyncContextManager[OtherServer]], tmp_path: Path
) -> None:
    choices = random.Random(KILLS)
    store = f"lmdb:{tmp_path / 'store'}"
    (tmp_path / "app.py").write_text(PROGRAM)
    words = ("app:jobs", "--log-level", "debug")
    async with (
        server(tmp_path / "source") as first,
        server(tmp_path / "target") as second,
        aiohttp.ClientSession() as session,
        JobsService(store) as jobs,
    ):
        source, target = f"{first.url}/db", f"{second.url}/db"
        await ask(session, "PUT", source)
        documents = [each for number in range(DOCUMENTS) for each in revisions_of(number)]
        for start in range(0, len(documents), 500):
            body = {"new_edits": False, "docs": documents[start : start + 500]}
            await ask(session, "POST", f"{source}/_bulk_docs", body)
        options = {"checkpoint_interval": 0.2, "worker_batch_size": 5, "worker_processes": 2, "http_connections": 3}
        job = await replicate(jobs, source, target, create_target=True, **options)
        with (tmp_path / "log").open("ab") as log:
            async with AsyncExitStack() as daemons:
                process = await daemons.enter_async_context(daemon(store, tmp_path, *words, log=log))
                for number in range(KILLS):
                    some = (number + choices.random()) * DOCUMENTS / (KILLS + 1)
                    while (await ask(session, "GET", target)).get("doc_count", 0) < some * 10 / 11:
                        assert process.returncode is None
                    victim = choices.choice(("source", "target", "job"))
                    if victim == "job":
                        process.kill()
                        process = await daemons.enter_async_context(daemon(store, tmp_path, *words, log=log))
                    else:
                        dies = first if victim == "source" else second
                        await dies.kill()
                        await dies.start()
                async with asyncio.timeout(HANG):
                    await jobs.result(job.type, job.id)
                    again = await replicate(jobs, source, target, create_target=True, **options)
                    assert (await jobs.result(again.type, again.id))["no_changes"]
        assert await everything(session, target) == await everything(session, source)
    lines = [json.loads(each) for each in (tmp_path / "log").read_text().splitlines()]
    told = [(each["event"], each.get("since", each.get("seq"))) for each in lines if {"since", "seq"} & each.keys()]
    written, starts = 0, 0
    for event, seq in told:
        if event == "replication_started":
            starts += 1
            assert place(seq) >= written  # a later one was written where the daemon died before it could say so
        elif event == "checkpoint_written":
            written = place(seq)
    assert starts > 2
