"""Failed jobs of all types over HTTP, grouped by what went wrong."""

from __future__ import annotations

import pytest

from jobs_service import Outcome
from jobs_service.service import failures
from tests.dashboard.support import fill
from tests.http.support import also_on_a_cluster, served

pytestmark = also_on_a_cluster


async def test_failures_are_grouped_across_types_and_a_group_is_retried_by_its_filter() -> None:
    async with served() as (jobs, client):
        await fill(jobs)
        await fill(jobs, ("sms", 1))
        found = (await client.get("/v1/failures")).json()
        assert (found["failed"], found["read"]) == (2, 2)
        [group] = found["groups"]
        assert (group["error"], group["message"]) == ("TimeoutError", "smtp … did not answer within … s")
        assert (group["count"], group["attempts"]) == (2, 2)
        assert group["first"] <= group["last"]
        assert {(str(each["type"]), each["count"], each["newest"]) for each in group["types"]} == {
            ("email", 1, "failed"),
            ("['sms', 1]", 1, "failed"),
        }
        body = {"action": "resubmit", "filter": group["types"][0]["filter"]}
        assert (await client.post("/v1/types/email/bulk", json=body)).json()["changed"] == 1
        assert (await client.get("/v1/failures")).json()["failed"] == 1


async def test_jobs_without_an_error_are_a_group_with_a_filter_as_well() -> None:
    async with served() as (jobs, client):
        await fill(jobs)
        await jobs.set_type_timeout("email", 60)
        await jobs.add("email", "x")
        job = await jobs.accept("email")
        assert job is not None
        await job.finish(outcome=Outcome.FAILED)
        newest, _ = (await client.get("/v1/failures")).json()["groups"]
        assert (newest["error"], newest["message"]) == (None, "")
        body = {"action": "remove", "filter": newest["types"][0]["filter"]}
        assert (await client.post("/v1/types/email/bulk", json=body)).json()["changed"] == 1
        assert [job.id async for job in jobs.list("email", state="failed")] == ["failed"]


async def test_failures_are_looked_at_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "MOST_READ", 2)
    monkeypatch.setattr(failures, "LEAST_OF_A_TYPE", 1)
    async with served() as (jobs, client):
        await jobs.set_type_timeout("email", 60)
        for id in ("oldest", "older", "newest"):
            await jobs.add("email", id)
            job = await jobs.accept("email")
            assert job is not None
            await job.finish(outcome=Outcome.FAILED)
        found = (await client.get("/v1/failures")).json()
        assert (found["failed"], found["read"]) == (3, 2)
        assert found["groups"][0]["types"][0]["newest"] == "newest"
