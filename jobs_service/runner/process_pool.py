"""The processes in which isolated handlers run their jobs, as the runner sees them: warm, one job at a time each.

A program of its own, the nursery (`pool_process.py`), is their parent. It forks them, tells how each has ended, and
kills them, with their children, when this program is gone, however that ended. The module also has the command of
such a program, for all that this package starts, and the words for the ends of processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from jobs_service.errors import InvalidJob, InvalidSettings, JobsError, in_one_line
from jobs_service.model import JobError, RunningJob
from jobs_service.runner.functions import in_thread, refused
from jobs_service.runner.handler import Handler
from jobs_service.runner.pool_process import ENDED, FORK, KILL, NO_CODE, SIZE, THREADED, UNIT, Orders, frame, parts
from jobs_service.runner.run import Run, StopReason, standing_for
from jobs_service.uncancelable import outlast, own_task

_CLOSING: Final = 1.0
"""Seconds in which a process that has closed its connection may end by itself, and so tell how."""

_ENDING: Final = 10.0
"""Seconds that the nursery has to end; it needs milliseconds."""

_MOST_OF_A_CRASH: Final = 3000
_FAULTS: Final = (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGKILL)
_HINTS: Final = {
    -signal.SIGSEGV: ": a segmentation fault, of code that is not Python",
    -signal.SIGABRT: ": code that is not Python has given up",
    -signal.SIGKILL: ", not by the runner: the system does so when memory runs out",
}


class ProcessPool:
    """Runs jobs of isolated handlers, each in a process that runs no other job meanwhile.

    Args:
        handlers: the isolated handlers.
        setup: called first in the nursery; it can be pickled. None for nothing.

    Raises:
        InvalidSettings: the function of a handler cannot be imported by its name.
    """

    def __init__(self, handlers: Sequence[Handler[Any, Any]], setup: Callable[[], object] | None) -> None:
        places = [(handler.type, *_place_of(handler)) for handler in handlers]
        self._numbers = {handler.packed: number for number, handler in enumerate(handlers)}
        self._orders = Orders([], places, pickle.dumps(setup), preload=sys.platform != "darwin")
        self._idle: list[_Process] = []
        self._nursery: _Nursery | None = None
        self._starting: asyncio.Task[_Nursery] | None = None

    def start(self) -> None:
        """Start the nursery, unless it runs, so that the first job need not wait for it."""
        if self._starting is None or (self._starting.done() and (self._nursery is None or self._nursery.is_gone)):
            self._starting = own_task(self._start(), name="nursery")

    async def call(self, handler: Handler[Any, Any], run: Run) -> tuple[bytes, bool]:
        """Run a job's function in a process.

        A cancellation with a message asks the function to stop. A second one kills its process and the children of
        that; overtime, and a cancellation without a message, do so at once.

        Returns:
            Its encoded result, empty for None; and whether the function has seen that it was to stop.

        Raises:
            CancelledError: it was killed, or canceled before it began.
            JobsError, Exception: the error of the function, or of a process that has ended.
        """
        process = await self._taken()
        if run.limit is not None:
            run.limit()
        run.announce = process.announce
        try:
            job = self._numbers[handler.packed], *parts(run.job), handler.options.memory_limit
            return await process.run(run, job)
        finally:
            run.announce = None
            if process.is_fit:
                self._idle.append(process)
            else:
                process.kill()

    async def close(self) -> None:
        """Kill all processes and their children, and end the nursery."""
        if self._starting is not None:
            self._starting.cancel()
            await outlast([self._starting])
        if self._nursery is not None:
            await self._nursery.end()

    async def _taken(self) -> _Process:
        while self._idle:
            if (process := self._idle.pop()).is_fit:
                return process
        self.start()
        assert self._starting is not None
        nursery = await asyncio.shield(self._starting)
        return await nursery.begin()

    async def _start(self) -> _Nursery:
        orders = self._orders._replace(path=[*sys.path])
        if self._nursery is not None:
            await self._nursery.end()
        self._nursery = _Nursery(orders)
        code = await self._nursery.started()
        if code == THREADED and orders.preload:
            # The application has started threads as it was imported, and a fork would copy none of them.
            self._orders = self._orders._replace(preload=False)
            return await self._start()
        if code is not None:
            raise JobsError(f"no process can be started for isolated handlers: the first one {ended_how(code)}")
        return self._nursery


def _place_of(handler: Handler[Any, Any]) -> tuple[str, str]:
    """Return the module and the name of a handler's function, by which another process finds it."""
    function = handler.function
    name = getattr(function, "__qualname__", "")
    found: Any = sys.modules.get(getattr(function, "__module__", ""))
    module = found
    for part in name.split("."):
        found = getattr(found, part, None)
    if module is None or (found.function if isinstance(found, Handler) else found) is not function:
        raise refused(function, "isolated=True: its process finds it by its name, and that is no function of a module")
    try:
        return module_name(module), name
    except InvalidSettings as error:
        raise refused(function, f"isolated=True: {error}") from None


class _Nursery:
    """The program that forks the processes, and this end of its socket.

    Attributes:
        is_gone: whether it has ended.
    """

    def __init__(self, orders: Orders) -> None:
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[bool] = self._loop.create_future()
        self._processes: dict[int, _Process] = {}
        self._number = 0
        self._unread = b""
        self.is_gone = False
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._popen = subprocess.Popen(
                python("jobs_service.runner.pool_process:main", theirs.fileno()),
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._socket.sendall(frame(orders))
        self._socket.setblocking(False)
        self._loop.add_reader(self._socket, self._read)

    async def started(self) -> int | None:
        """Wait until it can fork; return its exit code if it has ended instead."""
        return None if await self._ready else await self._exit_code()

    async def begin(self) -> _Process:
        """Begin another process, and wait until it can run jobs or has ended."""
        self._number = number = self._number + 1  # others begin while this one's connection is made
        process = self._processes[number] = _Process(partial(self._send, KILL, number))
        ours, theirs = socket.socketpair()
        with theirs:
            await self._loop.create_unix_connection(lambda: process, sock=ours)
            self._send(FORK, number, theirs.fileno(), process.crash.fileno())
        try:
            await asyncio.shield(process.answer)
        except asyncio.CancelledError:
            process.kill()
            raise
        return process

    async def end(self) -> None:
        """Have it kill all processes, and wait for its end."""
        if not self._ready.done():
            self._popen.kill()  # it has no processes yet, and may import the application for long
        self._lose()
        await self._exit_code()

    async def _exit_code(self) -> int:
        def wait() -> int:
            try:
                return self._popen.wait(_ENDING)
            except subprocess.TimeoutExpired:
                self._popen.kill()
                return self._popen.wait()

        code: int = await in_thread(wait, lambda: None)
        return code

    def _send(self, kind: bytes, number: int, *descriptors: int) -> None:
        with contextlib.suppress(OSError):  # it is gone, and `_read` learns of it
            socket.send_fds(self._socket, [UNIT.pack(kind, number, 0)], descriptors)

    def _read(self) -> None:
        try:
            chunk = self._socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk:
            self._lose()
            return
        self._unread += chunk
        while len(self._unread) >= UNIT.size:
            kind, number, value = UNIT.unpack_from(self._unread)
            self._unread = self._unread[UNIT.size :]
            if kind == ENDED:
                self._processes.pop(number).ended(value)
            elif not self._ready.done():
                self._ready.set_result(True)

    def _lose(self) -> None:
        if self.is_gone:
            return
        self.is_gone = True
        self._loop.remove_reader(self._socket)
        self._socket.close()
        if not self._ready.done():
            self._ready.set_result(False)
        for process in self._processes.values():
            process.ended(NO_CODE)


class _Process(asyncio.Protocol):
    """One process, and this end of its connection.

    Args:
        kill: kills it and its group.

    Attributes:
        answer: its next message; at first, that it is ready.
        crash: the file into which Python writes where it stood when a signal such as SIGSEGV ended it.
        is_fit: whether it may run another job.
    """

    def __init__(self, kill: Callable[[], None]) -> None:
        self.crash = tempfile.TemporaryFile()  # noqa: SIM115 - closed as the process has ended
        self.is_fit = True
        self._kill = kill
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.WriteTransport | None = None
        self._unread = bytearray()
        self.answer: asyncio.Future[tuple[Any, ...]] = self._loop.create_future()
        self._asking: set[asyncio.Task[None]] = set()
        self._is_killed = self._has_closed = False
        self._stood = ""
        self._closing: asyncio.TimerHandle | None = None

    # The job

    async def run(self, run: Run, job: tuple[Any, ...]) -> tuple[bytes, bool]:
        """Run a job's function; see ProcessPool.call."""
        self.answer = answer = self._loop.create_future()
        self._operate = partial(self._do, run.job)
        self._send("run", *job)
        if not self.is_fit:
            answer.set_result(("ended", NO_CODE))
        is_asked = False
        while not answer.done():
            try:
                await asyncio.shield(answer)
            except asyncio.CancelledError as cancellation:
                if is_asked or not cancellation.args or run.stop_reason is StopReason.OVERTIME:
                    self.kill()
                else:
                    self._send("stop")
                is_asked = True
                if not cancellation.args:
                    raise
        if self._asking:
            await outlast(self._asking)
        kind, *said = answer.result()
        if kind == "ended":
            if self._is_killed:
                raise asyncio.CancelledError(run.stop_reason)
            raise standing_for(JobsError(""), self._death(said[0], job[-1]))
        first, second, self.is_fit = said
        if kind == "raised":
            raise standing_for(first, second)
        return first, second

    def announce(self) -> None:
        """Tell the function that it must return soon."""
        self._send("announce")

    async def _do(self, job: RunningJob, name: str, arguments: tuple[Any, ...]) -> None:
        """Do an operation of the function on its job, and send the answer."""
        try:
            done = parts(await getattr(job._service(), name)(job, *arguments))
            self._send("answer", None, *done)
        except Exception as error:
            try:
                self._send("answer", error)
            except Exception:  # an application's exception, in the text of a store's for instance
                self._send("answer", JobsError(in_one_line(str(error), 200)))

    def _death(self, code: int, memory: int | None) -> JobError:
        """Return the error of a run whose process has ended."""
        if code == NO_CODE:
            return JobError("ProcessDied", "no process could be started, or the program that starts them has ended", "")
        hint = _HINTS.get(code, "" if code < 0 else " before its function returned")
        message = f"its process {ended_how(code)}{hint}"
        if self._has_closed:
            message = "its process closed its connection to the runner, and was killed"
        elif memory is not None and code in _FAULTS:
            message += f"; perhaps it needed more than its memory_limit of {memory} bytes"
        return JobError("ProcessDied", message, self._stood)

    # The process

    def kill(self) -> None:
        """Kill the process and its group."""
        self.is_fit = False
        self._is_killed = True
        self._kill()

    def ended(self, code: int) -> None:
        """Note its exit code."""
        self.is_fit = False
        with self.crash:
            self.crash.seek(0)
            self._stood = self.crash.read(_MOST_OF_A_CRASH).decode(errors="replace")
        if self._closing is not None:
            self._closing.cancel()
        if not self.answer.done():
            self.answer.set_result(("ended", code))
        if self._transport is not None:
            self._transport.close()

    # The connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._unread += data
        while len(self._unread) >= SIZE.size:
            [size] = SIZE.unpack_from(self._unread)
            end = SIZE.size + size
            if len(self._unread) < end:
                return
            body = self._unread[SIZE.size : end]
            del self._unread[:end]
            try:
                message = pickle.loads(body)
            except Exception as error:  # an application's object, in an operation of its function
                reason = in_one_line(f"{type(error).__name__}: {error}", 200)
                self._send("answer", InvalidJob(f"a value that cannot be read in another process: {reason}"))
                continue
            if message[0] == "ask":
                task = own_task(self._operate(*message[1:]))
                self._asking.add(task)
                task.add_done_callback(self._asking.discard)
            elif not self.answer.done():
                self.answer.set_result(message)

    def connection_lost(self, error: Exception | None) -> None:
        if self.is_fit:
            # It is about to tell by its end why, unless it has closed its end itself.
            self.is_fit = False
            self._closing = self._loop.call_later(_CLOSING, self._closed)

    def _closed(self) -> None:
        self._has_closed = True
        self._kill()

    def _send(self, *message: Any) -> None:
        assert self._transport is not None
        data = frame(message)
        if not self._transport.is_closing():
            self._transport.write(data)


# Python processes of this package


def python(entry: str, descriptor: int) -> list[str]:
    """Return the command of a Python process that calls a function of this package.

    Args:
        entry: module and name of the function, as "module:function".
        descriptor: its argument: an inherited file descriptor.
    """
    module, _, function = entry.partition(":")
    root = str(Path(__file__).parents[2])
    code = f"import sys; sys.path.insert(0, {root!r}); from {module} import {function}; {function}({descriptor})"
    return [sys.executable, "-P", "-c", code]


def ended_how(code: int) -> str:
    """Return the words for a process's exit code, which is negative for a signal."""
    return f"was ended by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"


def signal_name(number: int) -> str:
    """Return the name of a signal."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def module_name(module: types.ModuleType) -> str:
    """Return the name by which another process imports a module; of the program itself, the name of its file.

    Raises:
        InvalidSettings: the program is no file that can be imported.
    """
    if module.__name__ != "__main__":
        return module.__name__
    if (spec := getattr(module, "__spec__", None)) is not None:
        return str(spec.name)
    file = Path(getattr(module, "__file__", None) or "")
    if file.suffix != ".py":
        raise InvalidSettings("the program has no file whose name ends with .py, which another process could import")
    return file.stem
