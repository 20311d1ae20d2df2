"""Jobs that cannot be read are shown as such, and are in the way of nothing else."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import fdb.tuple
import pytest

from jobs_service import JobError, Outcome
from jobs_service.layer.keyspace import Keyspace
from jobs_service.names import shown
from tests.dashboard.support import fill, text
from tests.http.support import also_on_a_cluster, served
from tests.service.damaged_types import DAMAGED, SOUND, with_damaged
from tests.service.support import J1, T1
from tests.service.test_damaged_pages import JOBS, A, B, damaged, first_place, made, no_header
from tests.service.unreadable import DAMAGE, damage, with_broken_notes


@pytest.mark.parametrize("how", [*DAMAGE, with_broken_notes])
@also_on_a_cluster
async def test_every_page_is_there_while_a_job_cannot_be_read(how: Callable[[bytes], bytes]) -> None:
    async with served() as (jobs, client):
        await fill(jobs, T1)
        await jobs.add(T1, J1, {"secret": 1})
        await jobs.set_redaction(T1, ["secret"])
        await damage(jobs, J1, how)
        type, id = quote(shown(T1), safe=""), quote(shown(J1), safe="")
        for path in (
            "/",
            f"/type?type={type}",
            f"/type?type={type}&data=n%3D1&older=1h",
            "/failures",
            "/processes",
            "/health",
            f"/bulk/new?type={type}&action=remove&data=n%3D1",
            f"/export?type={type}",
            f"/export?type={type}&format=csv",
        ):
            page = await client.get(path)
            assert page.status_code == 200, (path, text(page.text))
        listed = text((await client.get(f"/type?type={type}")).text)
        assert "unreadable" in listed
        page = await client.get(f"/job?type={type}&id={id}")
        assert page.status_code == 500
        assert "--force" in text(page.text)


async def test_the_pages_of_all_types_are_there_while_the_queue_of_one_cannot_be_read(tmp_path: Path) -> None:
    content = await made(tmp_path, 10)
    front = first_place(content, Keyspace(fdb.tuple.pack(("jobs_service",))).of(A).ready)
    async with served(damaged(tmp_path, content, front, no_header)) as (_, client):
        overview = await client.get("/")
        assert overview.status_code == 200
        said = text(overview.text)
        assert f"damaged {A} has a part that cannot be read: " in said
        assert f"damaged {B}" not in said
        assert all(f" {type} {JOBS} " in said for type in (A, B))
        health = await client.get("/health")
        assert health.status_code == 200
        assert f"The queue of {A} cannot be read: " in text(health.text)
        assert f"The queue of {B}" not in text(health.text)


@also_on_a_cluster
async def test_every_page_and_file_is_there_while_texts_of_a_job_have_half_characters() -> None:
    half = "\ud800"
    async with served() as (jobs, client):
        await jobs.set_type_timeout("email", 60)
        for id, error in (
            ("message", JobError("Odd", f"no {half} file")),
            ("class", JobError(half, "why")),
            ("spaces", JobError(" ", "why")),
        ):
            await jobs.add("email", id, {"half": half})
            job = await jobs.accept("email", timeout=0)
            assert job is not None
            await job.finish(result=half, outcome=Outcome.FAILED, error=error)
        for path in ("/", "/failures", "/type?type=email", "/job?type=email&id=class", "/processes", "/health"):
            assert (await client.get(path)).status_code == 200, path
        lines = (await client.get("/export?type=email")).text.splitlines()
        assert {row["id"]: row for row in map(json.loads, lines)} == {
            job.id: job.to_dict() async for job in jobs.list("email")
        }
        table = (await client.get("/export?type=email&format=csv")).text
        assert len([*csv.DictReader(io.StringIO(table))]) == 3
        for part in ("data", "result", "error"):
            assert half in json.dumps(
                (await client.get(f"/download?type=email&id=message&part={part}")).json(), ensure_ascii=False
            )
        assert "ud800" in (await client.get("/job/new?type=email&from=message")).text
        groups = {group["error"]: group for group in (await client.get("/v1/failures")).json()["groups"]}
        assert groups["Odd"]["message"] == "no … file"
        for group in groups.values():
            body = {"action": "resubmit", "filter": group["types"][0]["filter"], "dry_run": True}
            assert (await client.post("/v1/types/email/bulk", json=body)).json()["matched"] == 1
        assert (await client.get("/failures")).text.count("Retry…") == 3


async def test_failures_of_other_types_are_shown_while_those_of_one_cannot_be_read(tmp_path: Path) -> None:
    async with served(await with_damaged(tmp_path, "failed")) as (_, client):
        page = await client.get("/failures")
        assert page.status_code == 200
        said = text(page.text)
        assert f"of {SOUND}" in said
        assert f"The failed or retrying jobs of {DAMAGED} cannot be read: " in said
        answer = await client.get("/v1/failures")
        assert answer.status_code == 200
        assert [group["message"] for group in answer.json()["groups"]] == [f"of {SOUND}"]


async def test_running_jobs_of_other_types_are_shown_while_those_of_one_cannot_be_read(tmp_path: Path) -> None:
    async with served(await with_damaged(tmp_path, "activity")) as (_, client):
        page = await client.get("/processes")
        assert page.status_code == 200
        said = text(page.text)
        assert "running-0000" in said
        assert f"The running jobs of {DAMAGED} cannot be read: " in said
        counted = (await client.get("/v1/stats")).json()
        assert counted
