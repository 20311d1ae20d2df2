"""Who may do what over HTTP, from where."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import fdb.tuple
import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from jobs_service import JobsService
from jobs_service.http import gate
from jobs_service.http.endpoint import ENDPOINTS
from jobs_service.http.state import ServerLimits, ServerOptions, ServerState
from jobs_service.http.tokens import Role, add_token
from jobs_service.layer.rows import TOKENS
from jobs_service.runner.commands import COMMAND_TYPE
from jobs_service.store import Transaction
from tests.http.support import BASE, events, listening, problem, running, served

OPEN = ServerOptions(is_open=True)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_without_tokens_everybody_on_loopback_may_do_everything_but_run_commands() -> None:
    async with served() as (jobs, client):
        assert (await client.put("/v1/types/email", json={"timeout": 30})).status_code == 200
        await jobs.set_type_timeout(COMMAND_TYPE, 30)
        path = f"/v1/types/{COMMAND_TYPE!s}"
        problem(await client.post(f"{path}/jobs", json={"data": {}}), 403, "commands-forbidden")
        problem(await client.post(f"{path}/accept"), 403, "commands-forbidden")
        problem(await client.post(f"{path}/jobs/a/resubmit"), 403, "commands-forbidden")
        problem(await client.post(f"{path}/bulk", json={"action": "resubmit", "filter": {}}), 403, "commands-forbidden")
    async with served(options=replace(OPEN, commands=True)) as (jobs, client):
        problem(await client.post(f"{path}/jobs", json={"data": {}}), 403, "commands-forbidden")
        await jobs.set_type_timeout(COMMAND_TYPE, 30)
        admin = bearer(await add_token(jobs, "admin", "admin"))
        writer = bearer(await add_token(jobs, "writer", "write"))
        problem(await client.post(f"{path}/jobs", json={"data": {}}, headers=writer), 403, "commands-forbidden")
        assert (await client.post(f"{path}/jobs", json={"data": {}}, headers=admin)).status_code == 201


async def test_elsewhere_nobody_may_do_anything_without_a_token() -> None:
    async with served(options=ServerOptions()) as (_, client):
        for each in ENDPOINTS:
            path = each.path.replace("{type}", "email").replace("{id}", "a")
            response = await client.request(each.method, path)
            if each.role is not Role.NOBODY:
                problem(response, 401, "unauthorized")
                assert response.headers["www-authenticate"].startswith("Bearer")


async def test_who_sends_a_token_in_another_way_is_told_how() -> None:
    async with served() as (jobs, client):
        token = await add_token(jobs, "ada", "read")
        for value in (token, f"Token {token}", "Basic eDp5", "Bearer", "Bearer "):
            response = await client.get("/v1/types", headers={"Authorization": value})
            detail = problem(response, 401, "unauthorized")["detail"]
            assert detail == "the header is not as in Authorization: Bearer TOKEN", value


async def test_a_token_is_kept_hashed_and_ends_at_once_with_its_streams_and_cookies() -> None:
    async with listening() as (jobs, client):
        await jobs.set_type_timeout("email", 30)
        await jobs.add("email", "a")
        token = await add_token(jobs, "ada", "read")
        assert [row.hash for row in await jobs.remote.tokens()] == [hashlib.sha256(token.encode()).hexdigest()]
        login = await client.post("/login", data={"token": token})
        assert login.status_code == 303
        cookie = login.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=lax" in cookie
        assert token not in cookie
        assert (await client.get("/v1/types")).status_code == 200  # by the cookie
        path = "/v1/types/email/jobs/a/events"
        async with client.stream("GET", path) as response, aclosing(events(response)) as told:
            assert (await anext(told))[2]["state"] == "pending"
            await jobs.remote.remove_token("ada")
            assert [kind async for kind, _, _ in told] == []
        assert (await add_token(jobs, "other", "read")).startswith("jst_")
        problem(await client.get("/v1/types"), 401, "unauthorized")
        client.cookies.clear()
        problem(await client.get("/v1/types", headers=bearer(token)), 401, "unauthorized")
        assert (await client.post("/login", data={"token": token})).status_code == 401


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff",
        b'{"role": "read", "hash": "", "created": 1e300}',
        b'{"role": 7, "hash": 7, "created": 7}',
    ],
)
async def test_a_token_that_cannot_be_read_lets_nobody_in_and_opens_nothing(value: bytes, lasting: str) -> None:
    async with served(lasting) as (jobs, client):
        assert (await client.get("/v1/types")).status_code == 200  # as long as there is no token
        token = await add_token(jobs, "ada", "admin")
        key = await jobs.store.prefix() + fdb.tuple.pack((TOKENS, "ada"))

        async def damage(tr: Transaction) -> None:
            assert await tr.get(key) is not None
            tr.set(key, value)

        await jobs.store.transact(damage)
    async with served(lasting) as (jobs, client):
        problem(await client.get("/v1/types"), 401, "unauthorized")
        problem(await client.get("/v1/types", headers=bearer(token)), 401, "unauthorized")
        problem(await client.get("/v1/types", headers=bearer("")), 401, "unauthorized")
        await jobs.remote.remove_token("ada")
        assert await jobs.remote.tokens() == []


@pytest.mark.parametrize(
    "change",
    [
        lambda cookie: cookie[:-1] + ("A" if cookie[-1] != "A" else "B"),
        lambda cookie: "99999999999:" + cookie.split(":")[1],
        lambda cookie: "1:" + cookie.split(":")[1],
        lambda cookie: cookie.split(":")[0] + ":",
        lambda cookie: "ada",
        lambda cookie: ":" + cookie.split(":")[1],
    ],
)
async def test_a_cookie_that_was_changed_is_none(change: Any) -> None:
    async with served() as (jobs, client):
        token = await add_token(jobs, "ada", "read")
        await add_token(jobs, "bob", "admin")
        login = await client.post("/login", data={"token": token})
        name, _, cookie = login.headers["set-cookie"].partition(";")[0].partition("=")
        client.cookies.clear()
        headers = {"Cookie": f"{name}={change(cookie.strip(chr(34)))}"}
        problem(await client.get("/v1/types", headers=headers), 401, "unauthorized")


async def test_nobody_gets_in_with_what_a_copy_of_the_store_has() -> None:
    async with served() as (jobs, client):
        token = await add_token(jobs, "ada", "admin")
        login = await client.post("/login", data={"token": token})
        name, _, cookie = login.headers["set-cookie"].partition(";")[0].partition("=")
        client.cookies.clear()
        expires, secret = cookie.strip('"').split(":")
        rows = await contents(jobs)
        assert not [row for row in rows if secret.encode() in row or token.encode() in row]
        hashes = {found.decode() for row in rows for found in re.findall(rb"[0-9a-f]{64}", row)}
        assert len(hashes) == 2  # of the token, and of the cookie
        for value in hashes:
            headers = {"Cookie": f"{name}={expires}:{value}"}
            problem(await client.get("/v1/types", headers=headers), 401, "unauthorized")
            problem(await client.get("/v1/types", headers=bearer(value)), 401, "unauthorized")


async def test_a_logout_ends_the_login_wherever_its_cookie_is() -> None:
    async with served() as (jobs, client):
        token = await add_token(jobs, "ada", "read")
        login = await client.post("/login", data={"token": token})
        name, _, cookie = login.headers["set-cookie"].partition(";")[0].partition("=")
        client.cookies.clear()
        headers = {"Cookie": f"{name}={cookie.strip(chr(34))}"}
        assert (await client.get("/v1/types", headers=headers)).status_code == 200
        assert (await client.post("/logout", headers=headers)).status_code == 303
        problem(await client.get("/v1/types", headers=headers), 401, "unauthorized")


@pytest.mark.parametrize("path", ["/v1/types/email/jobs/a/events", "/v1/types/email/events", "/live?of=types"])
async def test_a_logout_ends_the_streams_of_the_login_and_no_others(path: str) -> None:
    options = ServerOptions(limits=ServerLimits(heartbeat=0.05))
    async with listening(options=options) as (jobs, client), running(jobs, options) as elsewhere:
        await jobs.set_type_timeout("email", 30)
        await jobs.add("email", "a")
        token = await add_token(jobs, "ada", "read")
        cookies = []
        for _ in range(2):
            login = await client.post("/login", data={"token": token})
            cookies.append({"Cookie": login.headers["set-cookie"].partition(";")[0]})
            client.cookies.clear()
        first, second = cookies
        async with (
            client.stream("GET", path, headers=first) as here,
            client.stream("GET", f"{elsewhere}{path}", headers=first) as there,
            client.stream("GET", path, headers=second) as other,
            client.stream("GET", path, headers=bearer(token)) as program,
        ):
            streams = [each.aiter_lines() for each in (here, there, other, program)]
            for lines in streams:
                assert await anext(lines)
            assert (await client.post("/logout", headers=first)).status_code == 303
            ended = streams[:1] if path.startswith("/live") else streams[:2]  # that has signs of life every 15 s
            for lines in ended:
                async for _ in lines:
                    pass
            await jobs.remove("email", "a")
            for lines in streams[2:]:
                assert [line async for line in _until(lines, ("event: job", "event: changed"))]


async def _until(lines: AsyncIterator[str], wanted: tuple[str, ...]) -> AsyncIterator[str]:
    """Yield lines up to one of those that are wanted; an end before fails."""
    async for line in lines:
        yield line
        if line in wanted:
            return
    raise AssertionError("the stream ended")


async def contents(jobs: JobsService) -> list[bytes]:
    """Return what is in the store, key and value of each row."""
    return [key + value for key, value in await jobs.store.read(lambda tr: tr.get_range(b"", b"\xff"))]


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8700", "127.0.0.1.evil.example", "localhost.evil", ""])
async def test_a_name_that_was_made_to_lead_here_is_refused(host: str) -> None:
    async with served() as (_, client):
        refused = problem(await client.get("/v1/types", headers={"Host": host}), 403, "host-not-allowed")
        assert f"the Host {host!r} " in refused["detail"]
        problem(await client.get("/livez", headers={"Host": host}), 403, "host-not-allowed")


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1:1", "[::1]:8700", "LOCALHOST:8700", "jobs.example", "jobs.example:443"]
)
async def test_hosts_of_this_server_are_known(host: str) -> None:
    async with served(options=replace(OPEN, allowed_hosts=("jobs.example",))) as (_, client):
        assert (await client.get("/livez", headers={"Host": host})).status_code == 200
        if "jobs" not in host:
            assert (await client.get("/v1/types", headers={"Host": host})).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "jobs.example"},
        {"Host": "192.0.2.1"},
        *(
            {name: "x"}
            for name in (
                *("Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-Port"),
                *("X-Forwarded-Server", "X-Forwarded-Prefix", "X-Real-IP", "X-Client-IP", "True-Client-IP"),
                *(
                    "CF-Connecting-IP",
                    "Client-IP",
                    "X-Cluster-Client-IP",
                    "X-Original-Host",
                    "X-Envoy-External-Address",
                ),
                *("Fastly-Client-IP", "X-Azure-ClientIP", "X-ProxyUser-Ip", "X-Scheme", "CDN-Loop", "Forwarded-For"),
            )
        ),
    ],
)
async def test_what_a_proxy_on_this_machine_lets_through_needs_a_token(headers: dict[str, str]) -> None:
    async with served(options=replace(OPEN, allowed_hosts=("jobs.example",))) as (_, client):
        problem(await client.get("/v1/types", headers=headers), 401, "unauthorized")


async def test_what_a_named_proxy_on_this_machine_lets_through_needs_a_token_whatever_it_says() -> None:
    async with served(options=replace(OPEN, proxies=("127.0.0.1",))) as (_, client):
        problem(await client.get("/v1/types"), 401, "unauthorized")


@pytest.mark.parametrize(("version", "status"), [("1.0", b"401"), ("1.1", b"200")])
async def test_what_a_proxy_says_that_was_told_nothing_needs_a_token(version: str, status: bytes) -> None:
    async with listening() as (_, client):
        url = client.base_url
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(
            f"GET /v1/types HTTP/{version}\r\nHost: {url.netloc.decode()}\r\nConnection: close\r\n\r\n".encode()
        )
        assert (await reader.read()).split()[1] == status
        writer.close()
        await writer.wait_closed()


FOREIGN = [
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:8701"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
]


@pytest.mark.parametrize("headers", FOREIGN)
async def test_no_page_of_others_changes_anything(headers: dict[str, str]) -> None:
    async with served() as (jobs, client):
        await jobs.set_type_timeout("email", 30)
        for each in ENDPOINTS:
            if each.method != "GET":
                path = each.path.replace("{type}", "email").replace("{id}", "a")
                problem(await client.request(each.method, path, headers=headers, json={}), 403, "cross-site")
        assert await jobs.get_type_timeout("email") == 30
        assert await jobs.pending_count("email") == 0


async def test_pages_of_this_server_and_links_from_others_may() -> None:
    async with served() as (_, client):
        own = {"Origin": BASE, "Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}
        assert (await client.put("/v1/types/email", json={"timeout": 30}, headers=own)).status_code == 200
        link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
        assert (await client.get("/openapi.json", headers=link)).status_code == 200
        problem(await client.get("/openapi.json", headers={**link, "Sec-Fetch-Dest": "iframe"}), 403, "cross-site")


async def test_a_form_of_another_site_is_no_json() -> None:
    async with served() as (_, client):
        headers = {"Content-Type": "text/plain"}
        body = b'{"timeout": 5}'
        problem(await client.put("/v1/types/email", content=body, headers=headers), 415, "unsupported-media-type")


async def test_a_server_that_only_reads_refuses_every_change() -> None:
    async with served(options=replace(OPEN, read_only=True)) as (jobs, client):
        await jobs.set_type_timeout("email", 30)
        for each in ENDPOINTS:
            path = each.path.replace("{type}", "email").replace("{id}", "a")
            if each.changes:
                problem(await client.request(each.method, path, json={}), 403, "read-only")
        assert {each.path for each in ENDPOINTS if each.method != "GET" and not each.changes} == {
            "/v1/events",
            "/v1/types/{type}/watch",
        }
        assert (await client.get("/v1/types")).status_code == 200


async def test_forwarded_headers_are_believed_of_named_proxies_alone(tmp_path: Path) -> None:
    forwarded = {"X-Forwarded-For": "10.1.1.1, 203.0.113.9", "X-Forwarded-Proto": "https"}
    for proxies, address, secure in (((), "127.0.0.1", False), (("127.0.0.1",), "203.0.113.9", True)):
        file = tmp_path / str(len(proxies))
        options = replace(OPEN, audit_log=str(file), proxies=proxies)
        async with served(options=options) as (jobs, client):
            token = await add_token(jobs, "ada", "write")
            await client.put("/v1/types/email", json={"timeout": 1}, headers={**forwarded, **bearer(token)})
            login = await client.post("/login", data={"token": token}, headers=forwarded)
            assert ("Secure" in login.headers["set-cookie"]) is secure
        assert {json.loads(line)["address"] for line in file.read_text().splitlines()} == {address}


async def test_mounted_it_has_the_hosts_authentication_and_works_below_any_path() -> None:
    async with JobsService("memory:") as jobs:

        async def authenticate(scope: Any) -> Any:
            found = dict(scope["headers"]).get(b"x-user", b"").decode()
            return {"ada": ("ada", "write"), "bob": "read"}.get(found)

        own = jobs.asgi(allowed_hosts=["example.org"], authenticate=authenticate)
        app = Starlette(routes=[Mount("/in/jobs", own)])
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="https://example.org/in/jobs/") as client:
            ada, bob = {"X-User": "ada"}, {"X-User": "bob"}
            made = await client.put("v1/types/a%2Fb", json={"timeout": 30}, headers=ada)
            assert made.json()["type"] == "a/b"
            problem(await client.put("v1/types/x", json={"timeout": 30}, headers=bob), 403, "forbidden")
            unknown = problem(await client.get("v1/types"), 401, "unauthorized")
            assert unknown["detail"] == "the application that serves this does not know who asks; log in there"
            document = (await client.get("openapi.json")).json()
            assert document["servers"] == [{"url": "/in/jobs"}]
            logout = await client.post("logout")
            assert "Path=/in/jobs/" in logout.headers["set-cookie"]


@pytest.mark.parametrize("path", ["/outer/in/jobs/v1/types/a%2Fb", "/in/jobs/v1/types/a%2Fb"])
async def test_a_proxy_may_leave_its_part_of_the_path_or_take_it_away(path: str) -> None:
    async with JobsService("memory:") as jobs:
        app = Starlette(routes=[Mount("/in/jobs", jobs.asgi(is_open=True))])
        transport = httpx.ASGITransport(app, root_path="/outer")
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            assert (await client.put(path, json={"timeout": 30})).json()["type"] == "a/b"
            page = await client.get(path.partition("v1")[0])
            assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
            assert '"/outer/in/jobs/' in page.text


@pytest.mark.parametrize("said", ["king", 7, ["read"], ("ada", "king"), ("ada", "read", "more")])
async def test_who_an_application_says_nothing_known_of_is_let_in_nowhere(said: Any) -> None:
    options = ServerOptions(authenticate=lambda scope: said)
    async with served(options=options) as (jobs, client):
        problem(await client.get("/v1/types"), 500, "internal")
        scope: dict[str, Any] = {"headers": []}
        with pytest.raises(ValueError, match=r"allowed are None, read, .*, admin, and \(name, role\)"):
            await gate.identify(ServerState(jobs, options), scope, gate.Headers(scope))


async def test_a_token_that_others_have_added_holds_at_once(lasting: str) -> None:
    async with served(lasting) as (jobs, client), JobsService(jobs.store, supervise=False) as other:
        assert (await client.get("/v1/types")).status_code == 200
        token = await add_token(other, "ada", "read")
        async with asyncio.timeout(20):
            while (await client.get("/v1/types")).status_code == 200:
                continue
        assert (await client.get("/v1/types", headers=bearer(token))).status_code == 200
