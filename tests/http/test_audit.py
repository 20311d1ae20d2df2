"""What was changed over HTTP is written down."""

from __future__ import annotations

import json
import resource
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from structlog.testing import capture_logs

from jobs_service import InvalidSettings, JobsService, NewJob
from jobs_service.http.audit import Audit
from jobs_service.http.state import Options
from jobs_service.http.tokens import add_token
from tests.http.support import served
from tests.service.support import eventually

OPEN = Options(is_open=True)


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


async def test_how_many_jobs_a_bulk_action_changed_is_written_down_at_its_end(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    async with served(options=replace(OPEN, audit_log=str(file))) as (jobs, client):
        await jobs.set_type_timeout("email", 30)
        await jobs.add_many("email", [NewJob(str(number)) for number in range(3)])
        answer = await client.post("/bulk", data={"type": "email", "action": "remove", "state": "ready"})
        id = httpx.URL(answer.headers["location"]).params["id"]
        await jobs.wait("bulk-actions", id, "finished", timeout=20)

        async def is_noted() -> bool:
            return "ended" in file.read_text()

        await eventually(is_noted)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(row["action"], row["type"], row["id"], row["jobs"]) for row in rows] == [
        ("bulk remove", "email", id, 0),
        ("bulk remove ended", "bulk-actions", id, 3),
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


async def test_an_audit_log_names_a_job_alike_whatever_was_done_with_it(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    async with served(options=replace(OPEN, audit_log=str(file))) as (jobs, client):
        await jobs.set_type_timeout("email", 30)
        token = bearer(await add_token(jobs, "ada", "write"))
        await client.post("/v1/types/email/jobs", json={"id": {"bytes": "00ff"}}, headers=token)
        await client.delete("/v1/types/email/jobs/json:%7B%22bytes%22:%2200ff%22%7D", headers=token)
    assert [json.loads(line)["id"] for line in file.read_text().splitlines()] == [{"bytes": "00ff"}] * 2


def test_an_audit_log_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match=r"the audit log '.*/no/audit' cannot be written: .*No such file"):
        JobsService("memory:").asgi(audit_log=str(tmp_path / "no" / "audit"))


def test_a_line_that_a_full_disk_has_cut_is_not_joined_with_the_next(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    audit = Audit(str(file))
    audit.changed("ada", "", "first")
    room, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + 20, most))
        with capture_logs() as logged:
            audit.changed("ada", "", "cut")
            audit.changed("ada", "", "lost")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, most))
    failed = [event["error"] for event in logged if event["event"] == "audit_log_failed"]
    assert failed[0].startswith("only 20 of ")
    assert len(failed) == 2
    audit.changed("ada", "", "next")
    audit.changed("ada", "", "last")
    first, cut, *others = file.read_text().splitlines()
    assert [json.loads(line)["action"] for line in (first, *others)] == ["first", "next", "last"]
    assert len(cut) == 20


def test_a_line_that_was_cut_before_the_start_is_not_joined_with_the_next(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    file.write_text('{"at": "2026-')
    Audit(str(file)).changed("ada", "", "add")
    cut, line = file.read_text().splitlines()
    assert cut == '{"at": "2026-'
    assert json.loads(line)["action"] == "add"
