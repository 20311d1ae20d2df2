"""Types over HTTP."""

from __future__ import annotations

import pytest

from tests.http.support import problem, served


async def test_a_type_is_made_changed_and_taken_away() -> None:
    async with served() as (jobs, client):
        problem(await client.get("/v1/types/email"), 404, "no-type-timeout")
        made = await client.put("/v1/types/email", json={"timeout": 30})
        assert made.json() == {"type": "email", "timeout": 30.0, "paused": False, "keep": None, "keep_failed": None}
        changed = await client.put("/v1/types/email", json={"keep": 60, "keep_failed": 3600})
        assert changed.json()["keep_failed"] == 3600
        assert await jobs.get_type_timeout("email") == 30
        assert (await client.get("/v1/types")).json() == {"types": [changed.json()]}
        assert (await client.delete("/v1/types/email")).status_code == 204
        assert await jobs.types() == []


async def test_a_type_is_paused_and_resumed() -> None:
    async with served() as (jobs, client):
        await jobs.set_type_timeout("email", 30)
        assert (await client.post("/v1/types/email/pause")).json()["paused"] is True
        assert await jobs.paused("email")
        assert (await client.post("/v1/types/email/resume")).json()["paused"] is False


@pytest.mark.parametrize(
    ("path", "type"),
    [
        ("a%2Fb", "a/b"),
        ("json:7", 7),
        ("json:%5B%22a%22,1%5D", ("a", 1)),
        ("json:%7B%22bytes%22:%2200ff%22%7D", b"\x00\xff"),
        ("%C3%BC%20%25", "ü %"),
    ],
)
async def test_a_type_is_one_segment_whatever_it_is(path: str, type: object) -> None:
    async with served() as (jobs, client):
        response = await client.put(f"/v1/types/{path}", json={"timeout": 5})
        assert response.status_code == 200
        [found] = await jobs.types()
        assert found == type
        assert (await client.get(f"/v1/type?type={path}")).json() == response.json()


async def test_what_is_no_type_is_refused() -> None:
    async with served() as (_, client):
        problem(await client.put("/v1/types/email", json={"timeout": -1}), 422, "invalid-job")
        problem(await client.put("/v1/types/email", json={"timeout": "soon"}), 422, "invalid-job")
        problem(await client.put("/v1/types/email", json={"timeouts": 30}), 422, "invalid-request")
        problem(await client.put("/v1/types/email", content=b"{"), 415, "unsupported-media-type")
        kind = {"Content-Type": "application/json"}
        problem(await client.put("/v1/types/email", content=b"{", headers=kind), 400, "bad-request")


async def test_counts_throughput_and_the_queue() -> None:
    async with served() as (jobs, client):
        await jobs.set_type_timeout("email", 30)
        await jobs.add("email", "a")
        assert (await client.get("/v1/types/email/counts")).json()["ready"] == 1
        assert (await client.get("/v1/counts")).json()["types"][0]["type"] == "email"
        assert (await client.get("/v1/types/email/pending?limit=5")).json() == {"count": 1}
        assert (await client.get("/v1/types/email/active")).json() == {"ids": []}
        assert (await client.get("/v1/types/email/queue")).json()["id"] == "a"
        assert (await client.get("/v1/types/email/oldest")).json()["job"]["id"] == "a"
        assert (await client.get("/v1/ticks")).json() == {"ticks": []}
        assert (await client.get("/v1/types/email/throughput?since=2026-01-01")).status_code == 422
