"""What becomes of log events."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest
import structlog

from jobs_service.cli.logging import configure
from tests.cli.support import HANG, environment, on_terminal, without_escapes


def test_elsewhere_every_event_is_a_json_line_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    configure("info")
    structlog.get_logger().info("serving", store="memory:", type=("a", 1), id=b"\x00", n=1)
    captured = capsys.readouterr()
    event = json.loads(captured.err)
    assert captured.out == ""
    assert event.pop("timestamp").endswith("Z")
    assert event == {
        "event": "serving",
        "level": "info",
        "store": "memory:",
        "type": 'json:["a",1]',
        "id": 'json:{"bytes":"00"}',
        "n": 1,
    }


FULL_FOR_A_WHILE = """
import os, resource, sys
from jobs_service.cli import program
from jobs_service.cli.logging import configure
import structlog

def log():
    configure("info")
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, resource.RLIM_INFINITY))
    for number in range(10):
        structlog.get_logger().info("does not fit", number=number)
    if sys.argv[1] == "room":
        os.truncate(sys.stderr.fileno(), 0)
        structlog.get_logger().info("fits again")

sys.exit(program.guard(log))
"""


@pytest.mark.parametrize("then", ["room", "none"])
def test_a_disk_that_was_full_for_a_while_does_not_end_the_log(then: str, tmp_path: Path) -> None:
    file = tmp_path / "log"
    with file.open("a") as log:
        command = [sys.executable, "-c", FULL_FOR_A_WHILE, then]
        # Coverage could not write its data there.
        env = {name: value for name, value in environment().items() if not name.startswith("COVERAGE")}
        ended = subprocess.run(command, stderr=log, env=env, timeout=HANG)
    assert ended.returncode == 0
    lines = file.read_text().splitlines()
    if then == "room":
        assert json.loads(lines[-1])["event"] == "fits again"
    else:
        assert json.loads(lines[0])["number"] == 0


def test_a_failures_traceback_is_a_field(capsys: pytest.CaptureFixture[str]) -> None:
    configure("error")
    try:
        raise ValueError("why")
    except ValueError:
        structlog.get_logger().exception("failed")
        logging.getLogger("library").exception("failed")
    for line in capsys.readouterr().err.splitlines():
        event = json.loads(line)
        assert event["event"] == "failed"
        assert event["exception"].startswith("Traceback")
        assert event["exception"].endswith("ValueError: why")


PROGRAM = """
import structlog
from jobs_service.cli.logging import configure
configure("info")
log = structlog.get_logger()
log.info("serving", type="a\\x1b]0;x\\x07", id="b", note="\\x9b31m")
try:
    raise ValueError("\\x1b]0;x\\x07")
except ValueError:
    log.exception("failed")
"""


def test_people_get_coloured_lines_without_anything_a_job_put_there(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(PROGRAM)
    code, shown = on_terminal(cwd=tmp_path, program=[sys.executable, "main.py"])
    assert code == 0
    assert "\x1b[" in shown
    plain = without_escapes(shown)
    assert "serving" in plain
    assert "ValueError" in plain
    assert "\x07" not in shown
    assert "\x9b" not in shown
    assert "\x1b]" not in shown
