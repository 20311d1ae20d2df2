"""The page's web application, as it stands there, behind a real server: requests, a stream of events, and the end."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from jobs_service import JobsService, JobState
from tests.docs.pages import ROOT, examples

[APPLICATION, PLAIN, *OTHERS] = examples("docs/web-applications.md")
[COMMAND, *_] = examples("docs/web-applications.md", "sh")
SHOP = "django_shop/orders"
OF_SHOP = [f"{SHOP}/{name}.py" for name in ("jobs", "views", "management/commands/receipts", "tasks")]
FILES = ["flask_app.py", *OF_SHOP, "script.py"]
PATIENCE = 60.0


def test_the_other_programs_are_those_that_the_tests_of_the_examples_run() -> None:
    here = [(ROOT / "examples" / name).read_text() for name in ("fastapi_app.py", *FILES)]
    assert [APPLICATION, *OTHERS] == here


def test_the_plain_methods_do_what_the_page_shows(tmp_path: Path) -> None:
    program = PLAIN.replace("JobsService()", f"JobsService('lmdb:{tmp_path / 'store'}')")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "finished\n"


class Server:
    """A process that serves the application on a Unix socket."""

    def __init__(self, directory: Path, process: asyncio.subprocess.Process) -> None:
        self.directory = directory
        self.process = process

    async def request(
        self, method: str, path: str, body: str = ""
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Send a request; return where the body of the answer can be read."""
        reader, writer = await asyncio.open_unix_connection(self.directory / "socket")
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        writer.write((head + body).encode())
        await reader.readuntil(b"\r\n\r\n")
        return reader, writer

    async def add(self, numbers: list[int]) -> str:
        """Add a report and return its id."""
        reader, writer = await self.request("POST", "/reports", json.dumps(numbers))
        answer = await reader.read()
        writer.close()
        id: str = json.loads(answer)["id"]
        return id


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    """The application, served as the page says."""
    (tmp_path / "fastapi_app.py").write_text(APPLICATION)
    command = [sys.executable, "-m", *COMMAND.split(), "--uds", "socket", "--log-level", "warning"]
    process = await asyncio.create_subprocess_exec(*command, cwd=tmp_path, stderr=asyncio.subprocess.PIPE)
    async with asyncio.timeout(PATIENCE):
        try:
            while not await answers(tmp_path / "socket"):
                assert process.returncode is None
                await asyncio.sleep(0.02)
            yield Server(tmp_path, process)
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()


async def answers(socket: Path) -> bool:
    """Return whether somebody takes connections: the file is there a moment before that."""
    try:
        _, writer = await asyncio.open_unix_connection(socket)
    except (FileNotFoundError, ConnectionRefusedError):
        return False
    writer.close()
    return True


async def lines_of(reader: asyncio.StreamReader) -> AsyncIterator[str]:
    """Yield the lines of a stream of events."""
    async for line in reader:
        if line.startswith((b"data: ", b"event: ")):
            yield line.decode().strip()


async def test_a_request_adds_a_job_and_its_events_are_streamed_to_the_end(server: Server) -> None:
    id = await server.add([0, 1, 2])
    reader, writer = await server.request("GET", f"/reports/{id}/events")
    events = [json.loads(line.removeprefix("data: ")) async for line in lines_of(reader)]
    assert events[-1]["state"] == "finished"
    assert events[-1]["result"] == 3
    writer.close()
    reader, writer = await server.request("GET", "/reports/nobody/events")
    assert [line async for line in lines_of(reader)] == ["event: missing", "data: null"]
    writer.close()


@pytest.mark.parametrize(("body", "said"), [('["x"]', "a valid integer"), ("{bad", "JSON decode error")])
async def test_a_bad_request_is_told_what_is_wrong(server: Server, body: str, said: str) -> None:
    reader, writer = await server.request("POST", "/reports", body)
    assert said in json.loads(await reader.read())["detail"][0]["msg"]
    writer.close()


async def test_an_open_stream_does_not_keep_the_application_from_ending_and_its_job_is_given_back(
    server: Server,
) -> None:
    id = await server.add([3600])
    reader, writer = await server.request("GET", f"/reports/{id}/events")
    async for line in lines_of(reader):
        if '"running"' in line:
            break
    server.process.send_signal(signal.SIGTERM)
    await server.process.wait()
    writer.close()
    async with JobsService(f"lmdb:{server.directory / 'jobs-data'}", supervise=False) as jobs:
        job = await jobs.get("report", id)
        assert job.state is JobState.PENDING
        assert [event.kind for event in job.history] == ["stopped", "started", "added"]
