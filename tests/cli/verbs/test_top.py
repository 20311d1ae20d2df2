"""`top`: counts and rates, live."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jobs_service import JobsService
from tests.cli.conftest import Invoke
from tests.cli.support import HANG, PROGRAM, arrange, environment, without_escapes


def test_top_is_one_plain_table_where_nobody_sits(invoke: Invoke, counted: str) -> None:
    lines = invoke("top", "--store", counted).out.splitlines()
    assert [line.split()[0] for line in lines] == ["TYPE", "email", "video"]
    assert "\x1b" not in "".join(lines)


class Screen:
    """What a live verb shows on a terminal of its own."""

    def __init__(self, running: subprocess.Popen[bytes], terminal: int) -> None:
        self.running = running
        self.terminal = terminal
        self._shown = ""

    def until(self, pattern: str) -> re.Match[str]:
        """Read until what was shown since the last call has this."""
        while (found := re.search(pattern, without_escapes(self._shown))) is None:
            self._shown += os.read(self.terminal, 65_536).decode()
        self._shown = ""
        return found

    def ends(self, code: int) -> None:
        """Fail unless the verb ends with this code and complains of nothing."""
        assert self.running.stderr is not None
        assert self.running.stderr.read() == b""
        assert self.running.wait(HANG) == code


@contextmanager
def shown(*command: str, cwd: Path) -> Iterator[Screen]:
    """Run a verb on a terminal of its own for the block's time."""
    ours, theirs = os.openpty()
    with subprocess.Popen(
        [*PROGRAM, *command],
        cwd=cwd,
        env=environment({"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "24"}),
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as running:
        try:
            os.close(theirs)
            yield Screen(running, ours)
        finally:
            running.kill()
            os.close(ours)


def test_top_is_kept_up_to_date_on_a_terminal_until_ctrl_c(counted: str, tmp_path: Path) -> None:
    with shown("top", "--interval", "0.05", "--store", counted, cwd=tmp_path) as screen:
        screen.until("email")
        arrange(counted, lambda jobs: jobs.set_type_timeout("brandnew", 60))
        screen.until("brandnew")
        screen.running.send_signal(signal.SIGINT)
        screen.ends(0)


def test_keys_sort_pause_and_end_it(counted: str, tmp_path: Path) -> None:
    with shown("top", "--interval", "60", "--store", counted, cwd=tmp_path) as screen:
        screen.until("every 60 s, by work")
        for key, says in (
            ("s", "by rate"),
            ("s", "by failures"),
            ("-", "every 30 s"),
            ("p", "paused"),
            ("x", "paused"),
        ):
            os.write(screen.terminal, key.encode())
            screen.until(says)
        os.write(screen.terminal, b"q")
        screen.ends(0)


def test_rates_are_those_since_the_last_update(counted: str, tmp_path: Path) -> None:
    async def add(jobs: JobsService) -> None:
        await jobs.add("email", "one more")

    with shown("top", "--interval", "60", "--store", counted, cwd=tmp_path) as screen:
        screen.until("email")
        arrange(counted, add)
        os.write(screen.terminal, b" ")
        assert float(screen.until(r"IN/S(?s:.*)email +([\d.]+)")[1]) > 0


def test_a_terminal_is_left_as_it_was_by_sigterm(counted: str, tmp_path: Path) -> None:
    import termios

    with shown("top", "--store", counted, cwd=tmp_path) as screen:
        screen.until("q quit")
        assert not termios.tcgetattr(screen.terminal)[3] & termios.ECHO
        screen.running.send_signal(signal.SIGTERM)
        screen.ends(-signal.SIGTERM)
        assert termios.tcgetattr(screen.terminal)[3] & termios.ECHO
