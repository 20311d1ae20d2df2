"""A PostgreSQL server of the tests' own, on a Unix socket in a directory of its own."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Final

import psycopg

PATIENCE: Final = 60.0
"""Seconds within which a server begins to answer, also after a crash on a busy machine."""


def programs() -> Path | None:
    """Return the directory of the server's programs; None where it is not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    inside = shutil.which("initdb")
    return found[-1].parent if found else Path(inside).parent if inside else None


class Server:
    """A server with its data; it has databases for the tests.

    Args:
        bin: the directory of its programs.
    """

    def __init__(self, bin: Path) -> None:
        self._bin = bin
        self._user = _user()
        self._directory = Path(tempfile.mkdtemp(prefix="pg-"))
        self._numbers = itertools.count()
        self._process: subprocess.Popen[bytes] | None = None
        if self._user is not None:
            os.chown(self._directory, pwd.getpwnam(self._user).pw_uid, -1)
        data = ["--pgdata", str(self._directory / "data"), "--username", "tests", "--auth", "trust", "--no-sync"]
        subprocess.run(
            [bin / "initdb", *data, "--encoding", "UTF8", "--locale", "C"],
            check=True,
            user=self._user,
            stdout=subprocess.DEVNULL,
            cwd="/",
        )

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        options = ["-c", "listen_addresses=", "-c", f"unix_socket_directories={self._directory}", "-c", "fsync=off"]
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._bin / "postgres", "-D", self._directory / "data", *options],
                user=self._user,
                stdout=log,
                stderr=log,
                cwd="/",
            )
        end = time.monotonic() + PATIENCE
        while True:
            try:
                psycopg.connect(self.url("postgres")).close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > end or self._process.poll() is not None:
                    raise
                time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """Stop the server: by SIGQUIT at once, as in a crash; by SIGINT in order, without its clients."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(PATIENCE)
            self._process = None

    def remove(self) -> None:
        """Stop the server, and remove all of it."""
        self.stop()
        shutil.rmtree(self._directory)

    def url(self, database: str) -> str:
        """Return the address of a database."""
        return f"postgresql:///{database}?host={self._directory}&user=tests"

    def make_database(self, encoding: str = "UTF8") -> str:
        """Make an empty database; return its address."""
        name = f"test{next(self._numbers)}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"create database {name} encoding '{encoding}' template template0")
        return self.url(name)


def _user() -> str | None:
    """Return the user that the server runs as: it refuses to run as root."""
    if os.getuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in known else "nobody"
