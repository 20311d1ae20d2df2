"""Logging in with a token."""

import httpx
import pytest

from jobs_service.http.state import ServerOptions
from jobs_service.http.tokens import add_token
from tests.dashboard.support import text
from tests.http.support import served


async def test_a_token_becomes_a_cookie_that_leads_to_where_one_wanted_to_go() -> None:
    async with served(options=ServerOptions()) as (jobs, client):
        token = await add_token(jobs, "ada", "read")
        wanted = (await client.get("/failures")).headers["location"]
        page = (await client.get(wanted)).text
        assert 'name="next" value="/failures"' in page
        answer = await client.post("/login", data={"token": f" {token} ", "next": "/failures"})
        assert (answer.status_code, answer.headers["location"]) == (303, "/failures")
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=lax" in cookie
        assert token not in cookie
        said = text((await client.get("/failures")).text)
        assert "ada, role read" in said
        assert "Log out" in said
        await client.post("/logout", data={})
        assert (await client.get("/failures")).status_code == 303


async def test_what_is_no_token_is_refused_and_leads_nowhere() -> None:
    async with served(options=ServerOptions()) as (jobs, client):
        token = await add_token(jobs, "ada", "read")
        for wrong in ("", "x", token[:-1], "é" * 500):
            answer = await client.post("/login", data={"token": wrong})
            assert answer.status_code == 401
            assert "There is no such token" in answer.text
            assert "set-cookie" not in answer.headers
        answer = await client.post("/login", data={"token": token, "next": "https://evil.example"})
        assert answer.headers["location"] == "/"
        assert "Secure" not in answer.headers["set-cookie"]


@pytest.mark.parametrize(
    "foreign", ['prefs={"dark":1}', 'a="', "a b=c", "é=ü", "=", ";;", "jobs_service_session=1:of-a-server-above"]
)
async def test_the_cookies_of_other_servers_of_the_host_keep_nobody_out(foreign: str) -> None:
    async with served(options=ServerOptions()) as (jobs, client):
        token = await add_token(jobs, "ada", "read")
        login = await client.post("/login", data={"token": token}, headers={b"Cookie": foreign.encode("latin-1")})
        own = login.headers["set-cookie"].partition(";")[0]
        client.cookies.clear()
        for cookies in (f"{foreign}; {own}", f"{own}; {foreign}"):
            answer = await client.get("/failures", headers={b"Cookie": cookies.encode("latin-1")})
            assert answer.status_code == 200, cookies


async def test_a_page_of_others_logs_nobody_in() -> None:
    async with served(options=ServerOptions()) as (jobs, client):
        token = await add_token(jobs, "ada", "read")
        answer: httpx.Response = await client.post(
            "/login", data={"token": token}, headers={"Sec-Fetch-Site": "cross-site"}
        )
        assert answer.status_code == 403
