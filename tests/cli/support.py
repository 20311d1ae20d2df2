"""Running the command line: in this process for speed, as a process of its own where that matters."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import termios
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from jobs_service import JobsService

T = TypeVar("T")

ROOT = Path(__file__).parents[2]
PROGRAM: Sequence[str] = [sys.executable, "-m", "jobs_service"]
HANG = 100
"""Seconds after which a process is taken for hanging."""

IMPATIENT = {"JOBS_SERVICE_TRANSACTION_TIMEOUT": "0.3"}

ESCAPE_SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True)
class Ended:
    """What a command line has left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON object that it printed."""
        (line,) = self.out.splitlines()
        return json.loads(line)

    @property
    def json_lines(self) -> list[Any]:
        """All JSON objects that it printed."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def error(self) -> str:
        """The one line that an error is; nothing may have been printed besides."""
        assert self.out == ""
        (line,) = self.err.splitlines()
        assert line.startswith("jobs-service: ")
        return line.removeprefix("jobs-service: ")


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this process's environment without what would change how the program behaves."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("JOBS_SERVICE_") and name not in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")
    }
    return {**kept, "PYTHONPATH": str(ROOT), **(extra or {})}


def process(*arguments: str, cwd: Path, stdin: bytes = b"", env: Mapping[str, str] | None = None) -> Ended:
    """Run the program to its end as a process."""
    done = subprocess.run(
        [*PROGRAM, *arguments],
        cwd=cwd,
        env=environment(env),
        input=stdin,
        capture_output=True,
        timeout=HANG,
        check=False,
    )
    return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())


class _Started(subprocess.Popen[str]):
    """A process that does not outlive a test which fails beside it."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if kind is not None:
            self.kill()
        super().__exit__(kind, error, trace)


def started(
    *arguments: str, cwd: Path, env: Mapping[str, str] | None = None, stdin: int = subprocess.DEVNULL
) -> subprocess.Popen[str]:
    """Start the program as a process that Ctrl-C in this terminal does not reach."""
    return _Started(
        [*PROGRAM, *arguments],
        cwd=cwd,
        env=environment(env),
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@contextmanager
def serving(*arguments: str, cwd: Path, env: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """Run the daemon for the block's time; it is ready."""
    with started("serve", *arguments, cwd=cwd, env=env) as daemon:
        try:
            event = event_named(daemon, "serving")
            assert event["level"] == "info"
            assert event["pid"] == daemon.pid
            yield daemon
        finally:
            daemon.kill()


def event_named(daemon: subprocess.Popen[str], *names: str) -> dict[str, Any]:
    """Return the daemon's next log event that has one of these names."""
    assert daemon.stderr is not None
    for line in daemon.stderr:
        event: dict[str, Any] = json.loads(line)
        if event["event"] in names:
            return event
    raise AssertionError(f"the daemon ended without {' and '.join(names)}")


def on_terminal(
    *arguments: str,
    cwd: Path,
    columns: int = 80,
    env: Mapping[str, str] | None = None,
    program: Sequence[str] = PROGRAM,
    ended_at: tuple[str, signal.Signals] | None = None,
    answers: tuple[str, Callable[[], str]] | None = None,
) -> tuple[int, str]:
    """Run the program on a terminal of its own; return its exit code and everything that appeared there.

    `ended_at` gives words, and the signal that the program gets when they have appeared; `answers` gives words, and a
    function that returns what a person types then.
    """
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    try:
        running = subprocess.Popen(
            [*program, *arguments],
            cwd=cwd,
            env=environment({"TERM": "xterm-256color", **(env or {})}),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        shown = bytearray()
        while chunk := _read(ours):
            shown += chunk
            if ended_at is not None and ended_at[0].encode() in shown:
                running.send_signal(ended_at[1])
                ended_at = None
            if answers is not None and answers[0].encode() in shown:
                os.write(ours, answers[1]().encode())
                answers = None
        return running.wait(HANG), shown.decode().replace("\r\n", "\n")
    finally:
        os.close(ours)


def without_escapes(text: str) -> str:
    """Return text as it stands on the terminal, without colours."""
    return ESCAPE_SEQUENCE.sub("", text)


def arrange(store: str, body: Callable[[JobsService], Awaitable[T]]) -> T:
    """Do something with the store through the public interface."""

    async def run() -> T:
        async with JobsService(store, supervise=False) as jobs:
            return await body(jobs)

    return asyncio.run(run())


@contextmanager
def write_lock_held(store: str) -> Iterator[None]:
    """Let another process hold the store's write lock, as one does that was stopped in the middle of a commit."""
    holder = (
        "import lmdb, sys\n"
        f"transaction = lmdb.open({store.removeprefix('lmdb:')!r}).begin(write=True)\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holding:
        assert holding.stdout is not None
        assert holding.stdout.readline() == "held\n"
        yield
        holding.communicate()


def free_port() -> int:
    """Return a port that nobody listens at, for a server that comes back to it."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def is_alive(pid: int) -> bool:
    """Tell whether there is such a process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def rows(table: str) -> list[Sequence[str]]:
    """Return the cells of a table that has no spaces in its cells."""
    return [line.split() for line in table.splitlines()]


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:  # Linux's way to say that nobody holds the other end any more.
        return b""
