"""A server that is started anew while a replication runs: the run goes back to its checkpoint, and ends nothing."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from jobs_service import HistoryKind, Job
from jobs_service.replication import job, replicate
from jobs_service.replication.checkpoints import ServerRestarted
from tests.replication.jobs import ends, equal, running, until
from tests.replication.partners import OtherServer, couch_server, pouch_server
from tests.replication.server import Fault, Oddities, Server
from tests.replication.support import Replication, asked, contents, fill, place, write_branch

PATIENT: dict[str, Any] = {"checkpoint_interval": 0.05, "retries_per_request": 10}
"""A server may take a while to come back on a busy machine; no run is to end for that."""

HANG = 200.0
"""Seconds after which a test that waits for another program has failed, or a run that asks one in vain."""


def has_not_ended(job: Job) -> bool:
    """Return whether the first run still goes on, or was the one that succeeded."""
    return job.attempts == 1 and not any(event.kind is HistoryKind.CRASHED for event in job.history)


def checkpoint(server: Server) -> Any:
    """Return the sequence that the checkpoint on a server names, None without one."""
    return next((each.get("source_last_seq") for each in server.databases["db"].local.values()), None)


def sessions(server: Server) -> list[str]:
    """Return the sessions that the checkpoint on a server knows."""
    return [each["session_id"] for log in server.databases["db"].local.values() for each in log["history"]]


@pytest.mark.parametrize("which", ["source", "target"])
async def test_what_came_after_the_checkpoint_is_copied_once_more(which: str) -> None:
    first = {end: Server(Oddities(instance_start_time="1")) for end in ("source", "target")}
    async with AsyncExitStack() as servers, running() as jobs:
        for each in first.values():
            await servers.enter_async_context(each)
        source, target = first["source"], first["target"]
        fill(source.database("db"), 20)
        target.database("db")
        job = await replicate(jobs, *ends(source, target), continuous=True, **PATIENT)
        kept = await until(jobs, job, lambda job: job.data.get("statistics", {}).get("docs_written", 0) >= 20)
        while checkpoint(target) is None:
            await target.databases["db"].changed.wait()
        since = checkpoint(target)
        first[which].faults.append(Fault("_ensure_full_commit", until=asyncio.Event(), times=99))
        for number in range(5):
            write_branch(source.databases["db"], f"later {number}", 1, "x")
        await equal(source, target)
        assert has_not_ended(kept)
        # What the server has not made durable is lost with it.
        again = Server(Oddities(instance_start_time="2"), port=first[which].port)
        again.databases = first[which].databases
        if which == "target":
            for number in range(5):
                lost = target.databases["db"].documents.pop(f"later {number}")
                del target.databases["db"].by_sequence[lost.sequence]
        await first[which].__aexit__()
        await servers.enter_async_context(again)
        now = {**first, which: again}
        await equal(now["source"], now["target"])
        while checkpoint(now["target"]) == since:
            await now["target"].databases["db"].changed.wait()
        assert has_not_ended(await jobs.get(job.type, job.id))
        feeds = [*asked(source, "feed=continuous"), *(asked(again, "feed=continuous") if which == "source" else [])]
        begun = [re.findall("since=([^&]*)", each)[0] for each in feeds]
        assert begun[0] == "0"
        assert len(begun) > 1
        assert "0" not in begun[1:]


async def test_a_server_that_is_always_another_one_ends_the_run(
    source: Server, target: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "RESTART_PAUSE", 0.001)

    class Others(Oddities):
        times = 0

        @property
        def instance_start_time(self) -> str:
            self.times += 1
            return f"{self.times}"

        @instance_start_time.setter
        def instance_start_time(self, value: str) -> None: ...

    target.oddities = Others()
    fill(source.databases["db"], 5)
    with pytest.raises(ServerRestarted, match="the target was made anew, or its server started anew"):
        await Replication(*ends(source, target)).run()
    assert len(asked(target, "_ensure_full_commit")) == job.MOST_RESTARTS + 1


@pytest.mark.timeout(2 * HANG)
@pytest.mark.parametrize("continuous", [True, False])
@pytest.mark.parametrize("server", [pouch_server, couch_server])
async def test_another_server_that_is_killed_and_started_again(
    server: Callable[[Path], AbstractAsyncContextManager[OtherServer]], small: Server, continuous: bool, tmp_path: Path
) -> None:
    fill(small.database("db"), 300)
    count = len(small.databases["db"].documents)
    options = {"continuous": continuous, "create_target": True, "worker_batch_size": 10, "worker_processes": 2}
    async with server(tmp_path / "server") as other, running(limit=HANG, health_threshold=2 * HANG) as jobs:
        target = f"{other.url}/db"

        job = await replicate(jobs, f"{small.url}/db", target, **options, **PATIENT)
        await until(jobs, job, lambda job: job.data.get("statistics", {}).get("docs_written", 0) >= count / 3)
        await other.kill()
        await other.start()
        if continuous:
            write_branch(small.databases["db"], "later", 1, "x")
            while place(checkpoint(small)) < small.databases["db"].sequence:
                await small.databases["db"].changed.wait()
            assert has_not_ended(await jobs.get(job.type, job.id))
            # CouchDB has lost nothing, and its start time is that of the database: there is no second session.
            assert len(sessions(small)) == (2 if server is pouch_server else 1)
        else:
            await jobs.result(job.type, job.id)
        assert has_not_ended(await jobs.get(job.type, job.id))
        await Replication(target, f"{small.url}/back", create_target=True).run()
    assert contents(small.databases["back"]) == contents(small.databases["db"])
