"""Programs that the tests of commands run."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from jobs_service.runner.commands import Command, CommandFailed, CommandResult, run_command
from tests.left_open import Open

HANG = 60.0
"""Seconds of grace where a correct command ends by itself."""
PAUSE = "import signal; signal.pause()"


def python(code: str, *arguments: str) -> tuple[str, ...]:
    """Return the argument list that runs Python code, started as fast as it can be."""
    return (sys.executable, "-I", "-S", "-c", code, *arguments)


async def run(*argv: str, capture: int = 64_000, grace: float = HANG, **fields: Any) -> CommandResult:
    """Run a command and see that it leaves neither file descriptors nor threads, however it ends."""
    before = Open.now()
    try:
        return await run_command(Command(argv, **fields), capture=capture, grace=grace)
    finally:
        assert not Open.now().since(before)


async def failure(*argv: str, **options: Any) -> CommandFailed:
    """Run a command that fails, and return how."""
    with pytest.raises(CommandFailed) as failed:
        await run(*argv, **options)
    assert "\n" not in str(failed.value)
    return failed.value


def children() -> set[int]:
    """Return the processes that this one has started, running or to be reaped: also those of other tests' fixtures."""
    if not os.path.isdir("/proc/self"):
        listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
        pairs = [line.split() for line in listed.splitlines()]
        return {int(pid) for pid, parent in pairs if int(parent) == os.getpid()}
    found = set()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            # Whoever has ended meanwhile is not there any more.
            with contextlib.suppress(OSError), open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as stat:
                if int(stat.read().rpartition(")")[2].split()[1]) == os.getpid():
                    found.add(int(entry))
    return found


class Fifo:
    """A named pipe, over which a command says something; opened to be written as well, so that it never ends."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = str(path)
        self.descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)

    async def line(self) -> str:
        """Wait for a line."""
        heard = b""
        while not heard.endswith(b"\n"):
            await anyio.wait_readable(self.descriptor)
            heard += os.read(self.descriptor, 1)
        return heard.decode().strip()
