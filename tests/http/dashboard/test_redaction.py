"""What is secret is on no page, in no export, and nobody finds jobs by it."""

import pytest

from tests.http.dashboard.support import fill
from tests.http.support import served

SECRET = "hunter2-and-more"


@pytest.mark.parametrize(
    "path",
    [
        "/type?type=email",
        "/job?type=email&id=failed",
        "/job?type=email&id=ready",
        "/job/new?type=email&from=failed",
        "/download?type=email&id=failed&part=data",
        "/export?type=email&format=csv",
        "/export?type=email",
        "/failures",
        "/processes",
    ],
)
async def test_secret_fields_are_nowhere(path: str) -> None:
    async with served() as (jobs, client):
        await jobs.set_type_timeout("email", 60)
        await jobs.set_redaction("email", ["password"])
        await fill(jobs, data={"to": "ada", "password": SECRET})
        page = await client.get(path)
        assert page.status_code == 200
        assert SECRET not in page.text


async def test_nobody_finds_jobs_by_what_is_secret() -> None:
    async with served() as (jobs, client):
        await fill(jobs, data={"to": "ada", "password": SECRET})
        await jobs.set_redaction("email", ["password"])
        page = (await client.get(f"/type?type=email&data=password%3D{SECRET}")).text
        assert "No job matches" in page
        assert (await client.get(f"/export?type=email&data=password%3D{SECRET}")).text == ""
        assert "Remove 0 jobs?" in (await client.get(f"/bulk/new?type=email&action=remove&data=password~{SECRET}")).text


async def test_a_job_with_secrets_is_not_cloned_by_mistake() -> None:
    async with served() as (jobs, client):
        await fill(jobs, data={"to": "ada", "password": SECRET})
        await jobs.set_redaction("email", ["password"])
        form = {"type": "email", "id": "again", "data": '{"to": "ada", "password": "[redacted]"}'}
        answer = await client.post("/job/new", data=form)
        assert answer.status_code == 422
        assert "write what it is to be" in answer.text
