"""What matches, as a file."""

import csv
import io
import json

from jobs_service.http.tokens import add_token
from tests.dashboard.support import fill
from tests.http.support import served


async def test_ndjson_has_every_job_that_matches_as_it_is() -> None:
    async with served() as (jobs, client):
        await fill(jobs, data={"n": 2**70})
        answer = await client.get("/export?type=email&format=ndjson")
        rows = [json.loads(line) for line in answer.text.splitlines()]
        assert {row["id"]: row for row in rows} == {job.id: job.to_dict() async for job in jobs.list("email")}
        assert str(2**70) in answer.text
        assert 'filename="email.ndjson"' in answer.headers["content-disposition"]
        some = await client.get("/export?type=email&state=failed&error=TimeoutError")
        assert [json.loads(line)["id"] for line in some.text.splitlines()] == ["failed"]


async def test_a_program_exports_with_its_token() -> None:
    async with served() as (jobs, client):
        await fill(jobs, data={"to": "ada"})
        token = await add_token(jobs, "grafana", "read")
        path = "/export?type=email&state=failed&error=TimeoutError&data=to~AD"
        assert (await client.get(path)).status_code == 303
        answer = await client.get(path, headers={"Authorization": f"Bearer {token}"})
        assert [json.loads(line)["id"] for line in answer.text.splitlines()] == ["failed"]


async def test_csv_has_a_heading_and_no_formulas() -> None:
    async with served() as (jobs, client):
        await jobs.set_type_timeout("=type", 60)
        for id in ('=HYPERLINK("http://evil.example")', "+1", "plain, with\nlines", "@SUM(A1)"):
            await jobs.add("=type", id, {"n": 2**70})
        answer = await client.get("/export?type=%3Dtype&format=csv")
        rows = [*csv.DictReader(io.StringIO(answer.text))]
        assert len(rows) == 4
        assert {row["data"] for row in rows} == {json.dumps({"n": 2**70}, separators=(",", ":"))}
        for row in rows:
            assert not row["id"].startswith(("=", "+", "-", "@"))
            assert row["type"] == "'=type"
