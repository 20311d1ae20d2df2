"""The page of HTTP: every address with its role, every problem with its status."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import asdict
from pathlib import Path

import httpx
import pytest

import jobs_service
from jobs_service import Discard, JobsService, Retry, Snooze
from jobs_service.http import application as application
from jobs_service.http import problems
from jobs_service.http.endpoint import ENDPOINTS, Endpoint
from jobs_service.http.problems import KINDS
from jobs_service.http.state import ServerLimits
from tests.docs.pages import examples, rows, section
from tests.docs.running import run
from tests.http.support import served

[MOUNTED, IN_FASTAPI] = examples("docs/http.md")
[SHELL] = examples("docs/http.md", "sh")
SECTIONS = ("Types", "Jobs", "Schedules", "Workers", "Events", "Processes")
ADDRESSES = [row for name in SECTIONS for row in rows(section("docs/http.md", name), "request")]


def documented(endpoint: Endpoint) -> bool:
    """Return whether the page has an endpoint: by its whole path, or by its end."""
    end = endpoint.path.rpartition("/")[2].replace("{problem}", "{name}")
    return any(
        endpoint.method in row[0] and (f"{endpoint.path}`" in row[0] or f".../{end}`" in row[0] or f"/{end}`" in row[0])
        for row in [*ADDRESSES, *rows(section("docs/http.md", "The daemon"), "request")]
    )


def test_every_address_is_on_the_page() -> None:
    assert [f"{each.method} {each.path}" for each in ENDPOINTS if not documented(each)] == []


def test_every_row_has_the_role_of_its_address() -> None:
    known = {(each.method, each.path): each for each in ENDPOINTS}
    for row in ADDRESSES:
        for method, path in re.findall(r"`(GET|POST|PUT|DELETE) (/[^`? ]+)", row[0]):
            assert known[method, path].role.label == row[1], row[0]


def test_every_problem_has_its_status() -> None:
    named = {}
    for types, statuses, _ in rows(section("docs/http.md", "Errors"), "type"):
        every = re.findall(r"`([a-z-]+)`", types)
        found = [int(status) for status in statuses.split(",")]
        named.update(dict(zip(every, found * len(every) if len(found) == 1 else found, strict=False)))
    public = {
        slug: kind.http_status
        for slug, kind in problems.ERRORS.items()
        if kind.__name__ in jobs_service.__all__ and kind not in (Retry, Discard, Snooze)
    }
    assert named == {**{slug: kind.status for slug, kind in KINDS.items()}, **public}


def test_the_limits_are_those_of_the_code() -> None:
    limits = ServerLimits()
    text = section("docs/http.md", "Limits").replace(",", "")
    assert f"{limits.body >> 20} MiB" in text
    assert f"{limits.head >> 10} KiB" in text
    for name, number in asdict(limits).items():
        if isinstance(number, int) and name not in ("body", "head"):
            assert re.search(rf"\b{number}\b", text), name
    assert f"{limits.poll_time:g} s" in text


async def test_the_requests_of_the_page_are_answered() -> None:
    async with served() as (jobs, client):
        for line in SHELL.splitlines()[2:-1]:  # the last one goes on until the job ends
            _, _, token, *words = shlex.split(line)
            assert token == "$token"
            method = words[words.index("-X") + 1] if "-X" in words else "GET"
            [url] = [word for word in words if word.startswith("http://")]
            data = json.loads(words[words.index("-d") + 1]) if "-d" in words else None
            answer = await client.request(method, url, json=data)
            assert answer.status_code in (200, 201), line
        assert (await jobs.get("email", "hello")).data == {"to": "ada"}


async def test_a_service_is_mounted_as_the_page_says() -> None:
    async with JobsService("memory:") as jobs:
        names = await run(MOUNTED, jobs=jobs, lifespan=None)
        transport = httpx.ASGITransport(names["app"])
        async with httpx.AsyncClient(transport=transport, base_url="http://example.org") as client:
            assert (await client.get("/jobs/livez")).status_code == 200


async def test_a_service_is_mounted_in_fastapi_as_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = await run(IN_FASTAPI)
    async with (
        names["app"].router.lifespan_context(names["app"]),
        httpx.AsyncClient(transport=httpx.ASGITransport(names["app"]), base_url="http://example.org") as client,
    ):
        assert (await client.get("/jobs/v1/types")).status_code == 401
        known = {"X-Api-Key": "secret-of-grafana"}
        assert (await client.get("/jobs/v1/me", headers=known)).json()["name"] == "grafana"
        assert (await client.put("/jobs/v1/types/email", json={"timeout": 30}, headers=known)).status_code == 403
