"""What comes over a socket: slow, broken, half-closed, too large; a problem or a closed connection each."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from jobs_service import InvalidSettings, JobsService
from jobs_service.http.application import Application
from jobs_service.http.server import Server, bound
from jobs_service.http.state import ServerLimits, ServerOptions
from jobs_service.http.tokens import add_token
from tests.http.support import listening, problem, running

CERTIFICATES = Path(__file__).parents[1] / "replication" / "certificates"
HASTY = ServerOptions(is_open=True, limits=ServerLimits(body_time=0.1, body=2000, poll_time=20))
GET = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /v1/types/email/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@dataclass
class Socket:
    """One connection, byte by byte."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def rest(self) -> bytes:
        """Return all that comes until the other side closes."""
        async with asyncio.timeout(20):
            try:
                return await self.reader.read()
            except ConnectionResetError:
                return b""

    async def answer(self) -> tuple[int, Any]:
        """Return status and JSON of the next answer."""
        async with asyncio.timeout(20):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
            size = next(int(line.partition(":")[2]) for line in head.splitlines() if line.startswith("content-length"))
            return int(head.split()[1]), json.loads(await self.reader.readexactly(size))


@asynccontextmanager
async def connected(options: ServerOptions = HASTY) -> AsyncIterator[tuple[JobsService, Socket]]:
    """Yield an open service, and a connection to its server."""
    async with JobsService("memory:") as jobs, running(jobs, options) as url:
        await jobs.set_type_timeout("email", 30)
        async with _socket(url) as socket:
            yield jobs, socket


@asynccontextmanager
async def _socket(url: str) -> AsyncIterator[Socket]:
    parsed = httpx.URL(url)
    reader, writer = await asyncio.open_connection(parsed.host, parsed.port)
    try:
        yield Socket(reader, writer)
    finally:
        writer.close()


async def test_headers_that_are_too_large_are_refused() -> None:
    async with connected() as (_, socket):
        await socket.send(GET + b"X: " + b"a" * 40_000 + b"\r\n\r\n")
        status, found = await socket.answer()
        assert (status, found["type"]) == (431, "/problems/headers-too-large")
        assert await socket.rest() == b""


async def test_what_is_not_http_is_refused() -> None:
    async with connected() as (_, socket):
        await socket.send(b"\x16\x03\x01 nonsense\r\n\r\n")
        assert (await socket.rest()).startswith(b"HTTP/1.1 400 ")


async def test_two_hosts_or_none_are_refused() -> None:
    async with connected() as (_, socket):
        await socket.send(GET + b"Host: evil.example\r\n\r\n")
        assert (await socket.answer())[0] == 400
        await socket.send(b"GET /livez HTTP/1.1\r\n\r\n")
        assert (await socket.answer())[0] == 400


@pytest.mark.parametrize("path", [b"jobs", b"pause"])  # nothing in the body of a pause is wanted
async def test_a_body_that_does_not_come_is_not_waited_for_and_changes_nothing(path: bytes) -> None:
    async with connected() as (jobs, socket):
        await socket.send(POST.replace(b"jobs", path) + b'Content-Length: 12\r\n\r\n{"id": "a"}')
        status, found = await socket.answer()
        assert (status, found["type"]) == (408, "/problems/too-slow")
        assert await socket.rest() == b""
        assert await jobs.pending_count("email") == 0
        assert not await jobs.paused("email")


HIDDEN = POST + b'Content-Length: 12\r\n\r\n{"id": "no"} '
LINE = b"POST /v1/types/email/jobs HTTP/1.1"
TYPED = b"\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
TRICKS = [
    LINE + TYPED + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    LINE + TYPED + b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" % len(HIDDEN) + HIDDEN,
    LINE + TYPED + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + HIDDEN,
    *(
        LINE + TYPED + header + b"\r\n\r\n{}" + HIDDEN
        for header in (
            *(b"Transfer-Encoding : chunked", b"Content-Length: -1", b"Content-Length: +5", b"Content-Length: 0x5"),
            *(b"Content-Length: 2\r\nX: \x00", b"Content-Length: 2\r\nX\x00: a", b"Content-Length: 2\r\n: a"),
            b"Content-Length: 2\r\nX: a\rSet-Cookie: b",
        )
    ),
    *(
        LINE + TYPED + b"Transfer-Encoding: chunked\r\n\r\n" + size + b"\r\nhello\r\n0\r\n\r\n" + HIDDEN
        for size in (b"zz", b"-5", b"ffffffffffffffffff")
    ),
    *(line + TYPED + b"Content-Length: 2\r\n\r\n{}" for line in (LINE[:-8], LINE[:-3] + b"9.9", b"X" * 200 + LINE[4:])),
    LINE.replace(b" /", b" http://evil.example/") + TYPED + b"Content-Length: 2\r\n\r\n{}",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
    b"CONNECT evil.example:443 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"TRACE / HTTP/1.1\r\nHost: localhost\r\n\r\n",
]
"""Heads that two programs may read differently, one of them perhaps as the head of a second request."""


async def test_heads_that_a_proxy_may_read_differently_are_refused_and_change_nothing() -> None:
    async with JobsService("memory:") as jobs, running(jobs, HASTY) as url:
        await jobs.set_type_timeout("email", 30)
        for trick in TRICKS:
            async with _socket(url) as socket:
                await socket.send(trick)
                socket.writer.write_eof()
                for said in (await socket.rest()).split(b"HTTP/1.1 ")[1:]:
                    assert said[:1] == b"4" or said[:3] in (b"501", b"505"), (trick, said)
        assert await jobs.pending_count("email") == 0
        async with httpx.AsyncClient(base_url=url) as client:
            assert (await client.get("/livez")).status_code == 200


@pytest.mark.parametrize("head", [b"Content-Length: 3000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\nbb8\r\n"])
async def test_a_body_that_is_too_large_is_refused(head: bytes) -> None:
    async with connected() as (_, socket):
        await socket.send(POST + head + b"[" * 3000)
        status, found = await socket.answer()
        assert (status, found["type"]) == (413, "/problems/body-too-large")
        assert await socket.rest() == b""


async def test_a_connection_that_is_closed_in_a_body_adds_nothing() -> None:
    async with connected() as (jobs, socket):
        await socket.send(POST + b'Content-Length: 100\r\n\r\n{"id": "a"}')
        socket.writer.close()
        await socket.writer.wait_closed()
        async with jobs.subscribe("email", "a") as events:
            with pytest.raises(Exception, match="no job"):
                await anext(events)


async def test_what_a_worker_that_has_gone_would_have_got_is_given_back() -> None:
    async with connected() as (jobs, socket):
        accept = b"POST /v1/types/email/accept HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        await socket.send(accept + b'Content-Length: 15\r\n\r\n{"timeout": 20}')
        # Its request is there before the one that is answered.
        assert (await jobs.queue_state("email")).id is None
        socket.writer.close()
        await socket.writer.wait_closed()
        await jobs.add("email", "a")
        job = await jobs.accept("email", timeout=10)
        assert job is not None
        assert job.id == "a"


async def test_a_worker_that_half_closes_its_connection_takes_nothing() -> None:
    async with connected() as (jobs, socket):
        accept = b"POST /v1/types/email/accept HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        await socket.send(accept + b'Content-Length: 15\r\n\r\n{"timeout": 20}')
        socket.writer.write_eof()
        assert await socket.rest() == b""
        await jobs.add("email", "a")
        assert await jobs.accept("email", timeout=10) is not None


async def test_a_worker_that_waits_gets_a_job_and_others_find_no_place() -> None:
    options = ServerOptions(is_open=True, limits=ServerLimits(polls=1))
    async with listening(options=options) as (jobs, client):
        await jobs.set_type_timeout("email", 30)
        waiting = asyncio.create_task(client.post("/v1/types/email/accept", json={"timeout": 20}))
        await client.get("/livez")
        refused = await client.post("/v1/types/email/accept", json={"timeout": 20})
        problem(refused, 503, "busy")
        assert refused.headers["retry-after"] == "1"
        await jobs.add("email", "a")
        assert (await waiting).json()["jobs"][0]["id"] == "a"


async def test_requests_that_are_never_sent_whole_take_places_of_their_client_alone() -> None:
    limits = ServerLimits(requests=4, requests_of_client=2, strangers=3, strangers_of_address=2)
    async with (
        listening(options=ServerOptions(limits=limits, proxies=("127.0.0.1",))) as (jobs, client),
        AsyncExitStack() as sockets,
    ):
        await jobs.set_type_timeout("email", 30)
        ada, bob, eve = [
            {"Authorization": f"Bearer {await add_token(jobs, name, 'work')}"} for name in ("ada", "bob", "eve")
        ]

        async def half_sent(path: str, headers: dict[str, str]) -> None:
            socket = await sockets.enter_async_context(_socket(str(client.base_url)))
            kind = "application/x-www-form-urlencoded" if path == "/login" else "application/json"
            said = {
                **headers,
                "Host": "localhost",
                "Content-Length": "100",
                "Content-Type": kind,
                "Expect": "100-continue",
            }
            head = "".join(f"{name}: {value}\r\n" for name, value in said.items())
            await socket.send(f"POST {path} HTTP/1.1\r\n{head}\r\n".encode())
            # It has its place as soon as its body is asked for.
            await socket.reader.readuntil(b"100 Continue\r\n\r\n")

        for _ in range(2):
            await half_sent("/login", {"X-Forwarded-For": "203.0.113.1"})
            await half_sent("/v1/types/email/accept", ada)
        first = {"X-Forwarded-For": "203.0.113.1"}
        refused = problem(await client.get("/openapi.json", headers=first), 429, "too-many-requests")
        assert "of requests without a token one client may have 2" in refused["detail"]
        assert (await client.get("/login", headers={"X-Forwarded-For": "203.0.113.2"})).status_code == 200
        problem(await client.get("/v1/types", headers=ada), 429, "too-many-requests")
        assert (await client.get("/v1/types", headers={**first, **bob})).status_code == 200
        await half_sent("/login", {"X-Forwarded-For": "203.0.113.3"})
        problem(await client.get("/login", headers={"X-Forwarded-For": "203.0.113.4"}), 503, "busy")
        for _ in range(2):
            await half_sent("/v1/types/email/jobs/a/finish", bob)
        problem(await client.get("/v1/types", headers=eve), 503, "busy")
        for health in ("/livez", "/readyz"):
            assert (await client.get(health, headers=first)).status_code == 200


async def test_lines_are_answered_while_more_are_sent() -> None:
    async with listening() as (jobs, client):
        await jobs.set_type_timeout("email", 30)
        url = httpx.URL(str(client.base_url))
        async with _socket(str(url)) as socket:
            head = b"POST /v1/types/email/jobs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
            await socket.send(head + b"Content-Type: application/x-ndjson\r\n\r\n")
            await socket.send(b'10\r\n{"id": "first"}\n\r\n')
            first = await socket.reader.readuntil(b"}\n\r\n")
            assert b'"id":"first"' in first
            await socket.send(b'11\r\n{"id": "second"}\n\r\n0\r\n\r\n')
            assert b'"id":"second"' in await socket.reader.readuntil(b"0\r\n\r\n")
        assert await jobs.pending_count("email") == 2


async def test_https_with_a_certificate_and_its_key() -> None:
    async with JobsService("memory:") as jobs:
        application = Application(jobs, ServerOptions(is_open=True))
        server = Server(application, bound("127.0.0.1", 0), str(CERTIFICATES / "server.pem"))
        await server.start()
        try:
            trusted = ssl.create_default_context(cafile=str(CERTIFICATES / "authority.pem"))
            url = server.url.replace("127.0.0.1", "localhost")
            async with httpx.AsyncClient(base_url=url, verify=trusted) as client:
                assert (await client.get("/livez")).json() == {"status": "alive"}
        finally:
            await server.stop()


def test_files_that_are_no_certificate_are_refused(tmp_path: Path) -> None:
    listening = bound("127.0.0.1", 0)
    with listening, pytest.raises(InvalidSettings, match="the TLS files"):
        Server(Application(JobsService("memory:")), listening, str(tmp_path / "none"), str(tmp_path / "none"))


def test_an_address_that_is_taken_is_refused() -> None:
    with bound("127.0.0.1", 0) as taken, pytest.raises(InvalidSettings, match="in use"):
        bound("127.0.0.1", taken.getsockname()[1])
