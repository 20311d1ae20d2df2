"""The shell examples of the pages, typed as they stand there."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jobs_service import JobError, JobsService, Outcome
from jobs_service.service.bulk_actions import TYPE, BulkActions
from tests.cli.conftest import Invoke
from tests.cli.support import HANG, process, serving
from tests.docs.pages import ROOT, examples, read, rows

TOUR, FILTERS, BULK_VERBS, PROCESSES = examples("docs/command-line.md", "sh")
_, SCREEN, MOVE = examples("README.md", "sh")
BACKUP, VERIFY = examples("docs/stores.md", "sh")
[BULK] = examples("docs/dashboard.md", "sh")
[SUBMIT] = examples("docs/handlers.md", "sh")
[BENCH] = examples("docs/performance.md", "sh")
CLUSTER, _, COPY = examples("docs/foundationdb.md", "sh")


def commands(example: str) -> list[list[str]]:
    """Return the command lines of an example without the program's name."""
    lines = [shlex.split(line, comments=True) for line in example.splitlines()]
    return [line[1:] for line in lines if line and line[0] == "jobs-service"]


def test_the_tour_of_the_command_line_runs_as_it_stands(invoke: Invoke) -> None:
    printed = {}
    for command in commands(TOUR):
        done = invoke(*command)
        assert done.code == 0, (command, done.err)
        printed[command[0]] = done.out
    assert "welcome-42" in printed["list"]
    assert "reminder-42" in printed["list"]
    assert "ada@example.org" in printed["show"]
    assert "email" in printed["stats"]


def test_the_filters_of_the_page_find_a_job_that_they_mean(invoke: Invoke, email: str) -> None:
    async def fail() -> None:
        async with JobsService(email) as jobs:
            await jobs.add("email", "welcome-42", {"to": "ada@example.org"})
            job = await jobs.accept("email")
            assert job is not None
            await job.finish(outcome=Outcome.FAILED, error=JobError("TimeoutError", "SMTP does not answer"))

    asyncio.run(fail())
    of_errors, of_runs, of_data = commands(FILTERS)
    for command in (of_errors, of_data):
        assert [job["id"] for job in invoke(*command, "-o", "json", "--store", email).json_lines] == ["welcome-42"]
    done = invoke(*of_runs, "-o", "json", "--store", email)
    assert (done.code, done.out, done.err) == (0, "", "")  # it has run once, a moment ago


def test_many_jobs_are_changed_as_the_page_says(invoke: Invoke, email: str) -> None:
    async def fill() -> None:
        async with JobsService(email) as jobs:
            await jobs.add("email", "welcome-42")
            job = await jobs.accept("email")
            assert job is not None
            await job.finish(outcome=Outcome.FAILED, error=JobError("TimeoutError", "SMTP does not answer"))

    asyncio.run(fill())
    said = [invoke(*command, "--store", email) for command in commands(BULK_VERBS)]
    assert [(done.code, done.out.splitlines()[-1]) for done in said] == [
        (0, "1 job of type email matches"),
        (0, "1 job of type email retried"),
        (0, "0 jobs of type email match"),
    ]


def test_the_screen_of_the_readme_runs_as_it_stands(invoke: Invoke, tmp_path: Path) -> None:
    ended = [(command, invoke(*command)) for command in commands(SCREEN)]
    assert [(command, end.err) for command, end in ended if end.code] == []
    assert "ada@example.org" in "".join(end.out for _, end in ended)
    assert (tmp_path / "copy.mdb").exists()


def test_a_backup_is_restored_as_the_page_says(invoke: Invoke, email: str, tmp_path: Path) -> None:
    [command] = commands(BACKUP)
    assert invoke(*command, "--store", email).code == 0
    (tmp_path / "restored").mkdir()
    (tmp_path / command[-1]).rename(tmp_path / "restored" / "data.mdb")
    assert "email" in invoke("types", "--store", f"lmdb:{tmp_path / 'restored'}").out


def test_a_store_is_verified_as_the_page_says(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke("types", "set", "email", "30", "--store", "sqlite:app.db").code == 0
    [command] = commands(VERIFY)
    assert invoke(*command).code == 0


async def test_a_bulk_action_is_added_as_the_page_says(invoke: Invoke, tmp_path: Path) -> None:
    store = f"lmdb:{tmp_path}/jobs"
    async with JobsService(store) as jobs:
        await jobs.set_type_timeout("email", 30)
        for to in ("ada@example.org", "bob@example.com"):
            await jobs.add("email", to, {"to": to})
            job = await jobs.accept("email")
            assert job is not None
            await job.finish(outcome=Outcome.FAILED, error=JobError("TimeoutError", "no answer"))
    program, *words = shlex.split(BULK.replace("\\\n", ""))
    added = await asyncio.to_thread(invoke, *words, "--store", store)
    assert (program, added.code, added.err) == ("jobs-service", 0, "")
    id = added.out.strip()
    async with JobsService(store) as jobs:
        bulk = BulkActions(jobs)
        bulk.start()
        await jobs.wait(TYPE, id, "finished", timeout=HANG)
        await bulk.close()
        assert (await jobs.get(TYPE, id)).result == {"read": 2, "matched": 1, "changed": 1, "too_large": 0}
        assert (await jobs.get("email", "ada@example.org")).state == "pending"


def test_a_command_is_submitted_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [words] = commands(SUBMIT)
    (tmp_path / "convert").write_text("#!/bin/sh\necho converted $1\nexit 3\n")
    (tmp_path / "convert").chmod(0o755)
    where = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "JOBS_SERVICE_STORE": f"lmdb:{tmp_path / 'store'}"}
    with serving("--commands", cwd=tmp_path, env=where):
        done = process(*words, cwd=tmp_path, env=where)
    assert (done.code, done.out) == (3, "converted cat.png\n")


def test_a_process_is_asked_what_the_page_says(invoke: Invoke, email: str, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        f"from jobs_service import JobsService\njobs = JobsService({email!r})\n"
        "@jobs.handler('email')\nasync def email(): ...\n"
    )
    look, *asking = commands(PROCESSES)
    assert [action for _, action, _ in asking] == ["quiet", "resume", "stop"]
    with serving("app:jobs", cwd=tmp_path) as daemon:
        found: list[Any] = []
        while not found:  # its row is written once its handlers run
            found = invoke(*look, "-o", "json", "--store", email).json_lines
        assert [process["pid"] for process in found] == [daemon.pid]
        for verb, action, _ in asking:
            assert invoke(verb, action, found[0]["id"], "--store", email).code == 0
        assert daemon.wait(HANG) == 0


@pytest.mark.parametrize("example", [COPY, MOVE])
def test_a_store_is_copied_as_the_pages_say(invoke: Invoke, tmp_path: Path, example: str) -> None:
    [(verb, source, target)] = commands(example)
    assert target.startswith("fdb:")  # for want of a cluster, the copy is made into another embedded store
    assert invoke("types", "set", "email", "60", "--store", source).code == 0
    assert invoke("add", "email", "one", "--store", source).code == 0
    assert invoke(verb, source, f"lmdb:{tmp_path / 'target'}").code == 0
    assert "one" in invoke("list", "email", "--store", f"lmdb:{tmp_path / 'target'}").out


def test_a_daemon_is_started_on_the_store_of_the_environment(tmp_path: Path) -> None:
    export, serve = CLUSTER.splitlines()
    assert export.startswith("export JOBS_SERVICE_STORE=fdb:/")
    application = examples("docs/handlers.md")[0]
    (tmp_path / "app.py").write_text(application, encoding="utf-8")
    [words] = commands(serve)
    with serving(*words[1:], cwd=tmp_path, env={"JOBS_SERVICE_STORE": f"lmdb:{tmp_path / 'store'}"}):
        assert (tmp_path / "store" / "data.mdb").exists()


def test_the_bench_takes_the_options_that_the_page_gives_it() -> None:
    source = (ROOT / "scripts" / "bench.py").read_text(encoding="utf-8")
    for line in BENCH.splitlines():
        program, *words = shlex.split(line, comments=True)
        assert (ROOT / program).exists()
        for word in words:
            assert f'"{word}"' in source, word


def test_the_bench_measures_what_needs_no_fixed_time() -> None:
    names = "add_concurrent add_many accept_finish rows outbox sync_add runner http_jobs http_client http_events"
    command = [sys.executable, str(ROOT / "scripts" / "bench.py"), "--scale", "0.001", "--json", *names.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert all(json.loads(line)["value"] > 0 for line in done.stdout.splitlines() if "more_ms" not in line)


def test_every_figure_of_the_page_is_one_that_the_bench_measures() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "scripts" / "benchmarks").glob("*.py"))
    names = [
        name
        for table in ("figure | quiet | busy |", "figure over HTTP | quiet | busy |", "figure | measured | goal | what")
        for row in rows(read("docs/performance.md"), table)
        for name in row[0].replace("`", "").split(", ")
    ]
    assert names
    for name in names:
        assert f'"{name}"' in source, name


async def finish_one(address: str) -> None:
    """Take a job and finish it."""
    async with JobsService(address, supervise=False) as jobs:
        job = await jobs.accept("email")
        assert job is not None
        await job.finish()


OBJECTS = {
    verb: [name for quoted in cells.split("`")[1::2] for name in quoted.split(", ")]
    for verbs, cells in reversed(rows(read("docs/command-line.md"), "verb | object"))  # the first row of a verb counts
    for verb in re.findall(r"`([a-z -]+)`", verbs)
}


@pytest.mark.parametrize(
    "command",
    [
        "add email one -o json",
        "resubmit email two -o json",
        "show email two -o json",
        "list email -o json",
        "types -o json",
        "types set email 31 -o json",
        "types clear email -o json",
        "pause email -o json",
        "resume email -o json",
        "add-many email {lines} -o json",
        "retention email --keep 2d -o json",
        "stats email -o json",
        "watch email two -o json",
        "top --once -o json",
        "remove email two -o json",
        "cancel email two -o json",
        "retry email two -o json",
        "run email two -o json",
        "health -o json",
        "backup {directory}/copy -o json",
    ],
)
def test_what_a_verb_prints_as_json_has_the_fields_of_the_table(
    invoke: Invoke, email: str, tmp_path: Path, command: str
) -> None:
    assert invoke("add", "email", "two", "--store", email).code == 0
    (tmp_path / "lines").write_text('{"id": "three"}\n')
    if command.startswith("watch"):
        asyncio.run(finish_one(email))
    words = shlex.split(command.format(lines=tmp_path / "lines", directory=tmp_path))
    done = invoke(*words, "--store", email)
    verb = " ".join(words[:2]) if " ".join(words[:2]) in OBJECTS else words[0]
    assert {*done.json_lines[0]} == {*OBJECTS[verb]}, done.err
