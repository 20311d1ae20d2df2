"""Whoever has started a daemon needs no token of the store: theirs is in a file that nobody else reads."""

from __future__ import annotations

import signal
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest

from jobs_service import JobsClient, JobsService
from jobs_service.http import token_file
from jobs_service.http.server import Address, serving
from jobs_service.http.state import ServerOptions
from tests.cli.support import HANG, event_named, on_terminal, started, without_escapes
from tests.http.support import problem

ANYWHERE = Address("127.0.0.1:0", ServerOptions())


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this user's programs keep their state."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


async def test_a_client_of_the_same_user_finds_the_token_and_strangers_may_nothing(state_home: Path) -> None:
    async with JobsService("memory:") as jobs, serving(jobs, ANYWHERE) as server:
        [file] = (state_home / "jobs-service").iterdir()
        assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
        async with JobsClient(server.url) as mine, httpx.AsyncClient(base_url=server.url) as stranger:
            await mine.set_type_timeout("email", 30)
            await mine.clear_type_timeout("email")
            problem(await stranger.get("/v1/types"), 401, "unauthorized")
            problem(await stranger.put("/v1/types/email", json={"timeout": 30}), 401, "unauthorized")
            assert (await stranger.get("/v1/me")).json()["role"] == "nobody"
            page = await stranger.get("/failures")
            assert (page.status_code, page.headers["location"]) == (303, "/login?next=%2Ffailures")
    assert [*file.parent.iterdir()] == []


async def test_a_daemon_that_is_started_anew_has_another_token_and_its_clients_go_on() -> None:
    async with JobsService("memory:") as jobs, AsyncExitStack() as stack:
        async with serving(jobs, ANYWHERE) as server:
            url = server.url
            token = token_file.found(url)
            client = await stack.enter_async_context(JobsClient(url))
            await client.types()
            cookie = await _logged_in(server.login_url())
        async with serving(jobs, Address(url.removeprefix("http://"), ServerOptions())):
            await client.types()
            assert token_file.found(url) not in (None, token)
            async with httpx.AsyncClient(base_url=url) as other:
                for headers in ({"Authorization": f"Bearer {token}"}, {"Cookie": cookie}):
                    problem(await other.get("/v1/types", headers=headers), 401, "unauthorized")


@pytest.mark.parametrize("url", ["http://192.0.2.1:8700", "http://jobs.example:8700", "http://127.0.0.1.evil:8700"])
def test_the_token_is_for_this_machine_alone(url: str) -> None:
    with token_file.kept("127.0.0.1", 8700, "jst_mine"):
        assert token_file.found(url) is None
        assert token_file.found("http://127.0.0.1:8700/jobs") == "jst_mine"
        # Another user may listen there.
        assert token_file.found("http://[::1]:8700") is None
        assert token_file.found("http://127.0.0.2:8700") is None
    with token_file.kept("::1", 8700, "jst_other"):
        assert token_file.found("http://[::1]:8700") == "jst_other"
        assert token_file.found("http://127.0.0.1:8700") is None
    with token_file.kept("0.0.0.0", 8700, "jst_mine"):
        assert token_file.found("http://127.0.0.1:8700") == "jst_mine"
        assert token_file.found("http://127.0.0.1:8701") is None


async def test_the_address_of_the_start_logs_in_once() -> None:
    async with JobsService("memory:") as jobs, serving(jobs, ANYWHERE) as server:
        url = server.login_url()
        async with httpx.AsyncClient(base_url=server.url) as client:
            assert (await client.head(url)).status_code == 200
            assert (await client.get("/login", params={"code": "x"})).status_code == 401
            answer = await client.get(url)
            assert (answer.status_code, answer.headers["location"]) == (303, "/")
            assert (await client.get("/v1/me")).json()["role"] == "admin"
            assert (await client.post("/logout", data={})).status_code == 303
            assert (await client.get("/v1/me")).json()["role"] == "nobody"
            assert (await client.get(url)).status_code == 401


def test_a_terminal_is_told_where_to_log_in_and_a_log_is_not(tmp_path: Path) -> None:
    arguments = ("--store", "memory:", "serve", "--http", "127.0.0.1:0")
    code, shown = on_terminal(*arguments, cwd=tmp_path, columns=300, ended_at=("/login?code=", signal.SIGTERM))
    assert code == 0
    assert "/jobs-service/" in without_escapes(shown)
    with started(*arguments, cwd=tmp_path) as daemon:
        event = event_named(daemon, "http_serving")
        assert Path(event["token_file"]).read_text().startswith("jst_")
        daemon.terminate()
        _, rest = daemon.communicate(timeout=HANG)
        assert "code=" not in rest


async def _logged_in(url: str) -> str:
    async with httpx.AsyncClient() as client:
        return (await client.get(url)).headers["set-cookie"].partition(";")[0]
