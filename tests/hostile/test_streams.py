"""Verbs as processes, with closed and odd streams and arguments that are no text."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Invoke
from tests.cli.conftest import _nothing_configured as _nothing_configured
from tests.cli.conftest import _own_environment as _own_environment
from tests.cli.conftest import email as email
from tests.cli.conftest import invoke as invoke
from tests.cli.conftest import store as store
from tests.cli.support import HANG, PROGRAM, Ended, environment
from tests.hostile.verbs import CANARY, complaint_about


@pytest.fixture
def populated(invoke: Invoke, email: str) -> str:
    """The address of a store with a canary, and with a job that verbs may do something to."""
    for id, data in (("canary", CANARY), ("worked on", "1")):
        assert invoke("add", "email", id, "--data", data, "--priority", "json:[1]", "--store", email).code == 0
    return email


@pytest.mark.parametrize(
    ("verb", "closed"),
    [
        ("list", "> /dev/full"),
        ("add email {} --data -", "<&-"),
        ("add-many email", "<&- >&- 2>&-"),
    ],
)
def test_closed_and_odd_streams_do_no_harm(populated: str, tmp_path: Path, closed: str, verb: str) -> None:
    command = " ".join([*PROGRAM, verb.format("'streams'"), "--store", f"'{populated}'", closed])
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=tmp_path,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=HANG,
        check=False,
    )
    err = done.stderr.decode()
    assert done.returncode in (0, 1, 2, 3, 74), err
    assert "Traceback" not in err
    assert "internal error" not in err
    assert len(err.splitlines()) <= 1


def test_arguments_that_are_no_text_do_no_harm(invoke: Invoke, populated: str, tmp_path: Path) -> None:
    for command in ([b"list", b"\xed\xa0\x80"], [b"\xff"]):
        assert complaint_about(invoke(*map(os.fsdecode, command), "--store", populated)) is None
    for command in ([b"add", b"email", b"\xff\xfe"], [b"backup", b"\xff/\xff"]):
        done = subprocess.run(
            [sys.executable.encode(), b"-m", b"jobs_service", *command, b"--store", populated.encode()],
            cwd=tmp_path,
            env=environment({"LC_ALL": "C"}),
            capture_output=True,
            timeout=HANG,
            check=False,
        )
        assert complaint_about(Ended(done.returncode, done.stdout.decode(), done.stderr.decode())) is None
