"""A password is in nothing that is written, printed or answered: store, log, command line, HTTP, pages, events."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from jobs_service import Job
from jobs_service.replication import replicate
from tests.cli.conftest import Invoke
from tests.http.support import running as serving
from tests.replication.jobs import running, until
from tests.replication.server import Oddities, Server
from tests.replication.support import write_branch

SECRET = "hunter2-marker"
PAGES = (
    "/",
    "/type?type={type}",
    "/job?type={type}&id={id}",
    "/job/new?type={type}&from={id}",
    "/download?type={type}&id={id}&part=data",
    "/download?type={type}&id={id}&part=error",
    "/export?type={type}",
    "/export?type={type}&format=csv",
    "/failures",
    "/system",
    "/search?q={id}",
)


@pytest.mark.parametrize("given", ["inline", "wrong", "env:REPLICATION_MARKER", "file:{}", "secret:marker"])
async def test_it_is_nowhere(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], invoke: Invoke
) -> None:
    monkeypatch.setenv("REPLICATION_MARKER", SECRET)
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    inline = {"inline": SECRET, "wrong": f"{SECRET}-wrong"}
    password = inline.get(given, given).format(tmp_path / "secret")
    store = f"lmdb:{tmp_path / 'store'}"
    told: dict[str, str] = {}
    async with Server(Oddities(users={"ada": SECRET})) as source, Server() as target:
        write_branch(source.database("db"), "doc", 1, "x")
        source.database("db"), target.database("db")
        ends: tuple[Any, str] = (
            {"url": f"{source.url}/db", "auth": {"basic": {"username": "ada", "password": password}}},
            f"{target.url}/db",
        )
        with capture_logs() as logs:
            async with (
                running(store, {"marker": SECRET}.__getitem__) as jobs,
                serving(jobs) as url,
                httpx.AsyncClient(base_url=url, timeout=30) as client,
            ):
                job = await replicate(jobs, *ends)
                if given == "wrong":
                    await until(jobs, job, lambda job: job.error is not None)
                else:
                    await jobs.result(job.type, job.id)
                for path in await addresses(client, job):
                    answer = await client.get(path)
                    assert answer.status_code < 500, path
                    told[path] = answer.text + repr(answer.headers)
                told["events"] = await heard(client, job)
    printed = capsys.readouterr()
    await asyncio.to_thread(tell, invoke, store, job, told)
    told |= {"stdout": printed.out, "stderr": printed.err, "log": json.dumps(logs, default=repr)}
    assert "replication_started" in told["log"] or given == "wrong"
    assert [name for name, text in told.items() if SECRET in text] == []
    assert sum(f"{job.id!s}" in text for text in told.values()) > 10  # it was looked for where it could have been
    if given not in inline:
        files = [each for each in (tmp_path / "store").rglob("*") if each.is_file()]
        assert [each for each in files if SECRET.encode() in each.read_bytes()] == []


async def addresses(client: httpx.AsyncClient, job: Job) -> list[str]:
    """Return everything that can be read over HTTP of a job and beside it, but what never ends."""
    paths = (await client.get("/openapi.json")).json()["paths"]
    names = {"type": str(job.type), "id": str(job.id), "problem": "not-found", "schedule": "nightly"}
    found = [path for path, methods in paths.items() if "get" in methods and "events" not in path]
    return [each.format(**names) for each in (*found, *PAGES)]


async def heard(client: httpx.AsyncClient, job: Job) -> str:
    """Return the first event of a job, which says how it is."""
    lines = []
    async with client.stream("GET", f"/v1/types/{job.type!s}/jobs/{job.id!s}/events") as answer:
        async for line in answer.aiter_lines():
            lines.append(line)
            if lines and not line and any(each.startswith("data:") for each in lines):
                break
    return "\n".join(lines)


def tell(invoke: Invoke, store: str, job: Job, told: dict[str, str]) -> None:
    """Add what the command line prints."""
    name = [str(job.type), str(job.id)]
    for verb in (["replications"], ["list"], ["show", *name], ["stats"], ["types"]):
        for form in ([], ["-o", "json"]):
            ended = invoke(*verb, *form, "--store", store)
            told[" ".join([*verb, *form])] = ended.out + ended.err
    told["printed"] = json.dumps(job.to_dict()) + repr(job)
