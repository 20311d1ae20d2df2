"""What holds for every address."""

from __future__ import annotations

import time

from tests.http.support import problem, served


async def test_it_lives_is_ready_and_tells_who_asks() -> None:
    async with served() as (_, client):
        assert (await client.get("/livez")).json() == {"status": "alive"}
        assert (await client.get("/readyz")).json() == {"status": "ready"}
        assert (await client.get("/v1/me")).json()["role"] == "admin"
        assert (await client.get("/v1/supervision")).json()["name"] == "JobsService"


async def test_a_service_that_is_left_is_not_ready() -> None:
    async with served() as (jobs, client):
        await jobs.__aexit__(None, None, None)
        assert (await client.get("/readyz")).status_code == 503
        problem(await client.get("/v1/types"), 503, "service-closed")
        await jobs.__aenter__()
        assert (await client.get("/readyz")).json() == {"status": "ready"}
        await jobs.set_type_timeout("email", 30)
        await jobs.add("email", "a", run_at=time.time() + 0.05)
        [job] = (await client.post("/v1/types/email/accept", json={"timeout": 20})).json()["jobs"]
        assert job["id"] == "a"


async def test_every_answer_says_how_a_browser_may_use_it() -> None:
    async with served() as (_, client):
        headers = (await client.get("/v1/types")).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
