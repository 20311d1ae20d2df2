"""A worker process of `serve --processes`: this end of its socket to its parent, and its limits."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import socket
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NoReturn

import typer

from jobs_service.cli import program
from jobs_service.errors import JobsError

if TYPE_CHECKING:
    from jobs_service import JobsService

_LOOK: Final = 1.0
"""Seconds between two looks at the limits."""
_LONGEST_LEAVING: Final = 3600.0
"""Seconds that a replaced worker has for the jobs that it runs; then they get their grace."""


def main(descriptor: int) -> None:
    """Be a worker whose parent is at the other end of a socket."""
    parent = Parent(descriptor)
    sys.path[:] = parent.orders["path"]
    sys.exit(program.guard(lambda: _work(parent)))


def _work(parent: Parent) -> NoReturn:
    from jobs_service.cli.verbs.serve import work

    raise typer.Exit(work(parent.orders["options"], parent))


class Parent:
    """The parent of this process.

    Attributes:
        orders: `path` (of modules), `options` (of `serve`), `http` (whether this is the process of the HTTP server),
            `people` (whether people read the log), `most_jobs` and `most_memory`: its limits, or None.
    """

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        with self._socket.makefile("rb") as file:
            self.orders: dict[str, Any] = json.loads(file.readline())

    def tell(self, **said: Any) -> None:
        """Tell it something; from the loop's thread."""
        with contextlib.suppress(OSError):
            self._socket.sendall(json.dumps(said).encode() + b"\n")

    def when_gone(self, react: Callable[[], None]) -> None:
        """Call a function in a thread of its own when the parent has ended."""

        def wait() -> None:
            with contextlib.suppress(OSError):
                self._socket.recv(1)
            react()

        threading.Thread(target=wait, name="parent", daemon=True).start()

    @property
    def is_limited(self) -> bool:
        """Whether this process is to be replaced one day."""
        return self.orders["most_jobs"] is not None or self.orders["most_memory"] is not None

    async def limits(self, service: JobsService, stop: Callable[[], None]) -> None:
        """Wait until this process reaches a limit; then take no more jobs, and stop when those that run have ended."""
        loop = asyncio.get_running_loop()
        while not (why := self._limit_reached(service)):  # noqa: ASYNC110 - memory has no event
            await asyncio.sleep(_LOOK)
        self.tell(leaving=why)
        if service.process_id:
            with contextlib.suppress(JobsError):  # it ends all the same
                await service.quiet_process(service.process_id)
            latest = loop.time() + _LONGEST_LEAVING
            while loop.time() < latest and any(use.busy for use in service.slot_uses().values()):  # noqa: ASYNC110
                await asyncio.sleep(_LOOK)
        stop()

    def _limit_reached(self, service: JobsService) -> str:
        jobs, memory = self.orders["most_jobs"], self.orders["most_memory"]
        ended = sum(use.ended for use in service.slot_uses().values())
        if jobs is not None and ended >= jobs:
            return f"it has run {ended} jobs"
        if memory is not None and (used := _memory()) >= memory:
            return f"it has {used} bytes of memory"
        return ""


def _memory() -> int:
    """Return the bytes of memory that this process has; where the system does not tell, the most that it had."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * resource.getpagesize()
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


def end_after(seconds: float) -> None:
    """End this process after some seconds, whatever it does then."""
    timer = threading.Timer(seconds, os._exit, (1,))
    timer.daemon = True
    timer.start()
