"""`top`: the counts, live."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from jobs_service import JobsService
from tests.cli.conftest import Invoke
from tests.cli.support import HANG, PROGRAM, arrange, environment, without_escapes


def test_top_is_one_plain_table_where_nobody_sits(invoke: Invoke, counted: str) -> None:
    lines = invoke("top", "--store", counted).out.splitlines()
    assert [line.split()[0] for line in lines] == ["TYPE", "email", "video"]
    assert "\x1b" not in "".join(lines)


def test_top_is_kept_up_to_date_on_a_terminal_until_ctrl_c(counted: str, tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    shown = ""
    with subprocess.Popen(
        [*PROGRAM, "top", "--interval", "0.05", "--store", counted],
        cwd=tmp_path,
        env=environment({"TERM": "xterm-256color", "COLUMNS": "100"}),
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as running:
        try:
            os.close(theirs)
            while "email" not in shown:
                shown = without_escapes(shown + os.read(ours, 65_536).decode())

            async def add(jobs: JobsService) -> None:
                await jobs.set_type_timeout("brandnew", 60)

            arrange(counted, add)
            while "brandnew" not in shown:
                shown = without_escapes(shown + os.read(ours, 65_536).decode())
            running.send_signal(signal.SIGINT)
            assert running.stderr is not None
            assert running.stderr.read() == b""
            assert running.wait(HANG) == 0
        finally:
            running.kill()
            os.close(ours)
