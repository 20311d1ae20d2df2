"""A FoundationDB server of a test's own, on a loopback address, that can be stopped, killed and started again."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Final

BINARIES: Final = ("fdbserver", "fdbcli")
PATIENCE: Final = 60.0


def missing() -> str | None:
    """Return why there can be no server here, None if there can."""
    absent = [name for name in BINARIES if shutil.which(name) is None]
    return f"{' and '.join(absent)} not found on PATH" if absent else None


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback address on which nobody listens."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


class FdbServer:
    """One fdbserver process with an ssd engine; entered, it is running and configured.

    Args:
        directory: for its data, logs and cluster file.
        port: where it listens; by default one that is free.
        coordinators: the addresses in the cluster file; by default its own.
    """

    def __init__(self, directory: Path, port: int | None = None, coordinators: str | None = None) -> None:
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._port = free_ports(1)[0] if port is None else port
        self._proxies = 1
        self.cluster_file = directory / "fdb.cluster"
        self.cluster_file.write_text(f"test:test@{coordinators or f'127.0.0.1:{self._port}'}")

    @property
    def address(self) -> str:
        """Of the store."""
        return f"fdb:{self.cluster_file}"

    def __enter__(self) -> FdbServer:
        self.start()
        self._command("configure new single ssd")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()

    def start(self) -> None:
        """Start the process."""
        data, logs = self._directory / "data", self._directory / "logs"
        logs.mkdir(exist_ok=True)
        command = ["fdbserver", "-p", f"127.0.0.1:{self._port}", "-C", str(self.cluster_file)]
        self._process = subprocess.Popen(
            [
                *command,
                *("-d", str(data), "-L", str(logs), "--knob_disable_posix_kernel_aio=1"),
                # As if each were on a machine of its own: copies of the data are not put together.
                *(f"--locality-zoneid={self._port}", f"--locality-machineid={self._port}"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def kill(self) -> None:
        """Kill the process as a power cut would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """Let it stand still."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it go on."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def recover(self) -> None:
        """Have it begin anew with other proxies, as a cluster does that has lost a machine: that takes a moment."""
        self._proxies += 1
        self._command(f"configure commit_proxies={self._proxies}")

    def _command(self, command: str) -> None:
        end = time.monotonic() + PATIENCE
        while True:
            done = subprocess.run(
                ["fdbcli", "-C", str(self.cluster_file), "--timeout", "10", "--exec", command],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode == 0:
                return
            if time.monotonic() > end:
                raise TimeoutError(f"fdbcli {command!r}: {done.stdout}{done.stderr}")
            time.sleep(0.2)
