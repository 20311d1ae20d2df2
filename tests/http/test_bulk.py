"""Many jobs changed at once that are more than a transaction takes: over HTTP, and by the dashboard."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from jobs_service import JobError, JobsService, NewJob, Outcome
from jobs_service.errors import StoreUnavailable
from jobs_service.service import bulk_actions
from jobs_service.service.selection import Filter
from jobs_service.store.base import Limits
from tests.dashboard.support import fill
from tests.http.support import also_on_a_cluster, problem, served

COUNT = 40
LARGE = "0017"
"""A job that alone is more than the store takes."""


async def fail_large(jobs: JobsService, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have jobs fail, all of which together are more than a transaction takes."""
    await jobs.set_type_timeout("email", 60)
    ids = [f"{n:04}" for n in range(COUNT)]
    await jobs.add_many("email", [NewJob(id, "x" * (3_000 if id == LARGE else 700)) for id in ids])
    for job in await jobs.accept_many("email", COUNT):
        await job.finish(outcome=Outcome.FAILED)
    monkeypatch.setattr(jobs.store, "limits", Limits(value=2_000, transaction=8_000))


async def is_left_alone(jobs: JobsService) -> None:
    """Fail unless all jobs but the large one were changed."""
    counts = (await jobs.counts("email"))["email"]
    assert (counts.ready, counts.failed) == (COUNT - 1, 1)
    assert (await jobs.get("email", LARGE)).outcome is Outcome.FAILED


@also_on_a_cluster
async def test_over_http_a_transaction_is_halved_until_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served() as (jobs, client):
        await fail_large(jobs, monkeypatch)
        with capture_logs() as events:
            answer = await client.post("/v1/types/email/bulk", json={"action": "resubmit", "filter": {}})
        assert answer.status_code == 200, answer.text
        done = answer.json()
        assert (done["matched"], done["changed"], done["too_large"]) == (COUNT, COUNT - 1, 1)
        [said] = [event for event in events if event["event"] == "bulk_job_too_large"]
        assert (said["action"], said["type"], said["id"]) == ("resubmit", "email", LARGE)
        await is_left_alone(jobs)


@also_on_a_cluster
@pytest.mark.parametrize(
    ("filter", "matched"),
    [
        ({"state": "failed", "error": "TimeoutError", "younger": 3600, "data": ["to.name~a"]}, 1),
        ({"text": "NOT answer", "signature": "TimeoutError: smtp … did not answer within … s"}, 1),
        ({"data": {"list.0": 7}, "worker": ":", "attempts": "1"}, 3),
        ({"prefix": "s", "older": "1h"}, 0),
    ],
)
async def test_over_http_there_are_the_filters_of_the_page_of_a_type(filter: dict[str, Any], matched: int) -> None:
    async with served() as (jobs, client):
        await fill(jobs, data={"to": {"name": "ada"}, "list": [7]})
        form = {"action": "remove", "filter": filter, "dry_run": True}
        answer = await client.post("/v1/types/email/bulk", json=form)
        assert answer.json()["matched"] == matched, answer.text


@pytest.mark.parametrize(
    ("filter", "said"),
    [
        ({"error": ""}, "error is empty; leave it out if every job is meant"),
        ({"prefix": None}, "prefix: null: write a text, or leave it out"),
        ({"older": "soon"}, "older: 'soon' is no duration; write 90, 30s"),
        ({"data": ["nosign"]}, "data: nosign: write field=value, or field~part"),
        ({"data": 7}, "data: 7: write texts such as field=value"),
        ({"stat": "failed"}, "stat: unknown; allowed are state, prefix"),
    ],
)
async def test_a_filter_that_says_nothing_is_refused(filter: dict[str, Any], said: str) -> None:
    async with served() as (jobs, client):
        await fill(jobs)
        answer = await client.post("/v1/types/email/bulk", json={"action": "remove", "filter": filter})
        assert problem(answer, 422, "invalid-request")["detail"].startswith(f"the body: filter: {said}")
        assert (await jobs.counts("email"))["email"].jobs == 5


async def test_what_was_changed_before_the_store_went_away_is_told_and_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served() as (jobs, client):
        await jobs.set_type_timeout("email", 60)
        await jobs.add_many("email", [NewJob(f"{n:04}") for n in range(300)])
        page, is_away = jobs.page, True

        async def away_after_a_page(*names: Any, **terms: Any) -> Any:
            if is_away and terms["after"] is not None:
                raise StoreUnavailable("away")
            return await page(*names, **terms)

        monkeypatch.setattr(jobs, "page", away_after_a_page)
        body = {"action": "remove", "filter": {}}
        with capture_logs() as logged:
            done = (await client.post("/v1/types/email/bulk", json=body)).json()
        assert (done["matched"], done["changed"], done["more"]) == (200, 200, True)
        assert [event["jobs"] for event in logged if event["event"] == "http_changed"] == [200]
        rest = {**body, "after": done["next"]}
        problem(await client.post("/v1/types/email/bulk", json=rest), 503, "store-unavailable")
        is_away = False
        done = (await client.post("/v1/types/email/bulk", json=rest)).json()
        assert (done["changed"], done["more"]) == (100, False)


@also_on_a_cluster
@pytest.mark.parametrize("limit", [7, 1000])
async def test_what_fails_again_meanwhile_is_not_run_again(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_actions, "READ_AT_ONCE", 10)
    async with served() as (jobs, client):
        await jobs.set_type_timeout("email", 60)
        await jobs.add_many("email", [NewJob(f"{n:04}") for n in range(COUNT)])

        async def all_fail() -> None:
            for job in await jobs.accept_many("email", COUNT, timeout=0):
                await job.finish(outcome=Outcome.FAILED, error=JobError("TimeoutError", "smtp is away"))

        await all_fail()
        page = jobs.page

        async def fails_again(*names: Any, **terms: Any) -> Any:
            await all_fail()
            return await page(*names, **terms)

        monkeypatch.setattr(jobs, "page", fails_again)
        body = {"action": "resubmit", "filter": {"text": "smtp"}, "limit": limit}
        done = (await client.post("/v1/types/email/bulk", json=body)).json()
        changed = done["changed"]
        while done["more"]:
            done = (await client.post("/v1/types/email/bulk", json={**body, "after": done["next"]})).json()
            changed += done["changed"]
        assert changed == COUNT
        # So does the job.
        id = await bulk_actions.BulkActions(jobs).add("resubmit", "email", Filter(text="smtp"), "")
        await all_fail()
        await jobs.wait(bulk_actions.TYPE, id, "finished", timeout=30)
        result = (await jobs.get(bulk_actions.TYPE, id)).result
        assert result["changed"] == result["matched"] <= COUNT


async def test_a_retry_that_runs_or_has_succeeded_is_not_run_again_for_the_error_that_it_had() -> None:
    async with served() as (jobs, client):
        await jobs.set_type_timeout("email", 60)
        for id in ("fails", "succeeds", "runs", "waits"):
            await jobs.add("email", id)
            first = await jobs.accept("email")
            assert first is not None
            if id == "fails":
                await first.finish(outcome=Outcome.FAILED, error=JobError("TimeoutError", "smtp is away"))
                continue
            fails = {"lock": first.lock.hex(), "error": {"type": "TimeoutError", "message": "smtp is away"}}
            await client.post(f"/v1/types/email/jobs/{id}/resubmit", json={"lock": fails["lock"]})
            await client.post(f"/v1/types/email/jobs/{id}/finish", json={**fails, "outcome": "failed"})
            if id != "waits":
                second = await jobs.accept("email")
                assert second is not None
                if id == "succeeds":
                    await second.finish(result=1)
        body = {"action": "resubmit", "filter": {"text": "smtp"}}
        for dry_run in (True, False):
            done = (await client.post("/v1/types/email/bulk", json={**body, "dry_run": dry_run})).json()
            assert (done["matched"], done["changed"]) == (1, 0 if dry_run else 1)
        assert not (await jobs.get("email", "runs")).resubmit
        assert (await jobs.get("email", "succeeds")).outcome is Outcome.SUCCEEDED


@pytest.mark.parametrize("after", ["", "x", "7.8.9", f"7ff0000000000000.{'00' * 12}."])
async def test_a_place_to_go_on_that_is_none_is_refused(after: str) -> None:
    async with served() as (jobs, client):
        await fill(jobs)
        body = {"action": "remove", "filter": {}, "after": after}
        refused = problem(await client.post("/v1/types/email/bulk", json=body), 422, "invalid-job")
        assert "allowed is what `next` of the answer before has" in refused["detail"]
        assert (await jobs.counts("email"))["email"].jobs == 5
