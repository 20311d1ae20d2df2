"""The worker of the page on workers in other languages: it runs as it stands there."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from jobs_service import JobsService, JobState, Settings
from jobs_service.http.server import Address, serving
from jobs_service.http.state import ServerOptions
from tests.client.served import listening
from tests.docs.pages import examples
from tests.service.support import PATIENCE, eventually

NODE = shutil.which("node")
PAGE_URL = "http://127.0.0.1:8700"
[WORKER] = examples("docs/http-workers.md", "js")
[COMMANDS] = examples("docs/http-workers.md", "sh")
[IN_PYTHON] = examples("docs/http-workers.md")
needs_node = pytest.mark.skipif(NODE is None, reason="there is no node")


class Site:
    """Pages to download: one of them never comes unless it is free.

    Attributes:
        asked: how often that one was asked for.
        free: set while it comes.
    """

    def __init__(self) -> None:
        self.asked = 0
        self.free = asyncio.Event()
        self.free.set()
        self.url = ""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split()[1]
        if path == b"/slow":
            self.asked += 1
            until = [asyncio.ensure_future(each) for each in (self.free.wait(), reader.read(1))]  # or who asks has gone
            await asyncio.wait(until, return_when=asyncio.FIRST_COMPLETED)
            for each in until:
                each.cancel()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
        writer.close()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    server = await asyncio.start_server(site.answer, "127.0.0.1", 0)
    site.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield site


@asynccontextmanager
async def working(url: str, directory: Path, program: str = WORKER) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the worker of the page."""
    assert NODE is not None
    file = directory / "worker.mjs"
    file.write_text(program)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(NODE, str(file), url, "download", stderr=pipe)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@needs_node
@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
async def test_the_commands_of_the_page_run_a_job(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME")
    address = Address("127.0.0.1:0", ServerOptions())
    async with (
        JobsService("memory:", settings=Settings(notify_holdoff=0.01)) as jobs,
        serving(jobs, address) as server,
    ):
        (tmp_path / "worker.mjs").write_text(WORKER)
        port = server.url.rpartition(":")[2]
        commands = COMMANDS.replace("8700", port).replace("https://example.org/", site.url)
        process = await asyncio.create_subprocess_exec(
            "bash", "-ec", commands, cwd=tmp_path, start_new_session=True, stdout=asyncio.subprocess.DEVNULL
        )
        try:
            assert await process.wait() == 0
            assert await jobs.result("download", "page-1", timeout=PATIENCE) == {"status": 200, "characters": 5}
        finally:
            os.killpg(process.pid, signal.SIGKILL)


async def test_the_handlers_of_the_page_in_python_run_as_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    app = JobsService("lmdb:/nonexistent/jobs")

    @app.handler("download")
    async def download(address: str) -> str:
        return address.upper()

    async with JobsService("memory:", settings=Settings(notify_holdoff=0.01)) as jobs, listening(jobs) as url:
        shop = ModuleType("shop")
        vars(shop)["jobs"] = app
        monkeypatch.setitem(sys.modules, "shop", shop)
        program: dict[str, Any] = {"token": None}
        body = "\n".join(f"    {line}" for line in IN_PYTHON.replace(PAGE_URL, url).splitlines())
        exec(f"async def main():\n{body}", program)
        working = asyncio.create_task(program["main"]())
        job = await jobs.enqueue(download, "an address")
        assert await jobs.result("download", job.id, timeout=PATIENCE) == "AN ADDRESS"
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working


@needs_node
async def test_it_runs_jobs_and_says_how_they_have_ended(site: Site, tmp_path: Path) -> None:
    async with JobsService("memory:", settings=Settings(notify_holdoff=0.01)) as jobs, listening(jobs) as url:
        await jobs.set_type_timeout("download", 30)
        await jobs.add("download", "page", {"url": site.url})
        await jobs.add("download", b"\x00/..", {"url": site.url})
        await jobs.add("download", "wrong", {"url": "no URL"})
        async with working(url, tmp_path) as process:
            for id in ("page", b"\x00/.."):
                result = await jobs.result("download", id, timeout=PATIENCE)
                assert result == {"status": 200, "characters": 5}
            event = await jobs.wait("download", "wrong", JobState.FINISHED, timeout=PATIENCE)
            assert event.outcome == "failed"
            assert event.error is not None
            assert event.error.type == "TypeError"
            assert event.error.message.startswith("Failed to parse URL")
            history = (await jobs.get("download", "page")).history
            assert f"node:{process.pid}" in [each.detail for each in history]


@needs_node
async def test_its_job_comes_back_when_it_is_killed(site: Site, tmp_path: Path) -> None:
    async with JobsService("memory:", settings=Settings(notify_holdoff=0.01)) as jobs, listening(jobs) as url:
        await jobs.set_type_timeout("download", 1)
        await jobs.add("download", "page", {"url": f"{site.url}/slow"})
        site.free.clear()

        async def is_at_work() -> bool:
            return site.asked == 1

        async with working(url, tmp_path) as process:
            await eventually(is_at_work)
            # Five signs of life take longer than its type allows a job to be silent.
            seqs: set[bytes | None] = set()

            async def has_shown_life() -> bool:
                seqs.add((await jobs.get("download", "page")).seq)
                return len(seqs) > 5

            await eventually(has_shown_life)
            assert (await jobs.get("download", "page")).attempts == 1
            os.kill(process.pid, signal.SIGKILL)
            await jobs.wait("download", "page", JobState.PENDING, timeout=PATIENCE)
        site.free.set()
        async with working(url, tmp_path):
            assert (await jobs.result("download", "page", timeout=PATIENCE))["status"] == 200
        job = await jobs.get("download", "page")
        assert (job.attempts, [each.kind for each in job.history][::-1][:3]) == (2, ["added", "started", "lost"])
