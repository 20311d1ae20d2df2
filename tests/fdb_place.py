"""Where the tests of one process use FoundationDB: on a server of its own, or on a shared cluster, one test at a time.

`JOBS_SERVICE_TEST_FDB=own` has every process that runs tests (each worker of pytest-xdist is one) start a server of its
own, and end it in the end. A cluster file has them all use that cluster: tests want it empty, and change keys that are
everybody's, so those that use it take turns, whichever process and whichever run they are of.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.stores import FDB_VARIABLE
from tests.system.fdb_server import FdbServer, missing

OWN: Final = "own"
"""The variable's value for a server of each process's own."""

MARKER: Final = "cluster"


def uses_cluster(item: pytest.Item) -> bool:
    """Whether a test uses the cluster that the variable names: by its name, its file's name, or its marker."""
    return "fdb" in item.nodeid or item.get_closest_marker(MARKER) is not None


def begin(config: pytest.Config) -> None:
    """Make this process's place, if there is to be one and it runs tests itself."""
    config.addinivalue_line("markers", f"{MARKER}: uses the cluster that {FDB_VARIABLE} names.")
    if FDB_VARIABLE not in os.environ:
        return
    if os.environ[FDB_VARIABLE] == OWN:
        if hasattr(config, "workerinput") or not getattr(config.option, "numprocesses", None):
            _start_server(config)
    else:
        config.pluginmanager.register(_Turns(os.environ[FDB_VARIABLE]))


def _start_server(config: pytest.Config) -> None:
    if (reason := missing()) is not None:
        raise pytest.UsageError(f"{FDB_VARIABLE}={OWN}: {reason}")
    directory = Path(tempfile.mkdtemp(prefix="jobs-service-fdb-"))
    config.add_cleanup(lambda: shutil.rmtree(directory, ignore_errors=True))
    server = FdbServer(directory)
    # Before the directory goes: what was added last is done first.
    config.add_cleanup(server.kill)
    server.__enter__()
    os.environ[FDB_VARIABLE] = str(server.cluster_file)


class _Turns:
    """Has the tests that use a cluster take turns, on this machine.

    Args:
        cluster_file: names the cluster.
    """

    def __init__(self, cluster_file: str) -> None:
        named = hashlib.sha256(Path(cluster_file).read_bytes()).hexdigest()[:16]
        self._lock = Path(tempfile.gettempdir(), f"jobs-service-tests-{named}.lock")

    # Outside of all others: the time that a test waits is not its own.
    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Wait for this test's turn."""
        if not uses_cluster(item):
            return (yield)
        with self._turn():
            return (yield)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        with self._lock.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
