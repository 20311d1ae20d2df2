"""A FoundationDB server of a test's own, on a loopback address, that can be stopped, killed and started again."""

from __future__ import annotations

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


class FdbServer:
    """One fdbserver process with an ssd engine; entered, it is running and configured.

    Args:
        directory: for its data, logs and cluster file.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self.cluster_file = directory / "fdb.cluster"
        self.cluster_file.write_text(f"test:test@127.0.0.1:{self._port}")

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
            [*command, "-d", str(data), "-L", str(logs), "--knob_disable_posix_kernel_aio=1"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def kill(self) -> None:
        """Kill the process as a power cut would."""
        assert self._process is not None
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
