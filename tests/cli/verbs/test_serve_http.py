"""`serve --http`, as real processes where it serves, and `token`."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from subprocess import Popen

import httpx

from tests.cli.conftest import Invoke
from tests.cli.support import HANG, event_named, started

EVERY = """
from jobs_service import JobsService

jobs = JobsService("memory:")

@jobs.handler("email")
async def email(job): ...
"""


@contextmanager
def serving_http(*arguments: str, cwd: Path) -> Iterator[tuple[Popen[str], str, dict[str, str]]]:
    """Run the daemon at a free port for the block's time; yield it, its address, and headers with its token."""
    (cwd / "app.py").write_text(EVERY)
    with started("serve", "app:jobs", "--http", "127.0.0.1:0", *arguments, cwd=cwd) as daemon:
        try:
            event = event_named(daemon, "http_serving")
            event_named(daemon, "serving")
            yield daemon, event["url"], {"Authorization": f"Bearer {Path(event['token_file']).read_text().strip()}"}
        finally:
            daemon.kill()


def test_it_answers_and_ends_what_waits_when_it_is_to_end(tmp_path: Path) -> None:
    with (
        serving_http(cwd=tmp_path) as (daemon, url, headers),
        httpx.Client(base_url=url, timeout=HANG, headers=headers) as client,
    ):
        client.put("/v1/types/other", json={"timeout": 30}).raise_for_status()
        waiting = HTTPConnection("127.0.0.1", httpx.URL(url).port, timeout=HANG)
        # The server knows the connection, so that it reads what is sent there before what is sent later elsewhere.
        waiting.request("GET", "/livez")
        waiting.getresponse().read()
        headers["Content-Type"] = "application/json"
        waiting.request("POST", "/v1/types/other/accept", b'{"timeout": 30}', headers)
        with client.stream("GET", "/v1/types/other/events") as response:
            lines = response.iter_lines()
            assert next(lines) == "retry: 1000"
            daemon.send_signal(signal.SIGTERM)
            assert [line for line in lines if line.startswith("event:")] == []
        with closing(waiting):
            assert waiting.getresponse().read() == b'{"jobs":[]}'
        assert daemon.wait(HANG) == 0


def test_others_than_this_machine_need_a_token(store: str, invoke: Invoke) -> None:
    refused = invoke("--store", store, "serve", "--http", "0.0.0.0:0")
    assert refused.code == 2
    assert "jobs-service token add" in refused.err


def test_tokens_are_added_listed_and_removed(store: str, invoke: Invoke) -> None:
    token = invoke("--store", store, "token", "add", "grafana", "--role", "read").out.strip()
    assert token.startswith("jst_")
    assert invoke("--store", store, "token", "add", "grafana", "--role", "read").code == 1
    assert invoke("--store", store, "token", "add", "x", "--role", "king").code == 2
    assert invoke("--store", store, "token", "add", "a b", "--role", "read").code == 2
    listed = invoke("--store", store, "token", "list", "-o", "json")
    assert (listed.json["name"], listed.json["role"]) == ("grafana", "read")
    assert token not in listed.out
    assert invoke("--store", store, "token", "remove", "grafana").code == 0
    assert invoke("--store", store, "token", "remove", "grafana").code == 1


def test_a_token_is_added_and_removed_as_json(store: str, invoke: Invoke) -> None:
    added = json.loads(invoke("--store", store, "token", "add", "node", "--role", "work", "-o", "json").out)
    assert (added["name"], added["role"]) == ("node", "work")
    assert added["token"].startswith("jst_")
    assert json.loads(invoke("--store", store, "token", "remove", "node", "-o", "json").out) == {"name": "node"}
