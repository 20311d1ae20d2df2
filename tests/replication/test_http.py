"""Requests: what is repeated, slowed down, redirected, and let in; over real connections."""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jobs_service.replication.contract import MaxBackoff, RequestFailed
from jobs_service.replication.database import open_database
from jobs_service.replication.endpoint import parse_endpoint
from jobs_service.replication.http import BASE, LONGEST, SHARED, HttpClient, HttpSettings, RateLimiter
from tests.replication.proxies import HttpProxy, SocksProxy
from tests.replication.server import Fault, Oddities, Server

FAST = HttpSettings(first_wait=0.001, read_timeout=5)
CERTIFICATES = Path(__file__).parent / "certificates"


@asynccontextmanager
async def client(
    given: Any, settings: HttpSettings = FAST, limiter: RateLimiter | None = None
) -> AsyncIterator[HttpClient]:
    opened = HttpClient(parse_endpoint(given), settings, limiter or RateLimiter())
    try:
        yield opened
    finally:
        await opened.close()


@asynccontextmanager
async def server_and_client(
    oddities: Oddities | None = None, settings: HttpSettings = FAST, user: str = "", limiter: RateLimiter | None = None
) -> AsyncIterator[tuple[Server, HttpClient]]:
    async with Server(oddities) as server:
        server.database("db")
        async with client(server.url.replace("//", f"//{user}") + "/db", settings, limiter) as opened:
            yield server, opened


@pytest.mark.parametrize("status", [408, 500, 502, 503, 599])
async def test_what_may_pass_is_repeated(status: int) -> None:
    async with server_and_client() as (server, http):
        server.faults = [Fault("GET /db", status=status, times=3)]
        assert (await http.request("GET")).status == 200
        assert len(server.requests) == 4


@pytest.mark.parametrize("fault", [{"drop": True}, {"cut": 3}])
async def test_a_connection_that_ends_is_repeated(fault: dict[str, Any]) -> None:
    async with server_and_client() as (server, http):
        server.faults = [Fault("POST /db", times=3, **fault)]
        assert (await http.request("POST", "/_revs_diff", body=b"{}")).status == 200


async def test_repetitions_have_an_end() -> None:
    async with server_and_client() as (server, http):
        server.faults = [Fault("GET /db", status=500, times=100)]
        with pytest.raises(RequestFailed, match=rf"GET {server.url}/db was answered 500") as caught:
            await http.request("GET")
        assert caught.value.transient
        assert caught.value.status == 500
        assert len(server.requests) == 6


@pytest.mark.parametrize("status", [400, 403, 404, 409, 412, 418])
async def test_what_will_not_pass_is_not_repeated(status: int) -> None:
    async with server_and_client() as (server, http):
        server.faults = [Fault("GET /db", status=status, times=100)]
        assert (await http.request("GET")).status == status
        assert len(server.requests) == 1


async def test_all_who_ask_the_same_of_one_database_slow_down_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SHARED, "_clock", lambda: 0.0)
    async with Server() as server:
        server.database("db")
        server.faults = [Fault("GET /db", status=429)]
        one, other = await open_database(f"{server.url}/db"), await open_database(f"{server.url}/db")
        try:
            await one.info()
            assert SHARED.pause((f"{server.url}/db", "GET")) > 0
            assert SHARED.pause((f"{server.url}/db", "POST")) == SHARED.pause((f"{server.url}/other", "GET")) == 0
            before = time.monotonic()
            await other.info()
            assert time.monotonic() - before >= BASE
        finally:
            await one.close()
            await other.close()


async def test_a_server_that_is_never_content_is_given_up() -> None:
    now = time.monotonic()
    limiter = RateLimiter(lambda: now)
    async with server_and_client(limiter=limiter) as (server, http):
        key = (f"{server.url}/db", "GET")
        while limiter.pause(key) < LONGEST:
            now += 0.1
            limiter.refused(key)
        with pytest.raises(MaxBackoff) as caught:
            await http.request("GET")
        assert caught.value.transient
        assert server.requests == []


@pytest.mark.parametrize(("status", "method"), [(301, "PUT"), (302, "PUT"), (303, "GET"), (307, "PUT"), (308, "PUT")])
async def test_redirects_are_followed(status: int, method: str) -> None:
    async with server_and_client() as (server, http):
        server.faults = [Fault("PUT /db/x", status=status, headers={"Location": "/other/x?a=1"})]
        await http.request("PUT", "/x", body=b"{}")
        assert server.requests == ["PUT /db/x", f"{method} /other/x?a=1"]


async def test_credentials_do_not_go_to_another_host() -> None:
    async with Server() as other, Server(Oddities(users={"me": "hidden"}, sessions=False)) as server:
        given = {
            "url": f"{server.url}/db".replace("//", "//me:hidden@"),
            "headers": {"X-Key": "hidden", "Cookie": "hidden"},
        }
        server.faults = [Fault("GET /db", status=302, headers={"Location": f"{other.url}/db"})]
        async with client(given) as http:
            await http.request("GET")
        assert "hidden" in str(server.seen_headers)
        assert "hidden" not in str(other.seen_headers)
        assert "Authorization" not in str(other.seen_headers)
        assert other.requests == ["GET /db"]


async def test_an_upload_that_is_sent_elsewhere_goes_there_the_next_time() -> None:
    async def body() -> Any:
        yield b"{}"

    async with server_and_client() as (server, http):
        server.faults = [Fault("PUT /db/x", status=307, headers={"Location": "/db/y"})]
        headers = {"Content-Type": "application/json", "Content-Length": "2"}
        with pytest.raises(RequestFailed, match="elsewhere") as caught:
            await http.upload("/x", query=(), headers=headers, chunks=body())
        assert caught.value.transient
        assert (await http.upload("/x", query=(), headers=headers, chunks=body())).status == 201
        assert server.requests == ["PUT /db/x", "PUT /db/y"]


async def test_a_cookie_is_used_and_renewed_when_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs_service.replication.http.LEAST_BETWEEN", 0.0)
    async with server_and_client(Oddities(users={"me": "p@ss"}), user="me:p%40ss@") as (server, http):
        await asyncio.gather(*(http.request("GET") for _ in range(5)))
        assert server.requests.count("POST /_session") == 1
        server.sessions.clear()
        answers = await asyncio.gather(*(http.request("GET") for _ in range(5)))
        assert [answer.status for answer in answers] == [200] * 5
        assert server.requests.count("POST /_session") == 2
        assert not any("Authorization" in headers for headers in server.seen_headers)


async def test_a_server_whose_sessions_want_basic_gets_it_there() -> None:
    oddities = Oddities(users={"me": "p"}, session_wants_basic=True)
    async with server_and_client(oddities, user="me:p@") as (server, http):
        assert (await http.request("GET")).status == 200
        assert server.requests == ["POST /_session", "POST /_session", "GET /db"]
        assert "Cookie" in server.seen_headers[-1]


@asynccontextmanager
async def _tls_server(client_certificate: bool = False) -> AsyncIterator[Server]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=CERTIFICATES / "authority.pem")
    context.load_cert_chain(CERTIFICATES / "server.pem")
    if client_certificate:
        context.verify_mode = ssl.CERT_REQUIRED
    async with Server(ssl=context) as server:
        server.database("db")
        yield server


async def test_tls_with_an_authority_of_ones_own() -> None:
    async with _tls_server() as server:
        tls: dict[str, Any] = {"ca_file": str(CERTIFICATES / "authority.pem")}
        async with client({"url": f"{server.url}/db", "tls": tls}) as http:
            assert (await http.request("GET")).status == 200
        async with client(f"{server.url}/db", replace(FAST, retries=0)) as http:
            with pytest.raises(RequestFailed, match=r"(?i)certificate"):
                await http.request("GET")
        async with client({"url": f"{server.url}/db", "tls": {"verify": False}}) as http:
            assert (await http.request("GET")).status == 200


async def test_tls_with_a_certificate_of_the_client() -> None:
    async with _tls_server(client_certificate=True) as server:
        tls = {"ca_file": str(CERTIFICATES / "authority.pem")}
        mine = str(CERTIFICATES / "client.pem")
        async with client({"url": f"{server.url}/db", "tls": {**tls, "cert_file": mine}}) as http:
            assert (await http.request("GET")).status == 200
        async with client({"url": f"{server.url}/db", "tls": tls}, replace(FAST, retries=0)) as http:
            with pytest.raises(RequestFailed):
                await http.request("GET")


@pytest.mark.parametrize("secure", [False, True])
async def test_requests_go_through_an_http_proxy(secure: bool) -> None:
    async with HttpProxy() as proxy, _tls_server() if secure else Server() as server:
        server.database("db")
        given = {
            "url": f"{server.url}/db",
            "proxy": f"http://me:hidden@127.0.0.1:{proxy.port}",
            "tls": {"ca_file": str(CERTIFICATES / "authority.pem")},
        }
        async with client(given) as http:
            assert (await http.request("GET")).status == 200
        assert proxy.heads[0].startswith("CONNECT" if secure else f"GET {server.url}/db")
        assert "Proxy-Authorization: Basic bWU6aGlkZGVu" in proxy.heads[0]
        assert "hidden" not in str(server.seen_headers)


async def test_requests_go_through_a_socks_proxy() -> None:
    async with SocksProxy() as proxy, Server() as server:
        server.database("db")
        given = {
            "url": f"http://localhost:{server.port}/db",
            "proxy": f"socks5://me:hidden@127.0.0.1:{proxy.port}",
        }
        async with client(given) as http:
            assert (await http.request("GET")).status == 200
        assert proxy.heads == [f"me:hidden localhost:{server.port}"]


@pytest.mark.parametrize("scheme", ["http", "socks5"])
async def test_a_proxy_that_is_not_there_is_told_without_credentials(scheme: str) -> None:
    async with Server() as server:
        port = server.port
    given = {"url": "http://127.0.0.1:1/db", "proxy": f"{scheme}://me:hidden@127.0.0.1:{port}"}
    async with client(given, replace(FAST, retries=0)) as http:
        with pytest.raises(RequestFailed) as caught:
            await http.request("GET")
        assert caught.value.transient
        assert "hidden" not in str(caught.value)
