"""What was changed over HTTP is written down."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from jobs_service import InvalidSettings, JobsService, NewJob
from jobs_service.http.state import ServerOptions
from jobs_service.http.tokens import add_token
from tests.http.support import served

OPEN = ServerOptions(is_open=True)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_who_changed_what_is_written_down(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    async with served(options=replace(OPEN, audit_log=str(file))) as (jobs, client):
        token = bearer(await add_token(jobs, "ada", "write"))
        with capture_logs() as logged:
            await client.put("/v1/types/email", json={"timeout": 30}, headers=token)
        [said] = [event for event in logged if event["event"] == "http_changed"]
        assert (said["type"], "id" in said) == ("email", False)
        await client.post("/v1/types/email/jobs", json={"jobs": [{"id": "a"}, {"id": "b"}]}, headers=token)
        await client.get("/v1/types/email", headers=token)
        await client.post("/v1/types/email/bulk", json={"action": "remove", "filter": {}}, headers=token)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(row["who"], row["action"], row["type"], row["jobs"]) for row in rows] == [
        ("ada", "set_type", "email", 0),
        ("ada", "add", "email", 2),
        ("ada", "bulk_remove", "email", 2),
    ]
    assert file.stat().st_mode & 0o777 == 0o600


SECRET = "s3cret-of-ada"


async def test_what_was_done_is_written_down_without_what_is_in_jobs(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    async with served(options=ServerOptions(audit_log=str(file))) as (jobs, client):
        client.headers["Authorization"] = f"Bearer {await add_token(jobs, 'ada', 'admin')}"
        path, data = "/v1/types/email", {"to": SECRET}
        await client.put(path, json={"timeout": 30, "keep": 60})
        await client.post(f"{path}/jobs", json={"id": "a", "data": data, "priority": 5})
        await client.post(f"{path}/jobs/a/resubmit", json={"data": data, "run_at": "2100-01-01T00:00:00Z"})
        for tests in ([f"to={SECRET}", f"to~{SECRET}"], {"to": SECRET}):
            await client.post(f"{path}/bulk", json={"action": "cancel", "filter": {"state": "failed", "data": tests}})
        await client.post("/type/act", data={"type": "email", "action": "change", "timeout": "10m", "keep": "1h"})
        form = {"type": "email", "id": "b", "data": f'{{"to": "{SECRET}"}}', "priority": "7"}
        await client.post("/job/new", data=form)
        await client.post("/bulk", data={"type": "email", "action": "count", "data": f"to={SECRET}", "error": "E"})
        await client.put(f"{path}/redaction", json={"paths": ["card"]})
        await client.delete(f"{path}/jobs/b?force=true")
    assert SECRET not in file.read_text()
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(row["action"], row["what"]) for row in rows if "ended" not in row["action"]] == [
        ("set_type", {"keep": 60.0, "timeout": 30.0}),
        ("add", {"data": True, "priority": 5}),
        ("resubmit", {"data": True, "run_at": 4102444800.0}),
        ("bulk_cancel", {"filter": {"state": "failed", "data": ["to", "to"]}, "limit": 1000, "matched": 0}),
        ("bulk_cancel", {"filter": {"state": "failed", "data": ["to"]}, "limit": 1000, "matched": 0}),
        ("set_type", {"timeout": 600.0, "keep": 3600.0, "keep_failed": None}),
        ("add", {"priority": 7, "run_at": None}),
        ("bulk count", {"filter": {"error": "E", "data": ["to"]}}),
        ("set_redaction", {"paths": ["card"]}),
        ("remove", {"removal": "removed", "force": True}),
    ]


async def test_logins_and_refusals_are_written_down(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    async with served(options=ServerOptions(audit_log=str(file))) as (jobs, client):
        token = await add_token(jobs, "ada", "read")
        await client.post("/login", data={"token": "wrong"})
        await client.post("/login", data={"token": token})
        for _ in range(100):
            await client.put("/v1/types/email", json={"timeout": 30})
        await client.post("/type/act", data={"type": "email", "action": "pause"})  # a refusal of the same kind
        await client.get("/v1/types", headers={"Sec-Fetch-Site": "cross-site"})
        await client.get("/v1/types", headers={"Host": "evil.example"})
        await client.post("/logout", data={})
        client.cookies.clear()
        await client.get("/v1/types?token=secret")
        await client.get("/v1/nothing")  # that concerns nobody
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    told = [(row["who"], row["action"], row["what"].get("kind"), row["what"].get("path")) for row in rows]
    assert told == [
        ("", "login_refused", None, None),
        ("ada", "login", None, None),
        ("ada", "refused", "forbidden", "/v1/types/email"),
        ("", "refused", "cross-site", "/v1/types"),
        ("", "refused", "host-not-allowed", "/v1/types"),
        ("ada", "logout", None, None),
        ("", "refused", "unauthorized", "/v1/types"),
    ]


async def test_what_was_taken_out_is_written_down(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    async with served(options=ServerOptions(audit_log=str(file))) as (jobs, client):
        await jobs.set_type_timeout("email", 30)
        await jobs.add_many("email", [NewJob(str(number), {"to": SECRET}) for number in range(3)])
        client.headers["Authorization"] = f"Bearer {await add_token(jobs, 'ada', 'read')}"
        assert len((await client.get(f"/export?type=email&data=to={SECRET}&format=csv")).text.splitlines()) == 4
        lines = {"Accept": "application/x-ndjson"}
        assert len((await client.get("/v1/jobs", headers=lines)).text.splitlines()) == 3
        await client.get("/v1/types/email/jobs?state=pending&prefix=1", headers=lines)
        await client.get("/download?type=email&id=1")
        await client.get("/v1/types/email/jobs")
    assert SECRET not in file.read_text()
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert {(row["who"], row["action"]) for row in rows} == {("ada", "export")}
    assert [(row["type"], row["id"], row["jobs"], row["what"]) for row in rows] == [
        ("email", None, 3, {"format": "csv", "filter": {"data": ["to"]}}),
        (None, None, 3, {}),
        ("email", None, 1, {"state": "pending", "prefix": "1"}),
        ("email", "1", 1, {"part": "data"}),
    ]


async def test_a_change_that_cannot_be_written_down_is_answered_as_done(tmp_path: Path) -> None:
    file = tmp_path / "gone" / "audit.jsonl"
    file.parent.mkdir()
    async with served(options=replace(OPEN, audit_log=str(file))) as (_, client):
        file.unlink()  # it could be written at the start
        file.parent.rmdir()
        with capture_logs() as logged:
            assert (await client.put("/v1/types/email", json={"timeout": 30})).status_code == 200
            assert (await client.post("/v1/types/email/jobs", json={"id": "a"})).status_code == 201
            lines = await client.post(
                "/v1/types/email/jobs", content='{"id": "b"}\n', headers={"Content-Type": "application/x-ndjson"}
            )
        assert json.loads(lines.text)["id"] == "b"
        assert [event["event"] for event in logged].count("http_changed") == 3
        [failed, *_] = [event for event in logged if event["event"] == "audit_log_failed"]
        assert failed["path"].endswith("audit.jsonl")
        assert failed["log_level"] == "error"


def test_an_audit_log_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match=r"the audit log '.*/no/audit' cannot be written: .*No such file"):
        JobsService("memory:").asgi(audit_log=str(tmp_path / "no" / "audit"))
