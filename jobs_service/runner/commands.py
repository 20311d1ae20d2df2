"""Command jobs: they run a program with arguments, never through a shell.

A worker runs them only if its program enables them: they let every client that can add jobs to the store run any
program as the worker's user.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import IO, Any, Final, Self

import anyio

from jobs_service.arguments import check_duration
from jobs_service.durations import Bounds
from jobs_service.errors import InvalidJob, in_one_line, kind_of, shown
from jobs_service.model import JobType
from jobs_service.model.process import MOST_KEPT, CommandFailed, CommandResult
from jobs_service.runner.handler import Handler
from jobs_service.runner.options import HandlerOptions
from jobs_service.runner.process_pool import signal_name
from jobs_service.uncancelable import outlast

__all__ = [
    "COMMAND_TYPE",
    "MOST_KEPT",
    "Command",
    "CommandFailed",
    "CommandResult",
    "command_handler",
    "kill_all",
    "run_command",
]

COMMAND_TYPE: Final[JobType] = "command"

_TIME_LIMITS: Final = Bounds(above=True)
"""Greatest `time_limit` in seconds: thirty years."""

_DEFAULTS: Final[Mapping[str, Any]] = {"argv": None, "cwd": None, "env": None, "time_limit": None, "stdin": None}
_FIELDS: Final = "argv (a list of strings), and may be cwd, env, time_limit, stdin"

_CHUNK: Final = 1 << 16
"""Bytes per read or write: the capacity of a pipe."""

_MOST_LEFT: Final = 1 << 20
"""Most bytes read after the group is gone: the greatest size of a pipe. A process that has left the group may write for
ever.
"""

_DYING: Final = 1.0
"""Seconds that the last processes of a group have to disappear after SIGKILL."""

_LONGEST_PAUSE: Final = 0.1
"""Most seconds between two checks for an empty group."""

_groups: Final[set[int]] = set()
"""The process groups of the running commands."""


# The data of a command job, checked


@dataclass(frozen=True, slots=True)
class Command:
    """The program that a command job runs.

    Attributes:
        argv: the program (a path, or a name that is looked up in PATH) and its arguments.
        cwd: the directory to run in; None for the worker's own.
        env: variables that are added to the worker's environment.
        time_limit: greatest duration of a run, kept in seconds; None for no limit.
        stdin: its standard input; None for none (/dev/null).

    Raises:
        InvalidJob: a field is invalid; the message names the field, its value and the allowed values.
    """

    argv: tuple[str, ...]
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict, hash=False)
    time_limit: float | None = None
    stdin: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "argv", _checked_argv(self.argv))
        object.__setattr__(self, "env", _checked_env(self.env))
        if self.cwd is not None:
            _check_text("cwd", self.cwd, least=1)
        if self.stdin is not None:
            _check_text("stdin", self.stdin, nul=True)
        if self.time_limit is not None:
            checked = check_duration("a command's time_limit", self.time_limit, _TIME_LIMITS)
            object.__setattr__(self, "time_limit", checked)

    @classmethod
    def from_data(cls, data: object) -> Self:
        """Return the command that a job's data describes: an object with argv and optionally the other fields.

        Raises:
            InvalidJob: as above; also when the data is no object, or has an unknown field.
        """
        if not isinstance(data, Mapping):
            raise InvalidJob(f"a command's data is {shown(data)}: allowed is an object with {_FIELDS}")
        for name in data:
            if name not in _DEFAULTS:
                raise InvalidJob(f"a command has no field {shown(name)}: allowed are {_FIELDS}")
        return cls(**{name: data.get(name, default) for name, default in _DEFAULTS.items()})

    def to_data(self) -> dict[str, Any]:
        """Return the data of a job that runs this command, without empty fields."""
        fields = {"cwd": self.cwd, "env": dict(self.env) or None, "time_limit": self.time_limit, "stdin": self.stdin}
        return {"argv": list(self.argv)} | {name: value for name, value in fields.items() if value is not None}


def _checked_argv(value: object) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not value:
        raise _refusal("argv", value, "a list of at least one string: the program and its arguments")
    for place, argument in enumerate(value):
        _check_text(f"argv[{place}]", argument, least=0 if place else 1)
    return tuple(value)


def _checked_env(value: object) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _refusal("env", value, "an object of strings")
    for name, text in value.items():
        if not isinstance(name, str) or "=" in name:
            raise _refusal("name in env", name, "a string without =")
        _check_text("name in env", name, least=1)
        _check_text(f"env[{shown(name)}]", text)
    return dict(value)


def _check_text(what: str, value: object, *, least: int = 0, nul: bool = False) -> None:
    allowed = "a string" if not least else "a string that is not empty"
    if not isinstance(value, str):
        raise _refusal(what, value, f"{allowed}, not {kind_of(value)}")
    if len(value) < least:
        raise _refusal(what, value, allowed)
    if not nul and "\0" in value:
        raise _refusal(what, value, f"{allowed} without NUL characters")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _refusal(what, value, f"{allowed} without lone surrogates") from None


def _refusal(what: str, value: object, allowed: str) -> InvalidJob:
    return InvalidJob(f"a command's {what}={shown(value)}: allowed is {allowed}")


# Processes


async def run_command(command: Command, *, capture: int = 64_000, grace: float) -> CommandResult:
    """Run a command to its end, and end its remaining processes.

    Children that still hold its output when it has exited get `grace` seconds to end by themselves. After that, and at
    once on cancellation or overtime, the remaining processes of its group get SIGTERM, and SIGKILL after another
    `grace` seconds. A process that has left the group (a daemon) is left alone. A canceled caller waits for that end;
    canceling again does not shorten it.

    Args:
        command: the command.
        capture: bytes that are kept of the end of each output.
        grace: seconds, see above.

    Raises:
        CommandFailed: it could not be started, ran longer than its time limit or did not exit with 0.
    """
    process = _Process(command, capture)
    try:
        in_time = await process.ran(command.time_limit, grace)
    finally:
        await process.end(grace)
    result = process.result()
    if in_time and result.exit_code == 0:
        return result
    raise CommandFailed(_complaint(command, result, in_time), result=result)


def kill_all() -> None:
    """Kill all running commands, from any thread: for a process that ends at once, because their jobs run again."""
    for group in [*_groups]:
        _signal_group(group, signal.SIGKILL)


class _Process:
    """A started command: its process group, and this side of its pipes. The caller must call `end`.

    Callbacks of the loop drive everything: with a task, a cancellation could come between the start of a process and
    the code that must end it.
    """

    def __init__(self, command: Command, capture: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._exited: asyncio.Future[None] = self._loop.create_future()
        self._silent: asyncio.Future[None] = self._loop.create_future()
        self._stdout, self._stderr = _Tail(capture), _Tail(capture)
        self._outputs: dict[IO[bytes], _Tail] = {}
        self._input = memoryview((command.stdin or "").encode())
        self._exit_code: int | None = None
        self._pidfd: int | None = None
        self._thread: threading.Thread | None = None
        self._began = self._loop.time()
        self._seconds = 0.0
        self._popen = _start(command)
        self._group = self._popen.pid
        _groups.add(self._group)
        try:
            self._attach()
            self._await_exit()
        except BaseException:
            self._signal(signal.SIGKILL)
            self._reap()
            self._close()
            raise

    async def ran(self, time_limit: float | None, grace: float) -> bool:
        """Wait for the command's exit and the end of its output; return whether it exited in time."""
        await asyncio.wait([self._exited], timeout=time_limit)
        if not self._exited.done():
            return False
        left = grace if time_limit is None else min(grace, self._began + time_limit - self._loop.time())
        await asyncio.wait([self._silent], timeout=max(left, 0))
        return True

    async def end(self, grace: float) -> None:
        """End the group's remaining processes, and close everything; raise a cancellation only after that."""
        patience = _Patience()
        try:
            with anyio.CancelScope(shield=True):
                # A command that has exited but is not reaped keeps the group's number: the signal can hit no stranger.
                self._signal(signal.SIGTERM)
                if not await self._gone(patience, grace):
                    self._signal(signal.SIGKILL)
                    await patience.wait(self._exited)
                    await self._gone(patience, _DYING)
        finally:
            self._close()
        patience.end()

    def result(self) -> CommandResult:
        """Return the command's exit status, output and duration."""
        code = self._exit_code
        return CommandResult(
            exit_code=code if code is not None and code >= 0 else None,
            signal=signal_name(-code) if code is not None and code < 0 else None,
            stdout=self._stdout.text(),
            stderr=self._stderr.text(),
            cut=self._stdout.cut or self._stderr.cut,
            seconds=round(self._seconds, 6),
        )

    def _attach(self) -> None:
        for pipe, tail in ((self._popen.stdout, self._stdout), (self._popen.stderr, self._stderr)):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
                self._outputs[pipe] = tail
                self._loop.add_reader(pipe.fileno(), self._read, pipe)
        if self._popen.stdin is not None:
            os.set_blocking(self._popen.stdin.fileno(), False)
            self._loop.add_writer(self._popen.stdin.fileno(), self._feed, self._popen.stdin)

    def _read(self, pipe: IO[bytes]) -> bool:
        """Read the next bytes of an output; return whether more may follow."""
        try:
            chunk = os.read(pipe.fileno(), _CHUNK)
        except BlockingIOError:
            return False
        if chunk:
            self._outputs[pipe].add(chunk)
            return True
        self._close_output(pipe)
        return False

    def _close_output(self, pipe: IO[bytes]) -> None:
        self._loop.remove_reader(pipe.fileno())
        del self._outputs[pipe]
        pipe.close()
        if not self._outputs and not self._silent.done():
            self._silent.set_result(None)

    def _feed(self, pipe: IO[bytes]) -> None:
        """Write the next bytes of the input; close it after the last, and when the command has closed its end."""
        try:
            self._input = self._input[os.write(pipe.fileno(), self._input[:_CHUNK]) :]
        except BlockingIOError:
            return
        except OSError:
            self._input = self._input[:0]
        if not self._input:
            self._close_input(pipe)

    def _close_input(self, pipe: IO[bytes]) -> None:
        if not pipe.closed:
            self._loop.remove_writer(pipe.fileno())
            pipe.close()

    def _await_exit(self) -> None:
        """Arrange a call of `_has_exited` at the command's exit."""
        try:
            self._pidfd = os.pidfd_open(self._group)
        except (AttributeError, OSError):  # macOS, and kernels before 5.3
            self._thread = threading.Thread(
                target=self._await_exit_in_thread, name=f"command {self._group}", daemon=True
            )
            self._thread.start()
        else:
            self._loop.add_reader(self._pidfd, self._has_exited)

    def _await_exit_in_thread(self) -> None:
        if hasattr(os, "waitid"):
            # The command is not reaped here: until it is, its number cannot belong to another group, which would get
            # the signals that are meant for this one.
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, self._group, os.WEXITED | os.WNOWAIT)
        else:  # macOS with Python before 3.13
            self._reap()
        self._loop.call_soon_threadsafe(self._has_exited)

    def _has_exited(self) -> None:
        self._seconds = self._loop.time() - self._began
        self._close_pidfd()
        self._exited.set_result(None)

    def _close_pidfd(self) -> None:
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None

    def _signal(self, number: signal.Signals) -> None:
        _signal_group(self._group, number)

    async def _gone(self, patience: _Patience, seconds: float) -> bool:
        """Wait until the command is reaped and its group empty; return whether that happened within so many seconds."""
        deadline = self._loop.time() + seconds
        if not await patience.wait(self._exited, seconds):
            return False
        self._reap()
        pause = 0.001
        while self._has_members():  # there is no event for a group that becomes empty
            left = deadline - self._loop.time()
            if left <= 0:
                return False
            await patience.pause(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE)
        return True

    def _reap(self) -> None:
        if self._popen.returncode is None:
            with contextlib.suppress(ChildProcessError):  # SIGCHLD is ignored, or somebody else waits for all children
                self._exit_code = os.waitstatus_to_exitcode(os.waitpid(self._group, 0)[1])
            self._popen.returncode = self._exit_code or 0  # without it, Popen warns that nobody waited

    def _has_members(self) -> bool:
        """Whether the group of the reaped command has members that can be ended; they keep its number taken."""
        with contextlib.suppress(ChildProcessError):
            # Where this is process 1 of a container, or a subreaper, orphans are its children, and it must reap them.
            while os.waitpid(-self._group, os.WNOHANG)[0]:
                pass
        try:
            os.killpg(self._group, 0)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def _close(self) -> None:
        """Read the pipes' remaining bytes, and close them."""
        _groups.discard(self._group)
        for pipe in list(self._outputs):
            for _ in range(_MOST_LEFT // _CHUNK):
                if not self._read(pipe):
                    break
            if pipe in self._outputs:
                self._close_output(pipe)
        if self._popen.stdin is not None:
            self._close_input(self._popen.stdin)
        self._close_pidfd()
        if self._thread is not None and self._thread.ident is not None:
            self._thread.join()


class _Patience:
    """Waits that a cancellation does not shorten: it is remembered, and raised at the end."""

    def __init__(self) -> None:
        self._canceled: asyncio.CancelledError | None = None

    async def wait(self, future: asyncio.Future[None], seconds: float = math.inf) -> bool:
        """Return whether the future is done within so many seconds."""
        canceled = await outlast([future], seconds)
        self._canceled = self._canceled or canceled
        return future.done()

    async def pause(self, seconds: float) -> None:
        await self.wait(asyncio.get_running_loop().create_future(), seconds)

    def end(self) -> None:
        """Raise the cancellation that came during the waits, if there was one."""
        if self._canceled is not None:
            raise self._canceled


class _Tail:
    """The last bytes of an output."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._bytes = bytearray()
        self.cut = False

    def add(self, chunk: bytes) -> None:
        """Take the next bytes; cut only at twice the limit, because each cut copies the kept bytes."""
        self._bytes += chunk
        if len(self._bytes) > self._most:
            self.cut = True
            if len(self._bytes) > 2 * self._most:
                del self._bytes[: len(self._bytes) - self._most]

    def text(self) -> str:
        """Return the bytes decoded, without the rest of a character that was cut in two."""
        kept = bytes(self._bytes[max(len(self._bytes) - self._most, 0) :])
        if self.cut:
            begun = next((at for at, byte in enumerate(kept[:4]) if byte & 0xC0 != 0x80), 0)
            kept = kept[begun:]
        return kept.decode(errors="replace")


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _start(command: Command) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command.argv,
            cwd=command.cwd,
            env={**os.environ, **command.env},
            stdin=subprocess.DEVNULL if command.stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        why = getattr(error, "strerror", None) or str(error)
        if command.cwd is not None and getattr(error, "filename", None) == command.cwd:
            why = f"cwd={shown(command.cwd)}: {why}"
        raise CommandFailed(f"command {shown(command.argv[0])} cannot be started: {in_one_line(why, 120)}") from None


def _complaint(command: Command, result: CommandResult, in_time: bool) -> str:
    if not in_time:
        how = f"ran longer than its time_limit of {command.time_limit:g} s and was ended"
    elif result.signal is not None:
        how = f"was ended by {result.signal}"
    elif result.exit_code is not None:
        how = f"ended with exit code {result.exit_code}"
    else:
        how = "ended, but its exit code was taken by somebody else in this process, or SIGCHLD is ignored"
    last = result.stderr.strip().rpartition("\n")[2]
    return f"command {shown(command.argv[0])} {how}" + (f": {in_one_line(last, 120)}" if last else "")


# The handler


def command_handler(options: HandlerOptions) -> Handler[Any, Any]:
    """Return the handler of command jobs.

    Args:
        options: the handler's options; their grace is also the time between SIGTERM and SIGKILL.
    """
    # `run_command` may take the grace twice: for children that hold the output, and between SIGTERM and SIGKILL. The
    # runner must not give up the job before that, and nothing is left to wait for after it.
    patient = replace(options, grace=2 * options.grace + 1)

    async def run(args: Any) -> Any:
        result = await run_command(Command.from_data(args), grace=options.grace)
        return result.within(MOST_KEPT).to_data()

    return Handler(COMMAND_TYPE, run, patient, kind="command")
