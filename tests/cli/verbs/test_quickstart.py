"""`quickstart`, as a real process with real workers, one of which is really killed."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
from itertools import groupby
from pathlib import Path

import pytest

from jobs_service import JobsService, JobState
from jobs_service.cli.verbs.quickstart.next_steps import next_steps
from jobs_service.cli.verbs.quickstart.worker import LEAST_SETTINGS, SEARCH_SECONDS
from tests.cli.support import ROOT, Ended, environment, is_alive, on_terminal, process, started, without_escapes
from tests.shares import ALL

LIFE = ["ready", "running", "ready", "running", "succeeded"]
HANG = 110


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """Where the quickstart makes its temporary directory."""
    directory = tmp_path / "temporary"
    directory.mkdir()
    return directory


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An empty working directory."""
    directory = tmp_path / "home"
    directory.mkdir()
    return directory


def states(text: str) -> list[str]:
    """Return the states that the archive job went through, without repetitions."""
    return [state for state, _ in groupby(re.findall(r"archive job: (\w+)", text))]


def worker_pids(text: str) -> list[int]:
    """Return the ids of the worker processes."""
    flat = " ".join(text.split())
    first = re.search(r"A \(pid (\d+)\) for the archive, B \((\d+)\) and C \((\d+)\)", flat)
    other = re.search(r"D \(pid (\d+)\)", flat)
    return [int(pid) for match in (first, other) if match for pid in match.groups()]


def commands(text: str) -> list[str]:
    """Return the commands that it recommends."""
    _, _, after = text.partition("Three commands to try next:\n")
    return [line.strip() for line in after.splitlines()]


def test_it_shows_a_job_lost_with_its_worker_and_finished_by_another(home: Path, temporary: Path) -> None:
    shown = process("quickstart", cwd=home, env={"TMPDIR": str(temporary)})
    assert (shown.code, shown.err) == (0, "")
    assert states(shown.out) == LIFE
    pids = worker_pids(shown.out)
    assert len(set(pids)) == 4
    assert f"kill -9 {pids[0]}" in shown.out
    assert not any(map(is_alive, pids))
    assert list(temporary.iterdir()) == []
    _check_table(shown)
    _check_layout(shown)
    _check_commands(commands(shown.out), home)


@pytest.mark.unmeasured
@pytest.mark.skipif(not ALL, reason="it is the whole story again, which takes long: scripts/test --long cases runs it")
def test_a_demonstration_that_is_slow_finds_its_first_worker_at_work(home: Path, temporary: Path) -> None:
    """The worker does not end before it is killed, however late that comes."""
    with started("quickstart", cwd=home, env={"TMPDIR": str(temporary)}) as telling:
        assert telling.stdout is not None
        told = ""
        for line in telling.stdout:
            told += line
            if "archive job: running" in line:
                break
        telling.send_signal(signal.SIGSTOP)
        asyncio.run(_long_at_work(next(temporary.glob("*/store"))))
        telling.send_signal(signal.SIGCONT)
        out, err = telling.communicate(timeout=HANG)
    assert (telling.returncode, err) == (0, "")
    assert states(told + out) == LIFE


async def _long_at_work(store: Path) -> None:
    """Wait until the first worker has tried more settings than any needs to."""
    async with JobsService(f"lmdb:{store}", supervise=False) as jobs:
        deadline = asyncio.get_running_loop().time() + SEARCH_SECONDS
        while (job := await jobs.get("archive", "package")).state is not JobState.FINISHED:
            if job.data.get("tried", 0) > LEAST_SETTINGS and asyncio.get_running_loop().time() > deadline:
                return
            await asyncio.sleep(0.05)


def _check_table(shown: Ended) -> None:
    """Every file is counted, and the numbers are those of real compression."""
    files = len(list((ROOT / "jobs_service").rglob("*.py")))
    one_by_one = re.search(r"^all, one by one +(\d+) +(\d+) +\d+%  ", shown.out, re.MULTILINE)
    archive = re.search(r"^all, in one archive +(\d+) +(\d+) +\d+%  D$", shown.out, re.MULTILINE)
    assert one_by_one
    assert archive
    assert f"{files} compress jobs are added" in shown.out
    assert f"\n{files - 5} smaller files " in shown.out
    assert int(one_by_one[1]) == sum(path.stat().st_size for path in (ROOT / "jobs_service").rglob("*.py"))
    assert 0 < int(archive[2]) < int(one_by_one[2]) < int(one_by_one[1])


def _check_layout(shown: Ended) -> None:
    assert "\x1b" not in shown.out
    told = shown.out.partition("Three commands")[0].splitlines()
    assert max(len(line) for line in told if str(ROOT) not in line and "lmdb:" not in line) <= 80


def _check_commands(recommended: list[str], home: Path) -> None:
    """They work as they were printed, typed into a shell in an empty directory."""
    assert len(recommended) == 3
    for command in recommended:
        typed = subprocess.run(command, shell=True, cwd=home, env=environment(), capture_output=True, check=False)
        assert (typed.returncode, typed.stderr) == (0, b""), command
    assert b"first" in typed.stdout


@pytest.mark.unmeasured
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["INT", "TERM"])
def test_nothing_is_left_when_somebody_stops_it(home: Path, temporary: Path, number: signal.Signals, code: int) -> None:
    with started("quickstart", cwd=home, env={"TMPDIR": str(temporary)}) as telling:
        assert telling.stdout is not None
        told = ""
        for line in telling.stdout:
            told += line
            if "archive job: running" in line:
                break
        pids = worker_pids(told)
        assert len(pids) == 3
        telling.send_signal(number)
        out, err = telling.communicate(timeout=HANG)
    assert (telling.returncode, err) == (code, ""), out
    assert not any(map(is_alive, pids))
    assert list(temporary.iterdir()) == []


@pytest.mark.unmeasured
def test_a_terminal_gets_colours_and_the_same_story_and_nothing_is_left_when_it_goes_away(
    home: Path, temporary: Path
) -> None:
    code, shown = on_terminal(
        "quickstart",
        cwd=home,
        env={"TMPDIR": str(temporary)},
        ended_at=("archive job: running", signal.SIGHUP),
    )
    assert code == 129
    assert "\x1b[3" in shown
    plain = without_escapes(shown)
    assert states(plain) == LIFE[:2]
    assert "jobs-service:" not in plain
    pids = worker_pids(plain)
    assert len(pids) == 3
    assert not any(map(is_alive, pids))
    assert list(temporary.iterdir()) == []


def test_commands_are_spelled_for_where_they_are_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binaries = tmp_path / "a b" / "bin"
    binaries.mkdir(parents=True)
    monkeypatch.setattr("sys.executable", str(binaries / "python"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert next_steps()[0] == f"'{binaries}/python' -m jobs_service types set email 60"
    script = binaries / "jobs-service"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    assert next_steps()[0] == "'a b/bin/jobs-service' types set email 60"
    monkeypatch.chdir(binaries)
    assert next_steps()[0] == "./jobs-service types set email 60"
    monkeypatch.chdir("/")
    monkeypatch.setenv("PATH", str(binaries))
    assert next_steps()[0] == "jobs-service types set email 60"
