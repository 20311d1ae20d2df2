"""What stands in front of a daemon: the recipe of the documentation, and proxies that nobody has told anything."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import textwrap
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path

import httpx
import pytest

from jobs_service import InvalidSettings, JobsClient, JobsService
from jobs_service.http.application import Application
from jobs_service.http.server import Address, serving
from jobs_service.http.state import ServerOptions
from jobs_service.http.tokens import add_token
from tests.cli.support import free_port
from tests.docs.pages import read
from tests.http.support import problem, running, served

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
needs_nginx = pytest.mark.skipif(NGINX is None, reason="there is no nginx")
CADDY = shutil.which("caddy")
needs_caddy = pytest.mark.skipif(CADDY is None, reason="there is no Caddy")
RECIPE = read("docs/deployment/nginx.conf")
RECIPE_FOR_CADDY = textwrap.dedent(read("docs/http.md").split("```text\n")[1].split("  ```")[0])
Proxy = Callable[[str, str, Path], AbstractAsyncContextManager[str]]
BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
UNTOLD = "server { listen 127.0.0.1:80; location / { proxy_pass http://127.0.0.1:8700; %s } }"
OF_1_29_7 = 'proxy_http_version 1.1; proxy_set_header Host $proxy_host; proxy_set_header Connection "";'
"""What nginx does by default from that release on, which older ones have to be told."""
PATIENCE = 30


@asynccontextmanager
async def nginx(site: str, upstream: str, directory: Path) -> AsyncIterator[str]:
    """Run nginx on a port of loopback in front of a daemon, and yield the port.

    Args:
        site: a configuration in which nginx listens at port 80, and the daemon at 127.0.0.1:8700.
        upstream: where the daemon is.
        directory: for its files.
    """
    assert NGINX is not None
    port = str(free_port())
    site = re.sub(r"listen (127\.0\.0\.1:)?80;", f"listen 127.0.0.1:{port};", site).replace("127.0.0.1:8700", upstream)
    temporary = "".join(
        f"{each}_temp_path {directory}/{each};\n" for each in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    user = "user root;\n" if os.geteuid() == 0 else ""
    (directory / "nginx.conf").write_text(
        f"{user}daemon off;\npid {directory}/pid;\nerror_log stderr notice;\nevents {{}}\n"
        f"http {{ access_log off;\n{temporary}{site}\n}}\n"
    )
    process = await asyncio.create_subprocess_exec(
        NGINX, "-p", str(directory), "-c", "nginx.conf", "-e", "stderr", stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(PATIENCE):
            said = b""
            while b"start worker process " not in said:
                line = await process.stderr.readline()
                assert line, said.decode()
                said += line
        yield port
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.communicate()


@asynccontextmanager
async def caddy(site: str, upstream: str, directory: Path) -> AsyncIterator[str]:
    """Run Caddy on a port of loopback in front of a daemon, without encryption, and yield the port.

    Args:
        site: a Caddyfile with one site, and the daemon at 127.0.0.1:8700.
        upstream: where the daemon is.
        directory: for its files.
    """
    assert CADDY is not None
    port = str(free_port())
    site = site.replace("tasks.example.org {", f"http://tasks.example.org:{port} {{").replace(
        "127.0.0.1:8700", upstream
    )
    (directory / "Caddyfile").write_text(f"{{\nadmin off\ndefault_bind 127.0.0.1\n}}\n{site}")
    process = await asyncio.create_subprocess_exec(
        CADDY,
        *("run", "--adapter", "caddyfile", "--config", str(directory / "Caddyfile")),
        env={"HOME": str(directory), "PATH": os.environ["PATH"]},
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(PATIENCE):
            said = b""
            while b"serving initial configuration" not in said:
                line = await process.stderr.readline()
                assert line, said.decode()
                said += line
        yield port
    finally:
        with suppress(ProcessLookupError):
            process.kill()  # SIGTERM waits for connections that are open
        await process.communicate()


@asynccontextmanager
async def proxied(
    site: str, directory: Path, options: ServerOptions | None = None, proxy: Proxy = nginx
) -> AsyncIterator[tuple[JobsService, str, httpx.AsyncClient]]:
    """Yield a service, the proxy's port in front of it, and a client that calls the proxy tasks.example.org."""
    async with (
        JobsService("memory:") as jobs,
        serving(jobs, Address("127.0.0.1:0", options or ServerOptions())) as server,
        proxy(site, server.url.removeprefix("http://"), directory) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE) as client,
    ):
        client.headers["Host"] = f"tasks.example.org:{port}"
        yield jobs, port, client


def typed(port: str, **more: str) -> dict[str, str]:
    """Return what a browser says with a form of the page it is on, where connections are not encrypted."""
    return {**BROWSER, "Origin": f"http://tasks.example.org:{port}", **more}


def test_the_recipe_for_nginx_names_the_options_of_the_daemon() -> None:
    told = RECIPE.splitlines()[1].split()
    assert (told[told.index("--http-prefix") + 1], told[told.index("--allow-host") + 1]) == (
        "/jobs",
        "tasks.example.org",
    )


@pytest.mark.parametrize(
    ("proxy", "recipe"),
    [
        pytest.param(nginx, RECIPE, marks=needs_nginx, id="nginx"),
        pytest.param(caddy, RECIPE_FOR_CADDY, marks=needs_caddy, id="Caddy"),
    ],
)
async def test_the_recipe_for_a_proxy_serves_people_and_programs(proxy: Proxy, recipe: str, tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    options = ServerOptions(
        prefix="/jobs", allowed_hosts=("tasks.example.org",), proxies=("127.0.0.1",), audit_log=str(log)
    )
    async with proxied(recipe, tmp_path, options, proxy) as (jobs, port, client):
        problem(await client.get("/jobs/v1/types"), 401, "unauthorized")
        asked = await client.get("/jobs/failures", headers=BROWSER)
        assert asked.headers["location"] == "/jobs/login?next=%2Fjobs%2Ffailures"
        token = await add_token(jobs, "ada", "admin")
        form = {"token": token, "next": "/jobs/failures"}
        answer = await client.post("/jobs/login", data=form, headers=typed(port))
        assert (answer.status_code, answer.headers["location"]) == (303, "/jobs/failures")
        assert "Path=/jobs/" in answer.headers["set-cookie"]
        cookie = answer.headers["set-cookie"].partition(";")[0]
        page = await client.get("/jobs/failures", headers={**BROWSER, "Cookie": cookie})
        assert "ada, role admin" in page.text
        for file in re.findall(r'(?:href|src)="(/[^"]*static[^"]*)"', page.text):
            assert (await client.get(file)).status_code == 200, file
        client.headers["Authorization"] = f"Bearer {token}"
        await client.put("/jobs/v1/types/a%2Fb", json={"timeout": 30}, headers={"X-Forwarded-For": "203.0.113.9"})
        assert json.loads(log.read_text().splitlines()[-1])["address"] == "127.0.0.1"
        await _works_by_lines_and_streams(client, "/jobs/v1/types/a%2Fb", both_ways=proxy is nginx)
        page = await client.get("/jobs/job", params={"type": "a/b", "id": "1"})
        assert f"http://tasks.example.org:{port}/jobs/v1/types/a%2Fb/jobs" in page.text
        async with JobsClient(f"http://tasks.example.org:{port}/jobs", token=token, transport=_To(port)) as remote:
            assert (await remote.get("a/b", "1")).data == 1
        assert (await client.get("/jobs/livez")).status_code == 200


class _To(httpx.AsyncHTTPTransport):
    """Connects to a port of loopback whatever the name is."""

    def __init__(self, port: str) -> None:
        super().__init__()
        self._port = int(port)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        request.url = request.url.copy_with(host="127.0.0.1", port=self._port)
        return await super().handle_async_request(request)


async def _works_by_lines_and_streams(client: httpx.AsyncClient, type: str, *, both_ways: bool) -> None:
    """Add two jobs by lines, and hear of a job's change while the stream is open.

    Args:
        client: one that calls the proxy.
        type: the path of the jobs' type.
        both_ways: whether the first line is answered before the second one is sent.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
    headers = {**client.headers, "Content-Type": "application/x-ndjson", "Transfer-Encoding": "chunked"}
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(f"POST {type}/jobs HTTP/1.1\r\n{head}\r\n".encode())
    async with asyncio.timeout(PATIENCE):
        for number in (1, 2):
            added = b'{"id": "%d", "data": %d}\n' % (number, number)
            writer.write(b"%x\r\n%s\r\n" % (len(added), added))
            if both_ways:
                await reader.readuntil(b'"id":"%d"' % number)
        writer.write(b"0\r\n\r\n")
        if not both_ways:
            await reader.readuntil(b'"id":"2"')
    writer.close()
    await writer.wait_closed()
    async with client.stream("GET", f"{type}/jobs/1/events") as events:
        async for line in events.aiter_lines():
            if line.startswith("data:") and json.loads(line[5:])["state"] == "pending":
                assert (await client.delete(f"{type}/jobs/1")).status_code == 200
            elif line.startswith("data:") and json.loads(line[5:]).get("state") == "removed":
                break
    await client.post(f"{type}/jobs", json={"id": "1", "data": 1})


@needs_nginx
@pytest.mark.parametrize("told", ["", OF_1_29_7], ids=["1.22", "1.29.7"])
async def test_a_stranger_may_nothing_where_nginx_was_told_nothing(told: str, tmp_path: Path) -> None:
    async with proxied(UNTOLD % told, tmp_path) as (jobs, port, client):
        assert (await client.get("/v1/me")).json()["role"] == "nobody"
        problem(await client.get("/v1/types"), 401, "unauthorized")
        problem(await client.put("/v1/types/email", json={"timeout": 30}), 401, "unauthorized")
        # Encrypted, or at localhost, the browser says itself whose page it is.
        token = await add_token(jobs, "ada", "read")
        said = typed(port, **{"Sec-Fetch-Site": "same-origin"})
        answer = await client.post("/login", data={"token": token}, headers=said)
        assert answer.status_code == 303
        headers = {"Cookie": answer.headers["set-cookie"].partition(";")[0]}
        assert (await client.get("/v1/me", headers=headers)).json()["role"] == "read"
        problem(await client.put("/v1/types/email", json={"timeout": 30}, headers=headers), 403, "forbidden")
        # Elsewhere it has to be told what it is called.
        refused = await client.post("/login", data={"token": token}, headers=typed(port))
        assert (refused.status_code, refused.headers["content-type"]) == (403, "text/html; charset=utf-8")
        assert "--allow-host NAME" in refused.text
    async with proxied(UNTOLD % told, tmp_path, ServerOptions(allowed_hosts=("tasks.example.org",))) as (
        jobs,
        port,
        client,
    ):
        token = await add_token(jobs, "ada", "read")
        assert (await client.post("/login", data={"token": token}, headers=typed(port))).status_code == 303


@needs_nginx
async def test_an_application_that_is_open_to_its_machine_is_not_so_to_what_a_proxy_says_it_passes_on(
    tmp_path: Path,
) -> None:
    for told in ("", f"{OF_1_29_7} proxy_set_header X-Real-IP $remote_addr;"):
        async with (
            JobsService("memory:") as jobs,
            running(jobs, ServerOptions(is_open=True)) as url,
            nginx(UNTOLD % told, url.removeprefix("http://"), tmp_path) as port,
            httpx.AsyncClient() as client,
        ):
            assert (await client.get(f"{url}/v1/me")).json()["role"] == "admin"
            assert (await client.get(f"http://127.0.0.1:{port}/v1/me")).json()["role"] == "nobody"


@needs_nginx
async def test_an_upstream_with_a_name_is_refused_with_a_page_that_says_what_to_do(tmp_path: Path) -> None:
    site = "upstream backend { server 127.0.0.1:8700; }\n" + (UNTOLD % "").replace(
        "http://127.0.0.1:8700", "http://backend"
    )
    async with proxied(site, tmp_path) as (_, _, client):
        problem(await client.get("/login"), 403, "host-not-allowed")
        page = await client.get("/login", headers=BROWSER)
        assert (page.status_code, page.headers["content-type"]) == (403, "text/html; charset=utf-8")
        assert "the Host &#39;backend&#39; is not known here; allow it with --allow-host NAME" in page.text
    async with proxied(site, tmp_path, ServerOptions(allowed_hosts=("backend", "tasks.example.org"))) as (
        jobs,
        port,
        client,
    ):
        token = await add_token(jobs, "ada", "read")
        assert (await client.post("/login", data={"token": token}, headers=typed(port))).status_code == 303


@needs_nginx
async def test_a_host_whose_port_the_proxy_leaves_out_logs_in(tmp_path: Path) -> None:
    site = UNTOLD % "proxy_set_header Host $host;"
    async with proxied(site, tmp_path, ServerOptions(allowed_hosts=("tasks.example.org",))) as (jobs, port, client):
        token = await add_token(jobs, "ada", "read")
        assert (await client.post("/login", data={"token": token}, headers=typed(port))).status_code == 303


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("127.0.0.1:8700", "http://127.0.0.1:8700", 303),
        ("127.0.0.1", "http://127.0.0.1:8080", 303),
        ("127.0.0.1:443", "https://127.0.0.1", 303),
        ("127.0.0.1", "http://127.0.0.1:80", 303),
        ("[::1]", "http://[::1]:8080", 303),
        ("[::1]:8700", "http://[::1]:8701", 403),
        ("127.0.0.1:8700", "http://127.0.0.1", 403),
        ("127.0.0.1:8700", "http://localhost:8700", 403),
        ("127.0.0.1", "http://127.0.0.1.evil.example", 403),
        ("127.0.0.1", "http://127.0.0.1@evil.example", 403),
        ("127.0.0.1", "null", 403),
        ("127.0.0.1", "", 403),
        ("127.0.0.1", "http://", 403),
    ],
)
async def test_the_origin_is_this_server_whatever_port_was_taken_away(host: str, origin: str, status: int) -> None:
    async with served(options=ServerOptions()) as (jobs, client):
        token = await add_token(jobs, "ada", "read")
        answer = await client.post("/login", data={"token": token}, headers={"Host": host, "Origin": origin})
        assert answer.status_code == status


async def test_the_origin_is_what_a_proxy_says_was_asked_for_where_it_names_another_host_itself() -> None:
    async with served(options=ServerOptions()) as (jobs, client):
        token = await add_token(jobs, "ada", "read")
        said = {"Host": "127.0.0.1:8700", "X-Forwarded-Host": "tasks.example.org:8080"}  # as Apache does by default
        for origin, status in (("http://tasks.example.org:8080", 303), ("http://evil.example", 403)):
            answer = await client.post("/login", data={"token": token}, headers={**said, "Origin": origin})
            assert answer.status_code == status


OF_CADDY = {"X-Forwarded-For": "203.0.113.9", "X-Forwarded-Proto": "https", "X-Forwarded-Host": "tasks.example.org"}
OF_TRAEFIK = {**OF_CADDY, "X-Forwarded-Port": "443", "X-Forwarded-Server": "edge", "X-Real-Ip": "203.0.113.9"}


@pytest.mark.parametrize("headers", [OF_CADDY, {**OF_CADDY, "Via": "1.1 Caddy"}, OF_TRAEFIK])
async def test_caddy_and_traefik_are_believed_where_they_are_named(headers: dict[str, str], tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    options = ServerOptions(
        allowed_hosts=("tasks.example.org",), proxies=("127.0.0.1",), prefix="/jobs", audit_log=str(log), is_open=True
    )
    headers = {"Host": "tasks.example.org", **headers}
    async with served(options=options) as (jobs, client):
        for path in ("/jobs/v1/types", "/v1/types"):  # Caddy's handle_path and Traefik's StripPrefix take it away
            problem(await client.get(path, headers=headers), 401, "unauthorized")
        token = await add_token(jobs, "ada", "admin")
        said = {**headers, **BROWSER, "Origin": "https://tasks.example.org"}
        answer = await client.post("/login", data={"token": token}, headers=said)
        assert (answer.status_code, answer.headers["location"]) == (303, "/jobs/")
        assert "Secure" in answer.headers["set-cookie"]
        bearer = {**headers, "Authorization": f"Bearer {token}"}
        assert (await client.put("/v1/types/email", json={"timeout": 1}, headers=bearer)).status_code == 200
        await jobs.add("email", "a")
        page = await client.get("/jobs/job", params={"type": "email", "id": "a"}, headers=bearer)
        assert "https://tasks.example.org/jobs/v1/types/email/jobs" in page.text
    assert json.loads(log.read_text().splitlines()[-1])["address"] == "203.0.113.9"


@pytest.mark.parametrize("prefix", ["jobs", "/jobs/", "/a b", "//", "/..", "/v1", "/problems/x", "/é"])
def test_a_prefix_that_cannot_be_is_refused(prefix: str) -> None:
    with pytest.raises(InvalidSettings, match=r"^prefix "):
        Application(JobsService("memory:"), ServerOptions(prefix=prefix))
