"""The commands in scripts/ and .ci/: what each is, whatever it runs."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(path for path in (ROOT / "scripts").iterdir() if path.is_file() and not path.suffix)
COMMANDS = [*SCRIPTS, ROOT / ".ci/run"]
HANG = 280  # seconds; only ends a run that would never end


@pytest.mark.parametrize("command", COMMANDS, ids=lambda path: path.name)
class TestEveryCommand:
    def test_is_executable_and_stops_at_the_first_error(self, command: Path) -> None:
        assert os.access(command, os.X_OK)
        text = command.read_text()
        assert text.startswith("#!/usr/bin/env bash\n")
        statements = [line for line in text.splitlines() if line and not line.startswith("#")]
        assert statements[0] == "set -euo pipefail"

    def test_is_valid_bash(self, command: Path) -> None:
        checked = subprocess.run(["bash", "-n", command], capture_output=True, text=True, timeout=HANG)
        assert (checked.returncode, checked.stderr) == (0, "")

    @pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
    def test_has_no_finding_of_shellcheck(self, command: Path) -> None:
        checked = subprocess.run(["shellcheck", command], capture_output=True, text=True, timeout=HANG)
        assert (checked.returncode, checked.stdout) == (0, "")


def test_an_unknown_profile_of_the_set_up_is_wrong_usage() -> None:
    done = subprocess.run([ROOT / "scripts/setup-env", "everything"], capture_output=True, text=True, timeout=HANG)
    assert (done.returncode, done.stderr) == (2, "setup-env: usage: scripts/setup-env [runtime|dev|docs]\n")
