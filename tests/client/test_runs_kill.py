"""Processes that run handlers over HTTP, and the daemon itself, are killed: the effect of each job is there once."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

from jobs_service import JobsClient, JobsService, Outcome
from tests.cli.support import HANG, free_port
from tests.http.test_kills import daemon
from tests.service.support import eventually
from tests.stores import EVERY_LASTING_STORE, StoreKind

TYPE = "charge"
TIMEOUT = 2.0
"""Seconds of the type's activity timeout."""
WORKER = """
import asyncio, sys
from pathlib import Path
import pytest

from jobs_service import JobsClient, JobsService, RunningJob

url, folder, timeout = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
app = JobsService("lmdb:/nonexistent/jobs")


@app.handler("charge", slots=4, timeout=timeout, grace=5)
async def charge(job: RunningJob, waits_for: str = "") -> str:
    with (folder / "begun").open("a") as begun:
        begun.write(f"{job.id}\\n")
    while waits_for and not (folder / waits_for).exists():
        await asyncio.sleep(0.01)
    with (folder / "done").open("a") as done:
        done.write(f"{job.id}\\n")
    return str(job.id)


asyncio.run(JobsClient(url).run(app))
"""


@contextmanager
def worker(port: int, folder: Path) -> Iterator[Popen[str]]:
    """Run the handler in a process of its own for the block's time."""
    command = [sys.executable, "-c", WORKER, f"http://127.0.0.1:{port}", str(folder), str(TIMEOUT)]
    with Popen(command, stderr=PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def lines(folder: Path, name: str) -> Counter[str]:
    """Return how often each job is in one of the files that the handler writes."""
    path = folder / name
    return Counter(path.read_text().split()) if path.exists() else Counter()


@pytest.mark.parametrize("kind", EVERY_LASTING_STORE)
async def test_the_jobs_of_a_worker_that_is_killed_are_done_by_another_one(kind: StoreKind, tmp_path: Path) -> None:
    lasting, port = kind.address_in(tmp_path), free_port()
    url = f"http://127.0.0.1:{port}"
    ids = [f"{number}" for number in range(4)]

    async def all_begun() -> bool:
        return lines(tmp_path, "begun").keys() == {*ids}

    async with asyncio.timeout(HANG), JobsClient(url, timeout=HANG) as client:
        with daemon(lasting, port, tmp_path):
            await client.set_type_timeout(TYPE, TIMEOUT)
            with worker(port, tmp_path) as first:
                for id in ids:
                    await client.add(TYPE, id, "go")
                await eventually(all_begun)
                first.kill()
                first.wait()
            assert lines(tmp_path, "done") == Counter()
            (tmp_path / "go").touch()
            with worker(port, tmp_path):
                assert [await client.result(TYPE, id) for id in ids] == ids
            found = [await client.get(TYPE, id) for id in ids]
    assert lines(tmp_path, "done") == Counter(ids)
    kinds = ["added", "started", "lost", "started", "finished"]
    assert [[event.kind.value for event in reversed(job.history)] for job in found] == [kinds] * 4


@pytest.mark.parametrize("kind", EVERY_LASTING_STORE)
async def test_while_the_daemon_is_away_for_longer_than_the_timeout_runs_go_on_and_each_job_is_done_once(
    kind: StoreKind, tmp_path: Path
) -> None:
    lasting, port = kind.address_in(tmp_path), free_port()
    url = f"http://127.0.0.1:{port}"
    ids = [f"{number}" for number in range(10)]
    waits_for = {"0": "go", "1": "go", "2": "later", "3": "later"}

    async def have_begun() -> bool:
        return lines(tmp_path, "begun").keys() >= waits_for.keys()

    async def have_ended() -> bool:
        return lines(tmp_path, "done").keys() >= {"0", "1"}

    async with asyncio.timeout(2 * HANG), JobsClient(url, timeout=HANG) as client:
        with worker(port, tmp_path):  # before there is any daemon
            with daemon(lasting, port, tmp_path) as process:
                await client.set_type_timeout(TYPE, TIMEOUT)
                for id in ids:
                    await client.add(TYPE, id, waits_for.get(id, ""))
                await eventually(have_begun)
                process.kill()
                process.wait()
            (tmp_path / "go").touch()  # these end while nobody hears of it
            await eventually(have_ended)
            await asyncio.sleep(1.5 * TIMEOUT)  # that the timeout passes is what is tried
            with daemon(lasting, port, tmp_path):
                assert [await client.result(TYPE, id) for id in ("0", "1")] == ["0", "1"]
                await asyncio.sleep(1.5 * TIMEOUT)  # and these are kept alive
                (tmp_path / "later").touch()
                assert [await client.result(TYPE, id) for id in ids] == ids
    assert lines(tmp_path, "done") == lines(tmp_path, "begun") == Counter(ids)
    async with JobsService(lasting) as jobs:
        found = [job async for job in jobs.list(TYPE)]
    assert {(job.outcome, job.attempts) for job in found} == {(Outcome.SUCCEEDED, 1)}
