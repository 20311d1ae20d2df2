"""What matches, as a file."""

import csv
import io
import json

from jobs_service.http.tokens import add_token
from tests.dashboard.support import fill
from tests.http.support import also_on_a_cluster, served


@also_on_a_cluster
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


@also_on_a_cluster
async def test_more_jobs_than_a_page_are_all_there() -> None:
    async with served() as (jobs, client):
        await jobs.set_type_timeout("email", 60)
        for number in range(250):
            await jobs.add("email", f"{number:03}")
        answer = await client.get("/export?type=email")
        assert [json.loads(line)["id"] for line in answer.text.splitlines()] == [f"{n:03}" for n in range(250)]


async def test_what_cannot_be_read_is_a_page_and_no_file_that_breaks_off() -> None:
    async with served() as (_, client):
        for form in ("ndjson", "csv"):
            answer = await client.get(f"/export?type={'x' * 12_000}&format={form}")
            assert (answer.status_code, answer.headers["content-type"]) == (413, "text/html; charset=utf-8")
            assert "content-disposition" not in answer.headers
