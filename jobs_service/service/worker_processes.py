"""The parent of worker processes: it starts them, restarts those that end, and passes their log and signals on.

It opens no store and imports no application, so nothing that a worker does can end it. Each worker has a socket to it:
it gets its orders there (`cli/daemon.py` takes them), tells when it is ready, and ends when its parent is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from jobs_service.errors import InvalidSettings
from jobs_service.log import EventLog
from jobs_service.runner.process_pool import ended_how, module_name, python
from jobs_service.uncancelable import own_task, through_cancellation

log = EventLog("jobs_service")

_ENTRY: Final = "jobs_service.cli.daemon:main"
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 10.0
_CALM: Final = 10.0
"""Seconds of a worker's life after which the pause before its restart is the first one again."""

_GRACE: Final = 10.0
"""Seconds of grace of a worker that has not told its handlers' longest one."""
_MARGIN: Final = 5.0
"""Seconds that a worker may take to end besides three graces: to let handlers end, to cancel them, to store that."""
_LAST_LINES: Final = 1.0
"""Seconds for the last lines of a worker's log; a child of it may hold the pipe for ever."""

_LONGEST_LINE: Final = 1 << 20
"""Bytes of a worker's log without the end of a line that become a line."""

_LOOK: Final = 0.5
"""Seconds between two looks for changed files."""
_USAGE: Final = 2
"""The exit code of a worker whose arguments are wrong."""


def application_of(service: object) -> str:
    """Return "module:name" of a service, by which worker processes find it.

    Raises:
        InvalidSettings: no module has it under a name, or none that can be imported.
    """
    for module in sorted({*sys.modules.values()}, key=lambda module: getattr(module, "__name__", "") == "__main__"):
        for name, value in {**getattr(module, "__dict__", {})}.items():
            if value is service:
                return f"{module_name(module)}:{name}"
    raise InvalidSettings("processes: they find the service by its name, and it is no global name of a module")


class WorkerProcesses:
    """A number of worker processes that run until `stop`.

    Args:
        orders: of each worker, JSON data.
        watched: directory whose Python files have the workers restarted when they change; None for none.

    Attributes:
        is_ending: whether it was stopped.
    """

    def __init__(self, orders: Sequence[Mapping[str, Any]], watched: Path | None = None) -> None:
        common = {"path": [*sys.path], "people": sys.stderr.isatty()}
        self._orders = [{**common, **each} for each in orders]
        self._watched = watched
        self._workers: set[_Worker] = set()
        self._unready = len(orders)
        self._refused: int | None = None
        self._stopped = asyncio.Event()
        self._changed = asyncio.Event()
        self.is_ending = False

    async def run(self, started: Callable[[], object] | None = None) -> int:
        """Run the workers until `stop`, or until the caller is canceled; then let them end within their grace.

        Args:
            started: called once, when all workers are ready.

        Returns:
            The exit code: 0, or that of a worker that refused its orders before any was ready.
        """
        keeping = [own_task(self._keep(orders, started)) for orders in self._orders]
        if self._watched is not None:
            keeping.append(own_task(self._follow_changes(self._watched)))
        try:
            await self._stopped.wait()
        finally:
            await through_cancellation(self._end(keeping))
        log.info("stopped")
        return self._refused or 0

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Have all workers end within their grace, and `run` return."""
        if not self.is_ending:
            self.is_ending = True
            log.info("draining", signal=number.name)
            self._stopped.set()

    def signal(self, number: signal.Signals) -> None:
        """Pass a signal on to all workers; from any thread."""
        for worker in [*self._workers]:
            worker.signal(number)

    def kill(self) -> None:
        """Have all workers end at once with the commands that they run, or kill them; from any thread."""
        self.signal(signal.SIGQUIT)
        for worker in [*self._workers]:
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.popen.wait(_LAST_LINES)
        self.signal(signal.SIGKILL)

    async def _keep(self, orders: Mapping[str, Any], started: Callable[[], object] | None) -> None:
        """Keep one worker running."""
        loop = asyncio.get_running_loop()
        pause = _FIRST_PAUSE
        is_first = True
        while not self.is_ending:
            began = loop.time()
            try:
                worker = _Worker(orders)
            except OSError as error:
                log.warning("worker_ended", process=None, how=f"could not be started: {error}", restart_in=pause)
                await self._rest(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
                continue
            self._workers.add(worker)
            worker.exited.add_done_callback(lambda _, worker=worker: self._workers.discard(worker))  # type: ignore[misc]
            if await worker.ready and is_first:
                is_first = False
                self._is_ready(worker, started)
            if why := await worker.left:  # it ends when its jobs have; meanwhile another takes its place
                log.info("worker_replaced", process=worker.pid, why=why)
                continue
            code = worker.exited.result()
            if code == _USAGE and self._watched is None and self._unready == len(self._orders):
                self._refused = code
                self.stop()
            if self.is_ending or worker.is_replaced:
                continue
            if loop.time() - began >= _CALM:
                pause = _FIRST_PAUSE
            # What cannot even be imported waits for the next change.
            seconds = pause if worker.told or self._watched is None else None
            log.warning("worker_ended", process=worker.pid, how=ended_how(code), restart_in=seconds)
            await self._rest(seconds)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _is_ready(self, worker: _Worker, started: Callable[[], object] | None) -> None:
        """Note that another worker is ready; tell when all are."""
        self._unready -= 1
        if not self._unready:
            store, types, pids = worker.told["store"], worker.told["types"], [each.pid for each in self._workers]
            log.info("serving", store=store, pid=os.getpid(), types=types, processes=pids)
            if started is not None:
                started()

    async def _rest(self, seconds: float | None) -> None:
        """Wait so many seconds, or until files change; None for any time."""
        self._changed.clear()
        waits = [own_task(self._stopped.wait()), own_task(self._changed.wait())]
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()

    async def _end(self, keeping: Iterable[asyncio.Task[None]]) -> None:
        """End all workers, each within its grace."""
        self.is_ending = True
        self._stopped.set()
        await asyncio.gather(*(worker.end() for worker in [*self._workers]))
        for task in keeping:
            task.cancel()
        for failure in await asyncio.gather(*keeping, return_exceptions=True):
            if isinstance(failure, Exception):
                raise failure

    # Reloading

    async def _follow_changes(self, directory: Path) -> None:
        """Restart the workers when Python files have changed and can be compiled."""
        before = await asyncio.to_thread(_times, directory)
        while True:
            await asyncio.sleep(_LOOK)
            now = await asyncio.to_thread(_times, directory)
            changed = sorted(dict(before.items() ^ now.items()))
            before = now
            if not changed:
                continue
            fault = next(filter(None, map(_fault, changed)), None)
            if fault is not None:
                log.error("reload_waits", error=fault)
                continue
            log.info("reloading", files=changed)
            self._changed.set()
            for worker in self._workers:
                worker.is_replaced = True
            await asyncio.gather(*(worker.end() for worker in [*self._workers]))


class _Worker:
    """One worker process.

    Attributes:
        popen, pid: its process.
        told: its message when it was ready; empty before.
        ready: whether it has become ready before it ended.
        left: why it takes no more jobs, and ends when those that run have; empty when it has ended without that.
        is_replaced: whether another one is to take its place at once.
        exited: its exit code, when it has ended.
    """

    def __init__(self, orders: Mapping[str, Any]) -> None:
        loop = asyncio.get_running_loop()
        self.told: dict[str, Any] = {}
        self.is_replaced = False
        self.ready: asyncio.Future[bool] = loop.create_future()
        self.left: asyncio.Future[str] = loop.create_future()
        self.exited: asyncio.Future[int] = loop.create_future()
        self._unread = b""
        self._loop = loop
        ours, theirs = socket.socketpair()
        with theirs:
            self.popen = subprocess.Popen(
                python(_ENTRY, theirs.fileno()),
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C reaches the parent only, which passes it on
            )
        self.pid = self.popen.pid
        self._socket = ours
        ours.sendall(json.dumps(orders).encode() + b"\n")
        ours.setblocking(False)
        loop.add_reader(ours, self._read)
        self._log = threading.Thread(target=self._relay, name="log", daemon=True)
        self._log.start()
        threading.Thread(target=self._wait, name="worker", daemon=True).start()

    async def end(self) -> None:
        """Have it end within its grace, or kill it."""
        self.signal(signal.SIGTERM)
        seconds = 3 * self.told.get("grace", _GRACE) + _MARGIN
        await asyncio.wait([self.exited], timeout=seconds)
        if not self.exited.done():
            log.warning("worker_killed", process=self.pid, seconds=seconds)
            self.signal(signal.SIGKILL)
            await asyncio.wait([self.exited])

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal; from any thread."""
        with contextlib.suppress(ProcessLookupError):
            self.popen.send_signal(number)

    def _read(self) -> None:
        chunk = b""
        with contextlib.suppress(OSError):
            chunk = self._socket.recv(1 << 16)
        if not chunk:
            self._loop.remove_reader(self._socket)
            self._socket.close()
            return
        *lines, self._unread = (self._unread + chunk).split(b"\n")
        for line in lines:
            said = json.loads(line)
            if "leaving" in said:
                self.left.set_result(said["leaving"])
            else:
                self.told = said
                self.ready.set_result(True)

    def _relay(self) -> None:
        """Write its log to this process's in whole lines, in a thread. Lines that are no JSON get its process id."""
        assert self.popen.stderr is not None
        rest = b""
        with self.popen.stderr as stream:
            while chunk := os.read(stream.fileno(), 1 << 16):
                *lines, rest = (rest + chunk).split(b"\n")
                if len(rest) > _LONGEST_LINE:  # a bar of progress for instance, which goes on for days
                    lines, rest = [*lines, rest], b""
                self._print(lines)
            self._print([rest] if rest else [])

    def _print(self, lines: Iterable[bytes]) -> None:
        """Have the loop's thread write lines, so that they stand between this process's own, and wait for that."""
        begin = f"[{self.pid}] "
        text = "".join(f"{'' if line[:1] == b'{' else begin}{line.decode(errors='replace')}\n" for line in lines)
        written = threading.Event()

        def write() -> None:
            with contextlib.suppress(OSError, ValueError):  # nobody reads it any more, or the disk is full
                _write(text)
            written.set()

        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(write)
            written.wait()

    def _wait(self) -> None:
        """Wait in a thread for the process's end, and for the rest of its log."""
        code = self.popen.wait()
        self._log.join(_LAST_LINES)
        with contextlib.suppress(RuntimeError):  # the loop is gone
            self._loop.call_soon_threadsafe(self._ended, code)

    def _ended(self, code: int) -> None:
        self.exited.set_result(code)
        if not self.ready.done():
            self.ready.set_result(False)
        if not self.left.done():
            self.left.set_result("")


def _write(text: str) -> None:
    """Write text to stderr, all of it: where Python does not buffer, a signal would cut it."""
    sys.stderr.flush()
    data = text.encode(errors="backslashreplace")
    while data:
        data = data[os.write(sys.stderr.fileno(), data) :]


def _times(directory: Path) -> dict[str, int]:
    """Return the time of the last change of each Python file."""
    times: dict[str, int] = {}
    for path in _python_files(directory):
        with contextlib.suppress(OSError):
            found = os.stat(path)
            if stat.S_ISREG(found.st_mode):
                times[path] = found.st_mtime_ns
    return times


def _python_files(directory: Path) -> Iterator[str]:
    for folder, folders, files in os.walk(directory):
        if "pyvenv.cfg" in files:
            folders.clear()
            continue
        folders[:] = [each for each in folders if not each.startswith((".", "__pycache__", "node_modules"))]
        yield from (os.path.join(folder, file) for file in files if file.endswith(".py"))


def _fault(path: str) -> str | None:
    """Return the error of a file that cannot be compiled."""
    try:
        compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
    except FileNotFoundError:
        return None
    except Exception as error:  # also RecursionError and MemoryError: an expression that is nested too deeply
        reason = getattr(error, "msg", None) or str(error) or type(error).__name__
        return f"{path}:{getattr(error, 'lineno', None) or 1}: {reason}"
    return None
