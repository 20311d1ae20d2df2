"""The commands in scripts/ and .ci/: what each runs, in a temporary copy with a small project.

Those that set up environments take long, and are marked: they run when a script has changed (see conftest.py).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.project.small_project import COMMANDS, HANG, Copy

pytestmark = pytest.mark.timeout(300)  # some of these make environments, which takes long on a busy machine


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copy]:
    """A copy that is set up already, which several tests use one after the other."""
    directory = tmp_path_factory.mktemp("ready")
    made = Copy(directory)
    made.add_environment()
    assert made.run("scripts/setup-env", "dev").returncode == 0
    yield made
    shutil.rmtree(directory)


@pytest.fixture
def unchanged(ready: Copy) -> Iterator[Copy]:
    """The same, without what other tests have added to it."""
    yield ready
    assert ready.builds == 1, "nothing has set it up again"
    for name in (
        "small/more.py",
        "scripts/bench.py",
        "scripts/long.py",
        "tests/__init__.py",
        "tests/simulation/__main__.py",
    ):
        ready.remove(name)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda path: path.name)
class TestEveryCommand:
    def test_is_executable_and_finds_its_bash(self, command: Path) -> None:
        assert os.access(command, os.X_OK)
        assert command.read_text().startswith("#!/usr/bin/env bash\n")

    def test_stops_at_the_first_error_from_its_first_statement_on(self, command: Path) -> None:
        statements = [line for line in command.read_text().splitlines() if line and not line.startswith("#")]
        assert statements[0] == "set -euo pipefail"

    def test_is_valid_bash(self, command: Path) -> None:
        checked = subprocess.run(["bash", "-n", command], capture_output=True, text=True, timeout=HANG)
        assert (checked.returncode, checked.stderr) == (0, "")

    @pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
    def test_has_no_finding_of_shellcheck(self, command: Path) -> None:
        checked = subprocess.run(["shellcheck", command], capture_output=True, text=True, timeout=HANG)
        assert (checked.returncode, checked.stdout) == (0, "")


@pytest.mark.scripts
def test_quickstart_runs_the_example_and_returns_its_exit_code(unchanged: Copy) -> None:
    done = unchanged.run("scripts/quickstart")
    assert (done.returncode, done.stdout) == (7, "[]\n"), done.stderr


@pytest.mark.scripts
def test_test_hands_the_arguments_behind_long_to_the_long_tests_and_returns_their_exit_code(unchanged: Copy) -> None:
    unchanged.write("scripts/long.py", "import os, sys\nprint(sys.argv[1:], os.getcwd())\nsys.exit(7)\n")
    done = unchanged.run("scripts/test", "--long", "wheel", "--", "two words")
    assert (done.returncode, done.stdout) == (7, f"['wheel', '--', 'two words'] {unchanged.root.resolve()}\n"), (
        done.stderr
    )


def headings(output: str) -> list[str]:
    return [line.removeprefix("== ") for line in output.splitlines() if line.startswith("== ")]


@pytest.mark.scripts
def test_test_runs_every_phase_and_says_how_long_it_took(unchanged: Copy) -> None:
    done = unchanged.run("scripts/test")
    assert done.returncode == 0, done.stdout + done.stderr
    assert headings(done.stdout) == ["environment", "ruff check", "ruff format", "pytest", "mypy", "result"]
    assert " 2 passed in " in done.stdout
    assert "Required test coverage of 90.0% reached" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("all phases passed; took ")


@pytest.mark.scripts
def test_test_names_the_phases_that_failed_and_runs_the_others(unchanged: Copy) -> None:
    unchanged.write("small/more.py", "import os\n\n\ndef unused() -> int:\n    return ''\n")
    done = unchanged.run("scripts/test", "-n", "0", "-k", "seven or nothing", "tests/test_small.py")
    assert done.returncode == 1
    assert headings(done.stdout) == ["environment", "ruff check", "ruff format", "pytest", "mypy", "result"]
    assert " 1 passed, 1 deselected in " in done.stdout, "the arguments go to pytest"
    assert "coverage" not in done.stdout
    assert done.stdout.splitlines()[-1].startswith("failed: ruff check, ruff format, mypy; took ")


@pytest.mark.scripts
def test_test_fails_when_coverage_is_below_the_floor(unchanged: Copy) -> None:
    unchanged.write("small/more.py", "def unused() -> int:\n    return 1\n")
    done = unchanged.run("scripts/test")
    assert done.returncode == 1
    assert " 2 passed in " in done.stdout
    assert done.stdout.splitlines()[-1].startswith("failed: pytest; took ")
