"""Servers of others that tests replicate with: pouchdb-server in a process of its own, and CouchDB where there is one.

pouchdb-server is looked for in JOBS_SERVICE_TEST_POUCHDB (its path) and in PATH, CouchDB in COUCHDB_URL (with the
credentials of an administrator).
"""

import asyncio
import base64
import os
import shutil
import signal
import socket
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import pytest

from jobs_service.replication.endpoint import parse_endpoint

_STARTED = b"has started on"


class PouchServer:
    """A pouchdb-server that keeps its databases in a directory, so that it can be killed and started again."""

    def __init__(self, directory: Path, command: str) -> None:
        self._directory = directory
        self._command = command
        self._port = _free_port()
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        """Start it, and return when it answers."""
        options = ["-d", "data", "-c", "config.json", "-p", str(self._port)]
        self._process = await asyncio.create_subprocess_exec(
            self._command,
            *options,
            cwd=self._directory,
            env={**os.environ, "NODE_OPTIONS": "--unhandled-rejections=warn"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert self._process.stdout is not None
        while _STARTED not in (line := await self._process.stdout.readline()):
            assert line, "pouchdb-server ended before it had started"
        self._reading = asyncio.create_task(_read_on(self._process.stdout))

    async def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGKILL)
            await self._process.wait()
            assert self._reading is not None
            await self._reading
            self._process = None


def pouch_command() -> str | None:
    """Where pouchdb-server is, or None."""
    return os.environ.get("JOBS_SERVICE_TEST_POUCHDB") or shutil.which("pouchdb-server")


@asynccontextmanager
async def pouch_server(directory: Path) -> AsyncIterator[PouchServer]:
    """A running pouchdb-server; skips where there is none."""
    command = pouch_command()
    if command is None:
        pytest.skip("no pouchdb-server: npm install pouchdb-server, and JOBS_SERVICE_TEST_POUCHDB names it")
    await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True)
    server = PouchServer(directory, command)
    await server.start()
    try:
        yield server
    finally:
        await server.kill()


@asynccontextmanager
async def couch_database(name: str = "") -> AsyncIterator[str]:
    """The address of a new database in CouchDB, removed afterwards; skips where there is no CouchDB."""
    server = os.environ.get("COUCHDB_URL", "").rstrip("/")
    if not server:
        pytest.skip("no CouchDB: COUCHDB_URL names one")
    url = f"{server}/{name or 'test'}-{uuid.uuid4().hex}"
    endpoint = parse_endpoint(url)
    password = endpoint.password.reveal() if endpoint.password else ""
    headers = {"Authorization": basic(endpoint.user, password)} if endpoint.user else {}
    async with aiohttp.ClientSession(headers=headers) as session:
        (await session.put(f"{endpoint.url}?q=1")).raise_for_status()  # one shard: changes come in order
        try:
            yield url
        finally:
            (await session.delete(endpoint.url)).release()


def basic(user: str, password: str) -> str:
    """The header that lets an administrator in."""
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


async def _read_on(stream: asyncio.StreamReader) -> None:
    while await stream.readline():
        pass


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port
