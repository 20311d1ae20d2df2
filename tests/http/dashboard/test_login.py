"""Logging in with a token."""

import httpx

from jobs_service.http.state import Options
from jobs_service.http.tokens import add_token
from tests.http.dashboard.support import text
from tests.http.support import also_on_a_cluster, served


@also_on_a_cluster
async def test_a_token_becomes_a_cookie_that_leads_to_where_one_wanted_to_go() -> None:
    async with served(options=Options()) as (jobs, client):
        token = await add_token(jobs, "ada", "read")
        wanted = (await client.get("/failures")).headers["location"]
        page = (await client.get(wanted)).text
        assert 'name="next" value="/failures"' in page
        answer = await client.post("/login", data={"token": f" {token} ", "next": "/failures"})
        assert (answer.status_code, answer.headers["location"]) == (303, "/failures")
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert token not in cookie
        said = text((await client.get("/failures")).text)
        assert "ada, role read" in said
        assert "Log out" in said
        await client.post("/logout", data={})
        assert (await client.get("/failures")).status_code == 303


async def test_what_is_no_token_is_refused_and_leads_nowhere() -> None:
    async with served(options=Options()) as (jobs, client):
        token = await add_token(jobs, "ada", "read")
        for wrong in ("", "x", token[:-1], "é" * 500):
            answer = await client.post("/login", data={"token": wrong})
            assert answer.status_code == 401
            assert "There is no such token" in answer.text
            assert "set-cookie" not in answer.headers
        answer = await client.post("/login", data={"token": token, "next": "https://evil.example"})
        assert answer.headers["location"] == "/"
        assert "Secure" not in answer.headers["set-cookie"]


async def test_a_page_of_others_logs_nobody_in() -> None:
    async with served(options=Options()) as (jobs, client):
        token = await add_token(jobs, "ada", "read")
        answer: httpx.Response = await client.post(
            "/login", data={"token": token}, headers={"Sec-Fetch-Site": "cross-site"}
        )
        assert answer.status_code == 403
