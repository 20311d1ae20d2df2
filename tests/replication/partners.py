"""Servers of others that tests replicate with: pouchdb-server in a process of its own, and CouchDB where there is one.

pouchdb-server is looked for in JOBS_SERVICE_TEST_POUCHDB (its path) and in PATH, CouchDB in COUCHDB_URL (with the
credentials of an administrator). Tests that kill CouchDB start one of their own: JOBS_SERVICE_TEST_COUCHDB is the path
of the command `couchdb` of a release.
"""

import asyncio
import base64
import os
import shutil
import signal
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TypeVar

import aiohttp
import pytest

from jobs_service.replication.endpoint import parse_endpoint
from tests.cli.support import free_port

_STARTED = b"has started on"
_ADMINISTRATOR, _PASSWORD = "admin", "of-the-tests"
_COUCH_SETTINGS = f"""
[couchdb]
database_dir = {{directory}}/data
view_index_dir = {{directory}}/data
single_node = true
[chttpd]
port = {{port}}
bind_address = 127.0.0.1
[admins]
{_ADMINISTRATOR} = {_PASSWORD}
[log]
writer = file
file = {{directory}}/log
level = error
"""
_COUCH_ARGUMENTS = """
-noinput
+Bd
-kernel error_logger silent
-sasl sasl_error_logger false
-os_mon start_cpu_sup false
-os_mon start_memsup false
"""
"""Without a name of the node: it would want a daemon for those of the machine."""


class OtherServer:
    """A server in a process of its own that keeps its databases in a directory, so that it can be killed and started
    again on the same port.

    Args:
        directory: for its files.
        command: the path of the program.
    """

    def __init__(self, directory: Path, command: str) -> None:
        self._directory = directory
        self._command = command
        self._port = free_port()
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Its address, with the credentials of an administrator where it has one."""
        return f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        """Start it, and return when it answers."""
        options, environment = await asyncio.to_thread(self._prepare)
        self._process = await asyncio.create_subprocess_exec(
            self._command,
            *options,
            cwd=self._directory,
            env={**os.environ, **environment},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert self._process.stdout is not None
        await self._started(self._process.stdout)
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

    def _prepare(self) -> tuple[list[str], dict[str, str]]:
        """Return arguments and environment."""
        raise NotImplementedError

    async def _started(self, said: asyncio.StreamReader) -> None:
        """Return when it answers."""
        raise NotImplementedError


class PouchServer(OtherServer):
    """pouchdb-server."""

    def _prepare(self) -> tuple[list[str], dict[str, str]]:
        arguments = ["-d", "data", "-c", "config.json", "-p", str(self._port)]
        return arguments, {"NODE_OPTIONS": "--unhandled-rejections=warn"}

    async def _started(self, said: asyncio.StreamReader) -> None:
        while _STARTED not in (line := await said.readline()):
            assert line, "pouchdb-server ended before it had started"


class CouchServer(OtherServer):
    """CouchDB without a cluster."""

    @property
    def url(self) -> str:
        return f"http://{_ADMINISTRATOR}:{_PASSWORD}@127.0.0.1:{self._port}"

    def _prepare(self) -> tuple[list[str], dict[str, str]]:
        own, arguments = self._directory / "local.ini", self._directory / "vm.args"
        own.write_text(_COUCH_SETTINGS.format(directory=self._directory, port=self._port))
        arguments.write_text(_COUCH_ARGUMENTS)
        release = Path(self._command).resolve().parent.parent
        files = f"{release / 'etc' / 'default.ini'} {own}"
        return [], {"COUCHDB_INI_FILES": files, "COUCHDB_ARGS_FILE": str(arguments)}

    async def _started(self, said: asyncio.StreamReader) -> None:
        assert self._process is not None
        async with aiohttp.ClientSession() as session:
            while self._process.returncode is None:
                with suppress(aiohttp.ClientError):
                    async with session.get(f"{self.url}/_up") as answer:
                        if answer.status == 200:
                            return
                await asyncio.sleep(0.02)
        raise AssertionError("CouchDB ended before it had started")


_Server = TypeVar("_Server", bound=OtherServer)


def pouch_command() -> str | None:
    """Where pouchdb-server is, or None."""
    return os.environ.get("JOBS_SERVICE_TEST_POUCHDB") or shutil.which("pouchdb-server")


@asynccontextmanager
async def pouch_server(directory: Path) -> AsyncIterator[PouchServer]:
    """A running pouchdb-server; skips where there is none."""
    command = pouch_command()
    if command is None:
        pytest.skip("no pouchdb-server: npm install pouchdb-server, and JOBS_SERVICE_TEST_POUCHDB names it")
    async with _started(PouchServer, directory, command) as server:
        yield server


@asynccontextmanager
async def couch_server(directory: Path) -> AsyncIterator[CouchServer]:
    """A running CouchDB of one's own, to be killed; skips where there is none."""
    command = os.environ.get("JOBS_SERVICE_TEST_COUCHDB")
    if command is None:
        pytest.skip("no CouchDB that may be killed: JOBS_SERVICE_TEST_COUCHDB names the command of a release")
    async with _started(CouchServer, directory, command) as server:
        yield server


@asynccontextmanager
async def _started(kind: type[_Server], directory: Path, command: str) -> AsyncIterator[_Server]:
    await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True)
    server = kind(directory, command)
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
