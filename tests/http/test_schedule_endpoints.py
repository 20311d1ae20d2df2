"""Schedules over HTTP and on the page of periodic jobs."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from jobs_service import JobsService
from jobs_service.http.state import ServerOptions
from jobs_service.http.tokens import add_token
from tests.http.support import problem, served

TYPE = "report"
NIGHTLY = {"type": TYPE, "data": {"customer": "acme"}, "cron": "0 3 * * *", "timezone": "Europe/Berlin"}


async def put(http: httpx.AsyncClient, name: str = "nightly", **changes: Any) -> httpx.Response:
    """Make or change a schedule."""
    return await http.put(f"/v1/schedules/{name}", json={**NIGHTLY, **changes})


async def test_they_are_made_changed_listed_paused_and_removed() -> None:
    async with served() as (jobs, http):
        await jobs.set_type_timeout(TYPE, 60)
        made = (await put(http)).json()
        assert made["next"].endswith(":00Z") or made["next"].endswith(":00.000000Z")
        assert {name: made[name] for name in ("name", "every", "cron", "missed", "overlap", "paused", "last")} == {
            **{"name": "nightly", "every": None, "cron": "0 3 * * *", "missed": "once"},
            **{"overlap": False, "paused": False, "last": None},
        }
        changed = (await put(http, "nightly", cron=None, every="30m", missed="all", overlap=True)).json()
        assert (changed["every"], changed["missed"], changed["overlap"]) == (1800.0, "all", True)
        await put(http, "a%20b")
        listed = (await http.get("/v1/schedules")).json()["schedules"]
        assert [each["name"] for each in listed] == ["a b", "nightly"]
        assert listed[1]["data"] == {"customer": "acme"}
        paused = (await http.post("/v1/schedules/nightly/pause")).json()
        assert (paused["paused"], paused["next"]) == (True, None)
        assert not (await http.post("/v1/schedules/nightly/resume")).json()["paused"]
        assert (await http.get("/v1/schedules/nightly")).json()["name"] == "nightly"
        assert (await http.delete("/v1/schedules/nightly")).status_code == 204
        for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/pause"), ("POST", "/resume")):
            problem(await http.request(method, f"/v1/schedules/nightly{path}"), 404, "schedule-not-found")
        assert [each.name for each in await jobs.schedules.list()] == ["a b"]


@pytest.mark.parametrize(
    ("changes", "status", "kind"),
    [
        ({"cron": "daily"}, 422, "invalid-job"),
        ({"missed": "never"}, 422, "invalid-request"),
        ({"type": "nowhere"}, 404, "no-type-timeout"),
        ({"kind": "daily"}, 422, "invalid-request"),
        ({"data": "x" * 30_000}, 413, "job-too-large"),
    ],
)
async def test_what_cannot_be_is_a_problem(changes: dict[str, Any], status: int, kind: str) -> None:
    async with served() as (jobs, http):
        await jobs.set_type_timeout(TYPE, 60)
        problem(await put(http, **changes), status, kind)
        assert await jobs.schedules.list() == []


async def test_secrets_of_their_data_are_not_shown_and_not_written_back() -> None:
    async with served() as (jobs, http):
        await jobs.set_type_timeout(TYPE, 60)
        await jobs.set_redaction(TYPE, ["customer"])
        assert (await put(http)).json()["data"] == {"customer": "[redacted]"}
        assert (await jobs.schedules.get("nightly")).data == {"customer": "acme"}
        problem(await put(http, data={"customer": "[redacted]"}), 422, "invalid-job")


async def test_roles_and_commands() -> None:
    async with served(options=ServerOptions()) as (jobs, http):
        await jobs.set_type_timeout(TYPE, 60)
        await jobs.set_type_timeout("command", 60)
        headers = {role: {"Authorization": f"Bearer {await add_token(jobs, role, role)}"} for role in ("read", "write")}
        refused = await http.put("/v1/schedules/nightly", json=NIGHTLY, headers=headers["read"])
        problem(refused, 403, "forbidden")
        assert (await http.put("/v1/schedules/nightly", json=NIGHTLY, headers=headers["write"])).status_code == 200
        assert (await http.get("/v1/schedules", headers=headers["read"])).status_code == 200
        command = {**NIGHTLY, "type": "command"}
        problem(await http.put("/v1/schedules/c", json=command, headers=headers["write"]), 403, "commands-forbidden")
        await jobs.schedules.set("c", "command", cron="0 3 * * *")
        problem(await http.put("/v1/schedules/c", json=NIGHTLY, headers=headers["write"]), 403, "commands-forbidden")


async def test_the_page_of_periodic_jobs_shows_and_changes_them() -> None:
    async with served() as (jobs, http):
        await jobs.set_type_timeout(TYPE, 60)
        assert "Schedules in the store" not in (await http.get("/periodic")).text
        await jobs.schedules.set("<nightly>", TYPE, cron="0 3 * * *")
        page = (await http.get("/periodic")).text
        assert "&lt;nightly&gt;" in page
        assert "0 3 * * * UTC" in page

        async def act(jobs: JobsService, action: str) -> list[bool]:
            form = {"name": "<nightly>", "action": action}
            headers = {"Origin": str(http.base_url), "Sec-Fetch-Site": "same-origin"}
            answer = await http.post("/schedule/act", data=form, headers=headers)
            assert answer.status_code == 303, answer.text
            return [each.paused for each in await jobs.schedules.list()]

        assert await act(jobs, "pause") == [True]
        assert await act(jobs, "resume") == [False]
        assert await act(jobs, "remove") == []
