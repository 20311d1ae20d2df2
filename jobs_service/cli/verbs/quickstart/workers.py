"""Starts and ends the worker processes of the demonstration; none outlives it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from jobs_service.cli import exits


class Workers:
    """Starts worker processes, by name.

    Args:
        store: the store's address.
        directory: for the compressed files.
    """

    def __init__(self, store: str, directory: Path) -> None:
        self._store = store
        self._directory = directory
        self._processes: dict[str, asyncio.subprocess.Process] = {}

    async def start(self, name: str, type: str) -> int:
        """Start a worker for the jobs of a type; return its process id."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "jobs_service.cli.verbs.quickstart.worker"),
            *(self._store, type, name, str(self._directory)),
            stdin=asyncio.subprocess.DEVNULL,
            # Ctrl-C must reach only the demonstration, which then ends its workers.
            start_new_session=True,
        )
        self._processes[name] = process
        return process.pid

    def was_started(self, name: str) -> bool:
        """Whether there is or was a worker of that name."""
        return name in self._processes

    async def kill(self, name: str) -> int:
        """Send a worker SIGKILL and wait for its end; return its process id."""
        process = self._processes[name]
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        return process.pid

    async def ended(self, *names: str) -> None:
        """Wait until these workers have found no more jobs and ended by themselves.

        Raises:
            Refused: a worker has failed.
        """
        for name in names:
            code = await self._processes[name].wait()
            if code not in (0, -signal.SIGKILL):
                raise exits.Refused(f"worker {name} of the demonstration ended with exit code {code}")

    async def kill_all(self) -> None:
        """Kill all workers that still run, and wait for their ends."""
        alive = [process for process in self._processes.values() if process.returncode is None]
        for process in alive:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        for process in alive:
            await process.wait()


@asynccontextmanager
async def worker_processes(store: str, directory: Path) -> AsyncIterator[Workers]:
    """Give the block workers; when it ends, they are killed."""
    workers = Workers(store, directory)
    try:
        yield workers
    finally:
        await workers.kill_all()
