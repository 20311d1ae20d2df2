"""Failed jobs of all types over HTTP, grouped by what went wrong."""

from __future__ import annotations

from tests.dashboard.support import fill
from tests.http.support import served


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
