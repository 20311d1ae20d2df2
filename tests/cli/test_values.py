"""Durations, times and data as a person writes them."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from jobs_service.cli import parsing
from tests.cli.support import HANG, environment

LIMITED = """
import resource, sys
from jobs_service.cli import main
resource.setrlimit(resource.RLIMIT_DATA, (1 << 31, resource.getrlimit(resource.RLIMIT_DATA)[1]))
sys.exit(main())
"""
"""The program in 2 GiB of memory: far more than it needs, and endless input takes more. A limit for this process would
count what other tests have left in it."""


@pytest.mark.parametrize("text", ["2030-01-31T09:00:00Z", "2030-01-31T10:00:00+01:00", "20300131T090000+0000"])
def test_a_time_with_an_offset_is_taken(text: str) -> None:
    assert parsing.moment(text) == datetime(2030, 1, 31, 9, tzinfo=UTC)


@pytest.mark.parametrize(
    "arguments", [["add", "email", "x", "--data", "@/dev/zero"], ["submit", "--stdin", "/dev/zero", "cat"]]
)
def test_input_without_end_is_bad_input_and_does_not_fill_the_memory(
    email: str, tmp_path: Path, arguments: list[str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, "--store", email, *arguments],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        timeout=HANG,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"more than 10000000 bytes, which no job takes" in done.stderr
