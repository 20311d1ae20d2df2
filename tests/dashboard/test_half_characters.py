"""Texts with half characters: every page and file shows them."""

import csv
import io
import json

from jobs_service import JobError, Outcome
from tests.http.support import also_on_a_cluster, served


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
