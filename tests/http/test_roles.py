"""Nobody gets more than their role, whichever address and type they try."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any
from urllib.parse import quote

import pytest
from starlette.routing import Route

from jobs_service.http.application import Application
from jobs_service.http.endpoint import ENDPOINTS, Endpoint
from jobs_service.http.gate import INTERNAL_TYPES
from jobs_service.http.state import ServerOptions
from jobs_service.http.tokens import TOKEN_ROLES, Role, add_token
from jobs_service.runner.commands import COMMAND_TYPE
from tests.http.support import problem, served

INTERNAL = sorted(map(str, INTERNAL_TYPES))
SAYS_WHAT_RUNS = tuple(
    f"/{verb}"
    for verb in [
        "jobs",
        "accept",
        "give_back",
        "alive",
        "ends",
        "declare",
        "update",
        "progress",
        "finish",
        "release",
        "resubmit",
    ]
)
LOCK = "00" * 16
BODIES: dict[str, dict[str, Any]] = {
    "/jobs": {"id": "new"},
    "/update": {"lock": LOCK, "data": {"action": "remove"}},
    "/progress": {"lock": LOCK, "done": 1},
    "/jobs/{id}/finish": {"lock": LOCK},
    "/release": {"lock": LOCK},
    "/bulk": {"action": "resubmit", "filter": {"state": "failed"}},
    "/redaction": {"paths": []},
    "/v1/types/{type}": {"timeout": 30},
}


def body_of(each: Endpoint) -> dict[str, Any] | None:
    """Return what an endpoint takes."""
    if each.method == "GET" or each.takes is None:
        return None
    return next((body for end, body in BODIES.items() if each.path.endswith(end)), {})


def says_what_runs(each: Endpoint) -> bool:
    """Return whether who asks an endpoint says what is run of a type."""
    return each.method == "POST" and (each.path.endswith((*SAYS_WHAT_RUNS, "/bulk")))


def paths_of(each: Endpoint, type: str) -> Iterator[str]:
    """Yield all forms of an endpoint's address for one type."""
    for name in (type, f'json:"{type}"'):
        yield each.path.replace("{type}", quote(name, safe="")).replace("{id}", "asked")
    job = each.path.partition("/v1/types/{type}/jobs/{id}")
    if job[1]:
        yield f"/v1/job{job[2]}?type={type}&id=asked"
    else:
        yield f"/v1/type{each.path.removeprefix('/v1/types/{type}')}?type={type}"


@pytest.mark.parametrize("type", ["email", COMMAND_TYPE, *INTERNAL])
async def test_every_role_tries_every_address_of_a_type(type: str) -> None:
    endpoints = [each for each in ENDPOINTS if "{type}" in each.path and not each.path.endswith("/events")]
    assert sum(map(says_what_runs, endpoints)) == 12
    async with served(options=ServerOptions(commands=True)) as (jobs, client):
        await jobs.set_type_timeout(type, 30)
        await jobs.add(type, "asked", {"action": "count", "type": "email", "filter": {}})
        before = await jobs.get(type, "asked")
        tokens = {role: await add_token(jobs, name, name) for name, role in TOKEN_ROLES.items()}
        for role in Role:
            headers = {} if role is Role.NOBODY else {"Authorization": f"Bearer {tokens[role]}"}
            for each in endpoints:
                if each.method == "DELETE" and role >= each.role:
                    continue
                for path in paths_of(each, type):
                    answer = await client.request(each.method, path, json=body_of(each), headers=headers)
                    told = (role.label, each.method, path, answer.text)
                    if role is Role.NOBODY:
                        problem(answer, 401, "unauthorized")
                    elif role < each.role:
                        problem(answer, 403, "forbidden")
                    elif says_what_runs(each) and type in INTERNAL_TYPES:
                        problem(answer, 403, "internal-type")
                    elif says_what_runs(each) and type == COMMAND_TYPE and role is not Role.ADMIN:
                        problem(answer, 403, "commands-forbidden")
                    elif not each.path.endswith(("/cancel", "/resubmit")):  # a worker resubmits by its lock alone
                        assert answer.status_code not in (401, 403), told
            if type in INTERNAL_TYPES and role < Role.WRITE:  # from there on it may be canceled
                assert await jobs.get(type, "asked") == before


async def test_every_role_tries_every_page() -> None:
    async with served(options=ServerOptions()) as (jobs, client):
        tokens = {role: await add_token(jobs, name, name) for name, role in TOKEN_ROLES.items()}
        routes = [route for route in Application(jobs)._pages.routes if isinstance(route, Route)]
        tried = 0
        for role, route in product(Role, routes):
            headers = {} if role is Role.NOBODY else {"Authorization": f"Bearer {tokens[role]}"}
            path = route.path.replace("{name}", "style.css")
            for method in (route.methods or set()) - {"HEAD"}:
                if role >= needed(method, path):
                    continue
                answer = await client.request(method, path, headers=headers, data={"type": "email", "id": "a"})
                is_led = role is Role.NOBODY and method == "GET" and path != "/live"
                assert answer.status_code == (303 if is_led else 403), (role, method, path)
                assert not is_led or answer.headers["location"].startswith("/login?next=")
                tried += 1
        assert tried > 30
        assert await jobs.types() == []


def needed(method: str, path: str) -> Role:
    """Return the role that a page needs."""
    if path in ("/login", "/logout", "/preferences") or path.startswith("/static/"):
        return Role.NOBODY
    if path == "/processes/act":
        return Role.ADMIN
    return Role.WRITE if method == "POST" or path in ("/bulk/new", "/job/new") else Role.READ


@pytest.mark.parametrize("type", INTERNAL)
async def test_no_page_has_jobs_of_the_services_own_types_run(type: str) -> None:
    async with served(options=ServerOptions()) as (jobs, client):
        await jobs.set_type_timeout(type, 30)
        await jobs.add(type, "asked", {"action": "count"}, run_at=9_000_000_000)
        token = await add_token(jobs, "ada", "admin")
        client.headers["Authorization"] = f"Bearer {token}"
        page = await client.get("/job", params={"type": type, "id": "asked"})
        assert "Run now" not in page.text
        assert "Clone and edit" not in page.text
        for path, form in (
            ("/job/act", {"id": "asked", "action": "resubmit"}),
            ("/job/act", {"id": "asked", "action": "now"}),
            ("/job/new", {"id": "new", "data": "{}", "priority": "0"}),
            ("/job/edit", {"id": "asked", "data": "{}"}),
            ("/bulk", {"action": "resubmit", "state": "failed"}),
            ("/bulk/picked", {"action": "resubmit", "pick": "asked"}),
            ("/periodic/act", {}),
        ):
            refused = await client.post(path, data={"type": type, **form})
            assert refused.status_code == 403, path
            assert "the service&#39;s own" in refused.text
        assert [job.id async for job in jobs.list(type)] == ["asked"]
        assert (
            await client.post("/job/act", data={"type": type, "id": "asked", "action": "remove"})
        ).status_code == 303


async def test_declaring_a_type_sets_no_more_than_the_role_may_set_elsewhere() -> None:
    async with served() as (jobs, client):
        await jobs.set_type_timeout("pay", 30)
        await jobs.set_redaction("pay", ["card"])
        by_role = {
            role: {"Authorization": f"Bearer {await add_token(jobs, role, role)}"}
            for role in ("work", "write", "admin")
        }

        async def declare(role: str, timeout: float, keep: float | None, *redact: str) -> list[Any]:
            body = {"timeout": timeout, "keep": keep, "redact": [*redact]}
            answer = await client.post("/v1/types/pay/declare", json=body, headers=by_role[role])
            assert answer.status_code == 200
            form = answer.json()
            assert form["timeout"] == await jobs.get_type_timeout("pay")
            assert form["keep"] == (await jobs.get_retention("pay")).keep
            assert form["redact"] == [*(await jobs.get_redaction("pay")).paths]
            return [form["timeout"], form["keep"], form["redact"]]

        assert await declare("work", 9000, 0) == [30, None, ["card"]]
        assert await declare("work", 9000, 0, "pin") == [30, None, ["card", "pin"]]
        assert await declare("write", 60, 5, "zip") == [30, 5, ["card", "pin", "zip"]]  # an operator's timeout
        assert await declare("work", 9000, 0) == [30, 5, ["card", "pin", "zip"]]
        assert await declare("write", 70, 6) == [70, 6, ["card", "pin", "zip"]]
        assert await declare("admin", 70, 6, "zip") == [70, 6, ["zip"]]
        # Of a type that there is not, all roles say everything.
        body = {"timeout": 7, "keep": 8, "redact": ["to"]}
        new = await client.post("/v1/types/mail/declare", json=body, headers=by_role["work"])
        assert new.json() == {"timeout": 7, "keep": 8, "keep_failed": None, "redact": ["to"]}
