"""What a type checker says of programs: mistakes that it must find, and good programs of which it must find none."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project.typed_programs import MISTAKES, PROGRAM

PROJECT = Path(__file__).parents[2]


@pytest.mark.unmeasured
def test_a_type_checker_finds_the_mistakes_and_nothing_else(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM + MISTAKES)
    first = PROGRAM.count("\n") + 2
    expected = {first + line for line in range(MISTAKES.count("\n") - 1)} - {first}
    command = ["-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "--no-pretty", str(program)]
    done = subprocess.run(
        [sys.executable, *command], cwd=PROJECT, capture_output=True, text=True, timeout=300, check=False
    )
    found = {int(line) for line in re.findall(r"program\.py:(\d+): error", done.stdout)}
    assert len(expected) == MISTAKES.count("    ")
    assert found == expected, done.stdout + done.stderr
