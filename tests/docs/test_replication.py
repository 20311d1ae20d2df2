"""The page on replication: its examples run against two small servers, its table has every option."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from jobs_service import JobsService
from jobs_service.replication.options import ReplicationOptions
from tests.cli.support import HANG, serving, started
from tests.docs.pages import examples, read
from tests.replication.server import Server

MAIN, TAKE_OVER = examples("docs/replication.md")
[SHELL] = examples("docs/replication.md", "sh")


async def test_the_first_example_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JOBS_SERVICE_STORE", f"lmdb:{tmp_path / 'store'}")
    names: dict[str, Any] = {}
    exec(MAIN, names)
    async with Server() as server:
        server.database("from").write({"_id": "doc"}, True)
        await names["main"](f"{server.url}/from", f"{server.url}/to")
        assert list(server.databases["to"].documents) == ["doc"]
    assert "1 documents; 0 were refused\n" in capsys.readouterr().out


async def test_a_document_is_taken_over(tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    exec(TAKE_OVER, names)
    file = tmp_path / "document.json"
    file.write_text(json.dumps({"source": "http://a/x", "target": "http://b/y", "checkpoint_interval": 5000}))
    async with JobsService("memory:") as jobs:
        job = await names["take_over"](jobs, file)
    assert job.data["options"]["checkpoint_interval"] == 5.0


def test_the_table_has_every_option_with_its_default() -> None:
    rows = re.findall(r"^\| (`[a-z_`, ]+) \| (.*?) \|", read("docs/replication.md"), re.MULTILINE)
    defaults = {name: default for names, default in rows for name in re.findall(r"`(\w+)`", names)}
    fields = {name: field.default for name, field in ReplicationOptions.__dataclass_fields__.items()}
    assert defaults.keys() == fields.keys() - {"source", "target"}
    for name in ("checkpoint_interval", "worker_batch_size", "http_connections", "connection_timeout", "strict"):
        assert f"{fields[name]:g}" in defaults[name] or str(fields[name]) in defaults[name]


@pytest.mark.timeout(HANG)
async def test_the_commands_run(tmp_path: Path) -> None:
    serve, *others = SHELL.splitlines()
    env = {"JOBS_SERVICE_STORE": f"lmdb:{tmp_path / 'store'}"}
    async with Server() as one, Server() as other:
        one.database("orders").write({"_id": "doc"}, True)

        def words(line: str) -> list[str]:
            line = line.replace("http://127.0.0.1:5984", one.url).replace("http://127.0.0.1:5985", other.url)
            program, *found = line.split()
            assert program == "jobs-service"
            return found

        def run() -> list[str]:
            told = []
            with serving(*words(serve)[1:], cwd=tmp_path, env=env):
                for line in others:
                    with started(*words(line), cwd=tmp_path, env=env) as process:
                        out, error = process.communicate()
                        assert process.returncode == 0, error
                        told.append(out)
            return told

        once, continuous, listed = await asyncio.to_thread(run)
        assert [*other.databases["orders"].documents] == ["doc"]
    assert once == "1 document written\n"
    assert continuous.strip() in listed
    assert listed.count("orders") == 4
