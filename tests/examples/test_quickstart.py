"""The demonstration of `scripts/quickstart`, as a real process with real workers, one of which is really killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from itertools import groupby
from pathlib import Path

import pytest

from tests.cli.support import ROOT, is_alive

HANG = 110
EXAMPLE = ROOT / "examples/quickstart.py"


def started(temporary: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, EXAMPLE],
        cwd=temporary,
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def workers(told: str) -> list[int]:
    return [int(pid) for pid in re.findall(r"Worker process (\d+) starts", told)]


def test_the_quickstart_shows_a_job_lost_with_its_worker_and_ended_by_another(tmp_path: Path) -> None:
    with started(tmp_path) as showing:
        out, err = showing.communicate(timeout=HANG)
    assert (showing.returncode, err) == (0, "")
    states = [state for state, _ in groupby(re.findall(r"the report is (\w+)", out))]
    assert states == ["pending", "running", "pending", "running", "finished"]
    first, second = workers(out)
    assert f"kill -9 {first}" in out
    assert f"5 chapters, by process {second}." in out
    assert "200 receipts were sent for 200 orders" in out
    assert max(map(len, out.splitlines())) <= 100
    assert list(tmp_path.iterdir()) == []
    assert not is_alive(first)
    assert not is_alive(second)


@pytest.mark.unmeasured
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["INT", "TERM"])
def test_nothing_is_left_of_a_quickstart_that_somebody_stops(tmp_path: Path, number: signal.Signals) -> None:
    with started(tmp_path) as showing:
        assert showing.stdout is not None
        told = ""
        for line in showing.stdout:
            told += line
            if "the report is running" in line:
                break
        showing.send_signal(number)
        _, err = showing.communicate(timeout=HANG)
    assert (showing.returncode, err) == (128 + number, "")
    assert not any(map(is_alive, workers(told)))
    assert list(tmp_path.iterdir()) == []
