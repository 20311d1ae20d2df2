"""The README: it is short, and its programs and commands do what it says."""

from __future__ import annotations

import asyncio
import os
import shlex
import subprocess
import sys
from pathlib import Path

from jobs_service import JobsService
from tests.cli.support import HANG, event_named, started
from tests.docs.pages import ROOT, examples, read, rows
from tests.docs.running import run

TEN_LINES, APPLICATION, PROGRAM, PLACE_ORDER, FOLLOW = examples("README.md")
TRY, _, _ = examples("README.md", "sh")


def program(text: str, directory: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", text],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": f"{directory}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_is_short() -> None:
    lines = read("README.md").splitlines()
    assert len(lines) <= 220
    assert not [line for line in lines if len(line) > 120]


def test_what_it_says_to_try_is_there() -> None:
    for line in TRY.splitlines():
        [name] = shlex.split(line, comments=True)
        assert os.access(ROOT / name, os.X_OK)


def test_the_ten_lines_run_as_they_are_and_again_on_the_store_they_left(tmp_path: Path) -> None:
    assert program(TEN_LINES, tmp_path) == "sending to ada@example.org\nfinished\n"
    assert (tmp_path / "jobs-data" / "data.mdb").exists()
    assert program(TEN_LINES, tmp_path).endswith("finished\n")


def test_the_program_waits_for_what_a_daemon_runs(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APPLICATION, encoding="utf-8")
    with started("serve", "app:jobs", cwd=tmp_path) as daemon:
        assert event_named(daemon, "serving")["types"] == ["thumbnail", "nightly"]
        assert program(PROGRAM, tmp_path) == "{'file': 'cat-640.png'}\n"
        daemon.terminate()
        daemon.communicate(timeout=HANG)
        assert daemon.returncode == 0


async def test_an_order_and_its_job_are_written_together_and_the_job_is_followed(jobs: JobsService) -> None:
    printed: list[tuple[object, ...]] = []

    async def work() -> None:
        job = await jobs.accept("email")
        assert job is not None
        await job.finish()

    worker = asyncio.create_task(work())
    await run(PLACE_ORDER + FOLLOW, jobs=jobs, print=lambda *told: printed.append(told))
    await worker
    assert printed[-1] == ("finished", {"order": 42})
    assert await jobs.transact(lambda tx: tx.kv.get(b"orders/42")) == b'{"total": 99}'


def test_its_figures_are_those_of_the_page_of_performance() -> None:
    whole = {
        name.strip("`"): pair
        for names, quiet, busy, _ in rows(read("docs/performance.md"), "figure | quiet | busy |")
        for name, *pair in zip(names.split(", "), quiet.split(", "), busy.split(", "), strict=bool(busy))
    }
    for name, quiet, busy, _ in rows(read("README.md"), "figure | quiet | busy |"):
        assert [each.split()[0] for each in whole[name.strip("`")]] == [quiet.split()[0], busy.split()[0]]
