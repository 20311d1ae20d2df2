"""Jobs over HTTP: added, looked at, removed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest

from jobs_service import JobsService, Outcome
from jobs_service.store.base import Limits
from tests.http.support import also_on_a_cluster, problem, served

pytestmark = also_on_a_cluster


@pytest.fixture
async def two() -> AsyncIterator[tuple[JobsService, httpx.AsyncClient]]:
    async with served() as both:
        await both[0].set_type_timeout("email", 30)
        yield both


Two = tuple[JobsService, httpx.AsyncClient]
JOBS = "/v1/types/email/jobs"
NDJSON = {"Content-Type": "application/x-ndjson"}


async def test_a_job_is_added_and_looked_at(two: Two) -> None:
    jobs, client = two
    added = await client.post(JOBS, json={"id": "a/b", "data": {"n": 2**70}, "priority": 3})
    assert added.status_code == 201
    found = (await client.get(f"{JOBS}/a%2Fb")).json()
    assert found == added.json()
    assert (found["id"], found["data"], found["priority"]) == ("a/b", {"n": 2**70}, 3)
    assert (await client.get("/v1/job?type=email&id=a%2Fb")).json() == found
    assert (await jobs.get("email", "a/b")).data == {"n": 2**70}
    again = problem(await client.post(JOBS, json={"id": "a/b"}), 409, "job-exists")
    assert (again["job_type"], again["job_id"]) == ("email", "a/b")
    assert (await client.post(JOBS, json={"id": "a/b", "if_exists": "ignore"})).status_code == 200


async def test_a_job_without_an_id_gets_one_and_unique_ones_are_found(two: Two) -> None:
    _, client = two
    first = await client.post(JOBS, json={"data": {"a": 1}, "unique": True, "max_attempts": 3, "delay": 60})
    second = await client.post(JOBS, json={"data": {"a": 1}, "unique": True})
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json()["id"] == second.json()["id"]
    assert first.json()["max_attempts"] == 3
    problem(await client.post(JOBS, json={"unique": True, "if_exists": "ignore"}), 422, "invalid-job")


async def test_a_repeated_request_adds_its_job_once(two: Two) -> None:
    jobs, client = two
    key = {"Idempotency-Key": "k1"}
    first = await client.post(JOBS, json={"data": 1}, headers=key)
    second = await client.post(JOBS, json={"data": 1}, headers=key)
    assert (first.status_code, second.status_code) == (201, 200)
    assert second.headers["idempotency-replayed"] == "true"
    assert first.json()["id"] == second.json()["id"]
    assert [job.data async for job in jobs.list("email")] == [1]
    problem(await client.post(JOBS, json={"data": 2}, headers=key), 422, "idempotency-key-reused")
    await jobs.remove("email", first.json()["id"])
    gone = await client.post(JOBS, json={"data": 1}, headers=key)
    assert gone.json() == {"type": "email", "id": first.json()["id"], "state": "removed"}
    named = {"Idempotency-Key": "k2"}
    assert (await client.post(JOBS, json={"id": "x"}, headers=named)).status_code == 201
    assert (await client.post(JOBS, json={"id": "x"}, headers=named)).status_code == 200


async def test_many_jobs_are_added_by_lines_and_each_is_answered(two: Two) -> None:
    jobs, client = two
    lines = [json.dumps({"id": f"{n:05}", "data": n}) for n in range(1200)]
    lines[7] = "nonsense"
    lines[8] = json.dumps({"id": "00001"})
    response = await client.post(JOBS, content="\n".join(lines), headers=NDJSON)
    answers = [json.loads(line) for line in response.text.splitlines()]
    assert [answer.get("id") for n, answer in enumerate(answers) if n not in (7, 8)] == [
        f"{n:05}" for n in range(1200) if n not in (7, 8)
    ]
    assert [answers[n]["problem"]["type"] for n in (7, 8)] == ["/problems/bad-request", "/problems/job-exists"]
    assert answers[7]["problem"]["detail"].startswith("the line is not JSON")
    assert await jobs.pending_count("email") == 1198


async def test_the_lines_of_a_repeated_request_add_their_jobs_once(two: Two) -> None:
    jobs, client = two
    lines = "\n".join(json.dumps({"data": n}) for n in range(5))
    key = {**NDJSON, "Idempotency-Key": "stream"}
    first = await client.post(JOBS, content=lines, headers=key)
    second = await client.post(JOBS, content=lines, headers=key)
    assert [json.loads(line)["id"] for line in first.text.splitlines()] == [
        json.loads(line)["id"] for line in second.text.splitlines()
    ]
    assert await jobs.pending_count("email") == 5


async def test_a_repeated_list_adds_its_jobs_once(two: Two) -> None:
    jobs, client = two
    body = {"jobs": [{"id": f"{n}", "data": n} for n in range(5)]}
    key = {"Idempotency-Key": "list"}
    first, second = await asyncio.gather(*(client.post(JOBS, json=body, headers=key) for _ in range(2)))
    assert sorted([first.status_code, second.status_code]) == [200, 201]
    assert first.json() == second.json()
    job = await jobs.accept("email")
    assert job is not None
    await job.finish()
    await jobs.remove("email", "3")
    again = await client.post(JOBS, json=body, headers=key)
    assert again.headers["idempotency-replayed"] == "true"
    assert [(each["id"], each["state"]) for each in again.json()["jobs"]] == [
        ("0", "finished"),
        ("1", "pending"),
        ("2", "pending"),
        ("3", "removed"),
        ("4", "pending"),
    ]
    other = {"jobs": [{"id": "5"}]}
    problem(await client.post(JOBS, json=other, headers=key), 422, "idempotency-key-reused")
    problem(await client.post(JOBS, json={"id": "6"}, headers=key), 422, "idempotency-key-reused")
    assert (await jobs.counts("email"))["email"].jobs == 4


async def test_a_list_with_a_key_is_added_as_a_whole_or_not_at_all(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs, client = two
    await jobs.add("email", "b")
    key = {"Idempotency-Key": "list"}
    body = {"jobs": [{"id": id} for id in "abc"]}
    problem(await client.post(JOBS, json=body, headers=key), 409, "job-exists")
    assert (await jobs.counts("email"))["email"].jobs == 1
    await jobs.remove("email", "b")
    assert (await client.post(JOBS, json=body, headers=key)).status_code == 201
    monkeypatch.setattr(jobs.store, "limits", Limits(value=2_000, transaction=20_000))
    large = {"jobs": [{"id": f"{n}", "data": "x" * 1_000} for n in range(40)]}
    problem(await client.post(JOBS, json=large, headers={"Idempotency-Key": "large"}), 413, "body-too-large")
    assert (await jobs.counts("email"))["email"].jobs == 3
    assert len((await client.post(JOBS, json=large)).json()["jobs"]) == 40
    assert (await client.post(JOBS, json={"jobs": []}, headers={"Idempotency-Key": "none"})).json() == {"jobs": []}


async def test_jobs_are_listed_by_page_and_by_line(two: Two) -> None:
    jobs, client = two
    for n in range(7):
        await jobs.add("email", f"{n}")
    first = (await client.get(f"{JOBS}?limit=3")).json()
    second = (await client.get(f"{JOBS}?limit=10&after={first['next']}")).json()
    assert [job["id"] for job in first["jobs"] + second["jobs"]] == [str(n) for n in range(7)]
    assert second["next"] is None
    lines = {"Accept": "application/x-ndjson"}
    listed = (await client.get(f"{JOBS}?state=ready", headers=lines)).text.splitlines()
    assert [json.loads(line)["id"] for line in listed] == [str(n) for n in range(7)]
    assert len((await client.get("/v1/jobs", headers=lines)).text.splitlines()) == 7
    problem(await client.get("/v1/jobs"), 406, "not-acceptable")
    problem(await client.get(f"{JOBS}?limit=0"), 422, "invalid-request")


@pytest.mark.parametrize(
    ("form", "detail"),
    [
        ({"idd": "a"}, "idd: unknown; allowed are data, priority, run_at, id, "),
        (
            {"run_at": "tomorrow"},
            "run_at: no time: allowed are texts as 2026-11-22T22:00:00Z and seconds since the epoch",
        ),
        ({"run_at": "2026-11-22T22:00:00"}, "run_at: a time without a time zone; write Z for UTC"),
    ],
)
async def test_a_body_that_cannot_be_is_told_what_can(two: Two, form: dict[str, str], detail: str) -> None:
    refused = problem(await two[1].post(JOBS, json=form), 422, "invalid-request")
    assert refused["detail"].startswith(f"the body: {detail}")


@also_on_a_cluster
@pytest.mark.parametrize("action", ["cancel", "resubmit", "remove"])
async def test_a_job_that_has_changed_since_it_was_seen_is_left_alone(action: str) -> None:
    async with served() as (jobs, client):
        await jobs.set_type_timeout("email", 60)
        seen = (await jobs.add("email", "a")).seq
        path = "/v1/types/email/jobs/a"

        async def act(seq: str) -> httpx.Response:
            if action == "remove":
                return await client.delete(path, params={"seq": seq})
            return await client.post(f"{path}/{action}", json={"seq": seq})

        job = await jobs.accept("email")
        assert job is not None
        assert seen is not None
        ended = await job.finish(outcome=Outcome.FAILED, result=7)
        refused = problem(await act(seen.hex()), 409, "job-changed")
        assert refused["detail"].endswith("has changed since it was looked at: it is failed now; nothing was done")
        assert (await jobs.get("email", "a")) == ended
        for odd in ("", "00", "zz" * 12):
            assert (await act(odd)).status_code == 422
        now = (await client.get(path)).json()["seq"]
        assert (await act(now)).status_code == 200
        if action == "cancel":
            assert (await jobs.get("email", "a")) == ended
        elif action == "resubmit":
            assert (await jobs.get("email", "a")).state == "pending"
            problem(await act(now), 409, "job-changed")
        else:
            problem(await client.get(path), 404, "job-not-found")
