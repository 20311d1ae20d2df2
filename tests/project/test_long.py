"""`scripts/test --long`: its parts are named as they are documented, and a wrong name is one line."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, read, rows

PARTS = [
    "coverage",
    "soak",
    "runner-soak",
    "worker-storm",
    "threads",
    "kills",
    "outbox",
    "cases",
    "replication",
    "seeds",
    "python3.11",
    "python3.12",
    "python3.13",
    "python3.14",
    "lowest",
    "newest",
    "wheel",
]


def long(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command: list[str | Path] = [sys.executable, ROOT / "scripts/long.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, env=variables or None)


def test_a_part_that_is_not_there_is_wrong_usage() -> None:
    done = long("wheel", "lowst")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"test: there is no part 'lowst' of --long; there are: {', '.join(PARTS)}\n"


@pytest.mark.parametrize("arguments", [("--", "-x"), ("wheel", "--", "-x"), ("lowest", "soak", "--", "-x")])
def test_arguments_for_pytest_without_a_part_that_runs_it_are_wrong_usage(arguments: tuple[str, ...]) -> None:
    done = long(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "test: arguments for pytest go to parts that are named, of these: "
        "python3.11, python3.12, python3.13, python3.14, lowest, newest\n"
    )


def test_a_named_interpreter_that_is_not_there_fails_in_one_line_and_the_next_part_has_its_own(tmp_path: Path) -> None:
    done = long("python3.14", "python3.13", HOME=str(tmp_path), PATH=str(tmp_path))
    assert done.returncode == 1, done.stderr
    assert done.stdout.split("== result\n")[1].splitlines() == [
        f"python{version}: failed, there is no Python {version} with its venv module" for version in ("3.14", "3.13")
    ]


def test_every_part_stands_in_the_paper_and_what_continuous_integration_runs_is_a_part() -> None:
    text = read("CONTRIBUTING.md")
    named = ", ".join(row[0] for row in rows(text, "part")).replace("`", "")
    assert named == ", ".join(PARTS).replace(
        "python3.11, python3.12, python3.13, python3.14", "python3.11 ... python3.14"
    )
    script = runpy.run_path(str(ROOT / "scripts/long.py"))
    calls = [line.split()[2:] for line in read(".ci/run").splitlines() if line.startswith("scripts/test --long")]
    assert calls
    for arguments in calls:
        assert script["_complaint"](*script["_split"](arguments)) is None, arguments


@pytest.mark.parametrize("part", ["kills", "outbox", "cases", "replication"])
def test_a_long_test_is_not_taken_for_stuck_before_its_time(part: str) -> None:
    """pyproject.toml ends a process whose test has not ended some time after its time, which is that of short ones."""
    parts = runpy.run_path(str(ROOT / "scripts/long.py"))
    called: list[list[str]] = []
    parts["_pytest"].__globals__["_call"] = lambda command, **_: called.append(command)
    parts["PARTS"][part].run([])
    assert called
    for command in called:
        [stuck] = [word.partition("=")[2] for word in command if word.startswith("faulthandler_timeout=")]
        assert int(stuck) > int(command[command.index("--timeout") + 1])
