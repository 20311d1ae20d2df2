"""`replicate` and `replications`; a daemon beside the test copies between two small servers."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from jobs_service import JobError, JobsService, Outcome
from tests.cli.conftest import Invoke
from tests.cli.support import HANG, ROOT, environment, serving

SOURCE, TARGET = "http://source.example/db", "http://target.example/db"


def test_it_prints_the_id_of_the_job(invoke: Invoke, store: str) -> None:
    ended = invoke("replicate", SOURCE, TARGET, "--store", store)
    assert (ended.code, ended.err) == (0, "")
    assert len(ended.out.strip()) == 32
    assert invoke("replicate", SOURCE, TARGET, "--store", store).out == ended.out


def test_options_are_the_jobs(invoke: Invoke, store: str) -> None:
    options = ["--continuous", "--create-target", "--doc-id", "a", "--doc-id", "b", "--strict", "--fail-if-missing"]
    job = invoke("replicate", SOURCE, TARGET, *options, "-o", "json", "--store", store).json
    assert job["type"] == "continuous-replication"
    assert job["data"]["options"] == {
        "source": SOURCE,
        "target": TARGET,
        "continuous": True,
        "create_target": True,
        "doc_ids": ["a", "b"],
        "strict": True,
        "on_missing": "fail",
    }


def test_a_document_of_replicator_has_everything(invoke: Invoke, store: str, tmp_path: Path) -> None:
    document = {"_id": "x", "source": SOURCE, "target": TARGET, "selector": {"a": 1}, "worker_processes": 2}
    (tmp_path / "document.json").write_text(json.dumps(document))
    job = invoke("replicate", "--from-document", "document.json", "-o", "json", "--store", store).json
    assert job["data"]["options"]["selector"] == {"a": 1}
    piped = invoke("replicate", "--from-document", "-", "--store", store, stdin=json.dumps(document).encode())
    assert piped.out.strip() == job["id"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([SOURCE], "name SOURCE and TARGET, or a document with --from-document"),
        (["db", TARGET], "source: allowed are URLs that begin with"),
        ([SOURCE, "http://user:hunter2@"], "target has an invalid url"),
        ([SOURCE, TARGET, "--selector", "{"], "not JSON"),
        ([SOURCE, TARGET, "--selector", "{}", "--doc-id", "x"], "doc_ids and selector: only one of them can be given"),
        ([SOURCE, TARGET, "--filter", "x"], "filter: allowed are"),
        ([SOURCE, TARGET, "--wait", "--continuous"], "it never ends"),
        ([SOURCE, TARGET, "--timeout", "3"], "it limits --wait; give both"),
        ([SOURCE, TARGET, "--from-document", "-"], "it says everything; leave out SOURCE, TARGET"),
        (["--from-document", "-", "--continuous", "--doc-id", "x"], "leave out --continuous, --doc-id"),
        (["--from-document", "-", "--create-target", "--strict"], "leave out --create-target, --strict"),
        (["--from-document", "-", "--filter", "a/b", "--selector", "{}"], "leave out --filter, --selector"),
        (
            ["--from-document", "-", "--fail-if-missing"],
            "it says everything; leave out --fail-if-missing",
        ),
        (["--from-document", "missing.json"], "No such file"),
    ],
)
def test_a_mistake_is_one_line_and_makes_no_store(
    invoke: Invoke, store: str, arguments: list[str], complaint: str
) -> None:
    ended = invoke("replicate", *arguments, "--store", store)
    assert ended.code == 2
    assert complaint in ended.error
    assert "hunter2" not in ended.err
    assert not Path(store.removeprefix("lmdb:")).exists()


def test_a_list_says_how_far_they_are_and_why_they_failed(invoke: Invoke, store: str) -> None:
    async def fail_and_run() -> None:
        async with JobsService(store) as jobs:
            failed = await jobs.accept("replication")
            assert failed is not None
            await failed.finish(outcome=Outcome.FAILED, error=JobError("DatabaseMissing", "there is none", ""))
            running = await jobs.accept("continuous-replication")
            assert running is not None
            await running.update({**running.data, "statistics": {"docs_read": 9, "docs_written": 8}})
            await running.progress(100, 700, "20 documents/s, 1.0 MB/s")

    invoke("replicate", SOURCE, TARGET, "--store", store)
    invoke("replicate", SOURCE, TARGET, "--continuous", "--store", store)
    asyncio.run(fail_and_run())
    failed, running = (
        json.loads(line) for line in invoke("replications", "-o", "json", "--store", store).out.splitlines()
    )
    assert (failed["status"], failed["lag"], failed["pending"]) == ("failed", None, None)
    assert failed["error"] == {"type": "DatabaseMissing", "message": "there is none", "traceback": ""}
    assert (running["status"], running["docs_read"], running["docs_written"]) == ("running", 9, 8)
    assert (running["pending"], running["lag"]) == (600, 30.0)
    heading, *rows = (line.split() for line in invoke("replications", "--store", store).out.splitlines())
    assert "LAG" in heading
    assert rows[0][-4:] == ["DatabaseMissing:", "there", "is", "none"]
    assert "30.0s" in rows[1]


@pytest.fixture(scope="module")
def couch() -> Iterator[str]:
    """The address of a small server."""
    command = [sys.executable, "-m", "tests.replication.server"]
    with subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        yield server.stdout.readline().decode().strip()
        server.terminate()


def put(url: str, value: object = None) -> None:
    """PUT a database or a document."""
    data = None if value is None else json.dumps(value).encode()
    urlopen(Request(url, data, {"Content-Type": "application/json"}, method="PUT")).close()


@pytest.mark.timeout(HANG)
def test_a_daemon_copies_and_waiting_tells_how_it_ended(invoke: Invoke, store: str, couch: str, tmp_path: Path) -> None:
    put(f"{couch}/from")
    for number in range(3):
        put(f"{couch}/from/doc{number}", {"number": number})
    with serving("--store", store, "--replications", cwd=tmp_path) as daemon:
        ends = [f"{couch}/from", f"{couch}/to", "--create-target"]
        options = ["--wait", "--timeout", str(HANG), "--store", store]
        first = invoke("replicate", *ends, *options)
        assert (first.code, first.out, first.err) == (0, "3 documents written\n", "")
        again = invoke("replicate", *ends, *options)
        assert (again.code, again.out) == (0, "no changes\n")
        missing = invoke("replicate", f"{couch}/none", f"{couch}/to", "--fail-if-missing", *options)
        assert missing.code == 1
        assert "the replication failed: " in missing.error
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(HANG) == 0
    with urlopen(f"{couch}/to/doc2") as found:
        assert json.load(found)["number"] == 2
