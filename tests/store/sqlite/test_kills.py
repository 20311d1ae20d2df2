"""SIGKILL at random moments of processes that share a file: no row without its job, each receipt exactly once."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest

from tests.cli.support import ROOT, environment
from tests.store.sqlite.killed_process import check, make_tables
from tests.system.forking import ForkServer
from tests.system.test_namespaces import NEW, can_unshare

KILLS = int(os.environ.get("KILLS", "20"))
KILLED_CONTAINERS = int(os.environ.get("KILLS", "2"))
STEPS = 5
"""Users that a process signs up before it may be killed."""


class Killed:
    """A process that works.

    Args:
        output: what it says.
        kill: kills it, and waits for its end.

    Attributes:
        answered: the users that it was told are there, as far as it was heard.
    """

    def __init__(self, output: IO[str], kill: Callable[[], object]) -> None:
        self._output = output
        self._kill = kill
        self.answered: list[str] = []

    def wait_for(self, steps: int) -> None:
        """Wait until it has signed up so many."""
        for _ in range(steps):
            line = self._output.readline()
            assert line, "it has ended by itself"
            self.answered.append(line.strip())

    def kill(self) -> None:
        """Kill it, and hear what it has said."""
        self._kill()
        # What it had begun to say as it was killed counts as not said.
        self.answered += [line.strip() for line in self._output if line.endswith("\n")]
        self._output.close()


async def kill_one_after_the_other(path: Path, kills: int, start: Callable[[int], Killed]) -> None:
    """Have two work at a time, and kill one of them so often; then check what is left."""
    choose = random.Random(5)
    make_tables(path)
    ended: list[Killed] = []
    living = [start(number) for number in range(2)]
    for kill in range(kills):
        one = living.pop(choose.randrange(len(living)))
        one.wait_for(STEPS)
        one.kill()
        ended.append(one)
        living.append(start(2 + kill))
    for one in living:
        one.kill()
    users = await check(path)
    answered = {mail for one in (*ended, *living) for mail in one.answered}
    assert len(answered) >= kills * STEPS
    assert answered <= set(users)


async def test_whichever_process_is_killed_rows_and_jobs_stay_together(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    with ForkServer("tests.store.sqlite.killed_process") as forks:

        def start(number: int) -> Killed:
            pipe = str(tmp_path / f"pipe{number}")
            os.mkfifo(pipe)
            pid = forks.start("work", path=str(path), pipe=pipe)
            return Killed(open(pipe), lambda: forks.kill(pid))

        await kill_one_after_the_other(path, KILLS, start)


@pytest.mark.skipif(not can_unshare(), reason="this user cannot make PID namespaces with unshare(1)")
async def test_whichever_container_is_killed_rows_and_jobs_stay_together(tmp_path: Path) -> None:
    """Each has a PID namespace of its own, in which it is process 1."""
    path = tmp_path / "app.db"
    command = [*NEW, sys.executable, "-m", "tests.store.sqlite.killed_process", str(path)]

    def start(_: int) -> Killed:
        process = subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None

        def kill() -> None:
            process.kill()
            process.wait()

        return Killed(process.stdout, kill)

    await kill_one_after_the_other(path, KILLED_CONTAINERS, start)
