"""The tutorial, from its beginning to its end, with its daemon killed on the way."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from tests.cli.conftest import Invoke
from tests.cli.support import HANG, ROOT, Ended, event_named, serving
from tests.docs.pages import examples

APPLICATION, PROGRAM, PAYMENT = examples("docs/tutorial.md")
SERVE, SHELL, WRONG, SLOW, LOST, PAY = examples("docs/tutorial.md", "sh")
QUICK = APPLICATION.replace("backoff=1)", "backoff=0.1)").replace("sleep(20)", "sleep(2)")
"""The same, for those who have no ten minutes."""


def test_the_tutorial_works_from_its_beginning_to_its_end(invoke: Invoke, tmp_path: Path) -> None:
    def typed(example: str) -> list[Ended]:
        return [invoke(*shlex.split(line)[1:]) for line in example.splitlines()]

    assert QUICK.count("backoff=0.1)") == QUICK.count("sleep(2)") == 1
    serve = shlex.split(SERVE)[2:]
    (tmp_path / "app.py").write_text(QUICK, encoding="utf-8")
    with serving(*serve, "--log-level", "debug", cwd=tmp_path) as daemon:
        where = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
        command = [sys.executable, "-c", PROGRAM]
        said = subprocess.run(command, cwd=tmp_path, env=where, capture_output=True, text=True, timeout=HANG)
        assert said.stdout == "sent 'hello' to ada@example.org\n", said.stderr
        added, watched, listed = typed(SHELL)
        assert (added.code, watched.code, listed.code) == (0, 0, 0)
        assert "sent 'hi' to grace@example.org" in watched.out
        _, watched, shown = typed(WRONG)
        assert "failed" in watched.out
        assert "ValueError: nobody is no address" in shown.out
        typed(SLOW)
        while event_named(daemon, "job_started")["id"] != "slow":
            pass
        daemon.kill()
    (tmp_path / "app.py").write_text(QUICK + "\n\n" + PAYMENT, encoding="utf-8")
    with serving(*serve, cwd=tmp_path):
        watched, shown = typed(LOST)
        assert "sent 'hi' to slow@example.org" in watched.out
        assert "lost" in shown.out
        *_, first, second = typed(PAY)
        assert (first.code, second.code) == (0, 0)
        assert "42" in first.out + second.out
